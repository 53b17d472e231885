"""The sync API over AMQP 0-9."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret import sync
from tests.client.sync.conftest import Open
from tests.support.broker import CONNECT_TIMEOUT, Broker


@pytest.fixture
def dial() -> Iterator[Open]:
    """Opens connections to a URL, over AMQP 0-9, and closes them at the end of the test."""
    opened: list[sync.Amqp09Connection] = []

    def open(url: str | list[str], **options: Any) -> sync.Amqp09Connection:
        options.setdefault("connect_timeout", CONNECT_TIMEOUT)
        connection: sync.Amqp09Connection = sync.connect(url, protocol="0-9", **options)
        opened.append(connection)
        return connection

    yield open
    for connection in opened:
        connection.close()


@pytest.fixture
def connect(server: Broker, dial: Open) -> Open:
    """Open connections to the server."""
    return lambda **options: dial(server.url(), **options)
