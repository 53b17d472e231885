"""A stage: what a sink publishes for one batch, on disk and nowhere to be seen until it is promoted.

Whatever is published to `leveret.stage:<stage>:<exchange>` stands here under the address that it is meant for. All of it is
stored, transient messages too. A stage holds positions in the log, in compact arrays; messages are in memory as well as
far as the budget allows, and are read back otherwise.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final
from zlib import crc32

from leveret.broker.arguments import QueueSettings
from leveret.broker.bodies import Body, StoredBody
from leveret.broker.errors import BrokerError, ContentTooLarge, PreconditionFailed
from leveret.broker.jobs import Job
from leveret.broker.log import Loaded
from leveret.broker.message import ENTRY_OVERHEAD, FORMAT_AMQP1, Entry, Message, Overlay
from leveret.broker.queues.base import Queue

if TYPE_CHECKING:
    from leveret.broker.log import RecoveredQueue
    from leveret.broker.stages import Stages

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20
# Different addresses of one stage that are counted one by one.
MAX_ADDRESSES: Final = 1024
# All stages together may have so many times the share of a queue in memory.
SHARES: Final = 4
# Bytes of a body outside of memory that are read at once.
_PIECE: Final = 1 << 20


class StagedAddress:
    """An address that messages were published for: how many, and the sequence number of the first."""

    __slots__ = ("address", "count", "first")

    def __init__(self, address: bytes, first: int) -> None:
        self.address = address
        self.count = 0
        self.first = first


class StageChunk:
    """Consecutive messages: where each stands in the log, and the messages themselves, None while they are not in memory.

    first   sequence number of the first one; the others follow without a gap
    dues    when those are wanted that are to be delivered later, by index; with `messages`
    batch   the last commit that it waits for
    waiting  jobs that go on once it is in memory
    """

    __slots__ = ("batch", "bytes", "dues", "first", "loading", "messages", "rows", "sizes", "slots", "waiting")

    def __init__(self, first: int) -> None:
        self.first = first
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
    """A chunk on its way back into memory."""

    def __init__(self, stage: Stage, chunk: StageChunk) -> None:
        self.stage = stage
        self.chunk = chunk

    def done(self, loaded: list[Loaded]) -> None:
        chunk = self.chunk
        self.stage.loaded(chunk, loaded)
        waiting = chunk.waiting
        chunk.waiting = []
        for job in waiting:
            job.resume()


class Stage(Queue):
    """One stage.

    uuid, user, app  what it is called, whose it is, and the sink that will promote it
    chunks      what it holds, oldest first; cached: those of them that are in memory
    count, bytes  of all that was published
    checksum    running CRC-32 of the bodies; known: nothing was published before the start of this process
    addresses   by the address as published; counted: all messages are in there
    sealed      nothing more is taken
    promotion   the job that promotes it
    failed      why nothing more was taken, "" while it was
    seen        `count` when it was last looked at, and `idle_since`, in milliseconds, since when it is the same
    """

    def __init__(self, stages: Stages, id: int, uuid: str, user: str, app: str) -> None:
        super().__init__(stages.vhost, id, app, True, None, False, {}, QueueSettings({}, {}))
        self.stored = True
        self.stages = stages
        self.uuid = uuid
        self.user = user
        self.app = app
        self.chunks: deque[StageChunk] = deque()
        self.cached: list[StageChunk] = []
        self.last = StageChunk(0)
        self.count = 0
        self.bytes = 0
        self.checksum = 0
        self.known = True
        self.addresses: dict[bytes, StagedAddress] = {}
        self.counted = True
        self.sealed = False
        self.promotion: Job | None = None
        self.failed = ""
        self.seen = 0
        self.idle_since = self.broker.timers.now()
        # Bytes of the exchange's name that say which stage it is.
        self.prefix = len(stages.prefix_of(uuid))

    @property
    def ready_count(self) -> int:
        return 0

    # In

    def push(self, message: Message) -> bool:
        if self.sealed or self.deleted or self.bytes + message.size > self.stages.max_bytes:
            raise self.refusal()
        self._append(message, None)
        return True

    def delay(self, message: Message, due: int) -> bool:
        if self.sealed or self.deleted or self.bytes + message.size > self.stages.max_bytes:
            raise self.refusal()
        overlay = Overlay()
        overlay.visible_at = due
        self._append(message, overlay)
        return True

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        """A message of a transaction. What is too much is left out, and then the stage cannot be sealed."""
        if self.sealed or self.deleted or self.bytes + message.size > self.stages.max_bytes:
            self.failed = str(self.refusal())
            self.next_seq += 1
            return Entry(self, message, self.next_seq - 1)
        return self._append(message, overlay)

    def insert_new(self, entry: Entry) -> None:
        """It stands here already, and nobody sees it."""

    def insert_many(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.insert_new(entry)

    def can_deliver_now(self, message: Message) -> bool:
        return True

    def drain(self) -> None:
        """Nobody consumes from a stage."""

    def refusal(self) -> BrokerError:
        """Why it takes nothing."""
        if self.deleted:
            return PreconditionFailed(f"stage '{self.uuid}' is not there any more: it was promoted, or given up")
        if self.sealed:
            return PreconditionFailed(f"stage '{self.uuid}' is sealed: nothing can be published to it any more")
        return ContentTooLarge(f"stage '{self.uuid}' would hold more than {self.stages.max_bytes} bytes; the setting is"
                               " sink_transactions.max_bytes")

    def _append(self, message: Message, overlay: Overlay | None) -> Entry:
        seq = self.next_seq
        self.next_seq = seq + 1
        published = message.address
        known = self.addresses.get(published)
        if known is None:
            known = self._new_address(published, seq)
        known.count += 1
        message.address = known.address
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        self.log.store(entry)
        size = message.size
        chunk = self.last
        messages = chunk.messages
        if (messages is None or chunk.first + len(messages) != seq or len(messages) >= CHUNK_ENTRIES
                or chunk.bytes >= CHUNK_BYTES):
            chunk = self._new_chunk(seq)
            messages = chunk.messages
            assert messages is not None
        row = message.row
        if row is not None:
            chunk.rows.append(row.id)
            chunk.batch = row.batch
        chunk.slots.append(message.slot)
        chunk.sizes.append(size)
        chunk.bytes += size
        if overlay is not None:
            chunk.dues[len(messages)] = overlay.visible_at
        messages.append(message)
        self.count += 1
        self.bytes += size
        memory = size + ENTRY_OVERHEAD
        self.memory += memory
        stages = self.stages
        stages.memory += memory
        body = message.body
        if message.format != FORMAT_AMQP1:
            if isinstance(body, bytes):
                self.checksum = crc32(body, self.checksum)
            else:
                self.checksum = checksum_of(body, self.checksum)
            if message.headers_at >= 0 and b"CC" in message.header:
                self.counted = False
        else:
            self.checksum = checksum_of(self.broker.content_of(message), self.checksum)
        if stages.memory > self.broker.page_above * SHARES:
            self.page_out(0)
        return entry

    def _new_address(self, published: bytes, seq: int) -> StagedAddress:
        """The address that a message is meant for: without the name of the stage."""
        length = published[0] - self.prefix
        known = StagedAddress(bytes((length,)) + published[1 + self.prefix :], seq)
        if len(self.addresses) < MAX_ADDRESSES:
            self.addresses[published] = known
        else:
            self.counted = False
        return known

    def _new_chunk(self, seq: int) -> StageChunk:
        if self.memory > self.broker.page_above:
            self.page_out(self.broker.page_above)
        chunk = self.last = StageChunk(seq)
        self.chunks.append(chunk)
        self.cached.append(chunk)
        return chunk

    # Memory

    def page_out(self, keep: int) -> None:
        """Forget messages that are on disk, the youngest first, until the stage has no more than `keep` bytes of them in
        memory. A part of the oldest chunk may have left already while it is promoted: that stays."""
        cached = self.cached
        committed = self.log.committed
        moving = self.chunks[0] if self.promotion is not None and self.chunks else None
        at = len(cached)
        while at and self.memory > keep:
            at -= 1
            chunk = cached[at]
            if chunk.batch <= committed and chunk is not moving:
                del cached[at]
                self._forget_messages(chunk)

    def _forget_messages(self, chunk: StageChunk) -> None:
        messages = chunk.messages
        if messages is not None:
            memory = chunk.bytes + ENTRY_OVERHEAD * len(messages)
            self.memory -= memory
            self.stages.memory -= memory
            chunk.messages = None
            chunk.dues = {}

    def need(self, chunk: StageChunk, job: Job | None) -> bool:
        """Whether a chunk is in memory; where it is not, it is read, and then the job goes on."""
        if chunk.messages is not None:
            return True
        if job is not None and job not in chunk.waiting:
            chunk.waiting.append(job)
        if not chunk.loading:
            chunk.loading = True
            self.log.load(chunk.rows, chunk.slots, _Load(self, chunk).done)
        return False

    def loaded(self, chunk: StageChunk, loaded: list[Loaded]) -> None:
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
        self.memory += memory
        self.stages.memory += memory

    def drop_head(self) -> None:
        """The oldest chunk is moved, as a whole."""
        chunk = self.chunks.popleft()
        if chunk.messages is not None:
            self.cached.remove(chunk)
            self._forget_messages(chunk)

    # The end

    def give_up(self) -> None:
        """Forget everything that is in it."""
        for chunk in self.chunks:
            self.log.settle_range(self.id, 0, self.next_seq, (), chunk.rows, chunk.slots)
        self.end()

    def end(self) -> None:
        """Nothing of it is left."""
        self.deleted = True
        self.stages.memory -= self.memory
        self.memory = 0
        self.chunks.clear()
        self.cached.clear()
        self.addresses.clear()
        self.log.forget(self.id)

    # After a start

    def recover_entries(self, recovered: RecoveredQueue | None) -> None:
        """Take over what the log held. What it was published for, and its checksum, would have to be read."""
        self.known = self.counted = False
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
            chunk = StageChunk(seqs[first])
            chunk.messages = None
            chunk.rows = recovered.rows[first:until]
            chunk.slots = recovered.slots[first:until]
            chunk.sizes = recovered.sizes[first:until]
            chunk.bytes = n_bytes
            self.chunks.append(chunk)
            self.last = chunk
            self.bytes += n_bytes
            first = until
        self.count = self.seen = count


def checksum_of(body: Body, running: int) -> int:
    """The running CRC-32 after this body, too."""
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
