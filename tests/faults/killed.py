"""The broker of tests that kill it with -9 and start it again, on the same port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import LeveretProcess, basic_config, leveret_only


@pytest.fixture
def configuration() -> str:
    """Of the broker; a module that needs another one has a fixture of this name."""
    return basic_config()


@pytest.fixture
def process(tmp_path: Path, configuration: str) -> Iterator[LeveretProcess]:
    """It is not started yet. At the end it is killed, and has logged nothing that it should not."""
    leveret_only("it is killed and started")
    process = LeveretProcess(tmp_path, config=configuration)
    yield process
    process.kill()
    process.check_log()
