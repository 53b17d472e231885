"""A queue that keeps the newest message of each key (`x-queue-type: last-value`).

The key is the value of a header. Its name is the argument `x-last-value-key`, by default the one that Qpid's clients set.
Messages without the header are kept as in a classic queue. An unacked entry is not replaced; if it is requeued after a
newer message with its key arrived, it is dropped. Newer means published later, with a higher sequence number.

All entries stay in memory, because a new message must find the one that it replaces. After a start the queue delivers
nothing until it has read all of them for their keys.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker.arguments import RETRY_DELAYS, TEXT, Argument
from leveret.broker.message import ARCHIVED, AVAILABLE, Entry, Message
from leveret.broker.queues.capabilities import LEASE
from leveret.broker.queues.indexed import IndexedQueue
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.queues.releasing import releasing
from leveret.broker.table import Table
from leveret.broker.values import FieldTable, Frozen, compact_key

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.definition import QueueDefinition

KEY: Final = "x-last-value-key"
DEFAULT_KEY: Final = "qpid.LVQ_key"
# Reason in events for a replaced message.
REPLACED: Final = "replaced"
# Number of keys that a drain checks for entries that have left the queue.
CHECKED_KEYS: Final = 1000
# Units of work of a message.
INSERT_WORK: Final = 3
# Number of recent messages whose keys are cached.
RECENT: Final = 8
# Length of headers that are searched for the name of the key before they are decoded.
SHORT_HEADER: Final = 1024


class _Keys:
    """The keys of one message by header name, cached because the message may go to any number of queues."""

    def __init__(self, header: bytes) -> None:
        self.header = header
        self.headers: FieldTable | None = None
        self.by_name: dict[str, Frozen] = {}

    def find(self, broker: Broker, message: Message, name: str, needle: bytes) -> Frozen:
        """Return the key in a header, None if there is none. `needle` is the encoded name."""
        by_name = self.by_name
        if name in by_name:
            return by_name[name]
        headers = self.headers
        if headers is None:
            header = message.header
            if len(header) <= SHORT_HEADER and needle not in header:
                return None
            headers = self.headers = broker.read_headers(message, 0)
        value = headers.get(name)
        key = by_name[name] = compact_key(value)
        return key


class LastValueQueue(IndexedQueue):
    """One last-value queue of one vhost.

    header   the name of the header with the key, and `needle` its bytes: a message without them has no key
    latest   the newest visible entry of each key, which may have left since
    keys     the keys of `latest`, in the order in which they are checked for that
    """

    # The keys of recent messages: entries of a few messages may be inserted alternately, into any number of queues.
    recent: ClassVar[deque[_Keys]] = deque(maxlen=RECENT)

    unsupported: ClassVar[dict[str, str]] = {LEASE: "a last-value queue, whose messages are replaced while they wait"}
    replacing: ClassVar[bool] = True

    def __init__(self, definition: QueueDefinition) -> None:
        super().__init__(definition)
        self.header: str = definition.settings.known.get(KEY, DEFAULT_KEY)
        self.needle = self.header.encode("utf-8", "surrogateescape")
        self.latest: Table[Frozen, Entry] = Table()
        self.keys: deque[Frozen] = deque()

    def _key_of(self, message: Message) -> Frozen:
        """Return the key of a message, None if it has none."""
        for found in LastValueQueue.recent:
            if found.header is message.header:
                return found.find(self.broker, message, self.header, self.needle)
        keys = _Keys(message.header)
        LastValueQueue.recent.appendleft(keys)
        return keys.find(self.broker, message, self.header, self.needle)

    # Publishing

    def replaced_by(self, message: Message) -> Entry | None:
        key = self._key_of(message)
        entry = None if key is None else self.latest.get(key)
        return entry if entry is not None and entry.state == AVAILABLE else None

    def insert_now(self, entry: Entry) -> None:
        self.broker.work += INSERT_WORK
        overlay = entry.overlay
        is_delayed = overlay is not None and overlay.visible_at > self.broker.timers.now()
        if not self.deleted and not is_delayed:
            key = self._key_of(entry.message)
            if key is not None and not self._replace(key, entry):
                self._remove(entry)
                return
        super().insert_now(entry)

    def _note_returned(self, entry: Entry) -> None:
        super()._note_returned(entry)
        self._keep_latest(entry)

    def _keep_latest(self, entry: Entry) -> None:
        """Drop a ready entry that has been replaced, or the one that it replaces."""
        key = self._key_of(entry.message)
        if key is not None and not self._replace(key, entry):
            self._drop(entry)

    def _replace(self, key: Frozen, entry: Entry) -> bool:
        """Make an entry the latest of its key, and drop the one before. False if there is a newer one."""
        before = self.latest.get(key)
        if before is None:
            self.keys.append(key)
        elif before is not entry and before.state != ARCHIVED:
            if before.seq > entry.seq:
                return False
            self._drop(before)
        self.latest.put(key, entry)
        return True

    def _drop(self, entry: Entry) -> None:
        """Drop an entry if it is ready."""
        if entry.state == AVAILABLE and self.ready.take(entry):
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        if self.watch is not None:
            self.watch.left(entry, REPLACED)
        self.archive(entry)

    # Delivery

    def drain(self) -> None:
        super().drain()
        self._forget_keys()

    def settle(self, entry: Entry) -> None:
        super().settle(entry)
        self.activate()  # so that its key is forgotten

    def _forget_keys(self) -> None:
        """Forget entries that have left, as soon as there are more keys than entries; some of them in the next turn."""
        latest = self.latest
        live = self.ready_count + self.unacked
        forgotten = 0
        for checked in range(len(self.keys)):
            if len(latest) <= live:
                return
            if checked == CHECKED_KEYS:
                self.broker.work += checked >> 3
                if forgotten:
                    self.broker.jobs.deferred.add(self)
                return
            key = self.keys.popleft()
            entry = latest.get(key)
            if entry is None or entry.state == ARCHIVED:
                latest.pop(key)
                forgotten += 1
            else:
                self.keys.append(key)

    def purge(self) -> int:
        count = super().purge()
        self._forget_all()
        return count

    def delete(self, keep_pending: bool = False) -> int:
        count = super().delete(keep_pending)
        self._forget_all()
        return count

    def _forget_all(self) -> None:
        latest, keys = self.latest, self.keys
        self.latest = Table()
        self.keys = deque()
        self.broker.jobs.removals.add(chain(latest.releasing(), releasing(keys)))

    def index(self, entry: Entry) -> None:
        self._keep_latest(entry)


TYPE: Final[QueueType] = QueueType(
    "last-value",
    LastValueQueue,
    (Argument(KEY, TEXT, default=DEFAULT_KEY),),
    refused=(RETRY_DELAYS,),
    because="which keeps only the latest message of each key",
)
