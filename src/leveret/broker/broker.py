"""The broker: vhosts over one log, and the turn.

A turn is the work between bytes in and bytes out: commands publish and settle, which marks queues active; `end_turn`
then drains those queues, starts the group commit and flushes the connections with output.
"""

from __future__ import annotations

import logging
import secrets
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from io import UnsupportedOperation
from itertools import islice
from typing import Final

from mypy_extensions import mypyc_attr

from leveret.broker import metadata
from leveret.broker.arguments import CLASSIC, UnknownArguments
from leveret.broker.bodies import Body
from leveret.broker.consumer import Output, UnackedOwner
from leveret.broker.content_policy import DROP_IN_ORDER, ContentPolicy
from leveret.broker.errors import NotFound, PreconditionFailed, ResourceError
from leveret.broker.exchanges.base import DEFAULT_ROUTING_STEPS
from leveret.broker.indexing import Indexing
from leveret.broker.jobs import STEP_WORK, Jobs, Sliced, logged
from leveret.broker.kept_files import KeptFiles
from leveret.broker.leases.recovery import Restoring
from leveret.broker.log import Log, RecoveredQueue, Recovery
from leveret.broker.message import ACQUIRED, AT_ONCE, FORMAT_AMQP0, PROTOCOLS, Message
from leveret.broker.metadata import Record
from leveret.broker.node_name import node_name
from leveret.broker.parameters import CLUSTER_NAME, GlobalParameters, ParameterWatch
from leveret.broker.policies import Matcher, PatternCompiler
from leveret.broker.queues.classic.backlog import PIECE
from leveret.broker.queues.deduplication import KeyRecords
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.queue_list import QueueList
from leveret.broker.queues.removal import Leftovers
from leveret.broker.queues.requests import RequestHandler
from leveret.broker.queues.shares import MemoryShares
from leveret.broker.segments import Segments, SegmentSettings, SegmentStore
from leveret.broker.statistics import Churn
from leveret.broker.streams.recovery import StreamRecords
from leveret.broker.timers import Timers
from leveret.broker.tracing import Tracing
from leveret.broker.transactions import branch_recovery
from leveret.broker.transactions.branch import BranchSettings
from leveret.broker.transactions.sink_transactions import SinkTransactionSettings
from leveret.broker.uploads import Uploads
from leveret.broker.values import FieldTable
from leveret.broker.vhost import OTHER_CLASSES, Vhost

logger = logging.getLogger("leveret.broker")

DEFAULT_PAGE_ABOVE: Final = 64 << 20
DEFAULT_DROPPABLE_BACKLOG: Final = 64 << 20
MAX_CONVERTED: Final = 1 << 16
DEFAULT_ROUTING_KEYS: Final = 1000
DEFAULT_ROUTING_QUEUES: Final = 10_000
ID_BLOCK: Final = 1000
# Distance of the next queue id and lease epoch from the highest known one if their counters are lost. Queue ids have 32
# bits in the log.
ID_GAP: Final = 1 << 20
EPOCH_GAP: Final = 1 << 32
# Units of work to write to one connection.
OUTPUT_WORK: Final = 8
# With more active queues, a commit starts after their deliveries.
FEW_QUEUES: Final = 16
# Bytes of headers (as a power of two) that are decoded in one unit of work.
DECODE_SHIFT: Final = 6
LAZY: Final = 0.01
LAZY_BYTES: Final = 1 << 20


@mypyc_attr(allow_interpreted_subclasses=True)
class HeaderReader:
    """Decoder of a protocol's encoded message properties."""

    @abstractmethod
    def headers(self, message: Message) -> FieldTable:
        """Return the application headers; an empty dict if they cannot be decoded."""

    @abstractmethod
    def property(self, message: Message, name: str) -> str:
        """Return a content property ("message-id") as text; "" if the message has none."""

    def header(self, message: Message, name: bytes) -> str:
        """Return an application header whose value is text; "" if there is none."""
        value = self.headers(message).get(name.decode())
        return value if isinstance(value, str) else ""

    @abstractmethod
    def expiration(self, message: Message) -> str | None:
        """Return the expiration as the publisher wrote it."""

    def content(self, message: Message) -> Body:
        """Return the body as applications see it."""
        return message.body

    def times(self, message: Message, now: int, step: int) -> tuple[int, int]:
        """Return the expiry of a message published now, as `Message.expires_at`, and its delivery time (0: at once).

        `step` is `Timers.step`.
        """
        expiration = self.expiration(message)
        if expiration is None or not expiration.isdigit():
            return 0, 0
        return now + int(expiration) if int(expiration) else AT_ONCE, 0

    def make_header(self, content_type: str, size: int) -> bytes:
        """Encode the properties of a message that the broker creates, with a body of `size` bytes.

        Only the reader of FORMAT_AMQP0 supports this.
        """
        raise UnsupportedOperation(f"{type(self).__name__} cannot encode properties: the broker creates AMQP 0-x messages")

    def make_headers(self, headers: FieldTable, size: int) -> tuple[bytes, int]:
        """Encode application headers as the only property of such a message.

        Returns:
            The header and its `headers_at`; an empty header if the headers cannot be encoded, which is the default.
        """
        return b"", -1

    @abstractmethod
    def as_basic(self, message: Message) -> tuple[FieldTable, Body]:
        """Return properties (`content_type`, ...) and body of a message as 0-9-1 has them. The caller may change both."""


# Definitions that a start drops if their vhost does not exist.
_DROPPED_WITH_VHOST: Final = (
    metadata.EXCHANGE,
    metadata.QUEUE,
    metadata.PARAMETER,
    metadata.POLICY,
    metadata.OPERATOR_POLICY,
)
# Drained instead of the active queues while another process may have taken over the log.
_NO_QUEUES: Final[deque[Queue]] = deque()
# Queues and exchanges of a deleted vhost that are removed at once: the name of a small one can be used again at once.
MAX_REMOVED_AT_ONCE: Final = 100
# Limits during a memory alarm: exchanges, queues and bindings that may be added (deleting a queue allows one more), and
# bytes of the arguments of each.
MAX_ALARM_DEFINITIONS: Final = 1000
MAX_ALARM_ARGUMENTS: Final = 4096


class VhostSettings:
    """Settings of a vhost for the broker.

    strict           follow the specification where RabbitMQ deviates (`compat.strict`)
    max_queues       maximum number of queues, -1 for no limit
    max_connections  maximum number of connections, -1 for no limit
    default_queue_type  type of queues that are declared without `x-queue-type`
    """

    def __init__(
        self,
        strict: bool = False,
        max_queues: int = -1,
        max_connections: int = -1,
        default_queue_type: str = CLASSIC,
    ) -> None:
        self.strict = strict
        self.max_queues = max_queues
        self.max_connections = max_connections
        self.default_queue_type = default_queue_type


def _without_patterns(pattern: str) -> Matcher:
    raise ValueError("cannot be compiled: this broker has no pattern compiler")


class Broker:
    """The vhosts, their log, and the turn.

    log          stores durable data
    overflow     stores transient messages that a deep queue pages out; None: they stay in memory
    page_above   bytes in memory above which a queue pages out; `share_memory` changes it
    event_sample  one event is published for this many of one kind
    content_policies  special treatment of messages by their format
    droppable_backlog  bytes above which a queue drops messages with the rule DROP_FIRST
    max_routing_keys, max_routing_steps, max_routing_queues  limits of routing one message
    work         units of work done in this turn: delivering a message to a queue is one, about 1 µs
    inputs       number of times in this turn that a client was read or became ready for more output: each allows more work
    waking       connections that have had their share of a turn, and resume deliveries in the next ones
    converted    bytes of headers converted for consumers of another protocol in this turn; beyond MAX_CONVERTED, they
                 wait for the next one
    segments     storage of sealed streams; None if they stay in the log
    unsealed     reason why this broker does not seal streams
    has_unsealed  whether there was a stream that is not sealed for this reason
    active       queues to drain at the end of the turn; outputs: connections to flush
    jobs         work that takes longer than a turn
    compile_pattern  compiles the patterns of policies
    """

    def __init__(self, log: Log, overflow: Log | None = None) -> None:
        self.log = log
        self.overflow = overflow
        self.timers = Timers()
        # The step of the clock that is stored in the log.
        self._stored_step = 0
        self.segments: Segments | None = None
        self.unsealed = ""
        self.has_unsealed = False
        self.vhosts: dict[str, Vhost] = {}
        # Names of deleted vhosts that still have objects.
        self._removing: set[str] = set()
        self.active: deque[Queue] = deque()
        self.outputs: list[Output] = []
        # Queues with entries that are still to be paged out.
        self.paging: QueueList[Queue] = QueueList()
        self._paging_out = False
        self.shares = MemoryShares(self)
        self.holders: dict[UnackedOwner, None] = {}
        self.header_readers: dict[int, HeaderReader] = {}
        self.content_policies: list[ContentPolicy | None] = [None] * len(PROTOCOLS)
        self.page_above = DEFAULT_PAGE_ABOVE
        self.event_sample = 1
        # Set before the start if messages are traced.
        self.tracing: Tracing | None = None
        self.droppable_backlog = DEFAULT_DROPPABLE_BACKLOG
        self.max_routing_keys = DEFAULT_ROUTING_KEYS
        # Number of changes of exchanges, queues and bindings so far.
        self.topology_changes = 0
        self.churn = Churn()
        self.max_routing_steps = DEFAULT_ROUTING_STEPS
        self.max_routing_queues = DEFAULT_ROUTING_QUEUES
        self.work = 0
        self.inputs = 0
        self.waking = 0
        self.converted = 0
        self.next_queue_id = 1
        self.reserved_queue_ids = 1
        self.next_lease_epoch = 1
        # Entries of this start by queue id; queues take over theirs, and the rest belongs to deleted ones.
        self._recovered: dict[int, RecoveredQueue] = {}
        # Whether damaged definitions were dropped at this start.
        self.incomplete = False
        # Removals of queues that this start must complete.
        self.leftovers = Leftovers()
        self.indexing = Indexing(self)
        self.kept_files = KeptFiles(log)
        self.in_turn = False
        self.flush_due = 0.0
        # Whether memory is low, so that clients with many unsettled deliveries get no more.
        self.tight = False
        # Number of definitions that may still be added during the current memory alarm, -1 without one.
        self.definitions_left = -1
        self.unknown_arguments = UnknownArguments(self.timers.now)
        self.on_vhost_removed: Callable[[Vhost], None] | None = None
        self.request_handler: RequestHandler | None = None
        self.compile_pattern: PatternCompiler = _without_patterns
        self.global_parameters = GlobalParameters(log)
        self.parameter_watches: dict[str, ParameterWatch] = {}
        self.jobs = Jobs(self)
        self.sink_transaction_settings = SinkTransactionSettings()
        self.branch_settings = BranchSettings()
        self.uploads = Uploads(self)
        # Name of the node for clients, and of the cluster unless it has another one.
        self.node_name = node_name()
        # Identifies this store; created at its first start.
        self.identity = ""

    @property
    def cluster_name(self) -> str:
        """The name of the cluster for clients."""
        name = self.global_parameters.values.get(CLUSTER_NAME)
        return name if isinstance(name, str) else self.node_name  # an earlier version may have stored anything

    # The turn

    def end_turn(self) -> None:
        """Drain the active queues, start the commit, and flush the outputs."""
        if self.in_turn:
            return
        self.in_turn = True
        active = self.active
        if active and self.log.is_silent():
            active = _NO_QUEUES
        # Limits of deliveries and writes for the rest of this turn.
        left = unwritten = STEP_WORK * (1 + self.inputs)
        try:
            if active and len(active) <= FEW_QUEUES and self.log.is_awaited():
                self._commit_first()
            while True:
                while active and left > 0:
                    queue = active.popleft()
                    before = self.work
                    try:
                        queue.end_turn()
                    except Exception:  # an error in one queue must not stop the others
                        logger.exception("cannot deliver from queue '%s'", queue.name)
                    left -= 1 + self.work - before
                self._flush()
                outputs = self.outputs
                if outputs:
                    self.outputs = []
                    for index, output in enumerate(outputs):
                        if unwritten <= 0:
                            self.outputs[:0] = outputs[index:]
                            break
                        output.flush()
                        unwritten -= OUTPUT_WORK
                if (left <= 0 or not active) and (unwritten <= 0 or not self.outputs):
                    break
            if active or self.outputs:
                self.jobs.deferred.resume()  # one input caused more work than a turn allows
        finally:
            self.in_turn = False
            self.work = 0
            self.inputs = 0
            self.converted = 0

    def _commit_first(self) -> None:
        """Start a commit before the deliveries of the turn, so that it is written meanwhile.

        Entries that a delivery settles need not be written, so their commit starts after the deliveries.
        """
        for queue in self.active:
            if queue.no_ack_consumers:
                return
        self.log.flush()

    def _flush(self) -> None:
        """Start a commit if anything waits for it.

        Changes that nothing waits for (mostly settlements) are gathered for LAZY seconds, so that the next publish does not
        have to wait behind a separate commit.
        """
        log = self.log
        overflow = self.overflow
        if overflow is not None and overflow.has_pending():
            overflow.flush()
        if log.is_awaited() or log.pending_bytes > LAZY_BYTES:
            log.flush()
            return
        now = time.monotonic()
        if now >= self.flush_due:
            self.flush_due = now + LAZY
            log.flush()
            if overflow is not None:
                overflow.flush()

    def share_memory(self, budget: int, max_share: int) -> None:
        """Set the memory share of each queue, at most `max_share` bytes, so that all together use about `budget`.

        The share is known after several turns if there are many queues; until then it does not grow.
        """
        self.shares.divide(budget, max_share)

    def page_down(self) -> None:
        """Page out committed entries of queues that exceed their share of memory, in steps.

        Does nothing while the steps of an earlier call are not complete.
        """
        if not self._paging_out:
            self._paging_out = True
            self.jobs.run_steps(self._paging_each())

    def _paging_each(self) -> Iterator[int]:
        try:
            if self.page_above < DEFAULT_PAGE_ABOVE:
                for vhost in list(self.vhosts.values()):
                    for queue in vhost.queue_list.walk():
                        if queue.paging.memory() > self.page_above:
                            yield from logged(queue.paging.page_down(self.page_above))
                        yield 1
            for vhost in list(self.vhosts.values()):
                yield from logged(vhost.sink_transactions.paging_down())
            for queue in self.paging.walk():
                yield from logged(queue.paging.page_more())
                if not queue.paging.is_active():
                    self.paging.discard(queue)
                yield 1
        finally:
            self._paging_out = False

    # Deleted queues

    def settle_acquired(self, queue: Queue) -> None:
        """Settle the acquired entries of a deleted queue in steps. The queue settles those that are returned meanwhile."""
        self.jobs.removals.add(self._settling_acquired(queue))

    def _settling_acquired(self, queue: Queue) -> Iterator[int]:
        for holder in list(self.holders):
            for entries in holder.unacked_pieces():
                yield 1 + (len(entries) >> 7)
                for at in range(0, len(entries), PIECE):
                    for entry in entries[at : at + PIECE]:
                        if entry.queue is queue and entry.state == ACQUIRED:
                            row = entry.row
                            if row is not None:
                                row.log.settle(entry)
                                entry.row = None
                    yield PIECE >> 3

    def forget_queue(self, queue: Queue) -> None:
        """Remove the records of a deleted queue, which has no entries left."""
        if queue.stored:
            self.log.forget(queue.id)
        if self.overflow is not None:
            self.overflow.forget(queue.id)
        self.paging.discard(queue)

    # Messages

    def decode_headers(self, message: Message) -> FieldTable:
        reader = self.header_readers.get(message.format)
        return reader.headers(message) if reader is not None else {}

    def read_headers(self, message: Message, work: int) -> FieldTable:
        """Decode the headers of a message, and count that and `work` further units of work."""
        self.work += work + (len(message.header) >> DECODE_SHIFT)
        return self.decode_headers(message)

    def header_of(self, message: Message, name: bytes) -> str:
        reader = self.header_readers.get(message.format)
        return reader.header(message, name) if reader is not None else ""

    def property_of(self, message: Message, name: str) -> str:
        reader = self.header_readers.get(message.format)
        return reader.property(message, name) if reader is not None else ""

    def expiration_of(self, message: Message) -> str | None:
        reader = self.header_readers.get(message.format)
        return reader.expiration(message) if reader is not None else None

    def make_header(self, content_type: str, size: int) -> bytes:
        """Encode the header of a message that the broker creates, in the format FORMAT_AMQP0."""
        reader = self.header_readers.get(FORMAT_AMQP0)
        return reader.make_header(content_type, size) if reader is not None else b""

    def make_headers(self, headers: FieldTable, size: int) -> tuple[bytes, int]:
        """Encode the application headers of a message that the broker creates, as `HeaderReader.make_headers`."""
        reader = self.header_readers.get(FORMAT_AMQP0)
        return reader.make_headers(headers, size) if reader is not None else (b"", -1)

    def as_basic(self, message: Message) -> tuple[FieldTable, Body]:
        """Return properties and body of a message as 0-9-1 has them."""
        reader = self.header_readers.get(message.format)
        return reader.as_basic(message) if reader is not None else ({}, message.body)

    def content_of(self, message: Message) -> Body:
        reader = self.header_readers.get(message.format)
        return reader.content(message) if reader is not None else message.body

    def audience_of(self, message: Message) -> int:
        policy = self.content_policies[message.format]
        return policy.audience(message) if policy is not None else 0

    def overflow_rule(self, message: Message) -> int:
        """Return the overflow rule of a message's content policy."""
        policy = self.content_policies[message.format]
        return policy.overflow_rule(message) if policy is not None else DROP_IN_ORDER

    def times_of(self, message: Message, now: int) -> tuple[int, int]:
        reader = self.header_readers.get(message.format)
        return reader.times(message, now, self.timers.step) if reader is not None else (message.expires_at, 0)

    # Vhosts

    def add_vhost(self, name: str, settings: VhostSettings) -> Vhost:
        """Create a vhost, or apply settings to an existing one."""
        vhost = self.vhosts.get(name)
        if vhost is not None:
            vhost.configure(settings)
            return vhost
        if name in self._removing:
            raise PreconditionFailed(f"vhost '{name}' is being deleted; add it when its deletion is complete")
        vhost = Vhost(self, name, settings)
        self.vhosts[name] = vhost
        self.log.put(metadata.VHOST, metadata.make_key(name), b"")
        self.number_vhost(vhost)
        return vhost

    def number_vhost(self, vhost: Vhost) -> None:
        """Number a vhost, which distinguishes it from earlier vhosts of its name."""
        vhost.set_number(self.new_queue_id())
        self.log.put(metadata.VHOST_NUMBER, metadata.make_key(vhost.name), metadata.pack({"number": vhost.number}))

    def remove_vhost(self, name: str, done: Callable[[], None] | None = None) -> None:
        """Delete a vhost and everything in it, in steps if it has many objects, then call `done`.

        The name cannot be used again until then.
        """
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            raise NotFound(f"vhost '{name}' does not exist")
        if self.on_vhost_removed is not None:
            self.on_vhost_removed(vhost)
        self._removing.add(name)
        steps = logged(vhost.clear())
        self.uploads.forget_vhost(name)
        self.log.put(metadata.VHOST, metadata.make_key(name), None)
        self.log.put(metadata.VHOST_NUMBER, metadata.make_key(name), None)
        removed = partial(self._vhost_removed, name, done)
        if len(list(islice(steps, MAX_REMOVED_AT_ONCE))) < MAX_REMOVED_AT_ONCE:
            removed()
        else:
            self.jobs.add(Sliced(self.jobs, steps, removed, removed))

    def _vhost_removed(self, name: str, done: Callable[[], None] | None) -> None:
        self._removing.discard(name)
        if done is not None:
            done()

    def new_queue_id(self) -> int:
        """Return an id that no queue, exchange or vhost has had. Ids are reserved in the log in blocks, which is cheap."""
        number = self.next_queue_id
        self.next_queue_id = number + 1
        if number >= self.reserved_queue_ids:
            self.reserved_queue_ids = number + ID_BLOCK
            self.log.put(metadata.COUNTER, "queue-id", metadata.pack({"next": self.reserved_queue_ids}))
        return number

    def check_clock(self) -> None:
        """Detect a step of the wall clock, and store it: deadlines in the log are times of the broker's clock.

        Called periodically.
        """
        timers = self.timers
        timers.check_clock(self.log.clock())
        if timers.step != self._stored_step:
            self._stored_step = timers.step
            self.log.put(metadata.COUNTER, "clock-step", metadata.pack({"milliseconds": timers.step}))

    # Recovery

    def count_topology_change(self) -> None:
        """Count a change of exchanges, queues or bindings."""
        self.topology_changes += 1

    def note_unsealed(self) -> None:
        """Log once that streams are not sealed."""
        if self.unsealed and not self.has_unsealed:
            self.has_unsealed = True
            logger.info("streams are not sealed, but stay in the log: %s", self.unsealed)

    def seal_streams(self, store: SegmentStore, settings: SegmentSettings) -> None:
        """Seal streams to files in this store. Called before `recover`."""
        self.segments = Segments(store, settings, self.timers)

    def recover(self, recovery: Recovery) -> None:
        """Rebuild vhosts, exchanges, queues and bindings from the recovered log."""
        stored = recovery.metadata
        step = stored.get((metadata.COUNTER, "clock-step"))
        if step is not None:
            self._stored_step = int(metadata.unpack(step)["milliseconds"])
        self.timers.resume(self._stored_step, self.log.clock())
        identity = stored.get((metadata.COUNTER, "identity"))
        if identity is None:
            self.identity = secrets.token_hex(8)
            self.log.put(metadata.COUNTER, "identity", metadata.pack({"identity": self.identity}))
        else:
            self.identity = str(metadata.unpack(identity)["identity"])
        if self.segments is not None:
            self.segments.home = self.identity
        self._recovered = recovery.queues
        used_ids = max([*recovery.queues, *recovery.last_seq], default=0)
        taken = branch_recovery.take(recovery)
        self.leftovers.recover(recovery)
        leases = Restoring(recovery)
        streams = StreamRecords(recovery)
        for (kind, key), data in stored.items():
            if kind == metadata.VHOST:
                name = metadata.split_key(key)[0]
                if name not in self.vhosts:
                    self.vhosts[name] = Vhost(self, name, VhostSettings())
                self.vhosts[name].has_other_classes = data == OTHER_CLASSES
        for (kind, key), data in stored.items():
            if kind == metadata.VHOST_NUMBER:
                numbered = self.vhosts.get(metadata.split_key(key)[0])
                if numbered is not None:
                    numbered.set_number(metadata.unpack(data)["number"])
        for wanted in (
            metadata.PARAMETER,
            metadata.POLICY,
            metadata.OPERATOR_POLICY,
            metadata.EXCHANGE,
            metadata.QUEUE,
            metadata.PENDING_DEAD_LETTERS,
            metadata.SINK_TRANSACTION,
            metadata.SINK_APP,
        ):
            for (kind, key), value in stored.items():
                if kind != wanted:
                    continue
                if self.log.on_progress is not None:
                    self.log.on_progress()
                names = metadata.split_key(key)
                vhost = self.vhosts.get(names[0])
                if vhost is not None:
                    vhost.restore(kind, names[1:], metadata.unpack(value), recovery, leases, streams)
                elif not recovery.dropped and kind in _DROPPED_WITH_VHOST:
                    self._drop_definition(kind, key, metadata.unpack(value))
        for (kind, key), value in stored.items():
            if kind == metadata.BRANCH:
                name, branch = metadata.split_key(key)
                vhost = self.vhosts.get(name)
                if vhost is not None:
                    vhost.branches.restore(branch, metadata.unpack(value), taken.get(key))
            elif kind == metadata.GLOBAL_PARAMETER:
                self.global_parameters.restore(metadata.split_key(key)[0], metadata.unpack(value))
        self.incomplete = bool(recovery.dropped)
        self._recover_bindings(stored)
        leases.finish(self.log)
        self._recover_keys(recovery)
        self._recover_counters(recovery, used_ids)
        for vhost in self.vhosts.values():
            vhost.finish_recovery()
        self.kept_files.recover(recovery)
        self.uploads.recover(recovery)

    def _recover_keys(self, recovery: Recovery) -> None:
        records = KeyRecords(self, recovery)
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.deduplication is not None:
                    records.restore(queue.id, queue.deduplication)
            for exchange in vhost.exchanges.values():
                if exchange.keys is not None:
                    records.restore(exchange.id, exchange.keys.keys)
        records.finish()

    def _drop_definition(self, kind: str, key: str, value: Record) -> None:
        """Drop a definition whose vhost was deleted, before all steps of that."""
        self.log.put(kind, key, None)
        if kind == metadata.QUEUE:
            vhost = metadata.split_key(key)[0]
            self.leftovers.add(vhost, value["id"])

    def _recover_bindings(self, stored: dict[tuple[str, str], bytes]) -> None:
        """Rebuild the bindings, and remove those whose source or destination was deleted.

        If definitions were lost, there is no way to tell which these are.
        """
        for (kind, key), value in stored.items():
            if kind != metadata.BINDING:
                continue
            names = metadata.split_key(key)
            vhost = self.vhosts.get(names[0])
            restored = vhost is not None and vhost.restore_binding(names[1:], metadata.unpack(value), self.incomplete)
            if not restored and not self.incomplete:
                self.log.put(metadata.BINDING, key, None)

    def _recover_counters(self, recovery: Recovery, used_id: int) -> None:
        """Continue the counters above every number in use. `used_id` is the highest queue id in the log."""
        used_epoch = 0
        for vhost in self.vhosts.values():
            used_id = max(used_id, vhost.number, max(vhost.pending_dead_letters.queues, default=0))
            for exchange in vhost.exchanges.values():
                used_id = max(used_id, exchange.id)
            for transaction in vhost.sink_transactions.by_uuid.values():
                used_id = max(used_id, transaction.id)
            for queue in vhost.queues.values():
                used_id = max(used_id, queue.id)
                if queue.leases is not None:
                    for lease in queue.leases.by_name.values():
                        used_epoch = max(used_epoch, lease.epoch)
        self.next_queue_id = self.reserved_queue_ids = self._recover_counter(recovery, "queue-id", used_id, ID_GAP)
        self.next_lease_epoch = self._recover_counter(recovery, "lease-epoch", used_epoch, EPOCH_GAP)

    def _recover_counter(self, recovery: Recovery, name: str, used: int, gap: int) -> int:
        """Return the next number of a counter.

        If damaged definitions were dropped, the counter may be one of them, and higher numbers may have been used: leave a
        gap.
        """
        value = recovery.metadata.get((metadata.COUNTER, name))
        if value is not None:
            return max(int(metadata.unpack(value)["next"]), used + 1)
        if not recovery.dropped:
            return used + 1
        self.log.put(metadata.COUNTER, name, metadata.pack({"next": used + gap}))
        return used + gap

    def start(self) -> None:
        """Start timers and the first reads of recovered queues, once the log commits."""
        if self.indexing.is_active():
            self.indexing.start()
        else:
            self.remove_leftovers()
        self._sweep_segments()
        for vhost in self.vhosts.values():
            vhost.events.rebind()
            for queue in vhost.queues.values():
                if self.tracing is not None:
                    self.tracing.watch(queue)
                queue.start()
            vhost.pending_dead_letters.start()
            vhost.sink_transactions.start()
            vhost.branches.start()

    def remove_leftovers(self) -> None:
        """Remove the recovered entries of deleted queues, in steps, once everything is indexed."""
        self.leftovers.remove(self._recovered, self.log, self.jobs.removals)

    def note_occupied(self) -> None:
        """Note in the log which queues have entries, before it is closed: at the next start, the others serve at once."""
        if self.jobs.waiting:
            return  # entries may still be on their way into or out of queues
        queues = [queue for vhost in self.vhosts.values() for queue in vhost.queues.values()]
        self.log.note_occupied([queue.id for queue in queues if queue.stored and queue.is_occupied()])

    def _sweep_segments(self) -> None:
        """Delete files that belong to no segment, unless there is no stream: then definitions may have been lost."""
        streams = [stream for vhost in self.vhosts.values() for stream in vhost.streams.walk()]
        if self.segments is not None and streams:
            known = {segment.path for stream in streams for segment in stream.segments}
            self.segments.sweep(known, self.kept_files)

    def new_lease_epoch(self) -> int:
        """Return an unused epoch, so that a lease that is released and acquired again fences off old owners."""
        epoch = self.next_lease_epoch
        self.next_lease_epoch = epoch + 1
        self.log.put(metadata.COUNTER, "lease-epoch", metadata.pack({"next": epoch + 1}))
        return epoch

    def check_queue_limit(self, vhost: Vhost) -> None:
        """Raise PreconditionFailed, as RabbitMQ does, if a vhost is at its queue limit; ResourceError in strict mode."""
        limit = vhost.max_queues
        if 0 <= limit <= len(vhost.queues):
            text = f"vhost '{vhost.name}' has reached its limit of {limit} queues; "
            if limit == vhost.settings.max_queues:
                text += f"the settings are vhosts.{vhost.name}.limits.max_queues and limits.queues_per_vhost"
            else:
                text += "the limit is set by the parameter 'limits' of component 'vhost-limits'"
            raise ResourceError(text) if vhost.strict else PreconditionFailed(text)

    def set_memory_alarm(self, on: bool) -> None:
        """Note the start or end of the memory alarm, which limits the number and size of new definitions."""
        if on != (self.definitions_left >= 0):
            self.definitions_left = MAX_ALARM_DEFINITIONS if on else -1

    def check_definition(self, vhost: Vhost, what: str, arguments: FieldTable) -> None:
        """Raise PreconditionFailed, or ResourceError in strict mode, if a memory alarm forbids this definition.

        Definitions that consumers need to empty the queues are allowed.
        """
        if self.definitions_left < 0:
            return
        if self.definitions_left and (not arguments or len(metadata.pack(arguments)) <= MAX_ALARM_ARGUMENTS):
            self.definitions_left -= 1
            return
        text = (
            f"{what} in vhost '{vhost.name}' cannot be added during the memory alarm: expected at most"
            f" {MAX_ALARM_DEFINITIONS} new definitions until it ends, with arguments of at most {MAX_ALARM_ARGUMENTS}"
            " bytes; the setting is limits.memory_high_watermark"
        )
        raise ResourceError(text) if vhost.strict else PreconditionFailed(text)

    def vhost(self, name: str) -> Vhost:
        """Return a vhost. Raises NotFound if it does not exist."""
        found = self.vhosts.get(name)
        if found is None:
            raise NotFound(f"vhost '{name}' does not exist")
        return found

    def check_name(self, kind: str, name: str) -> None:
        """Raise PreconditionFailed unless a name is UTF-8 of up to 255 bytes."""
        try:
            encoded = name.encode("utf-8")
        except UnicodeEncodeError:
            raise PreconditionFailed(f"{kind} name is not valid UTF-8") from None
        if len(encoded) > 255:
            raise PreconditionFailed(f"{kind} name has {len(encoded)} bytes; at most 255 are allowed")
