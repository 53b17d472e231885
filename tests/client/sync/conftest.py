"""Connections of the sync API, which are closed at the end of the test and leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret import sync
from tests.support.broker import CONNECT_TIMEOUT, Broker

Open = Callable[..., sync.Connection]


@pytest.fixture
def dial() -> Iterator[Open]:
    """Opens connections to a URL. At the end of the test they are closed, and their threads must have ended."""
    opened: list[sync.Connection] = []
    before = set(threading.enumerate())

    def open(url: str | list[str], **options: Any) -> sync.Connection:
        options.setdefault("connect_timeout", CONNECT_TIMEOUT)
        connection: sync.Connection = sync.connect(url, protocol=None, **options)
        opened.append(connection)
        return connection

    yield open
    for connection in opened:
        connection.close()
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("leveret connection")]
    assert not left, f"threads are left: {left}"


@pytest.fixture
def connect(server: Broker, dial: Open) -> Open:
    """Open connections to the server."""
    return lambda **options: dial(server.url(), **options)
