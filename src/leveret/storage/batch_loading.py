"""Loading of record batches: the messages of a stream in columns, without an object for each of them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from leveret.broker.queues.record_batches import MAX_BODY_BYTES, MAX_ENTRIES, RecordBatch
from leveret.storage.batch import bytes_to_words
from leveret.storage.loading import PLAIN_BITS, ReadPlan, RowReader
from leveret.storage.records import DELIVERY, FORMAT_SHIFT, INDEX_SIZE, PREFIXED, Prefix
from leveret.storage.rows import STORED, StoredRow
from leveret.storage.trimming import Trimmer

# Average number of entries with consecutive slots below which single loads are as fast.
MIN_RUN: Final = 8
# Flags and format of a delivery that can be read in columns.
_READABLE_BITS: Final = PLAIN_BITS | PREFIXED << 8
_LOW_WORD: Final = 0xFFFFFFFF


class Run:
    """Entries with consecutive slots in one row. `first` is the sequence number of the first one."""

    __slots__ = ("count", "first", "row", "slot")

    def __init__(self, row: StoredRow, slot: int, count: int, first: int) -> None:
        self.row = row
        self.slot = slot
        self.count = count
        self.first = first


class BatchesPlan(ReadPlan):
    """One call to `load_record_batches`, with a step for each run. `batches` is empty once a record cannot be read."""

    __slots__ = ("batches", "done", "runs", "time")

    def __init__(self, time: int, done: Callable[[list[RecordBatch]], None]) -> None:
        super().__init__()
        self.time = time
        self.done = done
        self.runs: list[Run] = []
        self.batches: list[RecordBatch] = [RecordBatch()]

    def read_next(self, reader_of: Callable[[StoredRow], RowReader]) -> None:
        run = self.runs[self.read]
        if not read_run(run, reader_of(run.row), self.time, self.batches):
            self.batches = []
            self.read = self.steps - 1

    def finish(self) -> None:
        self.done(self.batches)


def plan_batches(
    trimmer: Trimmer,
    rows: array[int],
    slots: array[int],
    first: int,
    time: int,
    done: Callable[[list[RecordBatch]], None],
) -> BatchesPlan | None:
    """Plan the reads of consecutive entries of a stream; see `Log.load_record_batches`.

    Returns None if their messages are elsewhere, or scattered over the rows.
    """
    plan = BatchesPlan(time, done)
    count = len(rows)
    at = 0
    while at < count:
        row_id = rows[at]
        slot = slots[at]
        row: StoredRow | None = trimmer.rows.get(row_id)  # type: ignore[assignment]
        if row is None or row.state != STORED or row.links is not None:
            return None
        # The slots ascend, like the sequence numbers.
        stop = bisect_right(rows, row_id, at)
        if rows[stop - 1] != row_id:
            return None
        if slots[stop - 1] - slot != stop - 1 - at:
            end = at + 1
            while end < stop and slots[end] - slot == end - at:
                end += 1
            stop = end
        plan.runs.append(Run(row, slot, stop - at, first + at))
        if len(plan.runs) * MIN_RUN > count + MIN_RUN:
            return None
        at = stop
    for run in plan.runs:
        plan.keep(run.row)
    plan.steps = len(plan.runs)
    return plan


def read_run(run: Run, reader: RowReader, time: int, batches: list[RecordBatch]) -> bool:
    """Add the messages of a run to the last record batch, and to new ones. Returns False if that is not possible."""
    data = reader.data
    slot = run.slot
    count = run.count
    words = bytes_to_words("I", reader.entries[INDEX_SIZE * slot : INDEX_SIZE * (slot + count)])
    if (
        words[0] != run.first & _LOW_WORD
        or words[6 * (count - 1)] != run.first + count - 1 & _LOW_WORD
        or words[2::6] != words[2:3] * count
    ):
        return False  # not consecutive entries of one queue
    sizes: list[int] = words[3::6].tolist()
    kinds: list[int] = words[5::6].tolist()
    bounds: list[int] = reader.offsets[slot : slot + count + 1].tolist()
    batch = batches[len(batches) - 1]
    n_bytes = batch.bytes
    room = MAX_ENTRIES - batch.count
    # Rows with the same address and format that are not in the batch yet.
    headers: list[bytes] = []
    bodies: list[bytes] = []
    first = run.first - 1
    pending = 0
    address = b""
    format = -1
    # Address and header of the last row. A row `differs` from it in these, and `moves` if it has another address or format.
    latest = b""
    header = b""
    index = 0
    while index < count:
        kind = kinds[index] & 0xFFFF
        if kind & ~_READABLE_BITS != DELIVERY:
            return False
        begin = bounds[index]
        end = bounds[index + 1]
        if kind & PREFIXED << 8:
            prefix = Prefix(data, begin)
            if prefix.overlay is not None:
                return False
            begin = prefix.end
        size = sizes[index]
        body_at = end - size
        own_format = kind >> 8 + FORMAT_SHIFT & 3
        differs = own_format != format or data[begin:body_at] != latest
        moves = False
        if differs:
            latest = data[begin:body_at]
            moves = own_format != format or not latest.startswith(address)
        is_full = room <= 0 or (n_bytes + size > MAX_BODY_BYTES and room < MAX_ENTRIES)
        if bodies and (moves or is_full):
            batch.extend(first, time, format, address, headers, bodies, pending)
            first += len(bodies)
            headers = []
            bodies = []
            pending = 0
        if moves:
            key_at = begin + 1 + data[begin]
            address = data[begin : key_at + 1 + data[key_at]]
            format = own_format
        if differs:
            header = latest[len(address) :]
        if is_full:
            batch = RecordBatch()
            batches.append(batch)
            n_bytes = 0
            room = MAX_ENTRIES
        headers.append(header)
        bodies.append(data[body_at:end])
        size += len(header)
        n_bytes += size
        pending += size
        room -= 1
        index += 1
    batch.extend(first, time, format, address, headers, bodies, pending)
    return True
