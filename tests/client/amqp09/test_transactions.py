"""Realms, pings and distributed transactions over AMQP 0-9, with a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.client import Access, ConnectionClosed, InvalidMessage, PreconditionFailed, ResourceLocked, TransactionLost
from leveret.client._async.amqp09 import Amqp09Channel
from leveret.coordinator import CallFailed, Coordinator, NoBroker, RolledBack, commit_all
from tests.client.amqp09.conftest import QUICK, Connect09, Open, reconnected
from tests.support.broker import Broker, LeveretProcess, basic_config
from tests.support.proxy import Proxy

REALMS = r"""
[vhosts."/".realms."/orders"]
resources = "orders\\..*"
active = ["guest"]
passive = ["guest"]
write = ["guest"]
read = ["guest"]

[vhosts."/".realms."/bills"]
resources = "bills\\..*|"
active = ["guest"]
write = ["guest"]
read = ["guest"]
"""


@pytest.fixture(scope="module")
def realms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    with LeveretProcess(tmp_path_factory.mktemp("realms"), config=basic_config() + REALMS).start() as process:
        yield process
        process.check_log()


async def test_methods_carry_tickets(realms: LeveretProcess, dial: Connect09) -> None:
    with Proxy(realms) as proxy:
        connection = await dial(proxy.url(), **QUICK)
        channel = await connection.channel()
        bills = await channel.request_access("/bills", active=True, write=True, read=True)
        orders = await channel.request_access("/orders", active=True, passive=True, read=True, write=True)
        assert orders == Access("/orders", False, True, True, True, True) and orders != bills
        await channel.declare_exchange("orders.x", auto_delete=True)
        queue = await channel.declare_queue("orders.q", exclusive=True)
        await queue.bind("orders.x", "k")
        async with channel.consume(queue) as consumer:
            for body in (b"1", b"2"):
                await channel.publish(body, "k", "orders.x")
                message = await consumer.next(60)
                assert message.body == body
                message.ack()
                before = connection.core.generation
                # Restored queues and consumers use their tickets, too.
                proxy.cut()
                await reconnected(connection, before)
            channel.use_access(bills)
            await channel.declare_queue("bills.q", auto_delete=True)
            await channel.publish(b"bill", "bills.q")
            found = await channel.get("bills.q", no_ack=True)
            assert found is not None and found.body == b"bill"
            await channel.delete_queue("bills.q")
            # The consumer and the publishes use their own tickets.
            channel.use_access(orders)
            proxy.flowing.clear()
            publishing = asyncio.ensure_future(channel.publish(b"3", "k", "orders.x"))
            await asyncio.sleep(0.05)
            channel.use_access(bills)
            proxy.cut()
            proxy.flowing.set()
            await publishing
            message = await consumer.next(60)
            assert message.body == b"3"
            message.ack()
            await channel.send_file(b"a bill", "orders.q")
            channel.use_access(orders)
            async with channel.consume_files(queue) as files:
                file = await files.next(60)
                assert file.body == b"a bill"
                file.ack()
        await connection.close()


async def test_refused_access_closes_the_connection(realms: LeveretProcess, dial: Connect09) -> None:
    for realm, rights in (("/nowhere", {"read": True}), ("/bills", {"passive": True})):
        connection = await dial(realms.url(), **QUICK)
        channel = await connection.channel()
        with pytest.raises(ConnectionClosed, match="403"):
            await channel.request_access(realm, **rights)
        assert connection.is_closed
    connection = await dial(realms.url(), **QUICK)
    channel, other = await connection.channel(), await connection.channel()
    orders = await channel.request_access("/orders", read=True)
    with pytest.raises(InvalidMessage, match="/orders"):
        other.use_access(orders)
    channel.use_access(None)
    with pytest.raises((ConnectionClosed, Exception), match="403"):
        await channel.declare_queue("orders.z")


def test_access_over_the_sync_api(realms: LeveretProcess, block: Open) -> None:
    channel = block(realms.url()).channel()
    access = channel.request_access("/orders", active=True, write=True, read=True)
    queue = channel.declare_queue("orders.b", auto_delete=True)
    channel.use_access(None)
    channel.use_access(access)
    channel.request_access("/bills", write=True)
    channel.publish(b"x", "orders.b")
    channel.use_access(access)
    message = channel.get(queue)
    assert message is not None
    message.ack()
    queue.delete()


@pytest.fixture
def coordinator(server: LeveretProcess) -> Coordinator:
    return Coordinator(server.data_dir)


async def branch(channel: Amqp09Channel, name: str) -> None:
    await channel.dtx_select()
    await channel.dtx_start(name)


async def test_branch_takes_effect_on_commit(connect: Connect09, coordinator: Coordinator, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await other.declare_queue(name, durable=True)
    await other.publish(b"before", name)
    await branch(channel, name)
    message = await channel.get(name)
    assert message is not None
    message.ack()
    await channel.publish(b"within", name, persistent=True)
    await channel.send_file(b"a file", name)
    await channel.ping()
    assert [item["state"] for item in coordinator.list() if item["branch"] == name] == ["active"]
    assert await other.get(name) is None
    coordinator.prepare(name)
    assert await other.get(name) is None
    coordinator.commit(name)
    found = await other.get(name, no_ack=True)
    assert found is not None and found.body == b"within"
    async with other.consume_files(name, no_ack=True) as files:
        assert (await files.next(60)).body == b"a file"
    assert await other.delete_queue(name) == 0


async def test_branch_rollback(connect: Connect09, coordinator: Coordinator, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await other.declare_queue(name)
    await branch(channel, name)
    await channel.publish(b"within", name)
    coordinator.rollback(name, remember=True)
    with pytest.raises(PreconditionFailed):
        await channel.ping()
    with pytest.raises((RolledBack, CallFailed)):
        coordinator.commit(name)
    coordinator.forget(name)
    assert await other.delete_queue(name) == 0


async def test_errors(connect: Connect09, coordinator: Coordinator, tmp_path: Path, name: str) -> None:
    connection = await connect()
    channel, other, third = [await connection.channel() for _ in range(3)]
    await branch(channel, name)
    await other.dtx_select()
    with pytest.raises(ResourceLocked):
        await other.dtx_start(name)
    with pytest.raises(PreconditionFailed):
        await third.dtx_start("without select")
    with pytest.raises(CallFailed, match=r"branch .*\.no. does not exist"):
        coordinator.prepare(f"{name}.no")
    with pytest.raises(NoBroker):
        Coordinator(tmp_path).list()
    await channel.close()
    with pytest.raises(RolledBack, match="can only be rolled back"):
        coordinator.prepare(name)
    coordinator.rollback(name)


async def test_channel_is_not_restored_into_a_branch(
    through: Connect09, proxy: Proxy, name: str, coordinator: Coordinator
) -> None:
    connection = await through(**QUICK)
    channel, other = await connection.channel(), await connection.channel()
    await other.declare_queue(name, durable=True)
    await branch(channel, name)
    await channel.publish(b"within", name)
    proxy.cut()
    await reconnected(connection, 1)
    with pytest.raises(TransactionLost, match=name):
        await channel.publish(b"outside", name)
    with pytest.raises(TransactionLost, match=name):
        await channel.ping()
    coordinator.rollback(name)
    assert await other.delete_queue(name) == 0


async def test_several_brokers(
    connect: Connect09, dial: Connect09, coordinator: Coordinator, tmp_path: Path, name: str
) -> None:
    with LeveretProcess(tmp_path).start() as second:
        channels = []
        for connection in (await connect(), await dial(second.url())):
            setup = await connection.channel()
            await setup.declare_queue(name, durable=True)
            channels.append((await connection.channel(), setup))
        both = [(coordinator, name), (Coordinator(second.data_dir), name)]
        for fails in (False, True):
            for channel, _ in channels:
                await branch(channel, name)
                await channel.publish(b"%d" % fails, name, persistent=True)
            if fails:
                await channels[1][0].close()
                with pytest.raises(RolledBack):
                    commit_all(both)
            else:
                commit_all(both)
            for _, setup in channels:
                found = await setup.get(name, no_ack=True)
                assert (found is None) == fails
        assert [await setup.delete_queue(name) for _, setup in channels] == [0, 0]
        for _, setup in channels:
            await setup.connection.close()


def test_prepared_branch_survives_kill_9(tmp_path: Path, block: Open) -> None:
    with LeveretProcess(tmp_path).start() as process:
        connection = block(process.url())
        setup, channel = connection.channel(), connection.channel(confirms=False)
        setup.declare_queue("q", durable=True)
        channel.dtx_select()
        channel.dtx_start("b")
        channel.publish(b"kept", "q", persistent=True)
        channel.ping()
        Coordinator(process.data_dir).prepare("b")
        process.kill()
        process.start()
        setup = block(process.url()).channel()
        assert setup.get("q") is None
        Coordinator(process.data_dir).commit("b")
        message = setup.get("q", no_ack=True)
        assert message is not None and message.body == b"kept"


async def test_pings(connect: Connect09, server: Broker, block: Open) -> None:
    channel = await (await connect()).channel(confirms=False)
    await asyncio.gather(*(channel.ping() for _ in range(20)))
    await asyncio.to_thread(block(server.url()).channel().ping)
