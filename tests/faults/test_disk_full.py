"""The broker's disk, a small file system, fills up: publishers wait, consumers continue, and the broker recovers."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pamqp import commands

from leveret import sync
from leveret.cli.app import leveret
from tests.faults.crash.model import make_body, read_body
from tests.support.broker import Broker, LeveretProcess, basic_config, leveret_only
from tests.support.peers.async_amqp091 import Closed, Connection, Delivery
from tests.support.polling import DEADLINE, wait_until_async

pytestmark = pytest.mark.embedded("fills the disk of the data directory")

MIB = 1 << 20
KEPT = commands.Basic.Properties(delivery_mode=2)
SIZE = 20_000
DISK = 48 * MIB

# The watermark is lower than the reserve, so the store itself must detect the full disk.
CONFIG = """
[limits]
disk_free = 1048576
[storage]
reserve = 4194304
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    leveret_only("its data is on a small file system")
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode(errors='replace')}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.fixture(params=["store", "watermark"])
def process(request: pytest.FixtureRequest, tmp_path: Path, small_disk: Path) -> Iterator[LeveretProcess]:
    """Either the store detects the full disk, or the watermark stops publishers before."""
    config = basic_config() + (
        CONFIG if request.param == "store" else CONFIG.replace("1048576", "24MiB").replace("= 24MiB", '= "24MiB"')
    )
    process = LeveretProcess(tmp_path, config=config, data_dir=small_disk / "data")
    with process.start():
        yield process
        process.check_log()


class Publisher:
    """Publishes persistent messages with confirms until it is stopped, however long it is blocked."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.blocked: list[str | None] = []

    async def open(self, broker: Broker, queue: str) -> None:
        self.queue = queue
        self.connection = await Connection.open(broker)
        self.connection.on_blocked = self.blocked.append
        self.channel = await self.connection.channel()
        await self.channel.declare(queue, durable=True)
        await self.channel.call(commands.Confirm.Select())
        self.channel.on_confirm = self._on_confirm

    def _on_confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        known = self.confirmed | self.refused
        tags = [t for t in range(1, tag + 1) if t not in known] if multiple else [tag]
        (self.confirmed if ack else self.refused).update(tags)

    async def publish(self, window: int = 20) -> bool:
        """Publish one more message if fewer than `window` confirms are pending. Returns whether it was sent."""
        if self.sent - len(self.confirmed) - len(self.refused) >= window or self.connection.blocked is not None:
            await asyncio.sleep(0.01)
            return False
        self.sent += 1
        self.channel.publish("", self.queue, make_body((1, self.sent), SIZE), KEPT)
        await self.connection.drain()
        return True

    @property
    def is_throttled(self) -> bool:
        return bool(self.blocked) or bool(self.refused) or self.channel.closed is not None


def usage(process: LeveretProcess) -> str:
    """Describe the files on the small disk."""
    state = os.statvfs(process.data_dir)
    sizes = {file.name: file.stat().st_blocks * 512 for file in process.data_dir.iterdir()}
    return f"{state.f_bavail * state.f_frsize} bytes free, {sizes}"


async def fill(publisher: Publisher) -> None:
    """Publish until the broker blocks the connection."""
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while not publisher.is_throttled:
        assert asyncio.get_running_loop().time() < deadline, "the disk never became full"
        assert publisher.sent * SIZE < 2 * DISK, "the broker accepted more than the disk holds"
        await publisher.publish()


def test_publishers_wait_and_consumers_drain(process: LeveretProcess) -> None:
    async def test() -> None:
        publisher = Publisher()
        await publisher.open(process, "full")
        await fill(publisher)
        assert publisher.confirmed
        # Other connections, including new ones, can consume and settle.
        consumer = await Connection.open(process)
        channel = await consumer.channel()
        got: list[int] = []

        def on_delivery(delivery: Delivery) -> None:
            key = read_body(delivery.body)
            assert key is not None
            got.append(key[1])
            channel.ack(delivery.method.delivery_tag)

        channel.on_delivery = on_delivery
        await channel.call(commands.Basic.Qos(prefetch_count=10))
        await channel.consume("full")

        async def drained() -> bool:
            # Confirmed messages are delivered in order; refused ones may be missing.
            return got == sorted(set(got)) and publisher.confirmed <= set(got)

        await wait_until_async(drained, "the queue's emptying")

        async def flows_again() -> bool:
            return publisher.connection.blocked is None and publisher.channel.closed is None

        try:
            await wait_until_async(flows_again, "the end of the alarm")
        except AssertionError as error:
            raise AssertionError(f"{error}: {usage(process)}\n{process.log()[-2000:]}") from None
        before = len(publisher.confirmed)
        while len(publisher.confirmed) < before + 20:
            await publisher.publish()
        if publisher.blocked:
            assert publisher.blocked[0]
            assert publisher.blocked[-1] is None
        await consumer.close()
        await publisher.connection.close()

    asyncio.run(asyncio.wait_for(test(), 240))


def test_confirmed_messages_survive_a_kill(process: LeveretProcess) -> None:
    async def fill_it(publisher: Publisher) -> None:
        await publisher.open(process, "full")
        # No request may follow: the broker does not read it after a publish during the alarm.
        await fill(publisher)

    async def read() -> list[int]:
        connection = await Connection.open(process)
        channel = await connection.channel()
        keys = []
        while (delivery := await channel.get("full")) is not None:
            key = read_body(delivery.body)
            assert key is not None
            keys.append(key[1])
        await connection.close()
        return keys

    publisher = Publisher()
    asyncio.run(asyncio.wait_for(fill_it(publisher), 240))
    assert publisher.confirmed
    process.kill()
    process.start()
    found = asyncio.run(asyncio.wait_for(read(), 240))
    assert found == sorted(set(found))
    assert publisher.confirmed <= set(found)
    assert not publisher.refused & set(found)


def test_transactions_are_atomic(process: LeveretProcess) -> None:
    """A commit without disk space is answered when there is space, or refused; never with half of it stored."""

    async def test() -> list[int]:
        publisher = Publisher()
        await publisher.open(process, "full")
        await fill(publisher)
        connection = await Connection.open(process)
        channel = await connection.channel()
        await channel.declare("tx", durable=True)
        await channel.call(commands.Tx.Select())
        for number in range(200):
            channel.publish("", "tx", make_body((2, number + 1), SIZE), KEPT)
        try:
            await channel.call(commands.Tx.Commit(), timeout=2)
        except (TimeoutError, Closed):
            return [0, 200]
        return [200]

    async def left() -> int:
        connection = await Connection.open(process)
        channel = await connection.channel()
        try:
            return await channel.count("tx")
        except Closed as error:
            # There was no space even for the declaration.
            assert error.code == 404
            return 0

    allowed = asyncio.run(asyncio.wait_for(test(), 240))
    process.kill()
    process.start()
    assert asyncio.run(left()) in allowed


def test_kill_on_a_full_disk(process: LeveretProcess) -> None:
    """The broker starts on a full disk, drains, and recovers."""

    async def work() -> int:
        publisher = Publisher()
        await publisher.open(process, "full")
        await fill(publisher)
        return len(publisher.confirmed)

    async def drain() -> int:
        connection = await Connection.open(process)
        channel = await connection.channel()
        count = 0
        while await channel.get("full") is not None:
            count += 1
        await connection.close()
        again = Publisher()
        await again.open(process, "full")
        deadline = asyncio.get_running_loop().time() + DEADLINE
        while len(again.confirmed) < 10:
            assert asyncio.get_running_loop().time() < deadline, "nothing is confirmed although there is room"
            await again.publish()
        await channel.connection.close()
        return count

    confirmed = asyncio.run(asyncio.wait_for(work(), 240))
    for _ in range(2):
        process.kill()
        process.start()
    assert asyncio.run(asyncio.wait_for(drain(), 240)) >= confirmed


def test_a_full_disk_of_a_backup(tmp_path: Path, small_disk: Path) -> None:
    """The backup says why it fails, and leaves nothing behind. The broker does not notice."""
    with LeveretProcess(tmp_path).start() as process, sync.connect(process.url()) as connection:
        with connection.open_channel() as channel:
            channel.declare_queue("kept", durable=True)
            for _ in range(4):
                channel.publish(bytes(DISK // 3), "kept", persistent=True)
            result = CliRunner().invoke(leveret, ["backup", str(small_disk / "b"), "--data-dir", str(process.data_dir)])
            assert result.exit_code == 1
            assert "the broker cannot copy its log to" in result.output and "full" in result.output
            assert os.listdir(small_disk / "b") == ["leveret-backups"]
            channel.publish(b"after", "kept", persistent=True)
        process.check_log()
