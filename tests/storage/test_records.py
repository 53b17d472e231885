"""The encodings of the log: kinds, overlays, header values, columns."""

from __future__ import annotations

import struct
from array import array
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.message import Overlay
from leveret.storage.batch import (
    INDEX_SUMS,
    IndexReader,
    decode_settled,
    encode_settled,
    index_head,
    last_sequences,
    words_to_bytes,
)
from leveret.storage.records import (
    DELIVERY,
    ENTRY,
    INDEX,
    INDEX_SIZE,
    KINDS,
    MESSAGE,
    NONE,
    UPDATE,
    Prefix,
    decode_overlay,
    encode_overlay,
    encode_prefix,
)
from leveret.storage.values import decode_value, encode_value

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone.utc))  # noqa: UP017
    | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_kinds_have_unique_numbers_and_lifetimes() -> None:
    numbers = [kind.number for kind in KINDS]
    assert sorted(numbers) == list(range(1, len(KINDS) + 1))
    assert all(kind.lifetime and 1 <= kind.version <= 7 and kind.number < 32 for kind in KINDS)
    codes = {kind.name: kind.type_byte for kind in KINDS}
    assert (codes["delivery"], codes["message"], codes["entry"], codes["update"]) == (DELIVERY, MESSAGE, ENTRY, UPDATE)
    assert NONE not in codes.values()
    reserved = {kind.name for kind in KINDS if not kind.written}
    assert {"link-state", "prepare", "decide", "staged-chunk", "promote", "dedup-key"} <= reserved


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal, with equal types at every level."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Decimal):
        return str(left) == str(right)
    return bool(left == right)


@given(VALUES)
def test_header_values_survive_a_round_trip(value: Any) -> None:
    assert same(decode_value(encode_value(value)), value)


def test_header_values_of_other_types() -> None:
    others: Any = bytearray(b"ab"), (1, 2), {"a": [object()]}
    assert decode_value(encode_value(others[0])) == b"ab"
    assert decode_value(encode_value(others[1])) == [1, 2]
    assert decode_value(encode_value("\udce9t\udce9")) == "\udce9t\udce9"
    naive = datetime(2020, 1, 1)
    assert decode_value(encode_value(naive)) == naive.replace(tzinfo=timezone.utc)  # noqa: UP017
    east = timezone(timedelta(hours=2))
    assert decode_value(encode_value(datetime(2020, 1, 1, 2, tzinfo=east))) == naive.replace(tzinfo=timezone.utc)  # noqa: UP017
    with pytest.raises(TypeError, match="of type object"):
        encode_value(others[2])
    with pytest.raises(ValueError, match="unknown type"):
        decode_value(b"?")


@given(
    st.none() | st.binary(max_size=512),
    st.dictionaries(st.text(), VALUES, max_size=3),
    st.booleans(),
    st.integers(-1, 1 << 60),
)
def test_overlays_survive_a_round_trip(address: bytes | None, headers: dict[str, Any], drop: bool, expires: int) -> None:
    overlay = decode_overlay(encode_overlay(Overlay(address, headers, drop, expires)))
    assert (overlay.address, overlay.drop_expiration, overlay.expires_at) == (address, drop, expires)
    assert same(overlay.headers, headers)


def test_a_prefix_ends_at_the_start_of_the_data() -> None:
    data = b"..." + encode_prefix(1 << 45, 17, 3, 2, Overlay(headers={"a": 1})) + b"rest"
    prefix = Prefix(data, 3)
    assert (prefix.expires_at, prefix.headers_at, prefix.acquired_count, prefix.delivery_count) == (1 << 45, 17, 3, 2)
    assert prefix.overlay is not None
    assert prefix.overlay.headers == {"a": 1}
    assert data[prefix.end :] == b"rest"
    assert Prefix(encode_prefix(0, -1, 0, 0, None), 0).overlay is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), min_size=1))
def test_last_sequences(entries: list[tuple[int, int]]) -> None:
    column = b"".join(INDEX.pack(seq, queue, 0, 0, DELIVERY, 0) for queue, seq in entries)
    expected: dict[int, int] = {}
    for queue, seq in entries:
        if queue:
            expected[queue] = max(seq, expected.get(queue, 0))
    assert last_sequences(column) == expected


def test_an_index_entry_has_its_declared_size() -> None:
    assert INDEX.size == INDEX_SIZE
    # Recovery cuts columns out by these offsets.
    entry = INDEX.pack(1, 2, 3, 4, 5 | 6 << 8, -7)
    assert struct.unpack_from("<Q", entry, 0) == (1,)
    assert struct.unpack_from("<III", entry, 8) == (2, 3, 4)
    assert entry[20:22] == b"\x05\x06"
    assert struct.unpack_from("<h", entry, 22) == (-7,)


def test_damaged_columns_are_detected() -> None:
    entry = INDEX.pack(1, 2, 3, 4, DELIVERY, 0)
    sums = bytes(INDEX_SUMS)
    good = index_head(1, 1, 1, 0) + entry + words_to_bytes(array("Q", (7, 0, 9))) + sums
    reader = IndexReader(good)
    assert (reader.entries, reader.links.tolist(), reader.identities.tolist()) == (entry, [7], [0, 9])
    for bad in (
        good[:-8],
        good + bytes(8),
        b"\x09" + good[1:],
        good[:10],
        index_head(1, 2, 0, 0) + entry + bytes(16) + sums,
    ):
        with pytest.raises(ValueError):
            IndexReader(bad)
    words = array("I", (5, 0, 2, 1, 3))
    assert decode_settled(encode_settled(words) + bytes(4)) == words
    # Format 1 has no checksums.
    assert decode_settled(b"\x01\0\0\0" + words_to_bytes(words)) == words
    assert IndexReader(b"\x01" + good[1:-8]).identities.tolist() == [0, 9]
    with pytest.raises(ValueError):
        decode_settled(b"\x07\0\0\0")
    with pytest.raises(ValueError):
        decode_settled(encode_settled(words)[:-1])
