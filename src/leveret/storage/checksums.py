"""CRC-32 checksums of the rows, chunks, definitions and marks of a log.

The settled column of a row ends with its own checksum. The index ends with two: one of the data, and one of the index, the
row's id and the sizes of the other columns. Recovery does not read the data, so it can verify everything that it reads.
The engine thread adds the checksums when it writes a row, or the event loop before, when it is idle.

In a log created by format 1, rows and chunks below the ids of `Checksums` have no checksums.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from leveret.storage.batch import ROW_VERSION, RowImage

_NUMBER: Final = struct.Struct("<I")
# CRCs of the data, and of the index with `_BOUND`: row id, sizes of the settled and data columns, checksum of the data.
_TRAILER: Final = struct.Struct("<II")
_BOUND: Final = struct.Struct("<QIII")
_KEYED: Final = struct.Struct("<Q")


class RowDamaged(ValueError):
    """A row or chunk differs from what was written."""


def decode_text(value: bytes) -> str:
    """Decode a text column of a log. A BLOB that damage turned into text yields a value of the wrong type, not an error."""
    return value.decode("utf-8", "surrogateescape")


_TYPES: Final = {str: "TEXT", int: "INTEGER", float: "REAL", type(None): "NULL", bytes: "BLOB"}


def type_fault(what: str, value: object, expected: type) -> str:
    """Describe a column of the wrong type. Returns "" if the type is right."""
    if isinstance(value, expected):
        return ""
    return f"its {what} has the wrong type {_TYPES[type(value)]}, expected {_TYPES[expected]}"


def blob(what: str, value: object) -> bytes:
    """Return a BLOB column. Raises `RowDamaged` for another type: format 1 has no checksum that detects it."""
    if not isinstance(value, bytes):
        raise RowDamaged(type_fault(what, value, bytes))
    return value


def row_columns(image: RowImage) -> tuple[bytes, bytes, bytes]:
    """Return the columns of a row as written, with checksums."""
    encoded = image.columns
    if encoded is not None:
        return encoded
    data = b"".join(image.pieces)
    settled = image.settled
    if settled:
        settled += _NUMBER.pack(_keyed_sum(image.id, settled))
    data_sum = crc32(data)
    index = image.index
    return settled, index + _TRAILER.pack(data_sum, _index_sum(image.id, len(settled), len(data), data_sum, index)), data


def _keyed_sum(key: int, content: bytes) -> int:
    return crc32(content, crc32(_KEYED.pack(key)))


def _index_sum(row_id: int, settled_size: int, data_size: int, data_sum: int, index: bytes) -> int:
    return crc32(index, crc32(_BOUND.pack(row_id, settled_size, data_size, data_sum)))


def chunk_sum(chunk_id: int, data: bytes) -> int:
    return _keyed_sum(chunk_id, data)


def definition_sum(kind: str, key: bytes, value: bytes) -> int:
    """Return the checksum of a row of the metadata."""
    return crc32(value, crc32(key, crc32(b"%d:%s:%d:" % (len(kind), kind.encode("utf-8", "surrogateescape"), len(key)))))


def number_sum(name: str, value: int) -> int:
    """Return the checksum of a mark or a fact about the log."""
    return crc32(f"{name}={value}".encode())


class Checksums:
    """Verifies rows and chunks from the given ids on, and older ones that were rewritten."""

    __slots__ = ("first_chunk", "first_row")

    def __init__(self, first_row: int, first_chunk: int) -> None:
        self.first_row = first_row
        self.first_chunk = first_chunk

    def check_settled(self, row_id: int, column: object) -> None:
        """Raise `RowDamaged` if the settled column of a row differs from what was written."""
        settled = blob("settled column", column)
        if not settled or not self._has_sums(row_id, settled, "settlements"):
            return
        if len(settled) < 8 or _NUMBER.unpack_from(settled, len(settled) - 4)[0] != _keyed_sum(row_id, settled[:-4]):
            raise RowDamaged("the checksum of its settlements is wrong")

    def check_index(self, row_id: int, settled_size: int, column: object, data_size: int) -> None:
        """Raise `RowDamaged` if the index is damaged, or does not belong to the other columns."""
        index = blob("index", column)
        if not self._has_sums(row_id, index, "index"):
            return
        at = len(index) - _TRAILER.size
        if at < 24:
            raise RowDamaged("its index is truncated")
        data_sum, index_sum = _TRAILER.unpack_from(index, at)
        if index_sum != _index_sum(row_id, settled_size, data_size, data_sum, index[:at]):
            raise RowDamaged("the checksum of its index is wrong")

    def check_data(self, row_id: int, index: bytes, column: object) -> None:
        """Raise `RowDamaged` if the data is damaged. The caller has checked the index."""
        data = blob("data", column)
        if self._has_sums(row_id, index, "index") and _TRAILER.unpack_from(index, len(index) - 8)[0] != crc32(data):
            raise RowDamaged("the checksum of its data is wrong")

    def check_row(self, row_id: int, settled: bytes, index: bytes, data: bytes) -> None:
        """Raise `RowDamaged` if a column of a row is damaged."""
        self.check_settled(row_id, settled)
        self.check_index(row_id, len(settled), index, len(data))
        self.check_data(row_id, index, data)

    def check_chunk(self, chunk_id: int, column: object, found: object) -> None:
        """Raise `RowDamaged` if a chunk of a large body is damaged."""
        data = blob("data", column)
        if found is None:
            if chunk_id >= self.first_chunk:
                raise RowDamaged("it has no checksum")
        elif found != chunk_sum(chunk_id, data):
            raise RowDamaged("its checksum is wrong")

    def covers(self, row_id: int, index: bytes) -> bool:
        """Return whether a row has checksums."""
        return self._has_sums(row_id, index, "index")

    def _has_sums(self, row_id: int, column: bytes, what: str) -> bool:
        """Return whether a column has a checksum. Raises `RowDamaged` if a required checksum is missing."""
        if len(column) >= 4 and _NUMBER.unpack_from(column, 0)[0] == ROW_VERSION:
            return True
        if row_id >= self.first_row:
            raise RowDamaged(f"its {what} has an unknown version")
        return False
