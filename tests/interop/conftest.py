from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.support.broker import Broker
from tests.support.fixtures import broker, name, shared_broker

__all__ = ["broker", "name", "shared_broker"]

Connect = Callable[..., BlockingConnection]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Open blocking pika connections; options are those of `pika.ConnectionParameters`."""
    opened: list[BlockingConnection] = []

    def open_connection(user: str = "guest", password: str = "guest", **options: object) -> BlockingConnection:
        parameters = pika.ConnectionParameters(
            broker.host,
            broker.port,
            credentials=pika.PlainCredentials(user, password),
            **{"blocked_connection_timeout": 60, **options},
        )
        connection = BlockingConnection(parameters)
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: Connect) -> BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel()
