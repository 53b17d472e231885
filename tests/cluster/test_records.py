"""Shared records on their way from the front to a shard, in slices: the event loop serves clients between them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from leveret.cluster.link import Applied, Begin, Change, Channels, Message, Opened, OtherChannels, Ready, Records, make_pair
from leveret.cluster.parts import FrontStopped, ShardPart
from leveret.cluster.shards import MAX_RECORD_BYTES, MAX_RECORDS, Shards
from leveret.config import Config
from leveret.config.model import ClusterConfig, ServerConfig
from leveret.management.operations.shards import READY
from leveret.storage.salvage import NOTHING_LOST
from tests.cluster.test_shard_link import End
from tests.support.polling import wait_until_async

COUNT = 20 * MAX_RECORDS + 7


class Front:
    """A front, and the link to its first shard, whose process is the test."""

    def __init__(self, tmp_path: Path) -> None:
        config = Config(server=ServerConfig(data_dir=str(tmp_path)), cluster=ClusterConfig(shards=2))
        self.shards = Shards(config, "test", NOTHING_LOST, asks_shared=False, stop_timeout=1.0)
        self.shard = cast(Any, self.shards.all[0])
        self.shard._next_settings()
        self.process = End(self.shard._remote.dup())
        self.process.start()
        # The number of the turn in which each message with several records was sent.
        self.turns: list[int] = []
        self._turn = 0
        send = self.shard._link.send

        def record(message: Message) -> None:
            if isinstance(message, Records | Begin | Change) and len(message.records) > 1:
                self.turns.append(self._turn)
            send(message)

        self.shard._link.send = record
        self._count_turn()

    def _count_turn(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._count_turn)

    async def open(self) -> None:
        self.process.link.send(Opened([], []))
        await wait_until_async(lambda: self.shard.is_open)

    @property
    def received(self) -> list[Message]:
        return self.process.received

    async def wait(self, kind: type[Any]) -> None:
        await wait_until_async(lambda: any(isinstance(message, kind) for message in self.received))


def slices(messages: list[Message], *kinds: type[Any]) -> list[list[Any]]:
    return [message.records for message in messages if isinstance(message, kinds)]


def test_many_records(tmp_path: Path) -> None:
    asyncio.run(_many_records(tmp_path))


async def _many_records(tmp_path: Path) -> None:
    front = Front(tmp_path)
    for number in range(COUNT):
        front.shards.put("user", f"user{number}", b"value")
    await front.open()
    front.shard.begin()
    # A change in the meantime comes after the records, one of another node that is gone not at all.
    front.shards.put("user", "user3", b"changed")
    front.shards.put("user", f"user{COUNT - 1}", None)
    front.shard.disown("other")
    await front.wait(Change)
    assert [type(message) for message in front.received] == [*[Records] * 20, Begin, Change]
    assert all(len(records) <= MAX_RECORDS for records in slices(front.received, Records, Begin))
    assert len(set(front.turns)) == len(front.turns)
    records = {key: value for part in slices(front.received, Records, Begin, Change) for _, key, value in part}
    assert len(records) == COUNT
    assert records["user3"] == b"changed" and records[f"user{COUNT - 1}"] is None and records["user5"] == b"value"


def test_large_records(tmp_path: Path) -> None:
    asyncio.run(_large_records(tmp_path))


async def _large_records(tmp_path: Path) -> None:
    front = Front(tmp_path)
    for number in range(5):
        front.shards.put("global-parameter", f"name{number}", bytes(MAX_RECORD_BYTES))
    await front.open()
    front.shard.begin()
    await front.wait(Begin)
    assert [len(records) for records in slices(front.received, Records, Begin)] == [1, 1, 1, 1, 1, 0]


def test_many_changes(tmp_path: Path) -> None:
    asyncio.run(_many_changes(tmp_path))


async def _many_changes(tmp_path: Path) -> None:
    """They count as applied when the shard has applied the last one."""
    front = Front(tmp_path)
    await front.open()
    front.shard.begin()
    await front.wait(Begin)
    front.process.link.send(Ready())
    await wait_until_async(lambda: front.shard.state == READY)
    for number in range(COUNT):
        front.shards.put("user", f"user{number}", b"value")
    expected = front.shards.change_number
    applying = asyncio.create_task(front.shards.applied())
    await wait_until_async(lambda: sum(map(len, slices(front.received, Change))) == COUNT)
    changes = [message for message in front.received if isinstance(message, Change)]
    assert max(len(change.records) for change in changes) <= MAX_RECORDS
    assert len(set(front.turns)) == len(front.turns) > 10
    assert changes[-1].number == expected and all(change.number < expected for change in changes[:-1])
    numbers = [change.number for change in changes[:-1]]
    for number in sorted(numbers, reverse=True):
        front.process.link.send(Applied(number))
    await wait_until_async(lambda: front.shard.applied == max(numbers))
    assert not applying.done()
    front.process.link.send(Applied(changes[-1].number))
    await applying


def test_a_shard_puts_the_slices_together(tmp_path: Path) -> None:
    front, process = make_pair()
    config = Config(server=ServerConfig(data_dir=str(tmp_path)))
    shards = Shards(config, "test", NOTHING_LOST, asks_shared=False, stop_timeout=1.0)
    part = ShardPart(shards._settings(0, 0), End(process).link)
    sender = End(front).link
    for message in (Records([("user", "a", b"1"), ("user", "b", b"2")]), Records([("user", "c", b"3")]), Begin([])):
        sender.send(message)
    assert list(part._receive_records()) == [("user", "a", b"1"), ("user", "b", b"2"), ("user", "c", b"3")]
    sender.send(Records([("user", "a", b"1")]))
    sender.close()
    with pytest.raises(FrontStopped):
        list(part._receive_records())


def test_the_channels_of_a_user_in_other_shards(tmp_path: Path) -> None:
    asyncio.run(_the_channels_of_a_user_in_other_shards(tmp_path))


async def _the_channels_of_a_user_in_other_shards(tmp_path: Path) -> None:
    """A shard receives the numbers of the others, and again when they have changed."""
    front = Front(tmp_path)
    await front.open()
    front.shard.begin()
    await front.wait(Begin)
    front.shards.all[1].channels = {"one": 2, "two": 3}
    front.process.link.send(Channels({"one": 5}))
    await front.wait(OtherChannels)
    assert front.received[-1] == OtherChannels({"one": 2, "two": 3})
    front.shards.all[1].channels = {"one": 2}
    front.process.link.send(Channels({"one": 6}))
    await wait_until_async(lambda: front.received[-1] == OtherChannels({"one": 2}))
    front.process.link.send(Channels({"one": 7}))
    await wait_until_async(lambda: front.shard.channels == {"one": 7})
    front.shards._share_channels()
    front.process.link.send(Channels({}))
    await wait_until_async(lambda: not front.shard.channels)
    assert sum(isinstance(message, OtherChannels) for message in front.received) == 2
