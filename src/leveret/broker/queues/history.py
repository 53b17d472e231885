"""The hidden queue of a recent-history exchange: it keeps copies of the latest messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker.message import Entry, Message, Overlay, expires_at
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.hidden import HiddenQueue

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost

NAME: Final = "leveret.history"
NO_STORE: Final = "x-recent-history-no-store"
# Maximum number of bytes of the bodies and headers in one history.
MAX_BYTES: Final = 16 * 1024 * 1024
_NO_STORE: Final = NO_STORE.encode()


class HistoryQueue(HiddenQueue):
    """The latest messages of one exchange, in memory only.

    As a queue, it gets the messages of a transaction when that commits, as all other queues do.

    Args:
        vhost: The vhost.
        length: The maximum number of messages.
    """

    observes: ClassVar[bool] = True

    def __init__(self, vhost: Vhost, length: int) -> None:
        super().__init__(QueueDefinition(vhost, 0, NAME))
        self._length = length
        self._kept: deque[Entry] = deque()
        self._bytes = 0

    def push(self, message: Message) -> bool:
        self._keep(message, None)
        return True

    def insert_new(self, entry: Entry) -> None:
        self._keep(entry.message, entry.overlay)

    def can_deliver_now(self, message: Message) -> bool:
        return False

    def delete(self, keep_pending: bool = False) -> int:
        self._kept.clear()
        self._bytes = 0
        return super().delete(keep_pending)

    def copies(self) -> Iterator[Entry]:
        """Yield copies of the messages that have not expired, the oldest first."""
        now = self.broker.timers.now()
        for entry in list(self._kept):
            if not 0 < expires_at(entry) <= now:
                yield self._copy(entry.message, entry.overlay)

    def _keep(self, message: Message, overlay: Overlay | None) -> None:
        size = message.size + len(message.header)
        if self.deleted or size > MAX_BYTES or self._is_excluded(message):
            return
        kept = self._kept
        kept.append(self._copy(message, overlay))
        self._bytes += size
        while len(kept) > self._length or self._bytes > MAX_BYTES:
            oldest = kept.popleft().message
            self._bytes -= oldest.size + len(oldest.header)

    def _is_excluded(self, message: Message) -> bool:
        if _NO_STORE not in message.header:
            return False
        return self.broker.read_headers(message, 0).get(NO_STORE) is True

    def _copy(self, message: Message, overlay: Overlay | None) -> Entry:
        """Return a copy with no place in the log: the log may release the record of the message itself."""
        copy = Message(
            message.address,
            message.header,
            message.body,
            message.size,
            message.persistent,
            message.priority,
            message.expires_at,
            message.headers_at,
            message.publisher,
            message.format,
        )
        entry = Entry(self, copy, 0)
        entry.overlay = None if overlay is None else copy_overlay(overlay)
        return entry


def copy_overlay(overlay: Overlay) -> Overlay:
    """Return a copy for another queue, without a delay."""
    return Overlay(overlay.address, dict(overlay.headers), overlay.drop_expiration, overlay.expires_at)
