"""Objects that the client must not keep: auto-deleted queues, and frames that an error was raised through."""

from __future__ import annotations

import gc
import weakref

import pytest

import leveret
from leveret import sync
from leveret.client.errors import ChannelClosed, ConnectionClosed, NotFound
from tests.client.conftest import Connect
from tests.support.broker import Broker


class Large:
    """An object referenced by a frame."""


async def test_auto_deleted_queues_are_forgotten(connect: Connect, name: str) -> None:
    """A program that declares one per task would otherwise remember and restore them all."""
    connection = await connect()
    queues = connection.core.topology.queues
    channel, other = await connection.channel(), await connection.channel()
    kept = await channel.declare_queue(name, exclusive=True)
    for _ in range(3):
        queue = await channel.declare_queue(auto_delete=True)
        await queue.bind("amq.fanout")
        async with queue.consume():
            assert queue.name in queues
    first = await channel.declare_queue(auto_delete=True)
    async with first.consume(), kept.consume():
        second = await other.declare_queue(auto_delete=True)
        await second.consume().start()
        async with first.consume():
            await other.close()
        assert sorted(queues) == sorted([name, first.name])
    assert list(queues) == [name]
    assert not connection.core.topology.bindings
    # The server has deleted it, too.
    with pytest.raises(NotFound):
        await channel.declare_queue(first.name, passive=True)


async def test_errors_keep_no_frames(connect: Connect) -> None:
    connection = await connect()
    channel = await connection.channel()

    async def fail() -> list[weakref.ref[Large]]:
        found = []
        for _ in range(3):
            large = Large()
            found.append(weakref.ref(large))
            with pytest.raises(NotFound):
                await channel.declare_queue("nowhere", passive=True)
        await connection.close()
        for call in (connection.channel(), connection.channel()):
            large = Large()
            found.append(weakref.ref(large))
            with pytest.raises(ConnectionClosed):
                await call
        return found

    found = await fail()
    gc.collect()
    assert [reference() for reference in found] == [None] * 5


def test_errors_keep_no_frames_of_threads(server: Broker) -> None:
    with sync.connect(server.url()) as connection:
        channel = connection.channel()

        def fail() -> list[weakref.ref[Large]]:
            found = []
            for _ in range(3):
                large = Large()
                found.append(weakref.ref(large))
                with pytest.raises(ChannelClosed):
                    channel.declare_queue("nowhere", passive=True)
            return found

        found = fail()
        gc.collect()
        assert [reference() for reference in found] == [None] * 3


async def test_protocol_violation_is_reported(connect: Connect) -> None:
    connection = await connect()
    connection.driver.received(b"\x01\x00\x00\x00\x00\x00\x04\x00\xaa\x00\x0b\xce")
    with pytest.raises(leveret.Error, match="the server broke the protocol: 540") as caught:
        await connection.wait_closed()
    assert caught.value.reply_code == 540
