"""Record batches decode to the same columns, whether their rows are read in columns or one by one."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from leveret.broker.bodies import whole
from leveret.broker.message import FORMAT_AMQP1, Message, Overlay, make_address
from leveret.broker.queues.record_batches import RecordBatch
from leveret.segments.columns import Rows, make_batch
from leveret.segments.record_batches import DeliveredBatch, InvalidRecordBatch, joined
from leveret.wire.amqp0.properties import encode_header

TIME = 1_790_000_000_000


def messages(count: int) -> list[Message]:
    """Return messages with equal, similar and different headers and addresses."""
    found = []
    for number in range(count):
        body = b"x" * (number % 5)
        properties: dict[str, Any] = {"content_type": "text/plain"}
        if number % 3 == 1:
            properties["headers"] = {"number": number % 4}
        if number % 7 == 2:
            properties["message_id"] = f"id {number}"
        address = make_address("e", f"key.{number % 2}")
        found.append(Message(address, encode_header(60, len(body), properties), body, len(body), True))
    return found


def encode(items: list[Message], *, first: int = 7, next: int = 0, gap: int = 0) -> bytes:
    """Return a record batch, in which the last message has an offset that is higher by `gap`."""
    batch = RecordBatch()
    for index, item in enumerate(items):
        batch.add(item, first + index + (gap if index == len(items) - 1 else 0), TIME + index)
    return whole(batch.message("s", first, next or first + len(items) + gap).body)


def rows_of(items: list[Message], first: int = 7) -> Rows:
    return Rows(
        list(range(first, first + len(items))),
        [TIME + index for index in range(len(items))],
        [item.format for item in items],
        [item.address for item in items],
        [item.header for item in items],
        [whole(item.body) for item in items],
    )


@pytest.mark.parametrize("count", [1, 2, 50])
def test_columns(count: int) -> None:
    items = messages(count)
    delivered = DeliveredBatch(encode(items))
    assert (delivered.count, delivered.first, delivered.next) == (count, 7, 7 + count)
    assert delivered.is_ordered()
    batch = make_batch(delivered.rows, queue="s")
    batch.validate(full=True)
    assert batch.equals(make_batch(rows_of(items), queue="s"))


def test_columns_with_one_header_and_address() -> None:
    items = [messages(1)[0]] * 20
    delivered = DeliveredBatch(encode(items))
    assert make_batch(delivered.rows, queue="s").equals(make_batch(rows_of(items), queue="s"))


def test_rows_as_lists() -> None:
    items = messages(20)
    rows, expected = DeliveredBatch(encode(items)).rows, rows_of(items)
    assert list(rows.times or ()) == expected.times
    assert (rows.offsets, rows.addresses, rows.headers, rows.bodies) == (
        expected.offsets,
        expected.addresses,
        expected.headers,
        expected.bodies,
    )


def test_messages_without_append_times() -> None:
    rows = DeliveredBatch(encode(messages(5))).rows
    rows.times = None
    assert make_batch(rows, ["append_time"]).column("append_time").null_count == 5


def test_messages_that_are_read_one_by_one() -> None:
    """Messages of AMQP 1.0, dead letters and redelivered messages share record batches with others."""
    batch = RecordBatch()
    body = b"\x00\x53\x75\xa0\x01a"
    batch.add(messages(1)[0], 0, TIME)
    batch.add(Message(make_address("", "q"), b"", body, len(body), True, format=FORMAT_AMQP1), 1, TIME)
    batch.add(messages(1)[0], 2, TIME, Overlay(headers={"x-first-death-queue": "q"}))
    batch.add(messages(1)[0], 3, TIME, None, True, 2)
    delivered = DeliveredBatch(whole(batch.message("s", 0, 4).body))
    assert delivered.is_ordered()
    columns = make_batch(delivered.rows).to_pydict()
    assert columns["protocol"] == ["0-9-1", "1.0", "0-9-1", "0-9-1"]
    assert columns["headers"][2] == [("x-first-death-queue", "q")]
    assert columns["redelivered"] == [False, False, False, True]
    assert columns["delivery_count"] == [0, 0, 0, 2]


def test_offsets_out_of_order() -> None:
    assert DeliveredBatch(encode(messages(3), gap=2)).is_ordered()
    assert not DeliveredBatch(encode(messages(3), gap=-1)).is_ordered()
    assert not DeliveredBatch(encode(messages(3), next=9)).is_ordered()
    assert not DeliveredBatch(encode(messages(3), gap=-3, next=12)).is_ordered()
    assert DeliveredBatch(whole(RecordBatch().message("s", 3, 5).body)).is_ordered()


def test_malformed_record_batches() -> None:
    data = encode(messages(6))
    for size in range(len(data)):
        with pytest.raises(InvalidRecordBatch):
            DeliveredBatch(data[:size])
    with pytest.raises(InvalidRecordBatch):
        DeliveredBatch(data + b"x")
    for position in range(24 + 21 * 6, 24 + 37 * 6, 4):
        for size in (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 1 << 20):
            changed = data[:position] + struct.pack("<I", size) + data[position + 4 :]
            with pytest.raises(InvalidRecordBatch):
                DeliveredBatch(changed)


def test_record_batches_are_joined() -> None:
    items = messages(30)
    data = [encode(items[first : first + 10], first=first) for first in (0, 10, 20)]
    found = list(joined(map(DeliveredBatch, data), 20))
    assert [len(rows) for rows in found] == [20, 10]
    assert found[0].bodies == [item.body for item in items[:20]]
    assert [row["append_time"] for row in make_batch(found[0], ["append_time"]).to_pylist()] == [
        row["append_time"]
        for part in data[:2]
        for row in make_batch(DeliveredBatch(part).rows, ["append_time"]).to_pylist()
    ]
    # Others are not, and order is kept.
    batch = RecordBatch()
    batch.add(items[0], 30, TIME, None, True)
    other = whole(batch.message("s", 30, 31).body)
    assert [len(rows) for rows in joined(map(DeliveredBatch, [*data[:2], other, data[2]]), 100)] == [20, 1, 10]
    assert list(joined([], 100)) == []


def test_large_record_batches_are_not_joined() -> None:
    large = bytes(5 << 20)
    item = Message(make_address("", "s"), encode_header(60, len(large), {}), large, len(large), True)
    assert [len(rows) for rows in joined([DeliveredBatch(encode([item])) for _ in range(2)], 100)] == [1, 1]
