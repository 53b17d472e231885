"""Deduplication: a queue or an exchange drops messages whose key it has accepted before.

The key of a message is the value of a header. It lasts for a time that starts when its message arrives or, in a queue
without such a time, until its message leaves. Memory and log have its digest.

Keys of stored messages are in the metadata of the log, in chunks, so that a start reads few records. A chunk is written in
the commit of the message whose key it gets, so neither is on disk without the other. When all of its keys have expired, it
is dropped in memory and on disk, as one record for many keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.arguments import CACHE_TTL, TEN_YEARS
from leveret.broker.table import Table
from leveret.broker.timers import Timed
from leveret.broker.values import FieldTable, FieldValue, freeze

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import Recovery, Row
    from leveret.broker.message import Entry, Message
    from leveret.broker.queues.deduplication_settings import DeduplicationSettings

# The end of a key without a time.
NEVER: Final = (1 << 63) - 1

# Units of work to find the key of a message.
_KEY_WORK: Final = 3
# A key in a chunk: its digest, its end (0 if it was removed) and the sequence number of its entry.
_KEY: Final = Struct("<16sQQ")
_DIGEST_SIZE: Final = 16
# Keys of a chunk, as a power of two.
_CHUNK_SHIFT: Final = 6
_CHUNK_KEYS: Final = 1 << _CHUNK_SHIFT
# Chunks that are dropped in one turn.
_DROPPED_AT_ONCE: Final = 16
# Milliseconds until expired keys are dropped if the log was behind.
_RETRY: Final = 20


class Key:
    """The key of a message: its digest, and the milliseconds that it lasts, 0 for no such limit."""

    __slots__ = ("digest", "lifetime")

    def __init__(self, digest: bytes, lifetime: int) -> None:
        self.digest = digest
        self.lifetime = lifetime


class _Chunk:
    """Keys that were added one after the other.

    number  its number, which grows
    name    the key of its record in the log, "" if it is in memory only
    data    the keys, as `_KEY`
    live    the number of keys that were not removed
    first   the keys before this index were removed
    end     the end of the key that lasts longest
    batch   the log batch of its last key
    """

    __slots__ = ("batch", "data", "end", "first", "live", "name", "number")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.data = bytearray()
        self.live = 0
        self.first = 0
        self.end = 0
        self.batch = 0

    def __len__(self) -> int:
        return len(self.data) // _KEY.size

    def add(self, digest: bytes, end: int, seq: int) -> int:
        """Add a key, and return its index."""
        index = len(self)
        self.data += _KEY.pack(digest, end, seq)
        self.live += 1
        self.end = max(self.end, end)
        return index

    def get(self, index: int) -> tuple[bytes, int, int]:
        """Return the digest, the end and the sequence number of a key."""
        digest, end, seq = _KEY.unpack_from(self.data, index * _KEY.size)
        return digest, end, seq

    def load(self, data: bytes, now: int) -> list[tuple[bytes, int]]:
        """Load the keys of its record. Return the digests and indices of those that have not expired."""
        self.data += data
        found: list[tuple[bytes, int]] = []
        for index in range(len(self)):
            digest, end, seq = self.get(index)
            if end > now:
                found.append((digest, index))
                self.end = max(self.end, end)
            else:
                _KEY.pack_into(self.data, index * _KEY.size, digest, 0, seq)
        self.live = len(found)
        return found

    def remove(self, index: int) -> None:
        """Remove a key."""
        digest, _, seq = self.get(index)
        _KEY.pack_into(self.data, index * _KEY.size, digest, 0, seq)
        self.live -= 1

    def oldest(self) -> tuple[bytes, int]:
        """Return the digest and the index of the first key that was not removed."""
        while True:
            digest, end, _ = self.get(self.first)
            if end:
                return digest, self.first
            self.first += 1

    def record(self) -> bytes:
        return metadata.pack({"keys": bytes(self.data)})


class Deduplication(Timed):
    """The keys of one queue or exchange.

    follows_entries  whether a key lasts until its entry leaves the queue
    dropped  the number of dropped messages
    """

    def __init__(self, broker: Broker, owner: int, settings: DeduplicationSettings) -> None:
        super().__init__()
        self._broker = broker
        self._log = broker.log
        self._owner = str(owner)
        self._header = settings.header
        self._needle = settings.header.encode("utf-8", "surrogateescape")
        self._lifetime = settings.lifetime
        self.follows_entries = settings.follows_entries
        self._max_keys = settings.max_keys
        self.dropped = 0
        # The places of the keys by digest: the number of the chunk and the index in it, which has the lowest bits.
        self._places: Table[bytes, int] = Table()
        # The chunks by number, oldest first, and the number of those with a record in the log.
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._records = 0
        self._next = 1
        # The chunks that get the next keys: of stored messages, and of others.
        self._stored: _Chunk | None = None
        self._transient: _Chunk | None = None
        # A row of the latest batch with a key.
        self._row: Row | None = None
        # The latest message header that was decoded, and its key, which may be needed several times.
        self._latest: bytes | None = None
        self._latest_key: Key | None = None

    def __len__(self) -> int:
        """Return the number of keys; some of them may have expired."""
        return len(self._places)

    def figures(self) -> tuple[int, int]:
        """Return the number of keys, and of dropped messages."""
        return len(self._places), self.dropped

    # Keys

    def key_of(self, message: Message) -> Key | None:
        """Return the key of a message, None if it has none."""
        header = message.header
        if header is not self._latest:
            self._latest_key = self._find_key(message)
            self._latest = header
        return self._latest_key

    def _find_key(self, message: Message) -> Key | None:
        header = message.header
        if self._needle not in header:
            return None
        headers = self._broker.read_headers(message, _KEY_WORK)
        value = headers.get(self._header)
        if value is None:
            return None
        return Key(_digest_of(value), 0 if self.follows_entries else _lifetime_in(headers) or self._lifetime)

    def is_known(self, message: Message, stored: bool) -> bool:
        """Return whether a message is a duplicate.

        A message that the log will have is not a duplicate of one that is only in memory.

        Args:
            message: The message.
            stored: Whether the log will have the message.
        """
        return self._find_first(message, stored) is not None

    def _find_first(self, message: Message, stored: bool) -> _Chunk | None:
        """Return the chunk with the key of a message, None if it is no duplicate."""
        key = self.key_of(message)
        place = None if key is None else self._places.get(key.digest)
        if place is None:
            return None
        chunk = self._chunks[place >> _CHUNK_SHIFT]
        end = chunk.get(place & (_CHUNK_KEYS - 1))[1]
        if (stored and not chunk.name) or (end < NEVER and end <= self._broker.timers.now()):
            return None
        return chunk

    def drop(self, message: Message, stored: bool) -> bool:
        """Drop a message if it is a duplicate; return whether it is. The arguments are those of `is_known`.

        A duplicate counts as stored when the first message is, so that it is not confirmed earlier.
        """
        chunk = self._find_first(message, stored)
        if chunk is None:
            return False
        row = self._row
        if row is not None and chunk.batch > self._log.committed:
            message.count_as_stored_with(row)
        self.dropped += 1
        return True

    def note(self, entry: Entry, stored: bool) -> None:
        """Note the key of an accepted message, in the current log batch.

        Args:
            entry: Its entry.
            stored: Whether the log has the message.
        """
        key = self.key_of(entry.message)
        if key is None:
            return
        digest = key.digest
        before = self._places.get(digest)
        if before is not None:
            self._remove(before)
        elif len(self._places) >= self._max_keys:
            self._forget_oldest()
        chunk = self._stored if stored else self._transient
        if chunk is None or len(chunk) >= _CHUNK_KEYS:
            chunk = self._begin(stored)
        end = self._broker.timers.now() + key.lifetime if key.lifetime else NEVER
        self._places.put(digest, chunk.number << _CHUNK_SHIFT | chunk.add(digest, end, entry.seq))
        if stored:
            chunk.batch = self._log.filling
            self._row = entry.message.row
            self._write(chunk)
        if not self.due:
            self._schedule()

    def forget(self, entry: Entry) -> None:
        """Forget the key of an entry that has left, or of one that was not published after all."""
        key = self.key_of(entry.message)
        if key is None:
            return
        place = self._places.get(key.digest)
        if place is None:
            return
        if self._chunks[place >> _CHUNK_SHIFT].get(place & (_CHUNK_KEYS - 1))[2] == entry.seq:
            self._places.pop(key.digest)
            self._remove(place)

    def _forget_oldest(self) -> None:
        """Forget the oldest key."""
        chunk = self._oldest()
        assert chunk is not None
        digest, index = chunk.oldest()
        self._places.pop(digest)
        self._remove(chunk.number << _CHUNK_SHIFT | index)

    # Chunks

    def _begin(self, stored: bool) -> _Chunk:
        """Begin a chunk."""
        chunk = self._add_chunk(self._next, stored)
        if stored:
            self._stored = chunk
        else:
            self._transient = chunk
        return chunk

    def _add_chunk(self, number: int, stored: bool) -> _Chunk:
        chunk = _Chunk(number, metadata.make_key(self._owner, str(number)) if stored else "")
        self._next = number + 1
        self._chunks[number] = chunk
        self._records += stored
        return chunk

    def _oldest(self) -> _Chunk | None:
        """Return the oldest chunk, None if there is none."""
        for chunk in self._chunks.values():
            return chunk
        return None

    def _remove(self, place: int) -> None:
        """Remove a key from its chunk."""
        chunk = self._chunks[place >> _CHUNK_SHIFT]
        chunk.remove(place & (_CHUNK_KEYS - 1))
        if not chunk.live:
            self._drop_chunk(chunk)
        elif chunk.name:
            self._write(chunk)

    def _write(self, chunk: _Chunk) -> None:
        self._log.put(metadata.DEDUPLICATION, chunk.name, chunk.record())

    def _drop_chunk(self, chunk: _Chunk) -> None:
        """Drop a chunk without keys."""
        del self._chunks[chunk.number]
        if chunk is self._stored:
            self._stored = None
        elif chunk is self._transient:
            self._transient = None
        if chunk.name:
            self._records -= 1
            self._log.put(metadata.DEDUPLICATION, chunk.name, None)

    # Expiry

    def _schedule(self) -> None:
        oldest = self._oldest()
        if oldest is not None and oldest.end < NEVER:
            self._broker.timers.at(oldest.end, self)

    def fire(self, now: int) -> None:
        """Drop the oldest chunks if their keys have expired; at most a few in one turn."""
        timers = self._broker.timers
        if self._log.is_behind():
            timers.at(now + _RETRY, self)
            return
        for _ in range(_DROPPED_AT_ONCE):
            chunk = self._oldest()
            if chunk is None or chunk.end > now:
                self._schedule()
                return
            self._expire(chunk)
        timers.at(now + 1, self)

    def _expire(self, chunk: _Chunk) -> None:
        for index in range(len(chunk)):
            digest, end, _ = chunk.get(index)
            if end:
                self._places.pop(digest)
        self._drop_chunk(chunk)

    def clear(self) -> Iterator[int]:
        """Forget all keys at once. The returned steps remove them from the log, and release their memory."""
        self._broker.timers.cancel(self)
        chunks, places = self._chunks, self._places
        self._places = Table()
        self._chunks = OrderedDict()
        self._stored = None
        self._transient = None
        mark = ""
        if self._records:
            # A start before the last step ignores the chunks below this number.
            mark = metadata.make_key(self._owner, str(-self._next))
            self._log.put(metadata.DEDUPLICATION, mark, b"")
            self._records = 0
        return self._releasing(chunks, places, mark)

    def _releasing(self, chunks: OrderedDict[int, _Chunk], places: Table[bytes, int], mark: str) -> Iterator[int]:
        while chunks:
            chunk = chunks.popitem()[1]
            if chunk.name:
                self._log.put(metadata.DEDUPLICATION, chunk.name, None)
            yield 1
        yield from places.releasing()
        if mark:
            self._log.put(metadata.DEDUPLICATION, mark, None)

    # Recovery

    def restore(self, records: dict[int, bytes]) -> None:
        """Restore the keys from the log, by the numbers of their chunks."""
        begin = max([-number for number in records if number < 0], default=0)
        now = self._broker.timers.now()
        for number in sorted(records):
            if number < begin:
                self._log.put(metadata.DEDUPLICATION, metadata.make_key(self._owner, str(number)), None)
                continue
            chunk = self._add_chunk(number, True)
            for digest, index in chunk.load(metadata.unpack(records[number])["keys"], now):
                self._places.put(digest, number << _CHUNK_SHIFT | index)
            if not chunk.live:
                self._drop_chunk(chunk)
        self._next = max(self._next, begin)
        self._schedule()


class KeyRecords:
    """The records of keys during recovery, by the id of their queue or exchange."""

    def __init__(self, broker: Broker, recovery: Recovery) -> None:
        self._log = broker.log
        self._found: dict[int, dict[int, bytes]] = {}
        for (kind, key), value in recovery.metadata.items():
            if kind == metadata.DEDUPLICATION:
                owner, number = metadata.split_key(key)
                self._found.setdefault(int(owner), {})[int(number)] = value

    def restore(self, owner: int, deduplication: Deduplication) -> None:
        """Restore the keys of a queue or exchange."""
        records = self._found.pop(owner, None)
        if records is not None:
            deduplication.restore(records)

    def finish(self) -> None:
        """Remove the records of deleted queues and exchanges."""
        for owner, records in self._found.items():
            for number in records:
                self._log.put(metadata.DEDUPLICATION, metadata.make_key(str(owner), str(number)), None)


def _digest_of(value: FieldValue) -> bytes:
    """Return the digest of a key. Text and bytes are equal if their bytes are, and whole numbers of all types by value."""
    if isinstance(value, str):
        data = b"s" + value.encode("utf-8", "surrogateescape")
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = b"s" + bytes(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        data = b"i%d" % value
    else:
        data = b"v" + repr(freeze(value)).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=_DIGEST_SIZE).digest()


def _lifetime_in(headers: FieldTable) -> int:
    """Return the milliseconds that the key of a message lasts, 0 if its headers do not say."""
    value = headers.get(CACHE_TTL)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= TEN_YEARS:
        return value
    return 0
