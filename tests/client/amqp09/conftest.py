"""Connections of AMQP 0-9, which RabbitMQ does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret import aio, sync
from leveret.client import Event
from leveret.client.events import Disconnected
from tests.client.conftest import BaseConnect
from tests.support.broker import CONNECT_TIMEOUT, Broker, LeveretProcess
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy

QUICK: dict[str, Any] = {"reconnect_delay": 0.01, "reconnect_max_delay": 0.05}
REALMS = {
    "/data": {"resources": r"orders\..*", "active": ["guest"], "write": ["guest"], "read": ["guest"]},
    "/rest": {"resources": ".*", "active": ["guest"], "passive": ["*"], "write": ["*"], "read": ["*"]},
}


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    process = LeveretProcess(tmp_path_factory.mktemp("amqp09")).start()
    yield process
    process.stop()


class Connect09(BaseConnect):
    """Opens connections of AMQP 0-9."""

    async def __call__(self, url: str | list[str] | None = None, **options: Any) -> aio.Amqp09Connection:
        connection: aio.Amqp09Connection = await self.open("0-9", url, **options)
        return connection


@pytest.fixture
def connect(server: Broker) -> Connect09:
    return Connect09(server.url())


@pytest.fixture
def dial() -> Connect09:
    return Connect09("amqp://nowhere.invalid")


@pytest.fixture
def through(proxy: Proxy) -> Connect09:
    """Open connections through the proxy."""
    return Connect09(proxy.url())


async def reconnected(connection: aio.Amqp09Connection, before: int) -> None:
    """Wait for the connection after the one of generation `before`."""
    await wait_until_async(lambda: connection.core.generation != before and connection.is_open)


Open = Callable[..., sync.Amqp09Connection]


@pytest.fixture
def block() -> Iterator[Open]:
    """Opens connections of the sync API to a URL, and closes them at the end of the test."""
    opened: list[sync.Amqp09Connection] = []

    def open(url: str, **options: Any) -> sync.Amqp09Connection:
        chosen = {"connect_timeout": CONNECT_TIMEOUT, **QUICK, **options}
        connection: sync.Amqp09Connection = sync.connect(url, protocol="0-9", **chosen)
        opened.append(connection)
        return connection

    yield open
    for connection in opened:
        connection.close()


class Died(Exception):
    """Kills a sender."""


def die_after(most: int) -> Callable[[int, int], None]:
    """A `progress` callback that kills the sender after a number of bytes."""

    def die(sent: int, size: int) -> None:
        if sent > most:
            raise Died

    return die


def let_through(proxy: Proxy) -> Callable[[Event], None]:
    """An `on_event` callback that makes the proxy stop cutting once the connection is lost."""

    def lost(event: Event) -> None:
        if isinstance(event, Disconnected):
            proxy.cut_after = None

    return lost
