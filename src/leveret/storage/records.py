"""The records of a log: kinds, fixed index entries, and the encoding of entry data.

A row of the log is one group commit, or a part of one. It has three columns:

settled  the settlements of the batch: which slots of which rows are settled
index    24 bytes per record, then the tables of links, identities and spilled bodies: all that recovery reads
data     the records, one after the other

A record is addressed by the id of its row and its slot, the number of its index entry. All integers are little-endian.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.broker.message import Overlay
from leveret.storage.values import decode_value, encode_value

# Lifetimes: conditions under which trimming keeps a record.
WHILE_ENTRIES: Final = "while an entry refers to it"
UNTIL_SETTLED: Final = "until the entry is settled"
WHILE_ROWS: Final = "while a row that it names is on disk"
LATEST_OF_ENTRY: Final = "while it is the latest of an entry that is not settled"
UNTIL_REPLACED: Final = "until the key is set again or deleted"
LATEST_OF_DELIVERY: Final = "while it is the latest of its delivery and the terminus has not expired"
UNTIL_APPLIED: Final = "until the decision on the transaction is on disk and applied"
WHILE_PREPARED: Final = "while the prepare record that it decides is on disk"
UNTIL_TRANSACTION_ENDS: Final = "until its sink transaction is committed or aborted"
LATEST_OF_SINK: Final = "until the next commit of the same sink"
UNTIL_WINDOW: Final = "until the window of its publisher has passed"


class Kind:
    """A kind of record.

    number    the low five bits of the kind byte of an index entry; never reused
    version   of its encoding: the high three bits of the kind byte
    lifetime  condition under which trimming must keep it
    written   whether this version of the broker writes it; the others are reserved for later versions
    """

    __slots__ = ("lifetime", "name", "number", "version", "written")

    def __init__(self, name: str, number: int, version: int, lifetime: str, written: bool) -> None:
        self.name = name
        self.number = number
        self.version = version
        self.lifetime = lifetime
        self.written = written

    @property
    def type_byte(self) -> int:
        return self.version << 5 | self.number


NONE: Final = 0  # a record that was settled before its batch was written
DELIVERY: Final = 1 << 5 | 1  # a message and its entry in one queue
MESSAGE: Final = 1 << 5 | 2
ENTRY: Final = 1 << 5 | 3
UPDATE: Final = 1 << 5 | 4

KINDS: Final = (
    Kind("delivery", 1, 1, UNTIL_SETTLED, True),
    Kind("message", 2, 1, WHILE_ENTRIES, True),
    Kind("entry", 3, 1, UNTIL_SETTLED, True),
    Kind("update", 4, 1, LATEST_OF_ENTRY, True),
    Kind("settle", 5, 1, WHILE_ROWS, True),
    Kind("settle-range", 6, 1, WHILE_ROWS, False),
    Kind("metadata", 7, 1, UNTIL_REPLACED, True),
    Kind("link-state", 8, 1, LATEST_OF_DELIVERY, False),
    Kind("prepare", 9, 1, UNTIL_APPLIED, False),
    Kind("decide", 10, 1, WHILE_PREPARED, False),
    Kind("staged-chunk", 11, 1, UNTIL_TRANSACTION_ENDS, False),
    Kind("promote", 12, 1, LATEST_OF_SINK, False),
    Kind("dedup-key", 13, 1, UNTIL_WINDOW, False),
)

# Flags of an index entry.
PREFIXED: Final = 1  # the data begins with a prefix: expiry, counts, overlay
SPILLED: Final = 2  # header and body are in chunk rows
TRANSIENT: Final = 4  # not a persistent message: it was paged out, or published in a sink transaction
FORMAT_SHIFT: Final = 4  # two bits: the format of the message's header

# An index entry: sequence number in the queue, queue id, size of the body, size of the record's data, kind in the
# low and flags in the high byte, priority.
INDEX_SIZE: Final = 24
INDEX: Final = struct.Struct("<QIIIHh")
EMPTY_INDEX: Final = INDEX.pack(0, 0, 0, 0, NONE, 0)
PLAIN: Final = DELIVERY
PLAIN_TRANSIENT: Final = DELIVERY | TRANSIENT << 8

# expires_at, headers_at, acquired_count, delivery_count, bytes of the overlay that follows
_PREFIX: Final = struct.Struct("<qiIII")
# first chunk, number of chunks, size of the header at their beginning
SPILL: Final = struct.Struct("<QII")

_OVERLAY: Final = struct.Struct("<BqH")
_HAS_ADDRESS: Final = 1
_DROPS_EXPIRATION: Final = 2
_HAS_HEADERS: Final = 4
_HAS_DELAY: Final = 8
_DELAY: Final = struct.Struct("<q")
_HAS_RETRIES: Final = 16
_RETRIES: Final = struct.Struct("<I")

MAX_SIZE: Final = 0xFFFFFFFF


def encode_overlay(overlay: Overlay) -> bytes:
    """Encode an overlay. Raises `TypeError` for a header value of a type that no wire format has."""
    flags = _DROPS_EXPIRATION if overlay.drop_expiration else 0
    address = overlay.address
    if address is None:
        address = b""
    else:
        flags |= _HAS_ADDRESS
    headers = b""
    if overlay.headers:
        flags |= _HAS_HEADERS
        headers = encode_value(overlay.headers)
    delay = b""
    if overlay.visible_at:
        flags |= _HAS_DELAY
        delay = _DELAY.pack(overlay.visible_at)
    if overlay.retries:
        flags |= _HAS_RETRIES
        delay += _RETRIES.pack(overlay.retries)
    return _OVERLAY.pack(flags, overlay.expires_at, len(address)) + delay + address + headers


def decode_overlay(data: bytes) -> Overlay:
    flags, expires_at, length = _OVERLAY.unpack_from(data, 0)
    at = _OVERLAY.size
    overlay = Overlay(None, None, bool(flags & _DROPS_EXPIRATION), expires_at)
    if flags & _HAS_DELAY:
        overlay.visible_at = _DELAY.unpack_from(data, at)[0]
        at += _DELAY.size
    if flags & _HAS_RETRIES:
        overlay.retries = _RETRIES.unpack_from(data, at)[0]
        at += _RETRIES.size
    if flags & _HAS_ADDRESS:
        overlay.address = data[at : at + length]
    if flags & _HAS_HEADERS:
        headers = decode_value(data, at + length)
        assert isinstance(headers, dict)
        overlay.headers = headers
    return overlay


def encode_prefix(
    expires_at: int, headers_at: int, acquired_count: int, delivery_count: int, overlay: Overlay | None
) -> bytes:
    """Encode the prefix of a record with any of these fields."""
    extra = encode_overlay(overlay) if overlay is not None else b""
    return _PREFIX.pack(expires_at, headers_at, acquired_count, delivery_count, len(extra)) + extra


class Prefix:
    """The decoded prefix of a record. `end` is the offset of the rest of the data."""

    __slots__ = ("acquired_count", "delivery_count", "end", "expires_at", "headers_at", "overlay")

    def __init__(self, data: bytes, at: int) -> None:
        expires_at, headers_at, acquired_count, delivery_count, length = _PREFIX.unpack_from(data, at)
        self.expires_at: int = expires_at
        self.headers_at: int = headers_at
        self.acquired_count: int = acquired_count
        self.delivery_count: int = delivery_count
        begin = at + _PREFIX.size
        self.end: int = begin + length
        self.overlay = decode_overlay(data[begin : self.end]) if length else None
