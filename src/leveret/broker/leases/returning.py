"""Return of leased entries to their old places in the queue, once the return is on disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.log import CommitWaiter
from leveret.broker.queues.classic.backlog import Chunk, merged

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue


class Return(CommitWaiter):
    """Positions that are being returned, in pieces with their priorities."""

    def __init__(self, queue: ClassicQueue, pieces: list[tuple[int, Chunk]]) -> None:
        self.queue = queue
        self.pieces = pieces

    def committed(self, batch: int) -> None:
        queue = self.queue
        leases = queue.leases
        if leases is None or self not in leases.returning:
            return  # the queue was deleted
        leases.returning.remove(self)
        for _, piece in self.pieces:
            leases.count -= len(piece.seqs)
            leases.bytes -= piece.bytes
        _return_to_queue(queue, self.pieces)
        queue.broker.end_turn()


def return_pieces(queue: ClassicQueue, pieces: list[tuple[int, Chunk]], read: list[tuple[int, Chunk]]) -> None:
    """Return entries with the commit that is being filled.

    Entries of `read` may have been delivered, so they count as redelivered; so do older paged-out entries, because the
    log has one mark per queue.
    """
    leases = queue.leases
    if not pieces or leases is None:
        return
    if read:
        last = max(piece.seqs[-1] for _, piece in read)
        if last > queue.ready.delivered_until:
            queue.ready.delivered_until = last
            queue.vhost.keep_queue(queue)
    on_its_way = Return(queue, pieces)
    leases.returning.append(on_its_way)
    queue.log.wait(on_its_way)


def _return_to_queue(queue: ClassicQueue, pieces: list[tuple[int, Chunk]]) -> None:
    broker = queue.broker
    for priority in {priority for priority, _ in pieces}:
        level = queue.ready.level_of(priority)
        chunks = _in_order([piece for other, piece in pieces if other == priority])
        for entry in level.return_chunks(chunks, broker.overflow):
            queue.ready.count_out(entry)
            queue.ready.note_refusals(entry)
    broker.paging.add(queue)
    queue.ready.read_heads(queue)
    # Other operations may wait for entries that were paged out here.
    queue.ready.notify_waiting()
    if queue.limits.is_set:
        queue.limits.shorten(queue)
    queue.activate()


def _in_order(pieces: list[Chunk]) -> list[Chunk]:
    """Sort pieces by sequence numbers, and split them where they overlap."""
    ordered: deque[Chunk] = deque()
    for piece in sorted(pieces, key=_first_of):
        if ordered and ordered[-1].seqs[-1] > piece.seqs[0]:
            ordered = merged(ordered, deque((piece,)))
        else:
            ordered.append(piece)
    return list(ordered)


def _first_of(piece: Chunk) -> int:
    return piece.seqs[0]
