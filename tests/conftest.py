"""For all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")

# They start Spark applications as processes, and share no session.
APPLICATIONS = {f"tests/spark/{name}.py"
                for name in ("pipeline/test_run", "sink/test_kills", "test_cluster", "test_examples")}
# They need no session: what its tasks do is called by the tests themselves.
TASKS = {f"tests/spark/{name}.py" for name in ("sink/test_at_least_once", "sink/test_exactly_once", "test_options")}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, everything under tests/spark is one file: it shares one Spark session. What starts Spark
    applications of its own is another: while these wait for each other the session goes on."""
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
