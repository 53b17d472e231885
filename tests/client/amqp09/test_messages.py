"""Class message over AMQP 0-9: inline and by reference, resumed from checkpoints in both directions."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from pathlib import Path

import pytest

from leveret.client import ChannelClosed, ConnectionClosed, InvalidMessage, Nacked, NotFound, NotSupported
from tests.client.amqp09.conftest import QUICK, Connect09, Died, Open, die_after, let_through
from tests.support.broker import Broker, LeveretProcess
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy

MIB = 1 << 20
SIZE = 20 * MIB + 4321
CONTENT = os.urandom(SIZE)


async def test_inline_and_by_reference(connect: Connect09, name: str, tmp_path: Path) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, durable=True)
    (tmp_path / "body").write_bytes(CONTENT)
    seen: list[tuple[int, int]] = []
    await channel.transfer("text", name, message_id="1", headers={"a": [1]}, persistent=True, expiration=60_000)
    await channel.transfer(tmp_path / "body", name, content_type="t", priority=7, progress=lambda *of: seen.append(of))
    await channel.transfer(b"", name, correlation_id="c", transaction_id="t-1")
    assert seen[-1] == (SIZE, SIZE)
    async with channel.consume_messages(name) as messages:
        # A message by reference may be overtaken.
        found = {message.size: message for message in [await messages.next(60) for _ in range(3)]}
        first, second, third = found[4], found[SIZE], found[0]
        assert (first.text(), first.properties.message_id, first.headers) == ("text", "1", {"a": [1]})
        assert (first.properties.delivery_mode, first.properties.expiration) == (2, 60_000)
        assert (second.properties.content_type, second.properties.priority) == ("t", 7)
        assert second.body == CONTENT and second.routing_key == name
        assert (third.body, third.properties.correlation_id, third.headers["x-transaction-id"]) == (b"", "c", "t-1")
        # In any order of settlement.
        third.ack()
        first.ack()
        second.ack()
    assert await channel.delete_queue(name) == 0


async def test_many_transfers_at_once(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    bodies = [os.urandom(300_000) if number % 5 == 0 else b"%d" % number for number in range(60)]
    await asyncio.gather(*(channel.transfer(body, name) for body in bodies))
    found = []
    async with other.consume_messages(name, prefetch=7) as messages:
        for number in range(60):
            message = await messages.next(60)
            found.append(message.body)
            if number % 7 == 6:
                message.ack(multiple=True)
        message.ack(multiple=True)
        await other.ping()
    assert sorted(found) == sorted(bodies)
    assert await channel.delete_queue(name) == 0


async def test_errors_and_refusals(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(InvalidMessage, match="type"):
        await channel.transfer(b"x", name, type="t")
    with pytest.raises(InvalidMessage, match="frame_max"):
        await channel.transfer(b"x", name, headers={"h": "x" * 200_000})
    with pytest.raises(Nacked, match="NO_CONSUMERS"):
        await channel.transfer(b"x", name, immediate=True)
    await channel.transfer(b"x" * 200_000, name)
    for body in (b"x", b"x" * 200_000):
        with pytest.raises(Nacked, match="full"):
            await channel.transfer(body, name)
    await channel.delete_queue(name)
    assert channel.is_open
    with pytest.raises(NotFound):
        # On a channel of its own.
        await channel.transfer(b"x" * 200_000, "", name)
    assert channel.is_open
    with pytest.raises(NotFound):
        await channel.transfer(b"x", "", name)
    transactional = await connection.channel(transactional=True)
    with pytest.raises(NotSupported, match="rollback"):
        transactional.consume_messages(name)


async def test_get_reject_and_requeue(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(f"{name}.dead")
    await channel.declare_queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"})
    assert await channel.get_message(name) is None
    for body in (b"1", b"2" * 200_000, b"3", b"4"):
        await channel.transfer(body, name)
    first, second = await channel.get_message(name), await channel.get_message(name)
    assert first is not None and first.body == b"1" and second is not None and second.body == b"2" * 200_000
    third = await other.get_message(name)
    assert third is not None
    with pytest.raises(NotSupported, match="requeue=False"):
        third.reject(requeue=True)
    await other.close()
    second.ack()
    first.reject()
    await channel.ping()
    dead = await channel.get_message(f"{name}.dead", no_ack=True)
    assert dead is not None and dead.body == b"1"
    taking = await connection.channel()
    async with taking.consume_messages(name) as messages:
        third = await messages.next(60)
        assert third.body == b"3"
        await wait_until_async(lambda: messages._core.messages)
    # Untaken and unacked messages are requeued.
    async with channel.consume_messages(name) as messages:
        found = set()
        for _ in range(2):
            message = await messages.next(60)
            found.add(message.body)
            message.ack()
        assert found == {b"3", b"4"}
    assert await channel.delete_queue(name) == 0
    await channel.delete_queue(f"{name}.dead")


async def test_transaction(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(transactional=True), await connection.channel()
    await channel.declare_queue(name)
    async with channel.transaction():
        await channel.transfer(b"1", name)
        await channel.transfer(b"2" * 200_000, name)
        assert await other.get_message(name) is None
    for size in (1, 200_000):
        found = await other.get_message(name, no_ack=True)
        assert found is not None and found.size == size
    await other.delete_queue(name)


@pytest.mark.parametrize("identifier", ["", "mine"], ids=["restart", "checkpoints"])
async def test_transfer_resumes_after_a_lost_connection(
    through: Connect09, proxy: Proxy, name: str, identifier: str
) -> None:
    channel = await (await through(**QUICK)).channel()
    await channel.declare_queue(name)
    cuts: list[int] = []

    def cut(sent: int, size: int) -> None:
        if sent > 19 * MIB and not cuts:
            cuts.append(proxy.cut())

    before = proxy.to_server
    await channel.transfer(CONTENT, name, identifier=identifier and f"{name}.{identifier}", progress=cut)
    sent = proxy.to_server - before
    assert cuts == [1]
    # After the second checkpoint, at 16 MiB, little is left; without checkpoints everything is sent again.
    assert sent < SIZE + 12 * MIB if identifier else sent > SIZE + 12 * MIB
    found = await channel.get_message(name)
    assert found is not None and found.body == CONTENT
    found.ack()
    assert await channel.delete_queue(name) == 0


async def test_transfer_resumes_in_another_process(connect: Connect09, server: Broker, block: Open, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name)
    with pytest.raises(Died):
        await channel.transfer(CONTENT, name, identifier=name, progress=die_after(18 * MIB))
    assert channel.is_open
    await channel.ping()
    await connection.close()
    seen: list[int] = []
    other = block(server.url()).channel()
    await asyncio.to_thread(other.transfer, CONTENT, name, identifier=name, progress=lambda sent, size: seen.append(sent))
    assert seen[0] > 8 * MIB and seen[-1] == SIZE
    with other.consume_messages(name) as messages:
        found = messages.next(60)
        assert found.body == CONTENT
        found.ack()
    assert other.delete_queue(name) == 0


@pytest.mark.parametrize("kept", [False, True], ids=["temporary", "directory"])
async def test_delivery_resumes_after_a_lost_connection(
    connect: Connect09, proxy: Proxy, name: str, tmp_path: Path, dial: Connect09, kept: bool
) -> None:
    setup = await (await connect()).channel()
    await setup.declare_queue(name)
    await setup.transfer(CONTENT, name)
    proxy.cut_after = 15 * MIB
    connection = await dial(proxy.url(), on_event=let_through(proxy), **QUICK)
    channel = await connection.channel()
    async with channel.consume_messages(name, directory=tmp_path if kept else None) as messages:
        found = await messages.next(60)
        assert connection.core.generation == 2
        assert found.body == CONTENT and found.redelivered
        assert proxy.to_client < SIZE + 4 * MIB
        found.ack()
    assert await setup.delete_queue(name) == 0


async def test_lost_get_fails(dial: Connect09, tmp_path: Path) -> None:
    with LeveretProcess(tmp_path).start() as process, Proxy(process) as proxy:
        channel = await (await dial(proxy.url(), **QUICK)).channel()
        await channel.declare_queue("q")
        proxy.flowing.clear()
        getting = asyncio.ensure_future(channel.get_message("q"))
        await asyncio.sleep(0.05)
        proxy.cut()
        with pytest.raises(ConnectionClosed):
            await getting
        proxy.flowing.set()
        await channel.connection.close()
        with pytest.raises((ConnectionClosed, ChannelClosed)):
            await channel.get_message("q")


def test_sync_api(proxy: Proxy, block: Open, name: str, tmp_path: Path) -> None:
    channel = block(proxy.url()).channel()
    channel.declare_queue(name)
    cuts: list[int] = []

    def cut(sent: int, size: int) -> None:
        if sent > 12 * MIB and not cuts:
            cuts.append(proxy.cut())

    channel.transfer("small", name)
    channel.transfer(CONTENT, name, identifier=name, progress=cut)
    assert cuts == [1]
    with channel.consume_messages(name, directory=tmp_path) as messages:
        for body in (b"small", CONTENT):
            with messages.next(60).process() as message:
                assert message.body == body
    with pytest.raises(Nacked):
        channel.transfer(b"x", name, immediate=True)
    assert channel.get_message(name) is None
    assert channel.delete_queue(name) == 0


def test_transfer_resumes_after_the_broker_was_killed(tmp_path: Path, block: Open) -> None:
    with LeveretProcess(tmp_path).start() as process:
        channel = block(process.url()).channel()
        channel.declare_queue("q", durable=True)
        seen: list[int] = []

        def kill(sent: int, size: int) -> None:
            seen.append(sent)
            if len(seen) > 1 and seen[-1] > 18 * MIB >= seen[-2] and max(seen[:-1]) <= 18 * MIB:
                process.kill()
                process.start()

        channel.transfer(CONTENT, "q", identifier="c", persistent=True, progress=kill)
        went_back = [now for before, now in pairwise(seen) if now < before]
        # From the last confirmed checkpoint; there is one every 8 MiB.
        assert len(went_back) == 1 and went_back[0] > 8 * MIB
        process.kill()
        process.start()
        found = block(process.url()).channel().get_message("q")
        assert found is not None and found.body == CONTENT
        found.ack()
