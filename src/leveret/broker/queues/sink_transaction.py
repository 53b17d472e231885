"""The queue behind a sink transaction: the hidden messages of one writer of a batch, until they are committed.

A message published to `leveret.stage:<transaction>:<exchange>` is kept under its target address. All messages are stored,
transient ones too. A sink transaction keeps their positions in the log in compact arrays. The messages themselves stay in
memory within the budget and are read back otherwise.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final
from zlib import crc32

from leveret.broker.bodies import Body, StoredBody
from leveret.broker.errors import BrokerError, ContentTooLarge, PreconditionFailed
from leveret.broker.jobs import Job
from leveret.broker.log import Loaded, append_positions
from leveret.broker.message import ENTRY_OVERHEAD, FORMAT_AMQP1, Entry, Message, Overlay
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.hidden import HiddenQueue
from leveret.broker.streams.tracking import PUBLISHER_BYTES

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.transactions.sink_transactions import SinkTransactions

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20
# Maximum number of messages that are paged out at once, and, as a power of two, the number in 1 µs.
PAGED_AT_ONCE: Final = 4 * CHUNK_ENTRIES
FORGET_SHIFT: Final = 2
# Distinct target addresses of one sink transaction that are counted individually.
MAX_ADDRESSES: Final = 1024
# Memory budget of all sink transactions together, in shares of one queue.
SHARES: Final = 4
# Bytes of a stored body in one read.
_PIECE: Final = 1 << 20


class TargetAddress:
    """A target address: the number of its messages and the sequence number of the first one."""

    __slots__ = ("address", "count", "first")

    def __init__(self, address: bytes, first: int) -> None:
        self.address = address
        self.count = 0
        self.first = first


class TransactionChunk:
    """Consecutive messages: their positions in the log, and the messages while they are in memory.

    Attributes:
        first: Sequence number of the first message; the others follow without a gap.
        messages: None while they are paged out.
        dues: Due times of delayed messages by index; set along with `messages`.
        batch: Last log commit that contains one of the messages.
        waiting: Jobs that resume once the chunk is in memory.
        address: Target address of all its messages, if none of them has another one, CC or BCC, a time of its own or the
            sequence number of a publisher. None otherwise, and after recovery.
    """

    __slots__ = ("address", "batch", "bytes", "dues", "first", "loading", "messages", "rows", "sizes", "slots", "waiting")

    def __init__(self, first: int, address: bytes | None) -> None:
        self.first = first
        self.address = address
        self.waiting: list[Job] = []
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.bytes = 0
        self.batch = 0
        self.messages: list[Message] | None = []
        self.dues: dict[int, int] = {}
        self.loading = False


class _Load:
    """Read of a chunk that is being paged in."""

    def __init__(self, transaction: SinkTransaction, chunk: TransactionChunk) -> None:
        self.transaction = transaction
        self.chunk = chunk

    def done(self, loaded: list[Loaded]) -> None:
        chunk = self.chunk
        self.transaction.loaded(chunk, loaded)
        waiting = chunk.waiting
        chunk.waiting = []
        for job in waiting:
            job.resume()


class SinkTransaction(HiddenQueue):
    """One sink transaction.

    Attributes:
        uuid: Its name.
        user: The user that opened it.
        app: The sink that will commit it.
        chunks: Its messages, oldest first.
        cached: The chunks that are in memory; `cached_bytes` of them.
        count: Number of messages published to it.
        bytes: Size of the messages published to it.
        checksum: Running CRC-32 of the bodies.
        checksum_known: Whether `checksum` covers all bodies; False after recovery.
        addresses: Target addresses by the address as published.
        counted: Whether `addresses` covers all messages.
        prepared: Whether it is closed to publishes.
        batch_commit: The job that commits it.
        failed: Why a message was rejected; "" if none was.
        last_count: `count` at the last sweep.
        idle_since: Time in milliseconds since which `count` is unchanged.
    """

    def __init__(self, manager: SinkTransactions, id: int, uuid: str, user: str, app: str) -> None:
        super().__init__(QueueDefinition(manager.vhost, id, app, True))
        self.manager = manager
        self.uuid = uuid
        self.user = user
        self.app = app
        self.chunks: deque[TransactionChunk] = deque()
        self.cached: list[TransactionChunk] = []
        self.cached_bytes = 0
        self.last = TransactionChunk(0, None)
        self.count = 0
        self.bytes = 0
        self.checksum = 0
        self.checksum_known = True
        self.addresses: dict[bytes, TargetAddress] = {}
        self.counted = True
        self.prepared = False
        self.batch_commit: Job | None = None
        self.failed = ""
        self.last_count = 0
        self.idle_since = self.broker.timers.now()
        # Length of the part of the exchange name that identifies the sink transaction.
        self.prefix = len(manager.prefix_of(uuid))

    # Publishing

    def push(self, message: Message) -> bool:
        if self.prepared or self.deleted or self.bytes + message.size > self.manager.max_bytes:
            raise self.refusal()
        self._append(message, None)
        return True

    def delay(self, message: Message, due: int, overlay: Overlay | None = None) -> bool:
        if self.prepared or self.deleted or self.bytes + message.size > self.manager.max_bytes:
            raise self.refusal()
        if overlay is None:
            overlay = Overlay()
            overlay.visible_at = due
        self._append(message, overlay)
        return True

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        """Append a message of an AMQP transaction.

        A message beyond the size limit is left out; then the sink transaction cannot be prepared.
        """
        if self.prepared or self.deleted or self.bytes + message.size > self.manager.max_bytes:
            self.failed = str(self.refusal())
            self.next_seq += 1
            return Entry(self, message, self.next_seq - 1)
        return self._append(message, overlay)

    def retract(self, entry: Entry) -> None:
        """Prevent the sink transaction from being prepared: it has a message whose AMQP transaction failed."""
        self.failed = "an AMQP transaction that published to it failed"

    def insert_new(self, entry: Entry) -> None:
        """Do nothing: `prepare` has appended the entry, and it stays hidden."""

    def refusal(self) -> BrokerError:
        """Return the error for a rejected message."""
        if self.deleted:
            return PreconditionFailed(f"sink transaction '{self.uuid}' no longer exists: it was committed or aborted")
        if self.prepared:
            return PreconditionFailed(f"sink transaction '{self.uuid}' is prepared: it accepts no more messages")
        return ContentTooLarge(
            f"sink transaction '{self.uuid}' would exceed {self.manager.max_bytes} bytes; the setting is"
            " sink_transactions.max_bytes"
        )

    def push_run(self, messages: list[Message], first: int, stop: int) -> int:
        if self.prepared or self.deleted:
            return first
        size = self.bytes
        for index in range(first, stop):
            size += messages[index].size
        if size > self.manager.max_bytes:
            return first
        seq = self.next_seq
        self.next_seq = seq + stop - first
        known: TargetAddress | None = None
        published = b""
        for index in range(first, stop):
            message = messages[index]
            if message.address is not published:
                published = message.address
                known = self._count_address(published, seq + index - first)
            elif known is not None:
                known.count += 1
            if known is not None:
                message.address = known.address
        self.log.store_run(self, messages, first, stop, seq)
        self._add(messages, first, stop, seq)
        self._limit_memory()
        return stop

    def _append(self, message: Message, overlay: Overlay | None) -> Entry:
        seq = self.next_seq
        self.next_seq = seq + 1
        message.address = self._count_address(message.address, seq).address
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        self.log.store(entry)
        self._add([message], 0, 1, seq)
        if overlay is not None:
            chunk = self.last
            chunk.dues[len(chunk.sizes) - 1] = overlay.visible_at
            chunk.address = None
        self._limit_memory()
        return entry

    def _count_address(self, published: bytes, seq: int) -> TargetAddress:
        """Count a message that was published to an address."""
        known = self.addresses.get(published)
        if known is None:
            known = self._new_address(published, seq)
        known.count += 1
        return known

    def _add(self, messages: list[Message], first: int, stop: int, seq: int) -> None:
        """Add stored messages, whose sequence numbers begin with `seq`, to the chunks and the checksum."""
        size = 0
        index = first
        while index < stop:
            chunk = self.last
            kept = chunk.messages
            next_seq = seq + index - first
            if (
                kept is None
                or chunk.first + len(kept) != next_seq
                or len(kept) >= CHUNK_ENTRIES
                or chunk.bytes >= CHUNK_BYTES
            ):
                chunk = self._new_chunk(next_seq, messages[index].address)
                kept = chunk.messages
                assert kept is not None
            begin = index
            before = chunk.bytes
            index = self._fill(chunk, messages, begin, min(stop, begin + CHUNK_ENTRIES - len(kept)))
            added = messages[begin:index]
            kept.extend(added)
            append_positions(chunk.rows, chunk.slots, added)
            row = added[len(added) - 1].row
            if row is not None:
                chunk.batch = row.batch
            size += chunk.bytes - before
        self.count += stop - first
        self.bytes += size
        memory = size + ENTRY_OVERHEAD * (stop - first)
        self.cached_bytes += memory
        self.manager.memory += memory

    def _fill(self, chunk: TransactionChunk, messages: list[Message], first: int, stop: int) -> int:
        """Count messages in a chunk until it is full, and in the checksum. Returns the index of the first one left."""
        sizes: list[int] = []
        bodies: list[bytes] = []
        n_bytes = chunk.bytes
        address = chunk.address
        # Messages with equal properties often have the same header.
        header = b""
        index = first
        while index < stop and n_bytes < CHUNK_BYTES:
            message = messages[index]
            index += 1
            sizes.append(message.size)
            n_bytes += message.size
            if message.header is not header:
                header = message.header
                if message.format != FORMAT_AMQP1 and message.headers_at >= 0 and b"CC" in header:
                    self.counted = False
                    address = None
                elif address is not None and PUBLISHER_BYTES in header:
                    address = None
            if address is not None and (
                message.expires_at or (message.address is not address and message.address != address)
            ):
                address = None
            body = self.broker.content_of(message) if message.format == FORMAT_AMQP1 else message.body
            if isinstance(body, bytes):
                bodies.append(body)
            else:
                self.checksum = checksum_of(body, crc32(b"".join(bodies), self.checksum))
                bodies = []
        self.checksum = crc32(b"".join(bodies), self.checksum)
        chunk.address = address
        chunk.bytes = n_bytes
        chunk.sizes.fromlist(sizes)
        return index

    def _limit_memory(self) -> None:
        if self.manager.memory > self.broker.page_above * SHARES:
            self.page_out(0)

    def _new_address(self, published: bytes, seq: int) -> TargetAddress:
        """Register the target address of a message: the published one without the name of the sink transaction."""
        length = published[0] - self.prefix
        known = TargetAddress(bytes((length,)) + published[1 + self.prefix :], seq)
        if len(self.addresses) < MAX_ADDRESSES:
            self.addresses[published] = known
        else:
            self.counted = False
        return known

    def _new_chunk(self, seq: int, address: bytes) -> TransactionChunk:
        if self.cached_bytes > self.broker.page_above:
            self.page_out(self.broker.page_above)
        chunk = self.last = TransactionChunk(seq, address)
        self.chunks.append(chunk)
        self.cached.append(chunk)
        return chunk

    def close(self) -> None:
        """Accept no more messages: the sink transaction is prepared."""
        self.prepared = True
        self.idle_since = self.broker.timers.now()

    def set_batch_commit(self, batch_commit: Job | None) -> None:
        """Set the job that commits the sink transaction; None if it was not committed."""
        self.batch_commit = batch_commit

    def idle_time(self, now: int) -> int:
        """Return the milliseconds since an earlier call during which no message was published; -1 if there were some."""
        if self.count != self.last_count:
            self.last_count = self.count
            self.idle_since = now
            return -1
        return now - self.idle_since

    # Memory

    def page_out(self, keep: int) -> int:
        """Page out messages that are on disk, newest first, until at most `keep` bytes are in memory.

        During a commit the oldest chunk may be moved in part, so it stays. Returns the number of messages, about
        PAGED_AT_ONCE at most.
        """
        cached = self.cached
        committed = self.log.committed
        moving = self.chunks[0] if self.batch_commit is not None and self.chunks else None
        at = len(cached)
        count = 0
        while at and self.cached_bytes > keep and count < PAGED_AT_ONCE:
            at -= 1
            chunk = cached[at]
            if chunk.batch <= committed and chunk is not moving:
                del cached[at]
                count += len(chunk.slots)
                self._forget_messages(chunk)
        return count

    def _forget_messages(self, chunk: TransactionChunk) -> None:
        messages = chunk.messages
        if messages is not None:
            memory = chunk.bytes + ENTRY_OVERHEAD * len(messages)
            self.cached_bytes -= memory
            self.manager.memory -= memory
            chunk.messages = None
            chunk.dues = {}

    def ensure_loaded(self, chunk: TransactionChunk, job: Job | None) -> bool:
        """Return whether a chunk is in memory; if not, read it and then resume the job."""
        if chunk.messages is not None:
            return True
        if job is not None and job not in chunk.waiting:
            chunk.waiting.append(job)
        if not chunk.loading:
            chunk.loading = True
            self.log.load(chunk.rows, chunk.slots, _Load(self, chunk).done)
        return False

    def loaded(self, chunk: TransactionChunk, loaded: list[Loaded]) -> None:
        chunk.loading = False
        if self.deleted:
            return
        messages: list[Message] = []
        for index, item in enumerate(loaded):
            messages.append(item.message)
            overlay = item.overlay
            if overlay is not None and overlay.visible_at:
                chunk.dues[index] = overlay.visible_at
        chunk.messages = messages
        self.cached.append(chunk)
        memory = chunk.bytes + ENTRY_OVERHEAD * len(messages)
        self.cached_bytes += memory
        self.manager.memory += memory

    def drop_head(self) -> None:
        """Drop the oldest chunk, whose messages have all moved."""
        chunk = self.chunks.popleft()
        if chunk.messages is not None:
            self.cached.remove(chunk)
            self._forget_messages(chunk)

    # Removal

    def discard_messages(self) -> None:
        """Remove all its messages."""
        for chunk in self.chunks:
            self.log.settle_range(self.id, 0, self.next_seq, (), chunk.rows, chunk.slots)
        self.end()

    def end(self) -> None:
        """Mark it as deleted and release its memory."""
        self.deleted = True
        self.manager.memory -= self.cached_bytes
        self.cached_bytes = 0
        self.chunks.clear()
        self.cached.clear()
        self.addresses.clear()
        self.log.forget(self.id)

    # Recovery

    def recover_entries(self, recovery: Recovery, prepared: bool) -> None:
        """Take over the recovered positions. Target addresses and checksum are unknown until the bodies are read."""
        self.prepared = prepared
        self.next_seq = recovery.last_seq.get(self.id, 0) + 1
        self.checksum_known = self.counted = False
        recovered = recovery.queues.get(self.id)
        if recovered is None:
            return
        count = len(recovered.seqs)
        first = 0
        while first < count:
            until = min(first + CHUNK_ENTRIES, count)
            n_bytes = sum(recovered.sizes[first:until])
            seqs = recovered.seqs
            while (n_bytes > 4 * CHUNK_BYTES or seqs[until - 1] - seqs[first] >= until - first) and until - first > 1:
                until = first + (until - first) // 2
                n_bytes = sum(recovered.sizes[first:until])
            chunk = TransactionChunk(seqs[first], None)
            chunk.messages = None
            chunk.rows = recovered.rows[first:until]
            chunk.slots = recovered.slots[first:until]
            chunk.sizes = recovered.sizes[first:until]
            chunk.bytes = n_bytes
            self.chunks.append(chunk)
            self.last = chunk
            self.bytes += n_bytes
            first = until
        self.count = self.last_count = count


def checksum_of(body: Body, running: int) -> int:
    """Return a running CRC-32 extended by a body."""
    if isinstance(body, bytes):
        return crc32(body, running)
    if isinstance(body, StoredBody):
        at = 0
        while at < body.size:
            piece = body.read(at, _PIECE)
            if not piece:
                break
            running = crc32(piece, running)
            at += len(piece)
        return running
    for part in body:
        running = crc32(part, running)
    return running
