"""Base of the engines that write to disk: fill batches, build commits, and complete them.

The hot path is `store` and `settle`. `flush` builds a `Commit` from everything pending and passes it to the worker of
the engine, which writes one at a time. While it does, an idle event loop seals the next batch ahead, so that the worker
need not wait for the loop between two commits. Everything here runs on the event loop; the worker sees only commits and
load plans.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.bodies import StoredBody, whole
from leveret.broker.durations import Durations
from leveret.broker.errors import StorageFailed
from leveret.broker.log import FAILED, OK, CommitWaiter, Loaded, Located, Log, Recovery
from leveret.broker.message import Entry
from leveret.broker.queues.record_batches import RecordBatch
from leveret.storage.batch import (
    CHUNK_BYTES,
    ROW_BYTES,
    SETTLED_WORDS,
    Commit,
    CopyPlan,
    encode_settled,
    seal,
)
from leveret.storage.batch_loading import plan_batches
from leveret.storage.checksums import row_columns
from leveret.storage.loading import ReadPlan, plan_load
from leveret.storage.located import locate
from leveret.storage.records import (
    DELIVERY,
    ENTRY,
    FORMAT_SHIFT,
    INDEX,
    INDEX_SIZE,
    MAX_SIZE,
    PLAIN,
    PLAIN_TRANSIENT,
    PREFIXED,
    SPILL,
    SPILLED,
    TRANSIENT,
    UPDATE,
    encode_prefix,
)
from leveret.storage.recovery import Rebuilt
from leveret.storage.rows import (
    FILLING,
    REMOVED,
    SLOT_BITS,
    SLOT_MASK,
    STORED,
    Draft,
    StoredRow,
    element,
    set_element,
)
from leveret.storage.spilling import Spills
from leveret.storage.trimming import Trimmer
from leveret.storage.worker import Store, Worker

if TYPE_CHECKING:
    from leveret.broker.message import Message
    from leveret.broker.queues.queue import Queue

# Numbers to reserve at a time. After an unclean stop, numbering continues after the reserved range.
RESERVED_SEQUENCES: Final = 100_000
RESERVED_ROWS: Final = 100_000
# Maximum number of submitted commits: the one that the worker writes, and the next one.
MAX_SUBMITTED: Final = 2
# Rows that are added in one piece of a step.
ADOPTED_AT_ONCE: Final = 256
# Maximum size of a batch whose columns the event loop encodes when it is idle: about 0.1 ms.
ENCODED_BYTES: Final = 128 << 10
# Work of a commit above which removals wait for it: changes of the metadata, rows with settled entries, and settled entries
# of rows that keep others.
MAX_PUTS: Final = 5000
MAX_TOUCHED: Final = 256
MAX_PARTLY_DEAD: Final = 16384

_pack_index: Final = INDEX.pack


class BatchedLog(Log):
    """A log whose worker writes the commits. Engines open the store and create the worker."""

    def __init__(self, shard: int = 0) -> None:
        super().__init__(shard)
        self.trimmer = Trimmer(self.rows)
        self.commits = 0
        self._worker: Worker | None = None
        self._started = False
        self._next_row = 1
        self._reserved_rows = 0
        self._marks: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._occupied: list[int] | None = None
        self._waiters: list[CommitWaiter] = []
        self._puts: dict[tuple[str, str], bytes | None] = {}
        self._new_marks: dict[int, int] = {}
        self._spills = Spills()
        # Whether a slice of a large body goes before the batch.
        self._slice_due = False
        self._full_drafts: list[Draft] = []
        # The submitted commits in order, and their waiters.
        self._submitted: list[Commit] = []
        self._submitted_waiters: list[list[CommitWaiter]] = []
        # The parts of `pending_bytes` and `pending_spooled` in submitted commits.
        self._submitted_bytes = 0
        self._submitted_spooled = 0
        # Calls back once when the event loop has nothing else to do; None if that is not known.
        self._when_idle: Callable[[Callable[[], None]], None] | None = None
        # Whether `seal_ahead` will be called.
        self._seals_ahead = False
        self._touched: list[StoredRow] = []
        # Entries that were settled many at a time in rows that keep others: the next commit marks each of them as dead.
        self._partly_dead = 0
        self._row = StoredRow(self, 0, 0, REMOVED)
        self._draft = Draft(self._row)
        self._index: list[bytes] = self._draft.index
        self._pieces: list[bytes] = self._draft.pieces

    # Records

    def store(self, entry: Entry) -> None:
        message = entry.message
        body = message.body
        if (
            message.row is not None
            or message.expires_at
            or message.headers_at >= 0
            or entry.overlay is not None
            or entry.acquired_count
            or entry.delivery_count
            or not isinstance(body, bytes)
        ):
            self._store_more(entry)
            return
        address = message.address
        header = message.header
        size = message.size
        length = len(address) + len(header) + size
        if length > CHUNK_BYTES:
            self._store_more(entry)
            return
        index = self._index
        row = self._row
        slot = len(index)
        kind = PLAIN if message.persistent else PLAIN_TRANSIENT
        if message.format:
            kind |= message.format << FORMAT_SHIFT + 8
        index.append(_pack_index(entry.seq, entry.queue.id, size, length, kind, message.priority))
        pieces = self._pieces
        pieces.append(address)
        pieces.append(header)
        pieces.append(body)
        entry.row = row
        entry.slot = slot
        message.row = row
        message.slot = slot
        self.pending_bytes += length
        size = self._draft.size + length + INDEX_SIZE
        self._draft.size = size
        if size > ROW_BYTES:
            self._next_draft()

    def store_run(self, queue: Queue, messages: list[Message], first: int, stop: int, seq: int) -> None:
        queue_id = queue.id
        for index in range(first, stop):
            message = messages[index]
            body = message.body
            address = message.address
            header = message.header
            size = message.size
            length = len(address) + len(header) + size
            if message.expires_at or message.headers_at >= 0 or length > CHUNK_BYTES or not isinstance(body, bytes):
                self._store_more(Entry(queue, message, seq))
                seq += 1
                continue
            kind = PLAIN if message.persistent else PLAIN_TRANSIENT
            if message.format:
                kind |= message.format << FORMAT_SHIFT + 8
            entries = self._index
            message.row = self._row
            message.slot = len(entries)
            entries.append(_pack_index(seq, queue_id, size, length, kind, message.priority))
            seq += 1
            pieces = self._pieces
            pieces.append(address)
            pieces.append(header)
            pieces.append(body)
            self.pending_bytes += length
            draft = self._draft
            draft.size += length + INDEX_SIZE
            if draft.size > ROW_BYTES:
                self._next_draft()

    def settle(self, entry: Entry) -> None:
        row: StoredRow = entry.row  # type: ignore[assignment]
        if row.state != STORED:
            self._settle_elsewhere(row, entry.slot)
            return
        row.live -= 1
        if row.touched != self.filling:
            row.touched = self.filling
            row.dead = [entry.slot]
            self._touched.append(row)
        else:
            row.dead.append(entry.slot)

    def settle_range(
        self, queue_id: int, first: int, last: int, keep: Iterable[int], rows: Iterable[int], slots: Iterable[int]
    ) -> None:
        # The range may include entries that are not visible in the queue yet; the positions do not.
        row_ids: array[int] = array("Q", rows)
        row_slots: array[int] = array("I", slots)
        count = len(row_ids)
        at = 0
        while at < count:
            row: StoredRow | None = self.rows.get(row_ids[at])  # type: ignore[assignment]
            if row is None:
                # Merged with others, or removed.
                place = self.trimmer.find(row_ids[at] << SLOT_BITS | row_slots[at])
                if place:
                    self._settle_elsewhere(self.trimmer.row_of(place), place & SLOT_MASK)
                at += 1
                continue
            if row.state == STORED and row.links is None:
                end = self._end_of_run(row_ids, at, row.live)
                self._partly_dead += self.trimmer.settle_many(row, row_slots[at:end])
                at = end
                continue
            self._settle_elsewhere(row, row_slots[at])
            at += 1

    def _end_of_run(self, row_ids: array[int], at: int, live: int) -> int:
        """Return the end of the positions from `at` that are in the same row, which has `live` entries."""
        row_id = row_ids[at]
        end = min(at + max(live, 1), len(row_ids))
        if row_ids[end - 1] == row_id and row_ids[at:end].count(row_id) == end - at:
            return end
        last = at + 1
        while last < end and row_ids[last] == row_id:
            last += 1
        return last

    def update(self, entry: Entry) -> None:
        row: StoredRow = entry.row  # type: ignore[assignment]
        place = self.trimmer.resolve(row, entry.slot)
        if not self.trimmer.alive(place):
            return
        prefix = encode_prefix(0, -1, entry.acquired_count, entry.delivery_count, entry.overlay)
        row = self.trimmer.row_of(place)
        slot = place & SLOT_MASK
        links = row.need_foreign_links()
        self.trimmer.replace_update(links, slot)
        identity = element(links.identities, slot) or place
        new = self._append(UPDATE | PREFIXED << 8, 0, 0, 0, 0, prefix, b"", b"")
        own = self._row.need_foreign_links()
        set_element(own.targets, new, identity)
        set_element(links.updates, slot, self._row.id << SLOT_BITS | new)
        self._close_draft_if_full()

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        self._puts[kind, key] = value

    def forget(self, queue_id: int) -> None:
        if self._marks.pop(queue_id, None) is not None:
            self._last.pop(queue_id, None)
            self._new_marks[queue_id] = 0

    # The end of the turn

    def wait(self, waiter: CommitWaiter) -> None:
        self._waiters.append(waiter)

    def is_awaited(self) -> bool:
        return bool(self._waiters) or self._spills.has_slices()

    def write_ahead(
        self, header: bytes, body: StoredBody, done: Callable[[StoredBody], None], wanted: Callable[[], bool]
    ) -> bool:
        size = self._spills.write_ahead(header, body, done, wanted)
        self.pending_bytes += size
        self.pending_spooled += size
        return size > 0

    def is_behind(self) -> bool:
        return len(self._puts) > MAX_PUTS or len(self._touched) > MAX_TOUCHED or self._partly_dead > MAX_PARTLY_DEAD

    def flush(self) -> None:
        if not self._started or self.completion is not None:
            return
        if self._submitted:
            if (
                self._waiters
                and not self._seals_ahead
                and self._when_idle is not None
                and len(self._submitted) < MAX_SUBMITTED
            ):
                self._seals_ahead = True
                self._when_idle(self.seal_ahead)
            return
        while self.pending():
            if self.state == FAILED:
                return
            commit = self.next_commit()
            if not commit.empty():
                self._submit(commit)
                return
            # All records were settled before they were written.
            self._finish()

    def seal_ahead(self) -> None:
        """Seal the next batch during a commit. Called when the event loop has nothing else to do.

        A batch that is sealed too early is smaller than necessary, and the messages that arrive after it wait longer.
        """
        self._seals_ahead = False
        if (
            len(self._submitted) != 1
            or not self._waiters
            or self.state != OK
            or not self._started
            or self.completion is not None
        ):
            return
        commit = self._build()
        if commit.pending_bytes <= ENCODED_BYTES:
            for image in commit.images:
                image.columns = row_columns(image)
        if not commit.empty():
            self._submit(commit)

    def _submit(self, commit: Commit) -> None:
        worker = self._worker
        assert worker is not None
        worker.submit(commit)

    def is_committing(self) -> bool:
        """Return whether commits are submitted and not complete."""
        return bool(self._submitted)

    def has_pending(self) -> bool:
        return self.is_committing() or self.pending()

    def pending(self) -> bool:
        """Return whether the current batch or a slice has anything to write."""
        return self._has_batch() or self._spills.has_slices()

    def _has_batch(self) -> bool:
        return bool(self._index or self._touched or self._waiters or self._puts or self._full_drafts or self._new_marks)

    def returned(self) -> None:
        """Handle the completion of the commit in flight. Called on the event loop."""
        if not self._submitted:
            return  # the log was closed before the event loop ran this
        self.commits += 1
        self._finish()
        if self._submitted and self._submitted[0].empty():
            # All records of a batch that was sealed ahead were settled before they were written.
            self._finish()
        if self._waiters or self._spills.has_slices():
            self.flush()

    def changed(self, state: str, reason: str) -> None:
        """Handle a change of the state of the store. Called on the event loop."""
        before = self.state
        self.state = state
        self.reason = reason
        if state != before and self.on_state is not None:
            self.on_state()

    def _finish(self) -> None:
        commit = self._submitted.pop(0)
        self.committed = commit.number
        self.pending_bytes -= commit.pending_bytes
        self.pending_spooled -= commit.spooled
        self._submitted_bytes -= commit.pending_bytes
        self._submitted_spooled -= commit.spooled
        for waiter in self._submitted_waiters.pop(0):
            waiter.committed(commit.number)
        self._spills.written(commit)

    # Paging

    def load(self, rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> None:
        worker = self._worker
        if worker is not None:  # a queue may get a chunk while the log is closed, and ask for the next one
            worker.read(plan_load(self.trimmer, rows, slots, done))

    def load_record_batches(
        self, rows: array[int], slots: array[int], first: int, time: int, done: Callable[[list[RecordBatch]], None]
    ) -> bool:
        worker = self._worker
        plan = plan_batches(self.trimmer, rows, slots, first, time, done) if worker is not None else None
        if worker is None or plan is None:
            return False
        worker.read(plan)
        return True

    def locate(self, rows: array[int], slots: array[int]) -> Located | None:
        return locate(self.trimmer, self.committed, rows, slots)

    def loaded(self, plan: ReadPlan) -> None:
        """Handle the completion of a load. Called on the event loop."""
        for row in plan.rows.values():
            row.end_reading()
            if not row.live and not row.pins and not row.readers and row.state == STORED:
                self.trimmer.touch(row)
        plan.finish()
        self.flush()

    def statistics(self) -> dict[str, int]:
        trimmer = self.trimmer
        figures = {
            "bytes": trimmer.stored_bytes,
            "live_bytes": trimmer.live_bytes,
            "rows": trimmer.stored,
            "commits": self.commits,
            "copied_bytes": trimmer.copied_bytes,
            "pending_bytes": self.pending_bytes,
        }
        if self._worker is not None:
            figures.update(self._worker.statistics())
        return figures

    def commit_durations(self) -> Durations | None:
        return None if self._worker is None else self._worker.commits

    # Records off the hot path

    def _append(
        self, kind: int, seq: int, queue_id: int, size: int, priority: int, first: bytes, second: bytes, third: bytes
    ) -> int:
        """Append a record to the row being filled and return its slot."""
        index = self._index
        slot = len(index)
        length = len(first) + len(second) + len(third)
        index.append(_pack_index(seq, queue_id, size, length, kind, priority))
        pieces = self._pieces
        pieces.append(first)
        pieces.append(second)
        pieces.append(third)
        self.pending_bytes += length
        self._draft.size += length + INDEX_SIZE
        return slot

    def _close_draft_if_full(self) -> None:
        if self._draft.size > ROW_BYTES:
            self._next_draft()

    def _store_more(self, entry: Entry) -> None:
        """Store an entry that the hot path does not handle."""
        message = entry.message
        row = message.row if message.slot >= 0 else None
        overlay = entry.overlay
        counted = overlay is not None or entry.acquired_count > 0 or entry.delivery_count > 0
        if row is self._row and message.slot not in self._draft.settled:
            self._store_reference(entry, self._row, message.slot, counted)
            return
        if row is not None and row.log is self:
            message_row: StoredRow = row  # type: ignore[assignment]
            place = self.trimmer.resolve(message_row, message.slot)
            if self.trimmer.alive(place):
                self._store_reference(entry, self.trimmer.row_of(place), place & SLOT_MASK, counted)
                return
            row = None
        flags = message.format << FORMAT_SHIFT
        if not message.persistent:
            flags |= TRANSIENT
        first = message.address
        if counted or message.expires_at or message.headers_at >= 0:
            flags |= PREFIXED
            first = (
                encode_prefix(message.expires_at, message.headers_at, entry.acquired_count, entry.delivery_count, overlay)
                + first
            )
        header = message.header
        body = message.body
        chunks: tuple[int, int] | None = None
        if len(first) + len(header) + message.size > CHUNK_BYTES:
            flags |= SPILLED
            if isinstance(body, StoredBody):
                chunks = body.claim(self._spills, header)
            if chunks is None:
                chunks = self._spills.add(message)
                self.pending_bytes += len(header) + message.size
                if isinstance(body, StoredBody):
                    self.pending_spooled += message.size
            first += SPILL.pack(chunks[0], chunks[1] - chunks[0] + 1, len(header))
            header = b""
            body = b""
        elif not isinstance(body, bytes):
            body = whole(body)
        slot = self._append(
            DELIVERY | flags << 8,
            entry.seq,
            entry.queue.id,
            min(message.size, MAX_SIZE),
            message.priority,
            first,
            header,
            body,
        )
        if chunks is not None:
            self._row.need_foreign_links().chunks[slot] = chunks
        entry.row = self._row
        entry.slot = slot
        if row is None:
            message.row = self._row
            message.slot = slot
        self._close_draft_if_full()

    def _store_reference(self, entry: Entry, holder: StoredRow, slot: int, counted: bool) -> None:
        """Store an entry whose message is already in the log."""
        message = entry.message
        row = self._row
        if holder is row:
            links = own = row.need_links()
        else:
            links = holder.need_foreign_links()
            own = row.need_foreign_links()
        refs = links.refs
        if slot < len(refs):
            refs[slot] += 1
        else:
            set_element(refs, slot, 1)
        identity = element(links.identities, slot) or holder.id << SLOT_BITS | slot
        kind = ENTRY
        first = b""
        if counted:
            kind |= PREFIXED << 8
            first = encode_prefix(0, -1, entry.acquired_count, entry.delivery_count, entry.overlay)
        new = self._append(kind, entry.seq, entry.queue.id, min(message.size, MAX_SIZE), message.priority, first, b"", b"")
        set_element(own.targets, new, identity)
        entry.row = row
        entry.slot = new
        self._close_draft_if_full()

    def _settle_elsewhere(self, row: StoredRow, slot: int) -> None:
        """Settle an entry of a row that is being filled, was moved, or was removed."""
        trimmer = self.trimmer
        place = trimmer.resolve(row, slot)
        if not place:
            return
        row = trimmer.row_of(place)
        slot = place & SLOT_MASK
        draft = row.draft
        if draft is not None:
            trimmer.settle_draft(row, draft, slot)
        else:
            trimmer.touch(row)
            row.settle(slot)

    # Building a commit

    def _new_row(self, state: int) -> StoredRow:
        row = StoredRow(self, self._next_row, self.filling, state)
        self._next_row += 1
        self.rows[row.id] = row
        return row

    def _begin_draft(self) -> None:
        row = self._new_row(FILLING)
        draft = row.begin_draft()
        self._row = row
        self._draft = draft
        self._index = draft.index
        self._pieces = draft.pieces

    def _next_draft(self) -> None:
        """Continue the batch in another row, since the current one is large enough."""
        self._full_drafts.append(self._draft)
        self._begin_draft()

    def next_commit(self) -> Commit:
        """Build the next commit: of the batch, or of a slice of a large body. Both take turns."""
        dropped = self._spills.drop_unwanted()
        self.pending_bytes -= dropped
        self.pending_spooled -= dropped
        if self._spills.has_slices() and (self._slice_due or not self._has_batch()):
            return self._build_slice()
        return self._build()

    def _build_slice(self) -> Commit:
        """Build a commit of a slice. It does not affect the batch that is being filled."""
        self._slice_due = False
        commit = Commit(self.filling - 1)
        self._spills.take_slice(commit)
        self._add_submitted(commit, [])
        return commit

    def _add_submitted(self, commit: Commit, waiters: list[CommitWaiter]) -> None:
        self._submitted.append(commit)
        self._submitted_waiters.append(waiters)
        self._submitted_bytes += commit.pending_bytes
        self._submitted_spooled += commit.spooled

    def _build(self) -> Commit:
        """Build a commit of everything pending and begin the next batch."""
        self._slice_due = True
        commit = Commit(self.filling)
        trimmer = self.trimmer
        touched = self._touched
        trimmer.settle_touched(touched)
        targets: list[StoredRow] = []
        if self.state == OK:
            self._copy(commit, targets)
        settlements = self._settlements(touched)
        drafts = self._full_drafts
        self._full_drafts = []
        if self._index or self._row.id in settlements:
            drafts.append(self._draft)
        for draft in drafts:
            row = draft.row
            image = seal(draft, settlements.pop(row.id, b""))
            if not row.live and not image.settled:
                row.remove()
                self.rows.pop(row.id, None)
                continue
            commit.images.append(image)
            self._reserve_sequences(commit, image.last)
            trimmer.added(row)
        for row_id, settled in settlements.items():
            holder = trimmer.row_of(row_id)
            image = seal(Draft(holder), settled)
            commit.images.append(image)
            trimmer.added(holder)
        for target in targets:
            target.complete_copy()
            trimmer.added(target)
            trimmer.consider(target)
        commit.deletes = trimmer.take_deletes()
        self._spills.take(commit, trimmer.take_dead_chunks())
        commit.puts = self._puts
        self._puts = {}
        for queue_id in self._new_marks:
            commit.marks.setdefault(queue_id, 0)
        self._new_marks = {}
        queued = self._spills.queued
        commit.pending_bytes = self.pending_bytes - self._submitted_bytes - queued
        commit.spooled = self.pending_spooled - self._submitted_spooled - queued
        self._add_submitted(commit, self._waiters)
        self._waiters = []
        self.filling += 1
        self._touched = []
        self._partly_dead = 0
        trimmer.begin_batch(self.filling, self._touched)
        if self._row.state == FILLING and not targets:
            self._row.postpone(self.filling)
        else:
            # A later update must have a higher place than a copy of an earlier one.
            if self._row.state == FILLING:
                self.rows.pop(self._row.id, None)
            self._begin_draft()
        if self._next_row > self._reserved_rows:
            self._reserved_rows = self._next_row + RESERVED_ROWS
            commit.next_row = self._reserved_rows
        return commit

    def _reserve_sequences(self, commit: Commit, last: dict[int, int]) -> None:
        marks = self._marks
        for queue_id, seq in last.items():
            if seq > self._last.get(queue_id, 0):
                self._last[queue_id] = seq
            if seq >= marks.get(queue_id, 0):
                mark = seq + RESERVED_SEQUENCES
                marks[queue_id] = mark
                commit.marks[queue_id] = mark

    def _settlements(self, touched: list[StoredRow]) -> dict[int, bytes]:
        """Return the settled columns of this commit by the id of their row. The first row is the one being filled."""
        columns: dict[int, bytes] = {}
        words: array[int] = array("I")
        holder = self._row
        for row in touched:
            if row.state != STORED or not row.has_dead():
                row.forget_dead()
                continue
            dead = row.take_dead()
            if len(words) > SETTLED_WORDS:
                columns[holder.id] = encode_settled(words)
                words = array("I")
                holder = self._new_row(FILLING)
            words.append(row.id & 0xFFFFFFFF)
            words.append(row.id >> 32)
            words.append(len(dead))
            words.extend(dead)
            holder.pin(row)
        if words:
            columns[holder.id] = encode_settled(words)
        return columns

    def _copy(self, commit: Commit, targets: list[StoredRow]) -> None:
        """Plan the copies of this commit."""
        trimmer = self.trimmer
        target: StoredRow | None = None
        plan = CopyPlan(0)
        for row in trimmer.choose(self.committed):
            if row.state != STORED:
                continue
            if target is None or target.size > ROW_BYTES:
                target, plan = self._copy_target(commit, targets)
            trimmer.move(row, target, plan)
        target = None
        for row in trimmer.merges.choose(self.committed):
            if target is None:
                target, plan = self._copy_target(commit, targets)
            trimmer.merge(row, target, plan)

    def _copy_target(self, commit: Commit, targets: list[StoredRow]) -> tuple[StoredRow, CopyPlan]:
        target = self._new_row(FILLING)
        targets.append(target)
        plan = CopyPlan(target.id)
        commit.copies.append(plan)
        return target, plan

    # Start and end

    def adopt(self, rebuilt: Rebuilt) -> Recovery:
        """Adopt the result of recovery. Returns the part for the broker."""
        self._next_row = rebuilt.next_row
        self._spills.next = rebuilt.next_chunk
        self._marks = rebuilt.recovery.last_seq.copy()
        self._last = rebuilt.recovery.last_seq.copy()
        self.trimmer.begin_batch(self.filling, self._touched)
        if rebuilt.indexed:
            for _ in self.adopting(rebuilt):
                pass
        self._begin_draft()
        return rebuilt.recovery

    def adopting(self, rebuilt: Rebuilt) -> Iterator[int]:
        """Add the indexed rows, in steps."""
        self._spills.delete(rebuilt.orphans)
        rows = self.rows
        trimmer = self.trimmer
        for kept in (rebuilt.moved, rebuilt.stored):
            while kept:
                row = kept.pop()
                rows[row.id] = row
                if row.state == STORED:
                    trimmer.added(row)
                    if not row.live and not row.pins:
                        trimmer.touch(row)
                if not len(kept) % ADOPTED_AT_ONCE:
                    yield ADOPTED_AT_ONCE

    def stop_worker(self) -> None:
        """Complete what was submitted, and end the worker. Blocking. Raises `StorageFailed` if the worker has failed."""
        worker = self._worker
        self._worker = None
        self._started = False
        if worker is not None:
            worker.close()
            if worker.failure is not None:
                raise StorageFailed(f"the log was not closed properly: {worker.failure}")

    def write_rest(self, store: Store) -> None:
        """Commit everything pending, after the worker has ended: nothing posts the completion of its last commit.

        Raises `StoreFull` or `StoreBroken`.
        """
        self.abandon_slices()
        while self.is_committing():
            self.returned()
        while self.pending():
            store.commit(self.next_commit())
            self.returned()

    def abandon_slices(self) -> None:
        """Publish no more large messages, and delete what was written of them. Called before the last commits."""
        queued = self._spills.queued
        self.pending_bytes -= queued
        self.pending_spooled -= queued
        self._spills.abandon()

    def last_commit(self) -> Commit:
        """Return the commit of a clean shutdown: exact marks and row ids in place of reserved ones."""
        commit = Commit(self.filling)
        for queue_id, mark in self._marks.items():
            seq = self._last.get(queue_id, mark)
            if seq != mark:
                commit.marks[queue_id] = seq
        commit.next_row = self._next_row
        occupied = self._occupied
        # Of use only if nothing was written since, not even by an earlier version, which leaves the record.
        value = None if occupied is None else metadata.pack({"next_row": self._next_row, "queues": occupied})
        commit.puts[metadata.OCCUPIED, ""] = value
        return commit

    def note_occupied(self, queue_ids: list[int]) -> None:
        self._occupied = queue_ids
