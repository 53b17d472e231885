"""Record batches of rows: their limits, and confirms that report rows."""

from __future__ import annotations

import pytest

from leveret.client.errors import BatchFailed
from leveret.spark.sink.batches import BatchEncoder, refused_rows
from leveret.spark.sink.rows import Rows
from leveret.wire.record_batches import MAX_BYTES, MAX_ROWS, RowReader


def rows_of(bodies: list[bytes], properties: bytes | list[bytes] = b"\0\0") -> Rows:
    return Rows(["x"] * len(bodies), [f"k{number % 3}" for number in range(len(bodies))], properties, bodies)


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
