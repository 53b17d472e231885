"""The codec of record batches for publishing."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.record_batches import (
    MAX_ROWS,
    InvalidRecordBatch,
    RowReader,
    decode_ranges,
    encode,
    encode_ranges,
    is_address,
)

rows = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40), st.binary(max_size=60)), min_size=1, max_size=40)


def encoded(found: list[tuple[bytes, bytes, bytes]]) -> bytes:
    addresses, properties, bodies = ([row[column] for row in found] for column in range(3))
    return encode(addresses, properties, bodies)


def read(reader: RowReader) -> list[tuple[bytes, bytes, bytes]]:
    found = []
    while reader.taken < reader.count:
        body = reader.next()
        found.append((reader.address, reader.properties, body))
    return found


@given(rows)
def test_rows_survive_a_round_trip(found: list[tuple[bytes, bytes, bytes]]) -> None:
    assert read(RowReader(encoded(found))) == found


def test_equal_columns_are_encoded_once_and_read_as_one_object() -> None:
    reader = RowReader(encode(b"address", b"properties", [b"1", b"2"]))
    assert reader.next() == b"1"
    address, properties = reader.address, reader.properties
    assert reader.next() == b"2"
    assert reader.address is address and reader.properties is properties
    assert (address, properties) == (b"address", b"properties")


@given(rows, st.data())
def test_truncated_batches_are_invalid(found: list[tuple[bytes, bytes, bytes]], data: st.DataObject) -> None:
    whole = encoded(found)
    with pytest.raises(InvalidRecordBatch):
        RowReader(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InvalidRecordBatch, match="the sum of its sizes"):
        RowReader(whole + b"x")


@given(st.binary(max_size=300))
def test_any_other_data_is_invalid(data: bytes) -> None:
    for claimed in (data, b"LVB1" + data, b"LVB1" + struct.pack("<I", 3) + data):
        try:
            reader = RowReader(claimed)
        except InvalidRecordBatch:
            continue
        assert sum(len(part) for row in read(reader) for part in row) + 8 + 12 * reader.count == len(claimed)


@pytest.mark.parametrize("count", [0, MAX_ROWS + 1, 0xFFFFFFFF])
def test_the_number_of_rows_is_limited(count: int) -> None:
    with pytest.raises(InvalidRecordBatch, match=rf"has {count} rows; expected 1 to 4096"):
        RowReader(b"LVB1" + struct.pack("<I", count) + bytes(100))


def test_sizes_that_overflow_are_invalid() -> None:
    for column in range(3):
        sizes = [0, 0, 0]
        sizes[column] = 0xFFFFFFFF
        with pytest.raises(InvalidRecordBatch, match=f"expected {20 + 0xFFFFFFFF}"):
            RowReader(b"LVB1" + struct.pack("<I3I", 1, *sizes))


@given(st.sets(st.integers(0, MAX_ROWS - 1)))
def test_row_numbers_survive_a_round_trip(numbers: set[int]) -> None:
    text = encode_ranges(sorted(numbers))
    assert decode_ranges(text) == sorted(numbers)
    assert len(text) <= 10_240


@pytest.mark.parametrize("text", ["a", "3-1", "1,1", "4096", "-1"])
def test_malformed_row_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_ranges(text)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_an_address_is_two_short_strings(exchange: bytes, key: bytes) -> None:
    address = bytes((len(exchange),)) + exchange + bytes((len(key),)) + key
    assert is_address(address)
    assert not is_address(address + b"x") and not is_address(address[:-1])
