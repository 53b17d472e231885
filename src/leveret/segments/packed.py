"""Packs of messages, as readers get them from a broker that was asked for `x-packed`; `leveret.broker.queues.packing` makes
them, and says how they are laid out."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate, pairwise
from typing import Any, Final

from leveret.broker import metadata
from leveret.broker.message import FORMAT_AMQP0, Overlay
from leveret.broker.queues.packing import FORMAT_MASK, HAS_OVERLAY, MAGIC, REDELIVERED
from leveret.segments.columns import Rows
from leveret.storage.records import encode_overlay

_HEAD: Final = struct.Struct("<4sIQQ")
_ROW: Final = 8 + 8 + 1 + 4 + 4 * 4


class PackDamaged(ValueError):
    """Octets that are no pack."""


class Packed:
    """One pack: its `rows`, how many, and the offsets that it covers, from `first` to before `next`."""

    __slots__ = ("count", "first", "next", "rows")

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEAD.size or data[:4] != MAGIC:
            raise PackDamaged(f"{len(data)} octets came that are no pack of messages")
        _, count, self.first, self.next = _HEAD.unpack_from(data)
        self.count: int = count
        at = _HEAD.size
        if len(data) < at + _ROW * count:
            raise PackDamaged(f"a pack of {count} messages ends after {len(data)} octets")
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
            raise PackDamaged(f"a pack of {count} messages has {len(data)} octets instead of {at}")
        addresses, headers, overlays, bodies = parts
        any_facts = facts.tobytes() if any(facts) else b""
        formats: Any = FORMAT_AMQP0
        if any_facts:
            formats = [fact & FORMAT_MASK for fact in any_facts]
        self.rows = Rows(
            offsets.tolist(), times.tolist(), formats, addresses, headers, bodies,
            [_encoded(octets) if fact & HAS_OVERLAY else b"" for octets, fact in zip(overlays, any_facts, strict=True)]
            if any_facts else None,
            [fact & REDELIVERED != 0 for fact in any_facts] if any_facts else None,
            counts.tolist() if any(counts) else None)


def _encoded(octets: bytes) -> bytes:
    """An overlay as the log has it."""
    made = metadata.unpack(octets)
    return encode_overlay(Overlay(made["address"], made["headers"], made["drop_expiration"]))
