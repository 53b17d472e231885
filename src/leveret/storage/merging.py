"""Merging of small rows.

A publisher that awaits each confirm creates one row per message, and a row costs hundreds of bytes of memory and a few
microseconds of recovery. When many rows of a few records each are on disk, the oldest are copied into one row. A small row
has already cost a page of the write-ahead log, so the copy adds little to the bytes written. Two numbers per merged row
stay in memory to resolve its positions.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from leveret.broker.log import Row
from leveret.storage.rows import SLOT_BITS, STORED, StoredRow

# Rows up to this size are small.
SMALL_ROW_BYTES: Final = 2048
# Maximum number of small rows on disk, and how many are merged in one commit beyond that.
SMALL_ROWS: Final = 4096
MERGED_ROWS: Final = 256


class Merges:
    """The small rows on disk, and the places of the records of merged rows.

    small  by id, in the order in which they were written
    limit  the maximum number of small rows
    """

    __slots__ = ("_ids", "_places", "_rows", "_stale", "limit", "small")

    def __init__(self, rows: dict[int, Row]) -> None:
        self.small: dict[int, StoredRow] = {}
        self.limit = SMALL_ROWS
        self._rows = rows
        self._ids: array[int] = array("Q")
        self._places: array[int] = array("Q")
        self._stale = 0

    def added(self, row: StoredRow) -> None:
        """Note a row that will be on disk with the next commit."""
        if row.size <= SMALL_ROW_BYTES and row.live and row.links is None:
            self.small[row.id] = row

    def choose(self, committed: int) -> list[StoredRow]:
        """Return the rows to merge now, ordered by id; none while there are few."""
        if len(self.small) <= self.limit:
            return []
        chosen: list[StoredRow] = []
        unfit: list[int] = []
        for row in self.small.values():
            if row.batch > committed:
                break
            # Trimming takes care of the others: most of their records are dead, or soon will be.
            if (
                row.state != STORED
                or row.live != len(row.slots)
                or row.pins
                or row.readers
                or row.links is not None
                or row.merged
                or row.origins is not None
            ):
                unfit.append(row.id)
            else:
                chosen.append(row)
            if len(chosen) == MERGED_ROWS:
                break
        for row_id in unfit:
            del self.small[row_id]
        return chosen

    def merged(self, row: StoredRow, place: int) -> None:
        """Note that the records of a row are copied to consecutive places, the first of which is `place`."""
        if self._ids and row.id < self._ids[len(self._ids) - 1]:
            at = bisect_left(self._ids, row.id)
            self._ids.insert(at, row.id)
            self._places.insert(at, place)
        else:
            self._ids.append(row.id)
            self._places.append(place)

    def find(self, row_id: int, slot: int) -> int:
        """Return the place of a record by its old row and slot; 0 for a row that was not merged."""
        at = bisect_left(self._ids, row_id)
        if at == len(self._ids) or self._ids[at] != row_id:
            return 0
        return self._places[at] + slot

    def removed(self, count: int) -> None:
        """Note that this many merged rows are no longer referenced."""
        self._stale += count
        if self._stale < SMALL_ROWS or self._stale * 2 < len(self._ids):
            return
        self._stale = 0
        ids: array[int] = array("Q")
        places: array[int] = array("Q")
        for row_id, place in zip(self._ids, self._places, strict=True):
            if place >> SLOT_BITS in self._rows:
                ids.append(row_id)
                places.append(place)
        self._ids = ids
        self._places = places
