"""Taking a message from a queue without consuming (0-9-1 basic.get)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker import settlement
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import ENTRY_OVERHEAD, Entry, is_for
from leveret.broker.outcomes import ACCEPTED, GET_PROTOCOL
from leveret.broker.queues.classic import expiry, paging
from leveret.broker.queues.classic.limits import LEVELS_SHIFT

if TYPE_CHECKING:
    from leveret.broker.queues.classic.backlog import Backlog
    from leveret.broker.queues.classic.queue import ClassicQueue


def get(queue: ClassicQueue, no_ack: bool, audience: int, scope: object | None) -> Entry | None:
    """Acquire the next entry for `basic.get`, None where there is none in memory. With an `audience` it is the
    next for this audience, with a `scope` the next that this one has not refused."""
    if queue.frozen:
        return None
    begun = queue.broker.work
    if queue.levels is not None:
        queue.broker.work += len(queue.levels) >> LEVELS_SHIFT
    picks = scope is not None and queue.dispatcher.refusing
    queue.serve_consumers()
    for backlog in queue.all_levels():
        while True:
            if not backlog.head:
                backlog.settle_young()
                if not backlog.head:
                    break
            entry = backlog.head[0]
            if (entry.message.expires_at or entry.overlay is not None) and expiry.drop_expired(queue, backlog, entry):
                if queue.broker.work - begun > STEP_WORK:
                    expiry.drop_in_steps(queue)
                    if queue.frozen:
                        return None
                continue
            if picks and not _is_wanted(entry, audience, scope):
                wanted = _take_wanted(backlog, audience, scope)
                if wanted is None:
                    break
                entry = wanted
            elif audience and not is_for(entry.message.publisher, audience):
                found = backlog.take_of(audience)
                if found is None:
                    if not backlog.loading and backlog.next_is_for(audience):
                        paging.load(queue, backlog)
                    break
                entry = found
            else:
                backlog.head.popleft()
            if backlog.chunks and not backlog.loading:
                paging.load_more(queue, backlog)
            queue.memory -= entry.message.size + ENTRY_OVERHEAD
            queue.delivered += 1
            settlement.acquire(entry, None)
            watch = queue.watch
            if watch is not None:
                watch.delivered(entry, GET_PROTOCOL)
            if queue.expiring:
                while (queue.broker.work - begun < STEP_WORK and backlog.head
                       and expiry.drop_expired(queue, backlog, backlog.head[0])):
                    pass  # so that it is not counted as left
                queue.activate()  # the next one may expire sooner
            if no_ack:
                queue.archive(entry)
                if watch is not None:
                    watch.settled(entry, ACCEPTED, GET_PROTOCOL)
            else:
                queue.unacked += 1
            return entry
        if backlog.chunks:
            if not backlog.loading:
                paging.load(queue, backlog)
            return None
    return None


def _is_wanted(entry: Entry, audience: int, scope: object | None) -> bool:
    """Whether an entry is for this audience, if there is one, and was not refused by the scope."""
    overlay = entry.overlay
    return (not audience or is_for(entry.message.publisher, audience)) and (overlay is None or scope not in overlay.refused)


def _take_wanted(backlog: Backlog, audience: int, scope: object | None) -> Entry | None:
    """Take the first such entry; None where it is not in memory."""
    backlog.settle_young()
    for entry in backlog.head:
        if _is_wanted(entry, audience, scope):
            backlog.head.remove(entry)
            return entry
    return None


def needs_loading(queue: ClassicQueue, audience: int, scope: object | None) -> bool:
    """Whether the next entry (as in `get`) exists but is not in memory: `wait_loaded`, then ask again."""
    if queue.deleted:
        return False
    if queue.frozen:
        return True
    picks = scope is not None and queue.dispatcher.refusing
    for backlog in queue.all_levels():
        if picks:
            if any(_is_wanted(entry, audience, scope) for entry in backlog.head):
                return False
            if backlog.chunks:
                return True
            continue
        if audience and backlog.loading:
            return True
        if backlog.head:
            return False
        if backlog.chunks:
            return True
    return False
