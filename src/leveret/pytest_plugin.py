"""pytest fixtures for tests with a real broker: one broker per session, in the test process, and a new vhost per test.

pytest loads this plugin whenever Leveret is installed. Imports are deferred to the first use of a fixture, so that they do
not slow down other test runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leveret.node.embedded import SyncBroker

_numbers = count(1)


@pytest.fixture(scope="session")
def leveret_broker() -> Iterator[SyncBroker]:
    """Run a `leveret.SyncBroker` on a free port, in memory. With pytest-xdist, each worker has its own.

    To change the configuration, define a fixture with the same name in a conftest.py. The other two fixtures then use it.
    """
    from leveret import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def leveret_vhost(leveret_broker: SyncBroker) -> Iterator[str]:
    """Create a vhost for one test and return its name. Deletes the vhost and closes its connections after the test."""
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
def leveret_url(leveret_broker: SyncBroker, leveret_vhost: str) -> str:
    """Return the URL of `leveret_vhost` for any AMQP client."""
    return leveret_broker.url_of(leveret_vhost)
