"""Trimming: chooses the rows that a commit deletes and the surviving records that it copies.

A row is deleted when it has no live record and no needed settlement, wherever it is in the log. A settlement is needed
while the row that it settles is on disk: that row *pins* the row that contains the settlement. Deleting a row may thus
unpin the rows that settled it, which may unpin others in turn.

When dead bytes on disk exceed live ones, rows that are at least half garbage are copied: their survivors go to a new
row and the old ones are deleted in the same transaction. A record dies once and its bytes pay for the copy of as many
live ones, so copying never writes more than was published: write amplification stays at or below two.
"""

from __future__ import annotations

from array import array
from typing import Final

from leveret.broker.log import Row
from leveret.storage.batch import CopyPlan, CopySource, survivors
from leveret.storage.merging import Merges
from leveret.storage.rows import (
    BARE,
    DEAD,
    FILLING,
    MOVED,
    REMOVED,
    SLOT_BITS,
    SLOT_MASK,
    STORED,
    Draft,
    Links,
    StoredRow,
    element,
    set_element,
)

# Less garbage than this is not worth a copy.
GARBAGE_FLOOR: Final = 8 << 20
# Maximum bytes that one commit copies (a single row may be larger).
COPY_BYTES: Final = 1 << 20


class Trimmer:
    """Counts live records on disk and chooses the rows to delete or copy.

    rows         the rows in memory, moved ones included
    stored_bytes  size of all rows on disk; `live_bytes` is the size of the live records in them
    stored       number of rows on disk
    copied_bytes  bytes written by copying since the start
    deletes      ids of rows to delete with the next commit; dead_chunks likewise
    floor        garbage below which nothing is copied
    """

    def __init__(self, rows: dict[int, Row]) -> None:
        self.rows = rows
        self.batch = 0
        self.stored_bytes = 0
        self.live_bytes = 0
        self.stored = 0
        self.copied_bytes = 0
        self.floor = GARBAGE_FLOOR
        self.touched: list[StoredRow] = []
        self.candidates: dict[int, StoredRow] = {}
        self.merges = Merges(rows)
        self.deletes: list[int] = []
        self.dead_chunks: list[tuple[int, int]] = []

    # The batch being filled

    def begin_batch(self, batch: int, touched: list[StoredRow]) -> None:
        """Begin a batch: `touched` collects the rows that it settles entries of."""
        self.batch = batch
        self.touched = touched

    def take_deletes(self) -> list[int]:
        """Return the ids of the rows that the commit deletes, and forget them."""
        deletes = self.deletes
        self.deletes = []
        return deletes

    def take_dead_chunks(self) -> list[tuple[int, int]]:
        """Return the chunks that the commit deletes, as first and last, and forget them."""
        chunks = self.dead_chunks
        self.dead_chunks = []
        return chunks

    # Positions

    def resolve(self, row: StoredRow, slot: int) -> int:
        """Return the current place of a record, following copies; 0 if it is dead."""
        state = row.state
        if state == REMOVED:
            return 0
        if state != MOVED:
            return row.id << SLOT_BITS | slot
        if row.moved is None:
            return self.find(self.merges.find(row.id, slot))
        return self.find(row.place_of(slot))

    def row_of(self, place: int) -> StoredRow:
        row: StoredRow = self.rows[place >> SLOT_BITS]  # type: ignore[assignment]
        return row

    def find(self, place: int) -> int:
        """Resolve a place given as one number; 0 resolves to 0."""
        row: StoredRow | None = self.rows.get(place >> SLOT_BITS)  # type: ignore[assignment]
        if row is not None:
            return self.resolve(row, place & SLOT_MASK)
        present = self.merges.find(place >> SLOT_BITS, place & SLOT_MASK)
        return self.find(present) if present else 0

    def alive(self, place: int) -> bool:
        """Return whether the record at a resolved place is on disk, or will be once its row is written."""
        if not place:
            return False
        row = self.row_of(place)
        slot = place & SLOT_MASK
        if row.state == FILLING:
            draft = row.draft
            return draft is not None and slot not in draft.settled
        return row.slots[slot] != DEAD

    # Records that die

    def touch(self, row: StoredRow) -> None:
        """Check a row when the commit is built."""
        if row.touch(self.batch):
            self.touched.append(row)

    def settle(self, row: StoredRow, slot: int) -> None:
        """Settle an entry of a stored row. Its record dies unless entries of other queues reference the message."""
        links = row.links
        if links is not None:
            self._unlink(links, slot)
            if element(links.refs, slot):
                row.slots[slot] = BARE
                return
        self._kill_record(row, slot)

    def settle_many(self, row: StoredRow, slots: array[int]) -> int:
        """Settle entries of a stored row without links, see `StoredRow.settle_many`."""
        self.touch(row)
        return row.settle_many(slots)

    def replace_update(self, links: Links, slot: int) -> None:
        """Drop the latest update of an entry, since a newer one replaces it."""
        update = element(links.updates, slot)
        if update:
            links.updates[slot] = 0
            self._drop(self.find(update))

    def _settle_linked(self, row: StoredRow, links: Links) -> None:
        """Settle the touched entries of a row with links.

        Does the same as `settle` for each of them, with the common case inlined: an entry whose message is in the same
        row.
        """
        targets = links.targets
        count = len(targets)
        refs = links.refs
        slots = row.slots
        for slot in row.list_dead():
            target = targets[slot] if slot < count else 0
            if target >> SLOT_BITS != row.id:
                self.settle(row, slot)
                continue
            self.replace_update(links, slot)
            targets[slot] = 0
            self._kill_record(row, slot)
            message = target & SLOT_MASK
            left = refs[message] - 1
            refs[message] = left
            if not left and slots[message] == BARE:
                self._kill_record(row, message)

    def _unlink(self, links: Links, slot: int) -> None:
        """Release the records that a settled entry references."""
        self.replace_update(links, slot)
        target = element(links.targets, slot)
        if target:
            links.targets[slot] = 0
            self.drop_reference(self.find(target))

    def _kill_record(self, row: StoredRow, slot: int) -> None:
        """Count a record of a stored row as dead."""
        if row.slots[slot] == DEAD:
            return
        self.live_bytes -= row.kill(slot)
        if row.links is not None:
            chunks = row.links.chunks.pop(slot, None)
            if chunks is not None:
                self.dead_chunks.append(chunks)
        self.touch(row)

    def _drop(self, place: int) -> None:
        """Drop the record at a place."""
        if not place:
            return
        row = self.row_of(place)
        slot = place & SLOT_MASK
        draft = row.draft
        if draft is None:
            self._kill_record(row, slot)
        elif slot not in draft.settled:
            self._elide(row, draft, slot)

    def drop_reference(self, place: int) -> None:
        """Drop a reference of a settled entry to the message at a place."""
        if not place:
            return
        row = self.row_of(place)
        slot = place & SLOT_MASK
        refs = row.need_links().refs
        count = element(refs, slot)
        if not count:
            return
        refs[slot] = count - 1
        if count > 1:
            return
        draft = row.draft
        if draft is not None:
            if slot in draft.bare:
                draft.bare.remove(slot)
                self._elide(row, draft, slot)
        elif row.slots[slot] == BARE:
            self._kill_record(row, slot)

    def settle_draft(self, row: StoredRow, draft: Draft, slot: int) -> None:
        """Settle an entry of the row being filled, so that it is not written."""
        links = row.links
        if links is not None:
            self._unlink(links, slot)
            if element(links.refs, slot):
                draft.strip(slot)
                return
        self._elide(row, draft, slot)

    def _elide(self, row: StoredRow, draft: Draft, slot: int) -> None:
        draft.elide(slot)
        links = row.links
        if links is not None:
            if element(links.targets, slot):
                links.targets[slot] = 0
            chunks = links.chunks.pop(slot, None)
            if chunks is not None:
                self.dead_chunks.append(chunks)

    # Deleting rows

    def settle_touched(self, touched: list[StoredRow]) -> None:
        """Account for the settlements of the batch, and mark unneeded rows for deletion.

        Rows that lose records for any reason other than the settlement of their own entries are appended to `touched`.
        """
        self.touched = touched
        at = 0
        while at < len(touched):
            row = touched[at]
            at += 1
            if row.state != STORED or not row.has_dead():
                continue
            links = row.links
            if not row.live and (links is None or not links.foreign):
                self.live_bytes -= row.kill_all()
            elif links is not None:
                self._settle_linked(row, links)
            else:
                self.live_bytes -= row.kill_settled()
        for row in touched:
            self.consider(row)

    def consider(self, row: StoredRow) -> None:
        """Delete a row that is not needed; remember a row that is mostly garbage."""
        if row.state != STORED or row.readers:
            return
        if not row.live and not row.pins:
            self._delete(row)
        elif row.useful_bytes() * 2 <= row.size:
            self.candidates[row.id] = row

    def added(self, row: StoredRow) -> None:
        """Note a row that will be on disk with the next commit."""
        self.stored += 1
        self.stored_bytes += row.size
        self.live_bytes += row.live_bytes
        if row.useful_bytes() * 2 <= row.size:
            self.candidates[row.id] = row
        self.merges.added(row)

    def _delete(self, row: StoredRow) -> None:
        stack = [row]
        while stack:
            row = stack.pop()
            if row.state != STORED:
                continue
            row.remove()
            self._remove_stored(row)
            self.rows.pop(row.id, None)
            self._forget_origins(row)
            self._release(row, stack)

    def _remove_stored(self, row: StoredRow) -> None:
        """Remove a row from the counters of stored rows."""
        self.deletes.append(row.id)
        self.candidates.pop(row.id, None)
        self.merges.small.pop(row.id, None)
        self.stored -= 1
        self.stored_bytes -= row.size
        self.live_bytes -= row.live_bytes
        row.forget_dead()
        row.forget_pinned()

    def _release(self, row: StoredRow, free: list[StoredRow]) -> None:
        """Unpin the rows that settled this one. Those that can be deleted are appended to `free`."""
        holders = row.take_holders()
        if holders is None:
            return
        for holder in holders:
            if holder.state == MOVED:  # its pins are the rows that it resolves to
                continue
            holder.unpin()
            if holder.state != STORED or holder.readers:
                continue
            if not holder.pins and not holder.live:
                free.append(holder)
            elif holder.useful_bytes() * 2 <= holder.size:
                self.candidates[holder.id] = holder

    def _forget_origins(self, row: StoredRow) -> None:
        """Forget the moved rows that resolve to a deleted row."""
        stack = [row]
        while stack:
            row = stack.pop()
            if row.merged:
                self.merges.removed(row.merged)
            origins = row.take_origins()
            if origins is None:
                continue
            for origin in origins:
                if origin.unpin():
                    continue
                origin.remove()
                self.rows.pop(origin.id, None)
                stack.append(origin)

    # Copies

    def needs_copies(self) -> bool:
        """Return whether there is enough garbage to copy rows."""
        return self.stored_bytes - self.live_bytes > self.live_bytes + self.floor and bool(self.candidates)

    def choose(self, committed: int) -> list[StoredRow]:
        """Return the rows on disk whose survivors are to be copied now, chosen by their share of garbage."""
        chosen: list[StoredRow] = []
        if not self.needs_copies():
            return chosen
        stored_bytes = 0
        for row in self.candidates.values():
            if row.readers or row.batch > committed:
                continue
            chosen.append(row)
            stored_bytes += row.useful_bytes()
            if stored_bytes >= COPY_BYTES:
                break
        # In the order of their ids, which keeps the entries of a queue in order and recovery fast.
        return sorted(chosen, key=_row_id)

    def move(self, row: StoredRow, target: StoredRow, plan: CopyPlan) -> None:
        """Copy the live records of a row to the end of another row, which is about to be written."""
        moved = survivors(row.slots)
        base = len(target.slots)
        source = CopySource(row.id, moved)
        if row.links is not None:
            self._move_links(row, row.links, target, base, source)
        target.copy_survivors(row, len(moved))
        self.copied_bytes += row.live_bytes
        if row.pins and row.pinned is not None:
            for other in row.pinned:
                if other.state == STORED:
                    source.settled_of.add(other.id)
                    target.pin(other)
            target.copy_settlements(row)
            self.copied_bytes += row.settled_bytes
        plan.sources.append(source)
        self._remove_stored(row)
        freed: list[StoredRow] = []
        if moved:
            row.move_to(target, base, moved)
        else:
            row.remove()
            row.drop_records()
            self.rows.pop(row.id, None)
            self._forget_origins(row)
        self._release(row, freed)
        for holder in freed:
            self._delete(holder)

    def merge(self, row: StoredRow, target: StoredRow, plan: CopyPlan) -> None:
        """Copy a small row whose records are all live to the end of another row, which is about to be written."""
        base = len(target.slots)
        plan.sources.append(CopySource(row.id, survivors(row.slots)))
        target.copy_all(row)
        self.copied_bytes += row.live_bytes
        self.merges.merged(row, target.id << SLOT_BITS | base)
        self._remove_stored(row)
        self.rows.pop(row.id, None)
        row.merge()

    def _move_links(self, row: StoredRow, links: Links, target: StoredRow, base: int, source: CopySource) -> None:
        for index, slot in enumerate(source.slots):
            new = base + index
            refs = element(links.refs, slot)
            update = element(links.updates, slot)
            copied = target.need_foreign_links()
            if element(links.targets, slot):
                set_element(copied.targets, new, links.targets[slot])
            if update:
                set_element(copied.updates, new, update)
            if refs:
                set_element(copied.refs, new, refs)
            if refs or update:
                identity = element(links.identities, slot) or row.id << SLOT_BITS | slot
                set_element(copied.identities, new, identity)
                source.identities.append((slot, identity))
            chunks = links.chunks.get(slot)
            if chunks is not None:
                copied.chunks[new] = chunks
            if row.slots[slot] == BARE:
                source.bare.add(slot)


def _row_id(row: StoredRow) -> int:
    return row.id
