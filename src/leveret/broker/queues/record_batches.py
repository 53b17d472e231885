"""Record batches: many entries in one delivery, for readers of rows (`x-packed`).

A record batch is delivered as an ordinary message, so it works over every protocol. It contains the messages as they were
published, without conversion. Its body has n rows in consecutive columns, little-endian:

    "LVP1"  n (4)  first covered offset (8)  offset after the last covered one (8)
    offsets (n of 8)  append times in milliseconds (n of 8)  facts (n of 1)  delivery counts (n of 4)
    sizes of addresses, of headers, of overlays, of bodies (each n of 4)
    addresses  headers  overlays  bodies

Covered offsets without a row were filtered out or removed. `leveret.segments.record_batches` reads the format.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from leveret.broker import metadata
from leveret.broker.bodies import Body, Preceded, StoredBody, whole
from leveret.broker.message import Message, Overlay, make_address

PACKED: Final = "x-packed"
UNTIL: Final = "x-packed-until"

# Limits of a record batch; a single larger message is allowed.
MAX_ENTRIES: Final = 4096
MAX_BODY_BYTES: Final = 512 << 10
MAGIC: Final = b"LVP1"

# The two lowest bits of the facts.
FORMAT_MASK: Final = 3
REDELIVERED: Final = 4
HAS_OVERLAY: Final = 8

_HEAD: Final = struct.Struct("<4sIQQ").pack
# A content header of class basic without properties.
_PROPERTIES: Final = struct.Struct(">HHQH").pack
_BASIC: Final = 60


class RecordBatch:
    """Builder of a record batch. `bytes` is the size of its headers and bodies so far."""

    __slots__ = (
        "_address_sizes",
        "_addresses",
        "_bodies",
        "_body_sizes",
        "_counts",
        "_facts",
        "_header_sizes",
        "_headers",
        "_offsets",
        "_overlay_sizes",
        "_overlays",
        "_stored",
        "_times",
        "bytes",
        "count",
    )

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._offsets: array[int] = array("Q")
        self._times: array[int] = array("q")
        self._facts: array[int] = array("B")
        self._counts: array[int] = array("I")
        self._address_sizes: array[int] = array("I")
        self._header_sizes: array[int] = array("I")
        self._overlay_sizes: array[int] = array("I")
        self._body_sizes: array[int] = array("I")
        self._addresses: list[bytes] = []
        self._headers: list[bytes] = []
        self._overlays: list[bytes] = []
        self._bodies: list[bytes] = []
        self._stored: StoredBody | None = None

    def has_room(self, size: int) -> bool:
        """Return whether a message with a body of `size` bytes still fits."""
        return self.count == 0 or (
            self.count < MAX_ENTRIES and self.bytes + size <= MAX_BODY_BYTES and self._stored is None
        )

    def add(
        self,
        message: Message,
        offset: int,
        time: int,
        overlay: Overlay | None = None,
        redelivered: bool = False,
        delivery_count: int = 0,
    ) -> None:
        """Add a row. `time` is its append time in milliseconds of Unix time."""
        facts = message.format
        if redelivered:
            facts |= REDELIVERED
        address = message.address
        if overlay is None:
            self._overlay_sizes.append(0)
        else:
            facts |= HAS_OVERLAY
            packed = metadata.pack(
                {"headers": overlay.headers, "address": overlay.address, "drop_expiration": overlay.drop_expiration}
            )
            self._overlay_sizes.append(len(packed))
            self._overlays.append(packed)
        self._offsets.append(offset)
        self._times.append(time)
        self._facts.append(facts)
        self._counts.append(delivery_count)
        header = message.header
        self._address_sizes.append(len(address))
        self._addresses.append(address)
        self._header_sizes.append(len(header))
        self._headers.append(header)
        self._body_sizes.append(message.size)
        body = message.body
        if isinstance(body, bytes):
            self._bodies.append(body)
        elif isinstance(body, StoredBody) and self.count == 0:
            self._stored = body  # too large to share a record batch
        else:
            self._bodies.append(whole(body))
        self.count += 1
        self.bytes += message.size + len(header)

    def extend(
        self, first: int, time: int, format: int, address: bytes, headers: list[bytes], bodies: list[bytes], n_bytes: int
    ) -> None:
        """Add rows with consecutive offsets from `first` on and with one address, format and append time.

        `n_bytes` is the size of their headers and bodies.
        """
        count = len(bodies)
        zeros = bytes(4 * count)
        self._offsets.extend(range(first, first + count))
        self._times.extend(array("q", (time,)) * count)
        self._facts.extend(array("B", (format,)) * count)
        self._counts.frombytes(zeros)
        self._address_sizes.extend(array("I", (len(address),)) * count)
        self._header_sizes.extend(map(len, headers))
        self._overlay_sizes.frombytes(zeros)
        self._body_sizes.extend(map(len, bodies))
        self._addresses.append(address * count)
        self._headers += headers
        self._bodies += bodies
        self.count += count
        self.bytes += n_bytes

    def message(self, queue: str, first: int, next: int) -> Message:
        """Return the record batch as a message, which covers the offsets from `first` up to `next` (exclusive)."""
        pieces = [
            _HEAD(MAGIC, self.count, first, next),
            self._offsets.tobytes(),
            self._times.tobytes(),
            self._facts.tobytes(),
            self._counts.tobytes(),
            self._address_sizes.tobytes(),
            self._header_sizes.tobytes(),
            self._overlay_sizes.tobytes(),
            self._body_sizes.tobytes(),
            *self._addresses,
            *self._headers,
            *self._overlays,
            *self._bodies,
        ]
        data = b"".join(pieces)
        size = len(data)
        body: Body = data
        if self._stored is not None:
            size += self._stored.size
            body = Preceded(data, self._stored)
        return Message(make_address("", queue), _PROPERTIES(_BASIC, 0, size, 0), body, size, False)
