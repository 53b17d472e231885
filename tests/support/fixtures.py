"""Fixtures with a broker process; a conftest imports those that it needs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, LeveretProcess, start_broker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the session. Tests use `broker`, which checks it."""
    directory: Path = tmp_path_factory.mktemp("broker")
    broker = start_broker(directory)
    yield broker
    broker.stop()


@pytest.fixture
def broker(shared_broker: Broker) -> Iterator[Broker]:
    """The session's broker; a test that kills it or makes it log an exception fails."""
    if isinstance(shared_broker, LeveretProcess) and not shared_broker.alive():
        shared_broker.kill()
        shared_broker.start()
    yield shared_broker
    if not shared_broker.alive():
        log = shared_broker.log() if isinstance(shared_broker, LeveretProcess) else ""
        raise AssertionError("the broker died:\n" + log[-4000:])
    try:
        shared_broker.check_log()
    finally:
        if isinstance(shared_broker, LeveretProcess):
            # The next test checks only its own lines.
            os.truncate(shared_broker.log_path, 0)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"test.{os.getpid()}.{next(_numbers)}"
