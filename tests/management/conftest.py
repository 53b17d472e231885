"""Fixtures of tests over a broker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret import sync
from tests.support.broker import Broker
from tests.support.fixtures import broker, name, shared_broker

__all__ = ["broker", "name", "shared_broker"]

Open = Callable[..., sync.Channel]


@pytest.fixture(params=["0-9-1", "1.0"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dial(broker: Broker) -> Iterator[Open]:
    """Opens channels on separate connections, of 0-9-1 by default."""
    opened: list[sync.Connection] = []

    def open(protocol: str = "0-9-1", user: str = "guest", password: str = "guest", vhost: str = "/",
             **options: Any) -> sync.Channel:
        url = broker.url(user=user, password=password, vhost=vhost)
        opened.append(sync.connect(url, protocol=protocol))
        return opened[-1].channel(**options)

    yield open
    for connection in opened:
        connection.close()
