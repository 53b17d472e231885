"""Decoding of record batches, which a consumer requests with `x-packed`.

`leveret.broker.queues.record_batches` encodes them and documents their layout.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from leveret.broker import metadata
from leveret.broker.message import FORMAT_AMQP0, Overlay
from leveret.broker.queues.record_batches import FORMAT_MASK, HAS_OVERLAY, MAGIC, REDELIVERED
from leveret.segments import schema
from leveret.segments.amqp0_records import PROPERTIES_START
from leveret.segments.columns import Rows, distinct
from leveret.storage.records import encode_overlay

_HEAD: Final = struct.Struct("<4sIQQ")
_ROW: Final = 8 + 8 + 1 + 4 + 4 * 4
_FIRST_SIZE: Final = 8 + 8 + 1 + 4
_MAX_ARROW_BYTES: Final = (1 << 31) - 1
_MAX_JOINED_BYTES: Final = 4 << 20


class InvalidRecordBatch(ValueError):
    """The data is not a valid record batch."""


class DeliveredBatch:
    """A record batch: `count` messages in `rows`, covering the offsets from `first` to before `next`.

    Attributes:
        plain: The rows, if they are plain.
    """

    __slots__ = ("count", "first", "next", "plain", "rows")

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEAD.size or data[:4] != MAGIC:
            raise InvalidRecordBatch(f"a delivery of {len(data)} bytes is not a record batch")
        _, count, self.first, self.next = _HEAD.unpack_from(data)
        self.count: int = count
        if len(data) < _HEAD.size + _ROW * count:
            raise InvalidRecordBatch(f"a record batch of {count} messages ends after {len(data)} bytes")
        facts_at = _HEAD.size + 16 * count
        self.plain: PlainRows | None = None
        if count and len(data) <= _MAX_ARROW_BYTES and data.count(0, facts_at, facts_at + 5 * count) == 5 * count:
            self.plain = plain_rows(data, count)
        self.rows: Rows = self.plain or _read_rows(data, count)

    def is_ordered(self) -> bool:
        """Return whether the offsets of its messages ascend within those that it covers."""
        if not self.count:
            return True
        offsets = self.rows.offset_column()
        if not self.first <= offsets[0].as_py() <= offsets[self.count - 1].as_py() < self.next:
            return False
        return self.count == 1 or bool(pc.all(pc.less(offsets[:-1], offsets[1:])).as_py())


class PlainRows(Rows):
    """Rows in Arrow arrays: 0-9-1 messages without overlays that were delivered once. No Python object is made for a row.

    Args:
        offsets: Stream offsets.
        times: Append times in milliseconds of Unix time.
        columns: Addresses, headers, overlays (all empty) and bodies.
    """

    __slots__ = ("_addresses", "_bodies", "_headers", "_offsets", "_overlays")

    def __init__(self, offsets: pa.Int64Array, times: array[int], columns: Sequence[pa.BinaryArray]) -> None:
        self._offsets = offsets
        self.times = times
        self._addresses, self._headers, self._overlays, self._bodies = columns
        self.formats = FORMAT_AMQP0
        self.overlays = self.redelivered = self.delivery_counts = None

    @staticmethod
    def joined(parts: Sequence[PlainRows]) -> PlainRows:
        """Return the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        times: array[int] = array("q")
        for part in parts:
            times.extend(part.times or ())
        columns = [(part._addresses, part._headers, part._overlays, part._bodies) for part in parts]
        return PlainRows(
            pa.concat_arrays([part._offsets for part in parts]),
            times,
            [pa.concat_arrays(column) for column in zip(*columns, strict=True)],
        )

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def n_bytes(self) -> int:
        """The size of the bodies."""
        size: int = self._bodies.nbytes
        return size

    @property
    def offsets(self) -> list[int]:  # type: ignore[override]
        offsets: list[int] = self._offsets.to_pylist()
        return offsets

    @property
    def addresses(self) -> list[bytes]:  # type: ignore[override]
        return _values(self._addresses)

    @property
    def headers(self) -> list[bytes]:  # type: ignore[override]
        return _values(self._headers)

    @property
    def bodies(self) -> list[bytes]:  # type: ignore[override]
        return _values(self._bodies)

    def offset_column(self) -> pa.Array:
        return self._offsets

    def time_column(self) -> pa.Array:
        if self.times is None:
            return pa.nulls(len(self), schema.TIMESTAMP)
        times = pa.Array.from_buffers(pa.int64(), len(self), [None, pa.py_buffer(self.times)])
        return pc.multiply(times, 1000).view(schema.TIMESTAMP)

    def body_column(self) -> pa.Array:
        return self._bodies

    def distinct_addresses(self) -> tuple[Sequence[bytes], pa.Array | None]:
        return _distinct_values(self._addresses)

    def distinct_properties(self) -> tuple[Sequence[bytes], pa.Array | None]:
        headers, indices = _distinct_values(self._headers)
        # They differ in the size of the body.
        properties, numbers = distinct([header[PROPERTIES_START:] for header in headers])
        if numbers is None or indices is None:
            return properties, indices if numbers is None else numbers
        return properties, numbers.take(indices)


def joined(batches: Iterable[DeliveredBatch], max_rows: int) -> Iterator[Rows]:
    """Yield the rows of record batches, joining plain ones up to about `max_rows` and 4 MiB: larger columns cost less."""
    waiting: list[PlainRows] = []
    count = n_bytes = 0
    for batch in batches:
        plain = batch.plain
        if waiting and (plain is None or count + batch.count > max_rows or n_bytes >= _MAX_JOINED_BYTES):
            yield PlainRows.joined(waiting)
            waiting = []
            count = n_bytes = 0
        if plain is None:
            yield batch.rows
        else:
            waiting.append(plain)
            count += batch.count
            n_bytes += plain.n_bytes
    if waiting:
        yield PlainRows.joined(waiting)


def plain_rows(data: bytes, count: int) -> PlainRows:
    """Return the rows of a record batch, which are plain. Raises InvalidRecordBatch."""
    at = _HEAD.size
    offsets = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data[at : at + 8 * count])])
    times = array("q", data[at + 8 * count : at + 16 * count])
    sizes_at = at + _FIRST_SIZE * count
    end = at + _ROW * count
    buffer = pa.py_buffer(data)
    columns: list[pa.BinaryArray] = []
    for _ in range(4):
        sizes = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(data[sizes_at : sizes_at + 4 * count])])
        total = pc.sum(sizes).as_py()
        if pc.min(sizes).as_py() < 0 or end + total > len(data):
            raise InvalidRecordBatch(f"a record batch of {count} messages ends after {len(data)} bytes")
        bounds = pa.py_buffer(bytes(4) + pc.cumulative_sum(sizes).buffers()[1].to_pybytes()[: 4 * count])
        columns.append(pa.Array.from_buffers(pa.binary(), count, [None, bounds, buffer.slice(end, total)]))
        sizes_at += 4 * count
        end += total
    if end != len(data):
        raise InvalidRecordBatch(f"a record batch of {count} messages has {len(data)} bytes; expected {end}")
    return PlainRows(offsets, times, columns)


def _values(column: pa.BinaryArray) -> list[bytes]:
    values: list[bytes] = column.to_pylist()
    return values


def _distinct_values(column: pa.BinaryArray) -> tuple[list[bytes], pa.Array | None]:
    """Return the distinct values of a column, and indices as `distinct` does."""
    count = len(column)
    first: bytes = column[0].as_py()
    if count > 1 and column.buffers()[2].equals(pa.py_buffer(first * count)):
        return [first], pa.repeat(pa.scalar(0, pa.int32()), count)
    encoded = column.dictionary_encode()
    values = _values(encoded.dictionary)
    return values, None if len(values) == count else encoded.indices


def _read_rows(data: bytes, count: int) -> Rows:
    """Return the rows of a record batch, whatever they have."""
    at = _HEAD.size
    columns: list[array[int]] = []
    for kind in "QqBIIIII":
        column = array(kind)
        end = at + column.itemsize * count
        column.frombytes(data[at:end])
        columns.append(column)
        at = end
    offsets, times, facts, counts, *sizes = columns
    parts: list[list[bytes]] = []
    for column in sizes:
        ends = list(accumulate(column, initial=at))
        at = ends[-1]
        parts.append([data[begin:end] for begin, end in pairwise(ends)])
    if at != len(data):
        raise InvalidRecordBatch(f"a record batch of {count} messages has {len(data)} bytes; expected {at}")
    addresses, headers, overlays, bodies = parts
    any_facts = facts.tobytes() if any(facts) else b""
    formats: list[int] | int = FORMAT_AMQP0
    if any_facts:
        formats = [fact & FORMAT_MASK for fact in any_facts]
    return Rows(
        offsets.tolist(),
        times.tolist(),
        formats,
        addresses,
        headers,
        bodies,
        [_encode_overlay(overlay) if fact & HAS_OVERLAY else b"" for overlay, fact in zip(overlays, any_facts, strict=True)]
        if any_facts
        else None,
        [fact & REDELIVERED != 0 for fact in any_facts] if any_facts else None,
        counts.tolist() if any(counts) else None,
    )


def _encode_overlay(overlay: bytes) -> bytes:
    """Encode an overlay as the log does."""
    fields = metadata.unpack(overlay)
    return encode_overlay(Overlay(fields["address"], fields["headers"], fields["drop_expiration"]))
