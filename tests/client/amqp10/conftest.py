"""Connections of AMQP 1.0 to Leveret and, if it is installed, to RabbitMQ 3 with its plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret import aio
from tests.client.conftest import BaseConnect
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


class Connect1(BaseConnect):
    """Opens connections of AMQP 1.0."""

    async def __call__(self, url: str | list[str] | None = None, **options: Any) -> aio.Amqp10Connection:
        connection: aio.Amqp10Connection = await self.open("1.0", url, **options)
        return connection


@pytest.fixture
def connect(server: Broker) -> Connect1:
    return Connect1(server.url())


@pytest.fixture
def through(server: Broker, proxy: Proxy) -> Connect1:
    """Open connections through the proxy."""
    return Connect1(proxy.url())


async def other(connect: BaseConnect, name: str, **arguments: Any) -> aio.Channel:
    """Return a 0-9-1 channel on which the queue of that name is declared."""
    channel: aio.Channel = await (await connect.open("0-9-1")).channel()
    await channel.declare_queue(name, durable=True, **arguments)
    return channel
