"""Decoding of record batches, which a consumer requests with `x-packed`.

`leveret.broker.queues.packing` encodes them and documents their layout.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate, pairwise
from typing import Final

from leveret.broker import metadata
from leveret.broker.message import FORMAT_AMQP0, Overlay
from leveret.broker.queues.record_batches import FORMAT_MASK, HAS_OVERLAY, MAGIC, REDELIVERED
from leveret.segments.columns import Rows
from leveret.storage.records import encode_overlay

_HEAD: Final = struct.Struct("<4sIQQ")
_ROW: Final = 8 + 8 + 1 + 4 + 4 * 4


class InvalidRecordBatch(ValueError):
    """The data is not a valid record batch."""


class DeliveredBatch:
    """A record batch: `count` messages in `rows`, covering the offsets from `first` to before `next`."""

    __slots__ = ("count", "first", "next", "rows")

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEAD.size or data[:4] != MAGIC:
            raise InvalidRecordBatch(f"a delivery of {len(data)} bytes is not a record batch")
        _, count, self.first, self.next = _HEAD.unpack_from(data)
        self.count: int = count
        at = _HEAD.size
        if len(data) < at + _ROW * count:
            raise InvalidRecordBatch(f"a record batch of {count} messages ends after {len(data)} bytes")
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
        self.rows = Rows(
            offsets.tolist(),
            times.tolist(),
            formats,
            addresses,
            headers,
            bodies,
            [
                _encode_overlay(overlay) if fact & HAS_OVERLAY else b""
                for overlay, fact in zip(overlays, any_facts, strict=True)
            ]
            if any_facts
            else None,
            [fact & REDELIVERED != 0 for fact in any_facts] if any_facts else None,
            counts.tolist() if any(counts) else None,
        )


def _encode_overlay(overlay: bytes) -> bytes:
    """Encode an overlay as the log does."""
    fields = metadata.unpack(overlay)
    return encode_overlay(Overlay(fields["address"], fields["headers"], fields["drop_expiration"]))
