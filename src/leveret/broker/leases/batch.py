"""A lease batch: positions of entries in the order in which they are read, tens of bytes each, and its record."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from leveret.broker.metadata import Record
from leveret.broker.queues.classic.backlog import CHUNK_BYTES, CHUNK_ENTRIES, Chunk


class Batch:
    """One batch of a lease.

    number      number of the batch in its lease
    pieces      the positions; a piece has one priority and ascending sequence numbers
    priorities  the priority of each piece
    starts      the index in the batch of the first entry of each piece
    bytes       size of all bodies
    mark        entries up to this sequence number count as redelivered
    created_at  creation time in milliseconds of Unix time
    read        whether a reader has started on it
    written     the commit of the log that contains the latest record of the batch
    """

    __slots__ = ("bytes", "count", "created_at", "mark", "number", "pieces", "priorities", "read", "starts", "written")

    def __init__(self, number: int, mark: int, created_at: int) -> None:
        self.number = number
        self.pieces: list[Chunk] = []
        self.priorities: list[int] = []
        self.starts: array[int] = array("Q")
        self.count = 0
        self.bytes = 0
        self.mark = mark
        self.created_at = created_at
        self.read = False
        self.written = 0

    # Construction

    def add(self, priority: int, row_id: int, slot: int, seq: int, size: int, publisher: int) -> None:
        """Add a position at the end."""
        piece = self.pieces[-1] if self.pieces else None
        if piece is None or self.priorities[-1] != priority or piece.seqs[-1] > seq or piece.is_full():
            piece = Chunk(False, publisher)
            self._append(priority, piece)
        piece.add(row_id, slot, seq, size, publisher)
        self.count += 1
        self.bytes += size

    def add_piece(self, priority: int, piece: Chunk) -> None:
        """Add positions at the end. The batch takes ownership of the piece."""
        last = self.pieces[-1] if self.pieces else None
        if (
            last is not None
            and self.priorities[-1] == priority
            and last.seqs[-1] < piece.seqs[0]
            and len(last.seqs) + len(piece.seqs) <= CHUNK_ENTRIES
            and last.bytes + piece.bytes <= CHUNK_BYTES
        ):
            last.extend(piece)
        else:
            self._append(priority, piece)
        self.count += len(piece.seqs)
        self.bytes += piece.bytes

    def _append(self, priority: int, piece: Chunk) -> None:
        self.pieces.append(piece)
        self.priorities.append(priority)
        self.starts.append(self.count)

    # Queries

    def find(self, index: int) -> tuple[int, int]:
        """Return the index of the piece with an entry, and the index of the entry in it."""
        number = bisect_right(self.starts, index) - 1
        return number, index - self.starts[number]

    def pick(self, indexes: Sequence[int]) -> list[tuple[int, Chunk]]:
        """Return the positions of the entries with these ascending indices, in pieces with their priorities."""
        picked = Batch(0, 0, 0)
        for index in indexes:
            number, at = self.find(index)
            piece = self.pieces[number]
            picked.add(
                self.priorities[number],
                piece.rows[at],
                piece.slots[at],
                piece.seqs[at],
                piece.sizes[at],
                piece.publisher_of(at),
            )
        return picked.all()

    def all(self) -> list[tuple[int, Chunk]]:
        """Return all positions, in pieces with their priorities."""
        return list(zip(self.priorities, self.pieces, strict=True))

    def positions(self, without: Sequence[int] = ()) -> tuple[array[int], array[int]]:
        """Return rows and slots of all entries except those with these ascending indices."""
        rows: array[int] = array("Q")
        slots: array[int] = array("I")
        index = 0
        for start, piece in zip(self.starts, self.pieces, strict=True):
            at = 0
            while index < len(without) and without[index] - start < len(piece.seqs):
                left_out = without[index] - start
                rows.extend(array("Q", piece.rows[at:left_out]))
                slots.extend(array("I", piece.slots[at:left_out]))
                at = left_out + 1
                index += 1
            rows.extend(array("Q", piece.rows[at:]))
            slots.extend(array("I", piece.slots[at:]))
        return rows, slots

    def seqs(self) -> Iterator[int]:
        for piece in self.pieces:
            yield from piece.seqs

    # Record

    def record(self) -> Record:
        """Return the metadata of the batch."""
        return {
            "count": self.count,
            "octets": self.bytes,
            "mark": self.mark,
            "planned_at": self.created_at,
            "read": self.read,
            "runs": encode_runs(self.pieces),
        }


def encode_runs(pieces: list[Chunk]) -> bytes:
    """Encode sequence numbers as runs.

    Each run is two numbers of seven bits per byte, lowest bits first. The first is the distance of the start of the run
    from the end of the previous one: doubled, or doubled less one if the run starts before that end. The second is the
    number of further entries after the first.
    """
    runs = bytearray()
    previous = 0
    first = 0
    count = 0
    for piece in pieces:
        for begin, length in _runs_of(piece.seqs):
            if count and begin == first + count:
                count += length
                continue
            if count:
                previous = _encode_run(runs, previous, first, count)
            first = begin
            count = length
    if count:
        _encode_run(runs, previous, first, count)
    return bytes(runs)


def _encode_run(runs: bytearray, previous: int, first: int, count: int) -> int:
    distance = first - previous
    for number in (2 * distance if distance >= 0 else -2 * distance - 1, count - 1):
        while number > 0x7F:
            runs.append(number & 0x7F | 0x80)
            number >>= 7
        runs.append(number)
    return first + count


def _runs_of(seqs: array[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive numbers: the first number, and the count."""
    total = len(seqs)
    if seqs[-1] - seqs[0] == total - 1:
        yield seqs[0], total
        return
    begin = 0
    for at in range(1, total + 1):
        if at == total or seqs[at] != seqs[at - 1] + 1:
            yield seqs[begin], at - begin
            begin = at


def decode_runs(runs: bytes) -> Iterator[tuple[int, int]]:
    """Yield the runs encoded by `encode_runs`: the first sequence number, and the count."""
    numbers: list[int] = []
    number = 0
    shift = 0
    for byte in runs:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    previous = 0
    for distance, more in zip(numbers[::2], numbers[1::2], strict=True):
        first = previous + (distance >> 1 if not distance & 1 else -(distance + 1 >> 1))
        previous = first + more + 1
        yield first, more + 1
