"""The keys of an exchange that deduplicates.

They are in a hidden queue, to which each message is routed in addition to its queues. So a message of a transaction leaves
its key when the transaction commits, and none if it is rolled back. A duplicate goes to another hidden queue, which drops
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker.message import Entry, Message, Overlay
from leveret.broker.queues.deduplication import Deduplication
from leveret.broker.queues.deduplication_settings import DeduplicationSettings
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.hidden import HiddenQueue

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.vhost import Vhost

KEYS: Final = "leveret.keys"
DUPLICATES: Final = "leveret.duplicates"


class _WithoutEntries(HiddenQueue):
    """A hidden queue that handles a message when it is prepared."""

    def push(self, message: Message) -> bool:
        self.prepare_publish(message)
        return True

    def insert_new(self, entry: Entry) -> None:
        """Do nothing: the message was handled when the entry was prepared."""


class Duplicates(_WithoutEntries):
    """Drops duplicates."""

    def __init__(self, vhost: Vhost, keys: Deduplication, durable: bool) -> None:
        super().__init__(QueueDefinition(vhost, 0, DUPLICATES))
        self._keys = keys
        self._durable = durable

    def prepare_publish(self, message: Message, overlay: Overlay | None = None) -> Entry | None:
        self._keys.drop(message, self._durable and message.persistent)
        return None


class ExchangeKeys(_WithoutEntries):
    """Notes the keys of the messages of one exchange.

    keys        the keys
    duplicates  the queue of duplicates
    """

    observes: ClassVar[bool] = True

    def __init__(self, vhost: Vhost, exchange: Exchange, settings: DeduplicationSettings) -> None:
        super().__init__(QueueDefinition(vhost, 0, KEYS))
        self.keys = Deduplication(self.broker, exchange.id, settings)
        self.duplicates = Duplicates(vhost, self.keys, exchange.durable)
        self._exchange = exchange.name
        self._durable = exchange.durable

    def is_duplicate(self, message: Message) -> bool:
        """Return whether the exchange drops a message."""
        return self.keys.is_known(message, self._durable and message.persistent)

    def drops_all(self, message: Message) -> bool:
        return message.exchange == self._exchange and self.keys.drop(message, self._durable and message.persistent)

    def prepare_publish(self, message: Message, overlay: Overlay | None = None) -> Entry | None:
        if self.deleted or self.is_duplicate(message):
            return None
        entry = self.prepare(message)
        self.keys.note(entry, self._durable and message.persistent)
        return entry

    def retract(self, entry: Entry) -> None:
        super().retract(entry)
        self.keys.forget(entry)

    def unpublish(self, message: Message) -> None:
        self.keys.forget(Entry(self, message, self.next_seq - 1))

    def can_deliver_now(self, message: Message) -> bool:
        return False

    def delete(self, keep_pending: bool = False) -> int:
        self.broker.jobs.removals.add(self.keys.clear())
        return super().delete(keep_pending)
