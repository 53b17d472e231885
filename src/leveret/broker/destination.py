"""The destination of a binding: a queue or an exchange."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Final, Literal

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.jobs import Jobs
    from leveret.broker.queues.queue import Queue


logger: Final = logging.getLogger(__name__)

# Units of work to notify a sender.
SENDER_WORK: Final = 3


class SendTarget:
    """A target of links, whose senders are notified when it is deleted."""

    def __init__(self) -> None:
        self._senders: dict[object, Callable[[str], None]] | None = None

    def add_sender(self, sender: object, notify: Callable[[str], None]) -> None:
        """Call `notify` with the text of an error if the target is deleted before `remove_sender`."""
        if self._senders is None:
            self._senders = {}
        self._senders[sender] = notify

    def remove_sender(self, sender: object) -> None:
        if self._senders is not None:
            self._senders.pop(sender, None)
            if not self._senders:
                self._senders = None

    def notify_senders(self, jobs: Jobs, text: str) -> None:
        """Notify the senders that the target is deleted, in steps."""
        senders = self._senders
        if senders is not None:
            self._senders = None
            jobs.removals.add(_notifying(list(senders.values()), text))


class Destination(SendTarget):
    """A destination of bindings. Each kind has its own namespace.

    id        identifies it in stored bindings; unlike the name, it is never reused; 0 for an exchange that is not stored
    stored    the log has its definition, and its bindings to stored exchanges
    deleted   its bindings are still being removed
    revision  number of changes of the definition
    observes  it gets messages for the broker's own use: one that reaches no other destination is unroutable
    """

    kind: ClassVar[Literal["queue", "exchange"]]
    observes: ClassVar[bool] = False

    def __init__(self, name: str, id: int, stored: bool) -> None:
        super().__init__()
        self.name = name
        self.id = id
        self.stored = stored
        self.deleted = False
        self.revision = 0

    def redefined(self) -> None:
        """Note a change of the definition: readers of statistics get it again."""
        self.revision += 1

    @abstractmethod
    def reach(self, queues: dict[Queue, None], exchanges: list[Exchange]) -> None:
        """Add a queue to the queues of a message, or an exchange to the exchanges that route it further."""

    @abstractmethod
    def bound_to(self, source: Exchange) -> None:
        """Note the first binding from an exchange."""

    @abstractmethod
    def unbound_from(self, source: Exchange) -> None:
        """Note that the last binding from an exchange was removed."""


def _notifying(senders: list[Callable[[str], None]], text: str) -> Iterator[int]:
    senders.reverse()
    while senders:
        notify = senders.pop()
        try:
            notify(text)
        except Exception:  # the others must be notified
            logger.exception("cannot notify a sender: %s", text)
        yield SENDER_WORK
