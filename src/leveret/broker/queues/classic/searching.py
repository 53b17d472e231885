"""The search of a `get` for an entry that its scope has not refused, and that is for its audience.

A search that takes longer than a turn continues in the next. The backlog notes how far it has come, so neither it nor the
next `get` looks at an entry again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import Entry, expires_at, is_for
from leveret.broker.queues.classic.backlog import (
    MOVED_SHIFT,
    Backlog,
    Chunk,
    SearchKey,
    entries_from,
    first_above,
    skip_work,
)
from leveret.broker.queues.loading import Waiting

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.blocks import Entries
    from leveret.broker.queues.classic.dispatcher import Dispatcher

# The parts of a backlog.
_HEAD: Final = 0
_CHUNKS: Final = 1
_YOUNG: Final = 2
# Positions (as a power of two) of which the audience is compared in 1 µs.
_COMPARED_SHIFT: Final = 3


def is_wanted(entry: Entry, audience: int, scope: object | None) -> bool:
    """Return whether an entry is for the audience, if one is given, and was not refused by the scope."""
    overlay = entry.overlay
    return (not audience or is_for(entry.message.publisher, audience)) and (overlay is None or scope not in overlay.refused)


class NextTurn(Waiting):
    """Notifies the callers of `get` that have to look further in the next turn."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def loaded(self) -> None:
        self.dispatcher.notify_waiting()


class Search:
    """The search of one `get`.

    Args:
        broker: The broker.
        audience: The audience, 0 for all.
        scope: The scope, None if it has refused no entry.
        refusals: The scopes that have refused paged-out entries, by sequence number.

    Attributes:
        is_paused: Whether there is more to look at than in one turn.
    """

    __slots__ = ("_audience", "_broker", "_has_looked", "_refusals", "_scope", "is_paused")

    def __init__(
        self, broker: Broker, audience: int, scope: object | None, refusals: dict[int, dict[object, None]]
    ) -> None:
        self._broker = broker
        self._audience = audience
        self._scope = scope
        self._refusals = refusals
        self._has_looked = False
        self.is_paused = False

    def wants(self, entry: Entry) -> bool:
        """Return whether the `get` may return an entry."""
        return is_wanted(entry, self._audience, self._scope)

    def is_complete(self, backlog: Backlog) -> bool:
        """Return whether no entry of a backlog is left to look at."""
        head, young = backlog.head, backlog.young
        if head and head[len(head) - 1].seq > backlog.searched_until(self._key(_HEAD)):
            return False
        if backlog.loading or backlog.last_paged() > backlog.searched_until(self._key(_CHUNKS)):
            return False
        return not young or young[len(young) - 1].seq <= backlog.searched_until(self._key(_YOUNG))

    def take(self, backlog: Backlog) -> Entry | None:
        """Remove and return the first entry that the `get` may return, None if it is not in memory.

        If one exists, but is not in memory, it is then the next one to be read.
        """
        backlog.settle_young()
        entry = self._take_from(backlog, backlog.head, _HEAD)
        if entry is not None or self.is_paused or backlog.loading or self._picks_chunk(backlog) or self.is_paused:
            return entry
        young = backlog.young
        return None if young is None else self._take_from(backlog, young, _YOUNG)

    def _key(self, part: int) -> SearchKey:
        return part, self._audience, self._scope

    def _must_pause(self) -> bool:
        """Return whether the turn is over, after at least one step of the search."""
        if self._has_looked and self._broker.work > STEP_WORK:
            self.is_paused = True
        self._has_looked = True
        return self.is_paused

    def _take_from(self, backlog: Backlog, entries: Entries, part: int) -> Entry | None:
        """Remove and return the first entry of a part that the `get` may return."""
        broker, audience, scope = self._broker, self._audience, self._scope
        now = broker.timers.now()
        key = self._key(part)
        position = first_above(entries, backlog.searched_until(key))
        broker.work += skip_work(entries, position)
        passed = 0
        found: Entry | None = None
        for entry in entries_from(entries, position):
            if self._must_pause():
                break
            broker.work += 1
            # One that has expired is removed when it reaches the head.
            if is_wanted(entry, audience, scope) and not 0 < expires_at(entry) <= now:
                found = entry
                break
            passed = entry.seq
            position += 1
        if passed:
            backlog.note_searched(key, passed)
        if found is not None:
            broker.work += position >> MOVED_SHIFT
            del entries[position]
        return found

    def _picks_chunk(self, backlog: Backlog) -> bool:
        """Have the paged-out entries that the `get` may return, in the first chunk that has some, be read next."""
        key = self._key(_CHUNKS)
        passed = backlog.searched_until(key)
        for index, chunk in enumerate(backlog.chunks):
            last = chunk.seqs[-1]
            if last <= passed:
                continue
            if self._must_pause():
                break
            is_alike = chunk.publishers is None and not self._refusals
            self._broker.work += 1 if is_alike else 1 + (len(chunk.seqs) >> _COMPARED_SHIFT)
            wanted = self._not_refused(chunk, chunk.positions_for(self._audience))
            if wanted:
                backlog.take_out(index, wanted)
                return True
            backlog.note_searched(key, last)
        return False

    def _not_refused(self, chunk: Chunk, positions: list[int]) -> list[int]:
        """Return the positions of the entries that the scope has not refused."""
        refusals, scope, seqs = self._refusals, self._scope, chunk.seqs
        if scope is None or not refusals:
            return positions
        return [position for position in positions if scope not in refusals.get(seqs[position], ())]
