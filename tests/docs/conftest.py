from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.management.control_client import call
from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.fixtures import broker, shared_broker

__all__ = ["broker", "own_vhost", "shared_broker"]

# A user who is not in the configuration, and so can get permissions.
USER, PASSWORD = "reader", "secret"


@pytest.fixture(scope="session")
def reader(shared_broker: LeveretProcess) -> None:
    """A user for the vhosts of tests."""
    leveret_only("adds a user")
    call(shared_broker.data_dir, "users.add", {"name": USER, "password": PASSWORD, "tags": ["administrator"]})


@pytest.fixture
def own_vhost(reader: None, broker: LeveretProcess) -> Iterator[Broker]:
    """The broker with a vhost for one test: pages declare the same names with different arguments."""
    vhost = "page"
    call(broker.data_dir, "vhosts.add", {"name": vhost})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    call(broker.data_dir, "permissions.set", {"user": USER, "vhost": vhost, **rights})
    yield Broker(broker.host, broker.port, USER, PASSWORD, vhost)
    call(broker.data_dir, "vhosts.delete", {"name": vhost})
