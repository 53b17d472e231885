"""Files over AMQP 0-9: sent by staging, received to disk, and resumed in both directions."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest

from leveret.client import ChannelClosed, ConnectionClosed, InvalidMessage, Returned
from leveret.client.engine.amqp09.upload import CHUNK_SIZE
from tests.client.amqp09.conftest import QUICK, Connect09, Died, Open, die_after, let_through
from tests.support.broker import Broker, LeveretProcess, basic_config
from tests.support.proxy import Proxy

SIZE = 10 * CHUNK_SIZE + 12345
CONTENT = os.urandom(SIZE)


async def test_send_and_receive(connect: Connect09, name: str, tmp_path: Path) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    (tmp_path / "source").write_bytes(CONTENT)
    stream = io.BytesIO(b"before" + CONTENT)
    stream.seek(6)
    seen: list[tuple[int, int]] = []
    await channel.send_file(
        tmp_path / "source",
        name,
        filename="a.bin",
        content_type="application/x",
        headers={"n": 1},
        progress=lambda sent, size: seen.append((sent, size)),
    )
    await channel.send_file(stream, name, identifier="mine")
    await channel.send_file(b"", name)
    await channel.send_file(b"small", name, priority=3)
    assert seen[-1] == (SIZE, SIZE) and [sent for sent, _ in seen] == sorted({sent for sent, _ in seen})
    async with channel.consume_files(name) as files:
        first = await files.next(60)
        assert (first.size, first.filename, first.path, first.redelivered) == (SIZE, "a.bin", None, False)
        assert (first.properties.content_type, first.headers["n"]) == ("application/x", 1)
        assert first.file.read() == first.body == CONTENT
        first.save(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == CONTENT
        first.ack()
        second, third, fourth = [await files.next(60) for _ in range(3)]
        assert (second.body == CONTENT, third.body, third.size, fourth.body) == (True, b"", 0, b"small")
        assert fourth.properties.priority == 3
        fourth.ack(multiple=True)
    assert await channel.delete_queue(name) == 0


async def test_directory(connect: Connect09, name: str, tmp_path: Path) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    for number in range(3):
        await channel.send_file(b"%d" % number * 1000, name)
    directory = tmp_path / "in"
    async with channel.consume_files(name, directory=directory) as files:
        kept, moved, rejected = [await files.next(60) for _ in range(3)]
        assert kept.path is not None and kept.path.parent == directory and kept.path.read_bytes() == b"0" * 1000
        kept.ack()
        moved.save(tmp_path / "moved")
        moved.ack()
        rejected.reject(requeue=True)
        assert sorted(directory.iterdir()) == [kept.path]
        assert (tmp_path / "moved").read_bytes() == b"1" * 1000
        with pytest.raises(ValueError, match="expected another channel"):
            channel.consume_files(name)
    async with other.consume_files(name) as files:
        again = await files.next(60)
        assert again.redelivered and again.body == b"2" * 1000
        again.ack()
    assert await channel.delete_queue(name) == 0


async def test_invalid_files(connect: Connect09, name: str) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(InvalidMessage, match="class file has no such property"):
        await channel.send_file(b"x", name, correlation_id="x")
    with pytest.raises(InvalidMessage, match="a path, bytes"):
        await channel.send_file(5, name)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="identifier"):
        await channel.send_file(b"x", name, identifier="x" * 256)
    with pytest.raises(FileNotFoundError):
        await channel.send_file("/nowhere/at/all", name)
    with pytest.raises(Returned) as caught:
        await channel.send_file(b"x", name, mandatory=True)
    assert caught.value.message is not None and caught.value.message.routing_key == name
    assert channel.is_open


async def test_truncated_file(connect: Connect09, name: str, tmp_path: Path) -> None:
    connection = await connect()
    channel = await connection.channel()
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    with pytest.raises(InvalidMessage, match="truncated"):
        await channel.send_file(path, name, progress=lambda sent, size: os.truncate(path, 3 * CHUNK_SIZE))
    assert channel.is_open
    await channel.ping()
    assert list(connection.core._all_channels()) == [channel.core]


async def test_refused_file(tmp_path: Path, dial: Connect09) -> None:
    config = basic_config() + "\n[uploads]\nmax_bytes = 100000\n"
    with LeveretProcess(tmp_path, config=config).start() as process:
        channel = await (await dial(process.url())).channel()
        with pytest.raises(ChannelClosed, match="max_bytes"):
            await channel.send_file(CONTENT, "q")
        assert channel.is_open
        await channel.ping()
        await channel.connection.close()


async def test_upload_resumes_after_a_lost_connection(through: Connect09, proxy: Proxy, name: str) -> None:
    connection = await through(**QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name)
    cuts: list[int] = []

    def cut(sent: int, size: int) -> None:
        if sent >= (2 + 4 * len(cuts)) * CHUNK_SIZE and len(cuts) < 2:
            cuts.append(sent)
            proxy.cut()

    before = proxy.to_server
    await channel.send_file(CONTENT, name, progress=cut)
    assert len(cuts) == 2
    # After each loss, at most the bytes in transit are sent again.
    assert proxy.to_server - before < SIZE + 2 * 6 * CHUNK_SIZE
    async with channel.consume_files(name) as files:
        found = await files.next(60)
        assert found.body == CONTENT
        found.ack()
    assert await channel.delete_queue(name) == 0


async def test_upload_resumes_in_another_process(connect: Connect09, server: Broker, block: Open, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    with pytest.raises(Died):
        await channel.send_file(CONTENT, name, identifier=name, progress=die_after(5 * CHUNK_SIZE - 1))
    assert channel.is_open
    await channel.connection.close()
    seen: list[int] = []
    other = block(server.url()).channel()
    await asyncio.to_thread(other.send_file, CONTENT, name, identifier=name, progress=lambda sent, size: seen.append(sent))
    assert seen[0] > 3 * CHUNK_SIZE and seen[-1] == SIZE
    with other.consume_files(name) as files:
        found = files.next(60)
        assert found.body == CONTENT
        found.ack()
    assert other.delete_queue(name) == 0


@pytest.mark.parametrize("kept", [False, True], ids=["temporary", "directory"])
async def test_delivery_resumes_after_a_lost_connection(
    connect: Connect09, proxy: Proxy, name: str, tmp_path: Path, dial: Connect09, kept: bool
) -> None:
    setup = await (await connect()).channel()
    await setup.declare_queue(name)
    await setup.send_file(CONTENT, name)
    proxy.cut_after = 7 * CHUNK_SIZE
    connection = await dial(proxy.url(), on_event=let_through(proxy), **QUICK)
    channel = await connection.channel()
    async with channel.consume_files(name, directory=tmp_path if kept else None) as files:
        found = await files.next(60)
        assert connection.core.generation == 2
        assert found.body == CONTENT
        assert proxy.to_client < SIZE + 2 * CHUNK_SIZE
        found.ack()
    assert await setup.delete_queue(name) == 0


async def test_delivery_resumes_in_another_process(
    connect: Connect09, proxy: Proxy, name: str, tmp_path: Path, dial: Connect09
) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    await channel.send_file(CONTENT, name)
    proxy.cut_after = 7 * CHUNK_SIZE
    first = await dial(proxy.url(), reconnect=False)
    async with (await first.channel()).consume_files(name, directory=tmp_path) as files:
        with pytest.raises(ConnectionClosed):
            await files.next(60)
    [part] = tmp_path.iterdir()
    assert 6 * CHUNK_SIZE < part.stat().st_size < SIZE
    proxy.cut_after = None
    # The next process dies before it acknowledges; the one after it does not receive the bytes again.
    for most in (SIZE - 5 * CHUNK_SIZE, 100_000):
        passed = proxy.to_client
        connection = await dial(proxy.url())
        consuming = await connection.channel()
        files = consuming.consume_files(name, directory=tmp_path)
        found = await files.next(60)
        assert found.path == part and part.read_bytes() == CONTENT
        assert proxy.to_client - passed < most
        if most > 100_000:
            found.file.close()
            await connection.close()
    assert found.redelivered
    found.ack()
    await consuming.ping()
    await files.cancel()
    assert await channel.delete_queue(name) == 0


async def test_unusable_directory(connect: Connect09, name: str, tmp_path: Path) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    directory = tmp_path / "in"
    files = channel.consume_files(name, directory=directory)
    await files.start()
    directory.rmdir()
    directory.write_bytes(b"")
    await other.send_file(b"x" * 100_000, name)
    with pytest.raises(ChannelClosed, match="cannot be stored"):
        await files.next(60)
    async with other.consume_files(name) as found:
        again = await found.next(60)
        assert again.body == b"x" * 100_000
        again.ack()
    assert await other.delete_queue(name) == 0


async def test_transaction(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(transactional=True), await connection.channel()
    await channel.declare_queue(name)
    with pytest.raises(RuntimeError, match="no"):
        async with channel.transaction():
            await channel.send_file(b"file", name, identifier=name)
            raise RuntimeError("no")
    seen: list[int] = []
    async with channel.transaction():
        # The staged bytes are still there.
        await channel.send_file(b"file", name, identifier=name, progress=lambda sent, size: seen.append(sent))
        await channel.publish(b"message", name)
    assert seen == [4]
    async with other.consume_files(name) as files, other.consume(name) as consumer:
        (await files.next(60)).ack()
        (await consumer.next(60)).ack()
    assert await other.delete_queue(name) == 0


async def test_files_wait_for_prefetch(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    for number in range(4):
        await channel.send_file(b"%d" % number, name)
    async with channel.consume_files(name, prefetch=2) as files:
        first, second = await files.next(60), await files.next(60)
        await channel.ping()
        assert not files._core.messages
        first.ack()
        assert (await files.next(60)).body == b"2"
        second.ack()
    # Unacked files go to other consumers once the channel is closed.
    await channel.close()
    async with other.consume_files(name) as files:
        bodies = set()
        for _ in range(2):
            found = await files.next(60)
            bodies.add(found.body)
            found.ack()
        assert bodies == {b"2", b"3"}
    assert await other.delete_queue(name) == 0


def test_sync_api(proxy: Proxy, block: Open, name: str, tmp_path: Path) -> None:
    connection = block(proxy.url())
    channel = connection.channel()
    channel.declare_queue(name)
    (tmp_path / "source").write_bytes(CONTENT)
    cuts: list[int] = []

    def cut(sent: int, size: int) -> None:
        if sent >= 4 * CHUNK_SIZE and not cuts:
            cuts.append(proxy.cut())

    channel.send_file(str(tmp_path / "source"), name, progress=cut)
    assert cuts == [1]
    with channel.consume_files(name, directory=tmp_path / "in") as files:
        found = files.next(60)
        assert found.body == CONTENT
        with found.process():
            found.save(tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    with pytest.raises(Returned):
        channel.send_file(b"x", f"{name}.no", mandatory=True)
    assert channel.delete_queue(name) == 0


def test_upload_resumes_after_the_broker_was_killed(tmp_path: Path, block: Open) -> None:
    with LeveretProcess(tmp_path).start() as process:
        channel = block(process.url()).channel()
        channel.declare_queue("q", durable=True)
        seen: list[int] = []

        def kill(sent: int, size: int) -> None:
            seen.append(sent)
            if sent == 6 * CHUNK_SIZE and seen.count(sent) == 1:
                process.kill()
                process.start()

        channel.send_file(CONTENT, "q", progress=kill)
        # The file survives another restart, too.
        process.kill()
        process.start()
        channel = block(process.url()).channel()
        with channel.consume_files("q") as files:
            found = files.next(60)
            assert found.body == CONTENT
            found.ack()
        channel.ping()
        assert channel.get("q") is None
