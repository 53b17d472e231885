"""Closed connections leave nothing for the garbage collector, which comes rarely in a broker."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator

import pika
import pytest

from leveret.broker.broker import Broker, VhostSettings
from leveret.protocols.services import Services, SessionSettings
from leveret.protocols.v0_9_1.channel import Channel
from leveret.protocols.v0_9_1.connection import Connection
from leveret.security.users import UserStore
from leveret.server.server import Server
from leveret.server.transport import SocketProtocol
from leveret.storage.memory import MemoryLog

TIMES = 5


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*classes: type) -> dict[str, int]:
    objects = gc.get_objects()
    return {one.__name__: sum(1 for item in objects if type(item) is one) for one in classes}


def use(port: int, *, close: bool) -> None:
    """A client that declares, publishes and consumes, and then closes, or breaks off."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=30))
    channel = connection.channel()
    limits = {"x-message-ttl": 3_600_000, "x-expires": 3_600_000}
    queue = channel.queue_declare("", exclusive=True, arguments=limits).method.queue
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", queue, b"m", mandatory=True)
    channel.basic_consume(queue, lambda *_: None)
    connection.process_data_events(time_limit=0)
    if close:
        connection.close()
    else:
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("close", [True, False], ids=["close", "break"])
def test_nothing_is_left_of_closed_connections(no_collector: None, close: bool) -> None:
    async def scenario() -> dict[str, int]:
        broker = Broker(MemoryLog())
        broker.recover(broker.log.open())
        broker.add_vhost("/", VhostSettings())
        server = Server(Services(broker, UserStore(), SessionSettings()))
        await server.start()
        _, port = await server.listen("127.0.0.1", 0)
        for _ in range(TIMES):
            await asyncio.to_thread(use, port, close=close)
        while server.services.sessions or server.accepted:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        left = alive(Connection, Channel, SocketProtocol)
        await server.stop()
        return left

    assert asyncio.run(scenario()) == {"Connection": 0, "Channel": 0, "SocketProtocol": 0}
