"""The commit of a batch: move the messages of its sink transactions to the queues that they are routed to.

The commit first checks that all messages can be routed, then writes the decision. Once the decision is on disk, messages
move in slices. Each slice is part of one log commit: new entries in the queues, which refer to the stored messages, and
the removal from the sink transaction. Moved messages become visible after that log commit. A crash at any point leaves
each message in exactly one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import REJECT_PUBLISH_DLX
from leveret.broker.consumer import Client
from leveret.broker.dead_letter import UNROUTABLE, split_address
from leveret.broker.errors import INTERNAL_ERROR, BrokerError, NotFound, PreconditionFailed
from leveret.broker.jobs import STEP_WORK, Job
from leveret.broker.log import OK, CommitWaiter
from leveret.broker.message import AT_ONCE, FORMAT_AMQP1, Entry, Message, Overlay
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import destinations_of, is_unroutable, resolve

if TYPE_CHECKING:
    from leveret.broker.delay import Delay
    from leveret.broker.queues.sink_transaction import SinkTransaction, TransactionChunk
    from leveret.broker.transactions.sink_transactions import App, SinkTransactions
    from leveret.broker.watches import ExchangeWatch

logger = logging.getLogger("leveret.broker")

# Rules for unroutable messages.
FAIL: Final = 0
DROP: Final = 1
DEAD_LETTER: Final = 2

# Messages and bytes of a slice, and slices whose log commits may be pending.
SLICE: Final = 512
SLICE_BYTES: Final = 1 << 20
# Messages of a slice that a chunk counts as if a queue takes it over whole, and units of work for that.
WHOLE_CHUNK: Final = 64
WHOLE_CHUNK_WORK: Final = 40
# Minimum number of messages of such a chunk: each has a record in the metadata.
MIN_WHOLE_CHUNK: Final = 128
MAX_PENDING_SLICES: Final = 4
# Retry interval in milliseconds while a queue or the disk is full.
RETRY: Final = 50

CHECKING: Final = 0
DECIDING: Final = 1
MOVING: Final = 2
MOVED: Final = 3
DONE: Final = 4


class _Decision(CommitWaiter):
    def __init__(self, batch_commit: BatchCommit) -> None:
        self.batch_commit = batch_commit

    def committed(self, batch: int) -> None:
        self.batch_commit.decision_committed()


class _Slice(CommitWaiter):
    """Entries that become visible once they are on disk."""

    def __init__(self, batch_commit: BatchCommit, entries: list[Entry]) -> None:
        self.batch_commit = batch_commit
        self.entries = entries

    def committed(self, batch: int) -> None:
        of_queues: dict[Queue, list[Entry]] = {}
        queue: Queue | None = None
        run: list[Entry] = []
        for entry in self.entries:
            if entry.queue is not queue:
                queue = entry.queue
                run = of_queues.setdefault(queue, [])
            queue.hidden.discard(entry.seq)
            run.append(entry)
        for queue, run in of_queues.items():
            queue.insert_many(run)
        self.batch_commit.slice_committed()


class BatchCommit(Job):
    """The commit of one batch.

    Attributes:
        rule: FAIL, DROP or DEAD_LETTER.
        exchange: Target exchange of dead letters.
        key: Routing key of dead letters; None for the key of each message.
        decided: Whether the decision is on disk or being written.
        waiters: Callbacks for success and failure; see `SinkTransactions.commit`.
        waits_for: Reason why the commit is paused; "" while it runs.
    """

    def __init__(
        self,
        manager: SinkTransactions,
        app: App,
        batch: int,
        transactions: list[SinkTransaction],
        rule: int,
        exchange: str | None,
        key: str | None,
    ) -> None:
        super().__init__(manager.broker.jobs)
        self.manager = manager
        self.vhost = manager.vhost
        self.broker = manager.broker
        self.log = manager.broker.log
        self.app = app
        self.batch = batch
        self.transactions = transactions
        self.rule = rule
        self.exchange = exchange
        self.key = key
        self.decided = False
        self.waiters: list[tuple[Callable[[int, int, bool], None], Callable[[BrokerError], None]]] = []
        self.waits_for = ""
        self.n_moved = 0
        self.unroutable = 0
        self.state = MOVING
        self.pending_slices = 0
        # Current position: sink transaction, chunk (while checking), and message in the chunk.
        self.transaction_at = 0
        self.chunk_at = 0
        self.at = 0
        self.routes: dict[bytes, list[Queue]] = {}
        self.topology = -1
        # Watch on the message that `_targets` was last called for, its delay, and the keys of its CC and BCC headers.
        self.watch: ExchangeWatch | None = None
        self.delay: Delay | None = None
        self.more_keys: list[str] = []
        self.first_unroutable = ""
        # Reused entry for each message that leaves its sink transaction.
        self.leaving: Entry | None = None
        app.batch_commit = self
        for transaction in transactions:
            transaction.set_batch_commit(self)
            transaction.settings.dead_letter_exchange = exchange
            transaction.settings.dead_letter_routing_key = key

    # Checks before the decision

    def begin(self) -> None:
        """Check that the messages have queues: by target address if possible, else message by message."""
        try:
            if self.rule == DEAD_LETTER and self.exchange not in self.vhost.exchanges:
                raise NotFound(f"dead-letter exchange '{self.exchange}' does not exist in vhost '{self.vhost.name}'")
            for transaction in self.transactions:
                if not transaction.counted or not self._check_addresses(transaction):
                    self._check_again()
                    return
            self._decide()
        except BrokerError as error:
            self._refuse(error)

    def _check_again(self) -> None:
        """Start the check message by message."""
        self.unroutable = 0
        self.first_unroutable = ""
        self.state = CHECKING
        self.resume()

    def _check_addresses(self, transaction: SinkTransaction) -> bool:
        """Check by target address; return False if the result depends on more than the address."""
        for target in transaction.addresses.values():
            if self._is_dynamic(target.address):
                return False
            queues = self._queues_of(target.address)
            for queue in queues:
                if queue.replacing and self._is_full(queue):
                    return False
                self._check_room(queue, None, 0)
            self._count(queues, target.address, target.count, transaction, target.first)
        return True

    def _check_step(self) -> bool:
        if self.transaction_at >= len(self.transactions):
            self.transaction_at = 0
            self._decide()
            return False
        transaction = self.transactions[self.transaction_at]
        if self.chunk_at >= len(transaction.chunks):
            self.transaction_at += 1
            self.chunk_at = 0
            return True
        chunk = transaction.chunks[self.chunk_at]
        if not transaction.ensure_loaded(chunk, self):
            return False
        messages = chunk.messages
        assert messages is not None
        end = min(self.at + SLICE, len(messages))
        begun = self.broker.work
        while self.at < end and self.broker.work - begun < STEP_WORK:
            message = messages[self.at]
            queues = self._targets(message)
            for queue in queues:
                self._check_room(queue, message, chunk.dues.get(self.at, 0))
            self.at += 1
            self._count(queues, message.address, 1, transaction, self.at)
        if self.at == len(messages):
            self.at = 0
            self.chunk_at += 1
            transaction.page_out(self.broker.page_above >> 1)
        return True

    def _count(self, queues: list[Queue], address: bytes, count: int, transaction: SinkTransaction, number: int) -> None:
        """Count some messages if they are unroutable."""
        if not is_unroutable(queues):
            return
        if not self.unroutable or (self.rule == DEAD_LETTER and not self._dead_letter_queues(address)):
            exchange, key = split_address(address)
            self.first_unroutable = (
                f"the first was published to exchange '{exchange or 'amq.default'}' with routing key"
                f" '{key}' in sink transaction '{transaction.uuid}'"
            )
            if self.rule == DEAD_LETTER and not self._dead_letter_queues(address):
                raise PreconditionFailed(
                    f"messages are unroutable, also as dead letters by exchange '{self.exchange}':"
                    f" {self.first_unroutable}; the batch is not committed"
                )
        self.unroutable += count

    def _check_room(self, queue: Queue, message: Message | None, due: int) -> None:
        """Raise PreconditionFailed if a queue is full, unless the message is given and replaces another one."""
        if self._is_full(queue) and (message is None or not queue.replacing or queue.limits.would_reject(message, due)):
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{self.vhost.name}' is full and rejects messages"
                " (x-overflow): the batch is not committed"
            )

    def _is_full(self, queue: Queue) -> bool:
        """Return whether a queue is full, and neither drops nor dead-letters messages for that."""
        return not self._dead_letters_rejects(queue) and queue.limits.would_reject_size(1)

    def _dead_letter_queues(self, address: bytes) -> list[Queue]:
        exchange = self.vhost.exchanges.get(self.exchange or "")
        if exchange is None:
            return []
        key = split_address(address)[1] if self.key is None else self.key
        return resolve(self.vhost, exchange, [key], {}, None)

    def _decide(self) -> None:
        if self.unroutable and self.rule == FAIL:
            raise PreconditionFailed(
                f"{self.unroutable} messages are unroutable: {self.first_unroutable}; the batch is not committed"
            )
        self.unroutable = 0
        self.state = DECIDING
        self.manager.decide(self)
        self.log.wait(_Decision(self))

    def decision_committed(self) -> None:
        self.decided = True
        if self.state == DECIDING:
            self.state = MOVING
            self.resume()

    def _refuse(self, error: BrokerError) -> None:
        self.state = DONE
        for transaction in self.transactions:
            transaction.set_batch_commit(None)
        also = self.waiters
        self.waiters = []
        self.manager.ended(self)
        for _, failed in also:
            failed(error)

    # Routing

    def _is_dynamic(self, address: bytes) -> bool:
        try:
            return self.vhost.route(address).depends
        except NotFound:
            return False

    def _queues_of(self, address: bytes) -> list[Queue]:
        try:
            return self.vhost.route(address).queues
        except NotFound:
            return []

    def _targets(self, message: Message) -> list[Queue]:
        """Return the queues of a message, as if it were published now."""
        if self.topology != self.vhost.topology:
            self.topology = self.vhost.topology
            self.routes.clear()
        self.watch = None
        self.delay = None
        queues = self.routes.get(message.address)
        copied = message.format != FORMAT_AMQP1 and message.headers_at >= 0 and b"CC" in message.header
        if queues is not None and not copied:
            return queues
        try:
            route = self.vhost.route(message.address)
        except NotFound:
            return []
        if copied or route.dynamic:
            self.watch = route.watch
            self.more_keys = self._copy_keys(message) if copied else []
            queues = self.vhost.queues_of(route, message, self.more_keys)
            self.delay = route.delay
            return queues
        if len(self.routes) < 4096:
            self.routes[message.address] = route.queues
        return route.queues

    def _copy_keys(self, message: Message) -> list[str]:
        """Return the routing keys of the CC and BCC headers."""
        headers = self.broker.decode_headers(message)
        keys: list[str] = []
        for name in ("CC", "BCC"):
            value = headers.get(name)
            if isinstance(value, list):
                keys.extend([item for item in value if isinstance(item, str)])
        return keys

    # Move

    def step(self) -> bool:
        if self.state == CHECKING:
            try:
                return self._check_step()
            except BrokerError as error:
                self._refuse(error)
                return False
        if self.state != MOVING or self.pending_slices >= MAX_PENDING_SLICES:
            return False
        if self.log.state != OK:
            self.waits_for = self.log.reason
            self.resume_in(RETRY)
            return False
        return self._move()

    def failed(self) -> None:
        if self.state == CHECKING:
            self._refuse(BrokerError(INTERNAL_ERROR))
        elif self.state == MOVING:
            self.waits_for = INTERNAL_ERROR
            self.resume_in(RETRY)

    def _move(self) -> bool:
        """Move a slice; return True if the next one may follow in another turn."""
        entries: list[Entry] = []
        before = self.n_moved
        self.waits_for = ""
        try:
            self._move_slice_into(entries)
        except Exception:
            logger.exception(
                "commit of a batch of app '%s' in vhost '%s' failed and will be retried", self.app.name, self.vhost.name
            )
            self.waits_for = INTERNAL_ERROR
        # Also after an error: messages that left their sink transaction must become visible in their queues.
        moved = self.n_moved - before
        if moved or self.state == MOVED:
            self.pending_slices += 1
            self.log.wait(_Slice(self, entries))
        if self.waits_for:
            self.resume_in(RETRY)
            return False
        return self.state == MOVING and moved > 0 and self.pending_slices < MAX_PENDING_SLICES

    def _move_slice_into(self, entries: list[Entry]) -> None:
        """Move messages until the slice is full or the move has to wait."""
        last = self.n_moved + SLICE
        n_bytes = 0
        begun = self.broker.work
        while self.n_moved < last and n_bytes < SLICE_BYTES and self.broker.work - begun < STEP_WORK:
            if self.transaction_at >= len(self.transactions):
                self.manager.moved(self)
                self.state = MOVED
                return
            transaction = self.transactions[self.transaction_at]
            if not transaction.chunks:
                self.transaction_at += 1
                continue
            chunk = transaction.chunks[0]
            if self._move_whole(transaction, chunk):
                last += len(chunk.slots) - WHOLE_CHUNK
                continue
            self._read_ahead(transaction)
            if not transaction.ensure_loaded(chunk, self):
                return
            n_bytes = self._move_chunk(transaction, chunk, entries, last, n_bytes, begun)
            if self.waits_for:
                return
            if chunk.messages is None or self.at >= len(chunk.messages):
                self.at = 0
                transaction.drop_head()

    def _move_whole(self, transaction: SinkTransaction, chunk: TransactionChunk) -> bool:
        """Have a queue take over a whole chunk; return False if its messages must be moved one by one."""
        if self.at or chunk.address is None or chunk.loading or len(chunk.slots) < MIN_WHOLE_CHUNK:
            return False
        try:
            route = self.vhost.route(chunk.address)
        except NotFound:
            return False
        if route.dynamic or len(route.queues) != 1 or not route.queues[0].take_over(transaction.id, chunk):
            return False
        self.broker.work += WHOLE_CHUNK_WORK
        self.n_moved += len(chunk.slots)
        transaction.drop_head()
        return True

    def _read_ahead(self, transaction: SinkTransaction) -> None:
        """Start to read the next chunk, so that it is in memory when it is needed."""
        if len(transaction.chunks) > 1:
            transaction.ensure_loaded(transaction.chunks[1], None)
        elif self.transaction_at + 1 < len(self.transactions):
            following = self.transactions[self.transaction_at + 1]
            if following.chunks:
                following.ensure_loaded(following.chunks[0], None)

    def _move_chunk(
        self,
        transaction: SinkTransaction,
        chunk: TransactionChunk,
        entries: list[Entry],
        last: int,
        n_bytes: int,
        begun: int,
    ) -> int:
        """Move messages of a chunk up to the end of the slice; return the size of the slice in bytes.

        The slice also ends after the work of a step since `begun`: full last-value queues decode the headers.
        """
        messages = chunk.messages
        assert messages is not None
        dues = chunk.dues
        log = self.log
        leaving = self.leaving
        if leaving is None or leaving.queue is not transaction:
            leaving = self.leaving = Entry(transaction, messages[0], 0)
        end = len(messages)
        at = self.at
        broker = self.broker
        while at < end and self.n_moved < last and n_bytes < SLICE_BYTES and broker.work - begun < STEP_WORK:
            message = messages[at]
            queues = self._targets(message)
            leaving.message = message
            leaving.row = message.row
            leaving.slot = message.slot
            leaving.seq = chunk.first + at
            if is_unroutable(queues) and not self._drop_or_dead_letter(leaving):
                break
            if queues and not self._enqueue(message, queues, dues.get(at, 0) if dues else 0, entries):
                break
            if self.watch is not None:
                self.watch.published(message, destinations_of(queues), self.more_keys, Client("", 0, transaction.user))
            log.settle(leaving)
            n_bytes += message.size
            at += 1
            self.at = at
            self.n_moved += 1
        return n_bytes

    def _enqueue(self, message: Message, queues: list[Queue], due: int, entries: list[Entry]) -> bool:
        """Put a message into all of its queues; return False, and put it into none, if one has no room."""
        delay = self.delay
        for queue in queues:
            later = due if delay is None else delay.due_in(queue, due)
            if not self._dead_letters_rejects(queue) and queue.limits.would_reject(message, later):
                self.waits_for = f"room in queue '{queue.name}'"
                return False
        plain = (
            delay is None
            and not (due or message.expires_at)
            and not (message.format != FORMAT_AMQP1 and message.headers_at >= 0 and b"BCC" in message.header)
        )
        for queue in queues:
            if queue.limits.reject_publish(message, due if delay is None else delay.due_in(queue, due)):
                continue  # the queue dead-letters it
            entry = queue.prepare_publish(message, None if plain else self._overlay(message, due, queue))
            if entry is None:
                continue
            queue.hidden.add(entry.seq, message.size)
            entries.append(entry)
        return True

    def _dead_letters_rejects(self, queue: Queue) -> bool:
        """Return whether a queue dead-letters the messages that it rejects."""
        return queue.settings.overflow == REJECT_PUBLISH_DLX and queue.settings.dead_letter_exchange is not None

    def _overlay(self, message: Message, due: int, queue: Queue) -> Overlay | None:
        """Return an overlay whose TTL and delay start now, without the BCC header; None if nothing changes."""
        delay = self.delay
        is_delayed = delay is not None and queue in delay.queues
        overlay = delay.overlay(message) if delay is not None and is_delayed else Overlay()
        if message.expires_at or due:
            expires_at, due = self.broker.times_of(message, self.broker.timers.now())
            if message.expires_at:
                overlay.expires_at = max(expires_at, AT_ONCE)
                if delay is not None and is_delayed and expires_at > AT_ONCE:
                    overlay.expires_at += delay.milliseconds
            overlay.visible_at = max(overlay.visible_at, due)
        if message.format != FORMAT_AMQP1 and "BCC" in self.broker.decode_headers(message):
            overlay.headers["BCC"] = None
        return overlay

    def _drop_or_dead_letter(self, leaving: Entry) -> bool:
        """Drop or dead-letter an unroutable message; return False if a dead-letter queue has no room."""
        message = leaving.message
        queues = self._dead_letter_queues(message.address) if self.rule == DEAD_LETTER else []
        for queue in queues:
            if queue.limits.would_reject(message):
                self.waits_for = f"room in queue '{queue.name}'"
                return False
        self.unroutable += 1
        if queues:
            self.vhost.dead_letters.publish(leaving, UNROUTABLE)
        elif self.rule != DROP and self.unroutable == 1:
            exchange, key = split_address(message.address)
            logger.warning(
                "message that app '%s' committed to exchange '%s' with routing key '%s' in vhost '%s' is no"
                " longer routable: dropped",
                self.app.name,
                exchange,
                key,
                self.vhost.name,
            )
        return True

    def slice_committed(self) -> None:
        """Note that a slice is on disk."""
        self.pending_slices -= 1
        if self.state == MOVED:
            if not self.pending_slices:
                self._finish()
        elif self.state == MOVING:
            self.resume()

    def _finish(self) -> None:
        self.state = DONE
        also = self.waiters
        self.waiters = []
        self.manager.ended(self)
        already = False
        for done, _ in also:
            done(0 if already else self.n_moved, 0 if already else self.unroutable, already)
            already = True

    def abandon(self) -> None:
        """Fail the commit, since its vhost is being deleted."""
        self.state = DONE
        also = self.waiters
        self.waiters = []
        for _, failed in also:
            failed(NotFound(f"vhost '{self.vhost.name}' is deleted"))
