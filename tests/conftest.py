"""For all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from typing import Any

import pika.connection
import pytest
from hypothesis import settings

from tests.support.broker import CONNECT_TIMEOUT

# The duration of an example depends on the machine more than on the code.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")

# A connection of pika may take longer than 15 seconds on a busy machine.
pika.connection.Parameters.DEFAULT_SOCKET_TIMEOUT = CONNECT_TIMEOUT
pika.connection.Parameters.DEFAULT_STACK_TIMEOUT = CONNECT_TIMEOUT

# The broker processes of tests, except those of its HTTP API, run without it: it takes half a second of CPU time.
os.environ.setdefault("LEVERET_MANAGEMENT__ENABLED", "false")

# Files whose tests start Spark applications as processes instead of sharing the session.
APPLICATIONS = {
    f"tests/spark/{name}.py" for name in ("pipeline/test_run", "sink/test_kills", "test_cluster", "test_examples")
}
# Files whose tests need no session: they call the code of tasks directly.
TASKS = {f"tests/spark/{name}.py" for name in ("sink/test_at_least_once", "sink/test_exactly_once", "test_options")}
# Folders whose tests take longest, first. They start in this order, before all others, so that short tests fill the end of
# a run in several processes.
LONGEST = (
    "management/tools",
    "spark",
    "management/console",
    "packaging",
    "cli",
    "interop",
    "faults",
    "client",
    "management",
    "conformance",
    "docs",
)


# Folders whose tests have a marker of the same name.
MARKED = ("faults", "interop")
# Markers of tests that say something about one kind of broker, and whether the tests run over another one.
ELSEWHERE = {
    "embedded": os.environ.get("LEVERET_TEST_STORE") == "postgresql",
    "one_process": "LEVERET_TEST_SHARDS" in os.environ,
}
# A parameter of tests that also run against this peer. Those are slow: the same tests against Leveret are not.
PEER = "rabbitmq"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker of pytest-xdist begin with other folders, so that a file is compiled once and not by all workers."""
    report = yield
    if collector.nodeid == "tests" and report.result:
        share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) / int(
            os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
        )
        first = int(len(report.result) * share)
        report.result = report.result[first:] + report.result[:first]
    return report


# Before pytest itself, whose order of tests with parametrized fixtures depends on the order that it finds.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark or skip tests by their folders, peers and markers, and sort all by their folders and files."""

    def rank(item: pytest.Item) -> tuple[int, str]:
        file = item.nodeid.partition("::")[0]
        found = (place for place, folder in enumerate(LONGEST) if file.startswith(f"tests/{folder}/"))
        return next(found, len(LONGEST)), file

    for item in items:
        folder = item.nodeid.split("/")[1]
        if folder in MARKED:
            item.add_marker(folder)
        callspec = getattr(item, "callspec", None)
        if callspec is not None and PEER in callspec.params.values():
            item.add_marker("slow")
        for name, is_elsewhere in ELSEWHERE.items():
            marker = item.get_closest_marker(name)
            if is_elsewhere and marker is not None:
                item.add_marker(pytest.mark.skip(reason=f"{name}: {marker.args[0]}"))
    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Keep what is collected out of the garbage collector's passes: many tests collect, and the whole suite is large."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze again behind a file whose tests unfreeze, such as those that run a broker in this process."""
    if nextitem is not None and nextitem.path != item.path and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, treat some files as one, so that their tests run in one process.

    The tests of tests/spark share a Spark session, except Spark applications, which run in parallel because they mostly
    wait for their processes. The client's tests against RabbitMQ share a node for each folder: its start takes 5 seconds of
    CPU time. Needs `--no-loadscope-reorder` to keep the order of the files.
    """
    from xdist.scheduler.loadfile import LoadFileScheduling

    if config.getvalue("dist") != "loadfile":
        return None

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file, _, name = nodeid.partition("::")
            if nodeid.startswith("tests/spark/") and file not in TASKS:
                return "tests/spark, applications" if file in APPLICATIONS else "tests/spark"
            if nodeid.startswith("tests/client/") and f"[{PEER}" in name:
                return f"{os.path.dirname(file)}, {PEER}"
            scope: str = super()._split_scope(nodeid)
            return scope

    return Scheduling(config, log)
