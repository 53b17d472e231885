"""Fixtures of tests over a broker process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret import sync
from tests.support.broker import CONNECT_TIMEOUT, Broker
from tests.support.fixtures import broker, name, shared_broker

__all__ = ["broker", "name", "shared_broker"]


class Open:
    """Opens connections, and closes them at the end of the test."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.opened: list[sync.Connection | sync.Amqp10Connection] = []

    def _url(self, user: str, password: str, vhost: str) -> str:
        return self._broker.url(user=user, password=password, vhost=vhost)

    def __call__(self, user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any) -> sync.Channel:
        """Return a channel of 0-9-1."""
        connection = sync.connect(self._url(user, password, vhost), connect_timeout=CONNECT_TIMEOUT)
        self.opened.append(connection)
        return connection.channel(**options)

    def over(self, protocol: str, user: str = "guest", password: str = "guest", vhost: str = "/") -> sync.BaseChannel:
        """Return a channel of another protocol."""
        connection = sync.connect(self._url(user, password, vhost), protocol=protocol, connect_timeout=CONNECT_TIMEOUT)
        self.opened.append(connection)
        return connection.open_channel()

    def amqp10(self) -> sync.Amqp10Connection:
        """Return a connection of AMQP 1.0."""
        connection = sync.connect(self._url("guest", "guest", "/"), protocol="1.0", connect_timeout=CONNECT_TIMEOUT)
        self.opened.append(connection)
        return connection


@pytest.fixture(params=["0-9-1", "1.0"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dial(broker: Broker) -> Iterator[Open]:
    """Opens channels of connections of their own."""
    open = Open(broker)
    yield open
    for connection in open.opened:
        connection.close()
