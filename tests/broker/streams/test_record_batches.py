"""Record batches: many messages of a stream in one delivery."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.bodies import StoredBody, whole
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import FORMAT_AMQP1, Entry, Message, Overlay, make_address
from leveret.broker.queues import record_batches
from leveret.broker.queues.record_batches import RecordBatch
from leveret.broker.streams.queue import StreamQueue
from leveret.storage.memory import MemoryRow
from tests.broker.streams.test_streams import append, numbers, stream
from tests.broker.support import HeldLog, Taker, World


class Packs(Taker):
    """A reader of record batches of a stream."""

    def __init__(
        self, queue: StreamQueue, start: int = 0, until: int | None = None, *, credit: int = -1, only: bytes | None = None
    ) -> None:
        super().__init__(queue, credit=credit, only=only, join=False)
        self.arguments = {"x-stream-offset": start, "x-packed": True}
        if until is not None:
            self.arguments["x-packed-until"] = until
        queue.check_consumer(self.arguments, self.no_ack)
        queue.add_consumer(self)
        queue.broker.end_turn()

    def deliver(self, entry: Entry) -> None:
        if self.credit > 0:
            self.credit -= 1
        self.taken.append(entry)

    def got(self) -> list[tuple[int, int, list[int], list[str]]]:
        """Return first and next offset, offsets and bodies of each record batch."""
        return [read(whole(entry.message.body)) for entry in self.taken]


def read(data: bytes) -> tuple[int, int, list[int], list[str]]:
    magic, count, first, next = struct.unpack_from("<4sIQQ", data)
    assert magic == b"LVP1"
    offsets = array("Q", data[24 : 24 + 8 * count])
    sizes = array("I", data[24 + 33 * count : 24 + 37 * count])
    bodies = []
    at = len(data) - sum(sizes)
    for size in sizes:
        bodies.append(data[at : at + size].decode())
        at += size
    return first, next, offsets.tolist(), bodies


def test_a_record_batch_has_the_available_messages() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, "a", "b", "c")
    reader = Packs(queue)
    assert reader.got() == [(0, 3, [0, 1, 2], ["a", "b", "c"])]
    append(world, queue, "d")
    assert reader.got()[1:] == [(3, 4, [3], ["d"])]
    assert queue.unacked == 2
    reader.ack(2)
    assert queue.unacked == 0
    assert queue.ready_count == 4


def test_record_batches_end_at_the_requested_offset() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, *numbers(0, 5))
    reader = Packs(queue, 1, 4)
    assert reader.got() == [(1, 4, [1, 2, 3], ["1", "2", "3"])]
    append(world, queue, "5")
    assert len(reader.got()) == 1


def test_credit_counts_record_batches() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, "a", "b")
    reader = Packs(queue, credit=1)
    append(world, queue, "c")
    assert len(reader.taken) == 1
    reader.give(1)
    world.broker.end_turn()
    assert [record_batch[2] for record_batch in reader.got()] == [[0, 1], [2]]


def test_a_record_batch_is_limited() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, *numbers(0, record_batches.MAX_ENTRIES + 2))
    assert [len(record_batch[2]) for record_batch in Packs(queue).got()] == [record_batches.MAX_ENTRIES, 2]
    large = "x" * (record_batches.MAX_BODY_BYTES // 5 * 2)
    append(world, queue, large, large, large, large * 4)
    assert [len(record_batch[2]) for record_batch in Packs(queue, record_batches.MAX_ENTRIES + 2).got()] == [2, 1, 1]


def test_filtered_messages_are_covered() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, "a1", "b1", "a2", "b2", "b3")
    assert Packs(queue, 0, 5, only=b"a").got() == [(0, 5, [0, 2], ["a1", "a2"])]
    # No matching message: reported at the end only.
    assert Packs(queue, 0, 5, only=b"c").got() == [(0, 5, [], [])]
    tail = Packs(queue, only=b"c")
    assert tail.got() == []
    append(world, queue, "c1")
    assert tail.got() == [(0, 6, [5], ["c1"])]


def test_messages_removed_by_retention_are_not_covered() -> None:
    world = World()
    queue = stream(world, max_length_bytes=1 << 20)
    append(world, queue, *["x" * (600 << 10) for _ in range(6)])
    first = queue.first_offset
    assert first > 1
    assert Packs(queue, 0, 6).got()[0][0] == first
    assert Packs(queue, 0, 1).got() == [(first, first, [], [])]


def test_every_fact_of_a_message() -> None:
    record_batch = RecordBatch()
    record_batch.add(Message(make_address("e", "k"), b"head", b"body", 4, True), 7, 1000)
    record_batch.add(
        Message(make_address("", "q"), b"h", [b"bo", b"dy"], 4, True, format=FORMAT_AMQP1),
        9,
        2000,
        Overlay(make_address("", "dead"), {"x-a": 1}),
        True,
        3,
    )
    data = whole(record_batch.message("s", 7, 10).body)
    assert struct.unpack_from("<4sIQQ", data) == (b"LVP1", 2, 7, 10)
    assert struct.unpack_from("<2Q2q2B2I", data, 24) == (7, 9, 1000, 2000, 0, 13, 0, 3)
    assert data.endswith(b"bodybody")
    from leveret.broker import metadata

    overlay = metadata.pack({"headers": {"x-a": 1}, "address": make_address("", "dead"), "drop_expiration": False})
    assert overlay in data


def test_a_body_outside_of_memory_stays_there() -> None:
    class Stored(StoredBody):
        def __init__(self) -> None:
            super().__init__()
            self.size = 10

        def read(self, at: int, length: int) -> bytes:
            return b"0123456789"[at : at + length]

    record_batch = RecordBatch()
    record_batch.add(Message(make_address("e", "k"), b"head", Stored(), 10, True), 7, 1000)
    assert not record_batch.has_room(1)
    made = record_batch.message("s", 7, 8)
    assert isinstance(made.body, StoredBody)
    whole_body = whole(made.body)
    assert len(whole_body) == made.size
    assert whole_body.endswith(b"0123456789")
    pieces = b"".join(made.body.read(at, 7) for at in range(0, made.size, 7))
    assert pieces == whole_body


class BatchLog(HeldLog):
    """A log that reads record batches of two messages back, as an engine on disk does; without them if not `readable`."""

    def __init__(self) -> None:
        super().__init__()
        self.readable = True
        self.reads: list[int] = []
        self.loads = 0

    def load_record_batches(
        self, rows: Any, slots: Any, first: int, time: int, done: Callable[[list[RecordBatch]], None]
    ) -> bool:
        self.reads.append(len(rows))
        batches: list[RecordBatch] = []
        for index, (row_id, slot) in enumerate(zip(rows, slots, strict=True)):
            row = self.rows[row_id]
            assert isinstance(row, MemoryRow)
            entry = row.entries[slot]
            assert entry is not None
            if index % 2 == 0:
                batches.append(RecordBatch())
            batches[-1].add(entry.message, first + index - 1, time)
        assert self._post is not None
        self._post(lambda: done(batches if self.readable else []))
        return True

    def load(self, rows: Any, slots: Any, done: Any) -> None:
        self.loads += 1
        super().load(rows, slots, done)


def paged_out(world: World, **arguments: Any) -> StreamQueue:
    """Return a stream whose first chunk, with five messages, is only in the log."""
    queue = stream(world, **arguments)
    large = "x" * (300 << 10)
    append(world, queue, *[f"{number}{large}" for number in range(4)])
    append(world, queue, "4")
    assert queue.chunks[0].messages is None
    return queue


def test_messages_in_the_log_are_read_as_record_batches() -> None:
    log = BatchLog()
    world = World(log=log, page_above=1000)
    queue = paged_out(world)
    reader = Packs(queue)
    world.run()
    assert [record_batch[:3] for record_batch in reader.got()] == [(0, 2, [0, 1]), (2, 4, [2, 3]), (4, 5, [4])]
    assert (log.reads, log.loads) == ([4], 0)
    # A part of the chunk, with credit for one at a time.
    part = Packs(queue, 1, 4, credit=1)
    world.run()
    assert [record_batch[:3] for record_batch in part.got()] == [(1, 3, [1, 2])]
    part.give(1)
    world.run()
    assert [record_batch[:3] for record_batch in part.got()] == [(1, 3, [1, 2]), (3, 4, [3])]
    assert (log.reads, log.loads) == ([4, 3], 0)


def test_messages_that_are_not_read_as_record_batches_are_loaded() -> None:
    log = BatchLog()
    log.readable = False
    world = World(log=log, page_above=1000)
    queue = paged_out(world)
    reader = Packs(queue)
    world.run()
    assert [offset for record_batch in reader.got() for offset in record_batch[2]] == [0, 1, 2, 3, 4]
    # Loading the first chunk has paged the second one out.
    assert (log.reads, log.loads) == ([4, 1], 2)
    # A filter needs the messages.
    filtered = Packs(queue, 0, 5, only=b"3")
    world.run()
    assert [record_batch[:3] for record_batch in filtered.got()] == [(0, 4, [3]), (4, 5, [])]
    assert log.reads == [4, 1]


def test_retention_removes_record_batches_that_were_read() -> None:
    log = BatchLog()
    world = World(log=log, page_above=1000)
    queue = paged_out(world, max_length_bytes=2 << 20)
    reader = Packs(queue, credit=1)
    world.run()
    append(world, queue, *["y" * (600 << 10)] * 5)
    first = queue.first_offset
    assert first > 4
    reader.give(1)
    world.run()
    assert [record_batch[0] for record_batch in reader.got()] == [0, first]


def test_a_named_reader_gets_no_record_batches() -> None:
    queue = stream(World())
    with pytest.raises(PreconditionFailed, match="x-packed"):
        queue.check_consumer({"x-packed": True, "x-stream-consumer": "c"}, False)


@pytest.mark.parametrize(
    "arguments",
    [{"x-packed": "yes"}, {"x-packed": True, "x-packed-until": "end"}, {"x-packed": True, "x-packed-until": -1}],
    ids=["no-flag", "text", "negative"],
)
def test_arguments_of_no_use(arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match="x-packed"):
        stream(World()).check_consumer(arguments, False)
