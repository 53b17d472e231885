"""Fixtures for tests that want a real broker: one for the session, inside the test process, a clean vhost for each test.

pytest finds this by itself where Leveret is installed. A run that uses none of the fixtures pays for nothing: all imports
wait for the first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leveret.node.embedded import BlockingBroker

_numbers = count(1)


@pytest.fixture(scope="session")
def leveret_broker() -> Iterator[BlockingBroker]:
    """A `leveret.BlockingBroker` on a free port that keeps everything in memory; with pytest-xdist one for each worker.

    A fixture of the same name in a conftest.py takes its place for the two others: for another configuration, say.
    """
    from leveret import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def leveret_vhost(leveret_broker: BlockingBroker) -> Iterator[str]:
    """The name of a vhost that this test has for itself. It goes with everything in it, and its connections are closed."""
    from leveret import CallRefused

    name = f"test-{next(_numbers)}"
    leveret_broker.create_vhost(name)
    yield name
    try:
        leveret_broker.delete_vhost(name)
    except CallRefused as error:
        # The test may have deleted it.
        if error.condition != "not-found":
            raise


@pytest.fixture
def leveret_url(leveret_broker: BlockingBroker, leveret_vhost: str) -> str:
    """The URL of `leveret_vhost` for any AMQP client."""
    return leveret_broker.url_of(leveret_vhost)
