"""Connections of AMQP 1.0 to Leveret and, if it is installed, to RabbitMQ 3 with its plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.client._async.channel import Channel
from leveret.client._async.connection import Connection
from tests.client.conftest import Connect
from tests.support import rabbitmq
from tests.support.broker import Broker, LeveretProcess
from tests.support.proxy import Proxy


@pytest.fixture(scope="session", params=["leveret", "rabbitmq"])
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp(f"amqp10-{request.param}")
    if request.param == "rabbitmq":
        if not rabbitmq.available():
            pytest.skip("RabbitMQ is not installed")
        node = rabbitmq.RabbitProcess(directory, ("rabbitmq_amqp1_0",)).start()
        yield node
        node.stop()
        return
    process = LeveretProcess(directory).start()
    yield process
    process.stop()


@pytest.fixture
def leveret_only(server: Broker) -> Broker:
    """RabbitMQ 3 has no management node, no transactions and no modified, and accepts unroutable messages."""
    if server.kind != "leveret":
        pytest.skip("needs what RabbitMQ 3 does not have over AMQP 1.0")
    return server


class Connect1(Connect):
    """Opens connections as `Connect`, over AMQP 1.0 by default."""

    async def __call__(self, url: str | list[str] | None = None, **options: Any) -> Connection:
        return await super().__call__(url, **{"protocol": "1.0", **options})


@pytest.fixture
def connect(server: Broker) -> Connect1:
    return Connect1(server.url())


@pytest.fixture
def through(server: Broker, proxy: Proxy) -> Connect1:
    """Open connections through the proxy."""
    return Connect1(proxy.url())


async def other(connect: Connect, name: str, **arguments: Any) -> Channel:
    """Return a 0-9-1 channel on which the queue of that name is declared."""
    channel = await (await connect(protocol="0-9-1")).channel()
    await channel.declare_queue(name, durable=True, **arguments)
    return channel
