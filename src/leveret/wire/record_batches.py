"""Record batches for publishing: many messages in one, over every protocol.

A client publishes a record batch as one message to the exchange `leveret.batches` (over 1.0: the address
`/exchanges/leveret.batches`). Its body has n rows in consecutive columns, little-endian:

    "LVB1"  n (4)
    sizes of addresses, of properties, of bodies (each n of 4)
    addresses  properties  bodies

An address is a short string with the exchange and one with the routing key. Over 0-9-1 and 0-9, the properties are the
flags and properties of a content header of class basic, the part after the body size. Over 1.0, properties and body
together are the sections of a message. Record batches for reading (`x-packed`) have the same columns, and others that
only the broker knows.
"""

from __future__ import annotations

import struct
from typing import Final, Union

EXCHANGE: Final = "leveret.batches"
ADDRESS: Final = "/exchanges/leveret.batches"
# The short string with the name of the exchange, with which every address of a record batch begins.
ADDRESS_PREFIX: Final = bytes((len(EXCHANGE),)) + EXCHANGE.encode()
# Name of the server property (1.0: of the property of the broker's open) that announces the exchange or address.
SERVER_PROPERTY: Final = "record_batches"
CONTENT_TYPE: Final = "application/vnd.leveret.record-batch"
REPORT_TYPE: Final = "application/vnd.leveret.record-batch-report+json"

MAX_ROWS: Final = 4096
# Maximum size of a record batch in bytes, with all columns.
MAX_BYTES: Final = 512 << 10
# Bytes of a record batch without rows, and of a row in addition to its parts.
HEAD_BYTES: Final = 8
ROW_BYTES: Final = 12

_MAGIC: Final = b"LVB1"
_SIZE: Final = struct.Struct("<I")


class InvalidRecordBatch(ValueError):
    """The data is not a valid record batch. The text says what was expected."""


def encode(addresses: list[bytes] | bytes, properties: list[bytes] | bytes, bodies: list[bytes]) -> bytes:
    """Return a record batch. A column of equal values may be one value."""
    count = len(bodies)
    return encode_packed(count, addresses, properties, struct.pack(f"<{count}I", *map(len, bodies)), b"".join(bodies))


def encode_packed(
    count: int,
    addresses: list[bytes] | bytes,
    properties: list[bytes] | bytes,
    sizes: bytes,
    bodies: Union[bytes, memoryview],
) -> bytes:
    """Return a record batch of `count` rows from the sizes of the bodies, 4 bytes each, and all bodies."""
    head = [_MAGIC, _SIZE.pack(count)]
    values: list[Union[bytes, memoryview]] = []
    for column in (addresses, properties):
        if isinstance(column, bytes):
            head.append(_SIZE.pack(len(column)) * count)
            values.append(column * count)
        else:
            head.append(struct.pack(f"<{count}I", *map(len, column)))
            values += column
    return b"".join([*head, sizes, *values, bodies])


class RowReader:
    """Reader of the rows of a record batch.

    Attributes:
        count: number of rows.
        taken: number of rows that were read.
        address, properties: those of the latest row; the same objects as those of the row before if they are equal.
    """

    __slots__ = (
        "_addresses_at",
        "_bodies_at",
        "_data",
        "_properties_at",
        "_sizes",
        "address",
        "count",
        "properties",
        "taken",
    )

    def __init__(self, data: bytes) -> None:
        """Check the sizes of the columns.

        Raises:
            InvalidRecordBatch: the data is not a record batch.
        """
        size = len(data)
        if size < HEAD_BYTES or data[:4] != _MAGIC:
            raise InvalidRecordBatch(
                f"a record batch begins with {_MAGIC.decode()} and the number of its rows, not with {data[:8]!r}"
            )
        count: int = _SIZE.unpack_from(data, 4)[0]
        if not 1 <= count <= MAX_ROWS:
            raise InvalidRecordBatch(f"the record batch has {count} rows; expected 1 to {MAX_ROWS}")
        at = HEAD_BYTES + ROW_BYTES * count
        if size < at:
            raise InvalidRecordBatch(f"the record batch of {count} rows ends within its sizes, after {size} bytes")
        self._sizes: tuple[int, ...] = struct.unpack_from(f"<{3 * count}I", data, HEAD_BYTES)
        self._data = data
        self._properties_at: int = at + sum(self._sizes[:count])
        self._bodies_at: int = self._properties_at + sum(self._sizes[count : 2 * count])
        expected = self._bodies_at + sum(self._sizes[2 * count :])
        if size != expected:
            raise InvalidRecordBatch(
                f"the record batch of {count} rows has {size} bytes; expected {expected}, the sum of its sizes"
            )
        self.count = count
        self.taken = 0
        self.address = b""
        self.properties = b""
        # Position of the next value; -1 if all values of the column are equal.
        self._addresses_at: int = at
        if self._is_constant(0, at):
            self.address = data[at : at + self._sizes[0]]
            self._addresses_at = -1
        at = self._properties_at
        if self._is_constant(count, at):
            self.properties = data[at : at + self._sizes[count]]
            self._properties_at = -1

    def _is_constant(self, first: int, at: int) -> bool:
        """Return whether all values of a column are equal.

        `first` is the index of its first size, `at` the position of its first value.
        """
        size = self._sizes[first]
        data = self._data
        sizes_at = HEAD_BYTES + 4 * first
        return data.startswith(data[sizes_at : sizes_at + 4] * self.count, sizes_at) and data.startswith(
            data[at : at + size] * self.count, at
        )

    def next(self) -> bytes:
        """Advance to the next row, and return its body."""
        data = self._data
        sizes = self._sizes
        index = self.taken
        # Equal values are one object, so that callers recognize them.
        at = self._addresses_at
        if at >= 0:
            size = sizes[index]
            self._addresses_at = at + size
            if size != len(self.address) or not data.startswith(self.address, at):
                self.address = data[at : at + size]
        at = self._properties_at
        if at >= 0:
            size = sizes[self.count + index]
            self._properties_at = at + size
            if size != len(self.properties) or not data.startswith(self.properties, at):
                self.properties = data[at : at + size]
        at = self._bodies_at
        end = at + sizes[2 * self.count + index]
        self._bodies_at = end
        self.taken = index + 1
        return data[at:end]


def is_address(address: bytes) -> bool:
    """Return whether the data is the address of a row: two short strings."""
    size = len(address)
    if size < 2:
        return False
    key_at = 1 + address[0]
    return key_at < size and key_at + 1 + address[key_at] == size


def encode_ranges(indices: list[int]) -> str:
    """Return ascending row numbers as text, such as `0-3,7`."""
    ranges: list[str] = []
    at = 0
    while at < len(indices):
        first = last = indices[at]
        at += 1
        while at < len(indices) and indices[at] == last + 1:
            last += 1
            at += 1
        ranges.append(f"{first}-{last}" if last > first else str(first))
    return ",".join(ranges)


def decode_ranges(text: str) -> list[int]:
    """Return the row numbers in such a text. Raises ValueError if it is malformed."""
    indices: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not (len(indices) and begin <= indices[-1]) and begin <= end < MAX_ROWS:
            indices += range(begin, end + 1)
        else:
            raise ValueError(f"invalid row numbers {text[:100]!r}; expected ascending ranges such as 0-3,7")
    return indices
