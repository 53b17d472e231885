"""Ready messages that an operator moves: each leaves its queue and enters others in one log commit.

All changes of one turn are one commit, so a crash leaves each message in its old place or in its new one. The messages
become visible in their new queues after the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.delay import Delay
from leveret.broker.log import CommitWaiter
from leveret.broker.message import Entry, Message, Overlay
from leveret.broker.queues.classic.queue import RETRY_COUNT
from leveret.broker.queues.queue import Queue

# Headers with counts of the old queue.
_COUNTS: Final = ("x-delivery-count", RETRY_COUNT)


class Relocation(CommitWaiter):
    """The messages of one commit, from one queue."""

    def __init__(self, source: Queue) -> None:
        self._log = source.log
        self._inspection = source.inspect()
        self._entries: list[Entry] = []
        self._done: Callable[[], None] | None = None

    def copy(self, message: Message, queues: list[Queue], overlay: Callable[[Queue], Overlay | None]) -> None:
        """Add a message to queues, which accept it. `overlay` returns a new overlay for each."""
        for queue in queues:
            entry = queue.prepare(message, overlay(queue))
            queue.hidden.add(entry.seq, message.size)
            self._entries.append(entry)

    def move(
        self, source: Entry, message: Message, queues: list[Queue], overlay: Callable[[Queue], Overlay | None], reason: str
    ) -> bool:
        """Add a message to queues, and withdraw the entry `source` that it replaces, which is ready in the queue.

        Returns:
            False, without any change, if the entry is not ready any more.
        """
        kept = len(self._entries)
        self.copy(message, queues, overlay)
        if self._inspection.withdraw(source, reason):
            return True
        for entry in reversed(self._entries[kept:]):
            entry.queue.hidden.discard(entry.seq)
            entry.queue.retract(entry)
        del self._entries[kept:]
        return False

    def commit(self, done: Callable[[], None]) -> None:
        """Call `done` when the messages are on disk and visible."""
        self._done = done
        self._log.wait(self)

    def committed(self, batch: int) -> None:
        for entry in self._entries:
            entry.queue.hidden.discard(entry.seq)
            entry.queue.insert_new(entry)
        if self._done is not None:
            self._done()


def refuses(queues: list[Queue], message: Message, delay: Delay | None) -> bool:
    """Return whether a queue has no room for a message with this delay."""
    return any(queue.limits.would_reject(message, 0 if delay is None else delay.due_in(queue, 0)) for queue in queues)


def overlay_in(queue: Queue, message: Message, overlay: Overlay | None, delay: Delay | None) -> Overlay | None:
    """Return the overlay of a moved message in one of its queues.

    Args:
        queue: The queue.
        message: The message.
        overlay: A new overlay without the delay, None if nothing changes; it may be returned.
        delay: The delay of the message, None for none.
    """
    if delay is None or queue not in delay.queues:
        return overlay
    if overlay is None:
        return delay.overlay(message)
    delay.add_to(overlay, message)
    return overlay


def moved_overlay(entry: Entry, address: bytes) -> Overlay | None:
    """Return the overlay of a moved message with a new address: its headers stay, its counts and old TTL do not."""
    old = entry.overlay
    if old is None:
        return None if address == entry.message.address else Overlay(address)
    headers = {name: value for name, value in old.headers.items() if name not in _COUNTS}
    return Overlay(address, headers, old.drop_expiration, 0 if old.drop_expiration else -1)
