"""For all tests."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import settings

# The duration of an example depends on the machine more than on the code.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")

# Files whose tests start Spark applications as processes instead of sharing the session.
APPLICATIONS = {
    f"tests/spark/{name}.py" for name in ("pipeline/test_run", "sink/test_kills", "test_cluster", "test_examples")
}
# Files whose tests need no session: they call the code of tasks directly.
TASKS = {f"tests/spark/{name}.py" for name in ("sink/test_at_least_once", "sink/test_exactly_once", "test_options")}
# Folders whose tests take longest, first. They start in this order, before all others, so that short tests fill the end of
# a run in several processes.
LONGEST = ("spark", "faults", "interop", "conformance", "client", "cli", "packaging", "docs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by their folders."""

    def rank(item: pytest.Item) -> int:
        folder = item.nodeid.split("/")[1]
        return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Keep what is collected out of the garbage collector's passes: many tests collect, and the whole suite is large."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, treat tests/spark as two files: tests that share a Spark session, and Spark applications.

    The two run in parallel, since applications mostly wait for their processes. Needs `--no-loadscope-reorder` to keep the
    order of the files.
    """
    from xdist.scheduler.loadfile import LoadFileScheduling

    if config.getvalue("dist") != "loadfile":
        return None

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if not nodeid.startswith("tests/spark/") or file in TASKS:
                scope: str = super()._split_scope(nodeid)
                return scope
            return "tests/spark, applications" if file in APPLICATIONS else "tests/spark"

    return Scheduling(config, log)
