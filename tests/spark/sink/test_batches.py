"""Record batches of rows: their limits, and confirms that report rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from leveret.client.errors import BatchFailed
from leveret.spark.sink import amqp091_encoder
from leveret.spark.sink.amqp091_batches import BatchFramer
from leveret.spark.sink.amqp091_encoder import Amqp091Encoder
from leveret.spark.sink.batches import BatchEncoder, refused_rows
from leveret.spark.sink.rows import AddressOptions, Limits, Rows
from leveret.wire.record_batches import MAX_BYTES, MAX_ROWS, RowReader


def rows_of(bodies: list[bytes], properties: bytes | list[bytes] = b"\0\0") -> Rows:
    return Rows(["x"] * len(bodies), [f"k{number % 3}" for number in range(len(bodies))], properties, bodies)


def encoded(encoder: Amqp091Encoder, batch: pa.RecordBatch) -> tuple[list[bytes], list[tuple[int, str, bytes]], int, int]:
    """Encode a batch: the frames of its record batches, the rejected rows, the checksum and the size."""
    rows, rejected = encoder.encode(batch)
    framer = BatchFramer(1, 131_064, "leveret.stage:s:", False)
    frames = [framer.frames(chunk) for chunk in framer.chunks(rows, 1000)]
    return frames, [(row.index, row.reason, row.body) for row in rejected], rows.checksum(5), rows.size


@pytest.mark.parametrize(
    ("bodies", "sizes"),
    [
        ([], []),
        ([b""] * (MAX_ROWS + 1), [MAX_ROWS, 1]),
        ([bytes(300_000)] * 3, [1, 1, 1]),
        ([b"1", bytes(MAX_BYTES), b"2", b"3"], [1, 1, 2]),
    ],
)
def test_chunks_fit_in_record_batches(bodies: list[bytes], sizes: list[int]) -> None:
    encoder = BatchEncoder("p:")
    chunks = list(encoder.chunks(rows_of(bodies)))
    assert [len(chunk) for chunk in chunks] == sizes
    assert [body for chunk in chunks for body in chunk.bodies] == bodies
    for chunk in chunks:
        batch = encoder.encode(chunk)
        if batch is None:
            assert len(chunk) == 1 and len(chunk.bodies[0]) == MAX_BYTES
            continue
        reader = RowReader(batch)
        found = [reader.next() for _ in range(reader.count)]
        assert found == chunk.bodies and reader.address.startswith(b"\x03p:x\x02k")


def test_chunks_with_large_properties_fit_too() -> None:
    encoder = BatchEncoder("")
    properties = [bytes(200_000), b"\0\0", bytes(200_000)] * 2
    assert all(encoder.encode(chunk) is not None for chunk in encoder.chunks(rows_of([b""] * 6, properties)))


def test_a_report_names_the_rows() -> None:
    rows = rows_of([b"0", b"1", b"2"])
    found = refused_rows(rows, BatchFailed("queue 'q' is full", unroutable=[2], refused=[0]))
    assert [(one.rows.bodies, one.reason, one.unroutable) for one in found] == [
        ([b"2"], "no queue is bound to exchange 'x' for routing key 'k2'", True),
        ([b"0"], "queue 'q' is full", False),
    ]


@pytest.mark.parametrize("body_type", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("first", [0, 3])
def test_bodies_of_a_column_are_encoded_as_single_values_are(
    body_type: pa.DataType, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [("x" * (number % 50) + "é").encode() for number in range(7000)]
    column = pa.array(bodies, pa.binary()).cast(pa.string() if pa.types.is_large_string(body_type) else pa.binary())
    columns = {
        "plain": {"body": column.cast(body_type)},
        "properties": {"body": column.cast(body_type), "message_id": [str(number) for number in range(len(bodies))]},
        "empty": {"body": pa.array([b""] * len(bodies), pa.binary()).cast(body_type)},
        "key column": {"body": column.cast(body_type), "routing_key": [f"k{number % 3}" for number in range(len(bodies))]},
        "null": {"body": pa.array([None, *bodies[1:]], pa.binary()).cast(body_type)},
    }
    for name, values in columns.items():
        batch = pa.RecordBatch.from_pydict(values).slice(first, 6000)
        address = AddressOptions("x", None if name == "key column" else "k")
        found = encoded(Amqp091Encoder(address, Limits()), batch)
        with monkeypatch.context() as patch:
            patch.setattr(amqp091_encoder, "body_column", lambda *_: None)
            assert encoded(Amqp091Encoder(address, Limits()), batch) == found, name
        assert len(found[1]) == (1 if name == "null" and not first else 0)


def test_a_body_beyond_the_limit_is_rejected_by_its_index() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"a" * 10, b"b" * 30, b"c" * 10]})
    rows, rejected = Amqp091Encoder(AddressOptions("x", "k"), Limits(body=20)).encode(batch)
    assert rows.bodies == [b"a" * 10, b"c" * 10] and [row.index for row in rejected] == [1]


def test_a_rejected_row_leaves_the_others_of_its_column() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"c"], "priority": [1, 256, 2]})
    rows, rejected = Amqp091Encoder(AddressOptions("x", "k"), Limits()).encode(batch)
    assert (rows.exchanges, rows.routing_keys, rows.bodies) == (["x"] * 2, ["k"] * 2, [b"a", b"c"])
    assert [(row.index, row.body, row.exchange, row.routing_key) for row in rejected] == [(1, b"b", "x", "k")]
