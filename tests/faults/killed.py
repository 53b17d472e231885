"""A broker for tests that kill it with SIGKILL and restart it on the same port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import LeveretProcess, basic_config, leveret_only


@pytest.fixture
def configuration() -> str:
    """The broker's configuration; a module that needs another one overrides this fixture."""
    return basic_config()


@pytest.fixture
def process(tmp_path: Path, configuration: str) -> Iterator[LeveretProcess]:
    """The broker, not started yet. At the end it is killed, and its log must contain no errors."""
    leveret_only("it is killed and restarted")
    process = LeveretProcess(tmp_path, config=configuration)
    yield process
    process.kill()
    process.check_log()
