"""The promotion of a batch: its messages leave their stages for the queues that they are routed to.

First it is checked whether they can; then the decision is written, and once that is on disk messages move in slices. Each
slice is one unit of a commit: entries in the queues, which refer to the messages as they stand in the log, and their ends
in the stage. What was moved shows itself after its commit. So a crash at any point leaves each message in just one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import REJECT_PUBLISH_DLX
from leveret.broker.dead_letter import UNROUTABLE, split_address
from leveret.broker.errors import MISTAKE, BrokerError, NotFound, PreconditionFailed
from leveret.broker.jobs import Job
from leveret.broker.log import OK, CommitWaiter
from leveret.broker.message import AT_ONCE, FORMAT_AMQP1, Entry, Message, Overlay
from leveret.broker.queues import limits
from leveret.broker.queues.base import Queue
from leveret.broker.routing import resolve

if TYPE_CHECKING:
    from leveret.broker.events import ExchangeWatch
    from leveret.broker.queues.stage import Stage, StageChunk
    from leveret.broker.stages import App, Stages

logger = logging.getLogger("leveret.broker")

# What to do with messages that no queue gets.
FAIL: Final = 0
DROP: Final = 1
DEAD_LETTER: Final = 2

# Messages and bytes of one step, and steps whose commits may be under way.
SLICE: Final = 512
SLICE_BYTES: Final = 1 << 20
FLYING: Final = 4
# Milliseconds until it is tried again where a queue, or the disk, is full.
RETRY: Final = 50

CHECKING: Final = 0
DECIDING: Final = 1
MOVING: Final = 2
MOVED: Final = 3
OVER: Final = 4


class _Decision(CommitWaiter):
    def __init__(self, promotion: Promotion) -> None:
        self.promotion = promotion

    def committed(self, batch: int) -> None:
        self.promotion.decision_kept()


class _Slice(CommitWaiter):
    """Entries that show themselves once they are on disk."""

    def __init__(self, promotion: Promotion, entries: list[Entry]) -> None:
        self.promotion = promotion
        self.entries = entries

    def committed(self, batch: int) -> None:
        for entry in self.entries:
            queue = entry.queue
            queue.hidden.discard(entry.seq)
            queue.insert_new(entry)
        self.promotion.landed()


class Promotion(Job):
    """One promotion.

    rule           FAIL, DROP or DEAD_LETTER; exchange, key: where dead letters go, key None for each one's own
    decided        the decision is on disk, or on its way there
    also           who is to be told: of the messages that were moved, those without a queue, whether it was done before
    waits_for      why it does not go on, "" while it does
    """

    def __init__(self, stages: Stages, app: App, batch: int, staged: list[Stage], rule: int, exchange: str | None,
                 key: str | None) -> None:
        super().__init__(stages.broker.jobs)
        self.stages = stages
        self.vhost = stages.vhost
        self.broker = stages.broker
        self.log = stages.broker.log
        self.app = app
        self.batch = batch
        self.staged = staged
        self.rule = rule
        self.exchange = exchange
        self.key = key
        self.decided = False
        self.also: list[tuple[Callable[[int, int, bool], None], Callable[[BrokerError], None]]] = []
        self.waits_for = ""
        self.promoted = 0
        self.unroutable = 0
        self.state = MOVING
        self.flying = 0
        # Where it is: the stage, and of its oldest chunk (while checking: of the chunk) the message.
        self.stage_at = 0
        self.chunk_at = 0
        self.at = 0
        self.routes: dict[bytes, list[Queue]] = {}
        self.topology = -1
        # Who wants to know of the message that `_targets` was asked for last.
        self.watch: ExchangeWatch | None = None
        self.first_unroutable = ""
        # Stands for what leaves its stage, one after the other.
        self.leaving: Entry | None = None
        app.promotion = self
        for stage in staged:
            stage.promotion = self
            stage.settings.dead_letter_exchange = exchange
            stage.settings.dead_letter_routing_key = key

    # Before the decision

    def begin(self) -> None:
        """Find out whether the messages have queues; now, where it is known where they go, or by reading them."""
        try:
            if self.rule == DEAD_LETTER and self.exchange not in self.vhost.exchanges:
                raise NotFound(f"no exchange '{self.exchange}' in vhost '{self.vhost.name}', which is to get what no queue"
                               " gets")
            for stage in self.staged:
                if not stage.counted or not self._check_addresses(stage):
                    self._check_again()
                    return
            self._decide()
        except BrokerError as error:
            self._refuse(error)

    def _check_again(self) -> None:
        """Message by message."""
        self.unroutable = 0
        self.first_unroutable = ""
        self.state = CHECKING
        self.resume()

    def _check_addresses(self, stage: Stage) -> bool:
        """False where an exchange looks at more than the address."""
        for staged in stage.addresses.values():
            if self._is_dynamic(staged.address):
                return False
            self._count(self._queues_of(staged.address), staged.address, staged.count, stage, staged.first)
        return True

    def _check_step(self) -> bool:
        if self.stage_at >= len(self.staged):
            self.stage_at = 0
            self._decide()
            return False
        stage = self.staged[self.stage_at]
        if self.chunk_at >= len(stage.chunks):
            self.stage_at += 1
            self.chunk_at = 0
            return True
        chunk = stage.chunks[self.chunk_at]
        if not stage.need(chunk, self):
            return False
        messages = chunk.messages
        assert messages is not None
        end = min(self.at + SLICE, len(messages))
        for index in range(self.at, end):
            message = messages[index]
            self._count(self._targets(message), message.address, 1, stage, index + 1)
        self.at = end
        if end == len(messages):
            self.at = 0
            self.chunk_at += 1
            stage.page_out(self.broker.page_above >> 1)
        return True

    def _count(self, queues: list[Queue], address: bytes, count: int, stage: Stage, number: int) -> None:
        """Note messages that are routed to these queues."""
        for queue in queues:
            if queue.rejects_publish and not self._takes_over(queue) and limits.refuses_publish(queue, 1):
                raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.vhost.name}' is full, and refuses messages"
                                         " (x-overflow): nothing is promoted")
        if queues:
            return
        if not self.unroutable or (self.rule == DEAD_LETTER and not self._dead_letter_queues(address)):
            exchange, key = split_address(address)
            self.first_unroutable = (f"the first was published to exchange '{exchange or 'amq.default'}' with routing key"
                                     f" '{key}' in stage '{stage.uuid}'")
            if self.rule == DEAD_LETTER and not self._dead_letter_queues(address):
                raise PreconditionFailed(f"messages have no queue, and neither have they as dead letters of exchange"
                                         f" '{self.exchange}': {self.first_unroutable}; nothing is promoted")
        self.unroutable += count

    def _dead_letter_queues(self, address: bytes) -> list[Queue]:
        exchange = self.vhost.exchanges.get(self.exchange or "")
        if exchange is None:
            return []
        key = split_address(address)[1] if self.key is None else self.key
        return resolve(self.vhost, exchange, [key], {}, None)

    def _decide(self) -> None:
        if self.unroutable and self.rule == FAIL:
            raise PreconditionFailed(f"{self.unroutable} messages have no queue; {self.first_unroutable}: nothing is"
                                     " promoted")
        self.unroutable = 0
        self.state = DECIDING
        self.stages.decide(self)
        self.log.wait(_Decision(self))

    def decision_kept(self) -> None:
        self.decided = True
        if self.state == DECIDING:
            self.state = MOVING
            self.resume()

    def _refuse(self, error: BrokerError) -> None:
        self.state = OVER
        for stage in self.staged:
            stage.promotion = None
        also = self.also
        self.also = []
        self.stages.ended(self)
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
        """The queues of a message, as for one that is published now."""
        if self.topology != self.vhost.topology:
            self.topology = self.vhost.topology
            self.routes.clear()
        self.watch = None
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
            return self.vhost.queues_of(route, message, self._copy_keys(message) if copied else [])
        if len(self.routes) < 4096:
            self.routes[message.address] = route.queues
        return route.queues

    def _copy_keys(self, message: Message) -> list[str]:
        """The routing keys of the CC and BCC headers."""
        headers = self.broker.decode_headers(message)
        keys: list[str] = []
        for name in ("CC", "BCC"):
            value = headers.get(name)
            if isinstance(value, list):
                keys.extend([item for item in value if isinstance(item, str)])
        return keys

    # Moving

    def step(self) -> bool:
        if self.state == CHECKING:
            try:
                return self._check_step()
            except BrokerError as error:
                self._refuse(error)
                return False
        if self.state != MOVING or self.flying >= FLYING:
            return False
        if self.log.state != OK:
            self.waits_for = self.log.reason
            self.resume_in(RETRY)
            return False
        return self._move()

    def failed(self) -> None:
        if self.state == CHECKING:
            self._refuse(BrokerError(MISTAKE))
        elif self.state == MOVING:
            self.waits_for = MISTAKE
            self.resume_in(RETRY)

    def _move(self) -> bool:
        """Move a slice; True where the next one may follow in another turn."""
        entries: list[Entry] = []
        before = self.promoted
        self.waits_for = ""
        try:
            self._fill(entries)
        except Exception:
            logger.exception("a promotion of app '%s' in vhost '%s' failed, and is tried again", self.app.name,
                             self.vhost.name)
            self.waits_for = MISTAKE
        # Also after a mistake: what has left its stage must show itself where it is now.
        moved = self.promoted - before
        if moved or self.state == MOVED:
            self.flying += 1
            self.log.wait(_Slice(self, entries))
        if self.waits_for:
            self.resume_in(RETRY)
            return False
        return self.state == MOVING and moved > 0 and self.flying < FLYING

    def _fill(self, entries: list[Entry]) -> None:
        """Move messages until there are enough for a commit, or it cannot go on for now."""
        last = self.promoted + SLICE
        n_bytes = 0
        while self.promoted < last and n_bytes < SLICE_BYTES:
            if self.stage_at >= len(self.staged):
                self.stages.moved(self)
                self.state = MOVED
                return
            stage = self.staged[self.stage_at]
            if not stage.chunks:
                self.stage_at += 1
                continue
            chunk = stage.chunks[0]
            self._read_ahead(stage)
            if not stage.need(chunk, self):
                return
            n_bytes = self._empty(stage, chunk, entries, last, n_bytes)
            if self.waits_for:
                return
            if chunk.messages is None or self.at >= len(chunk.messages):
                self.at = 0
                stage.drop_head()

    def _read_ahead(self, stage: Stage) -> None:
        """Have the next chunk in memory when its turn comes."""
        if len(stage.chunks) > 1:
            stage.need(stage.chunks[1], None)
        elif self.stage_at + 1 < len(self.staged):
            following = self.staged[self.stage_at + 1]
            if following.chunks:
                following.need(following.chunks[0], None)

    def _empty(self, stage: Stage, chunk: StageChunk, entries: list[Entry], last: int, n_bytes: int) -> int:
        """Move messages of a chunk up to the end of the slice. Returns its bytes."""
        messages = chunk.messages
        assert messages is not None
        dues = chunk.dues
        log = self.log
        leaving = self.leaving
        if leaving is None or leaving.queue is not stage:
            leaving = self.leaving = Entry(stage, messages[0], 0)
        end = len(messages)
        at = self.at
        while at < end and self.promoted < last and n_bytes < SLICE_BYTES:
            message = messages[at]
            queues = self._targets(message)
            leaving.message = message
            leaving.row = message.row
            leaving.slot = message.slot
            leaving.seq = chunk.first + at
            if not queues:
                if not self._give_up(leaving):
                    break
            elif not self._hand_over(message, queues, dues.get(at, 0) if dues else 0, entries):
                break
            if self.watch is not None:
                self.watch.published(message, queues)
            log.settle(leaving)
            n_bytes += message.size
            at += 1
            self.at = at
            self.promoted += 1
        return n_bytes

    def _hand_over(self, message: Message, queues: list[Queue], due: int, entries: list[Entry]) -> bool:
        """Put a message into its queues; False where one of them has no room, and then into none."""
        for queue in queues:
            if queue.rejects_publish and not self._takes_over(queue) and limits.refuses_publish(queue, message.size):
                self.waits_for = f"room in queue '{queue.name}'"
                return False
        plain = not (due or message.expires_at) and not (
            message.format != FORMAT_AMQP1 and message.headers_at >= 0 and b"BCC" in message.header)
        for queue in queues:
            if queue.rejects_publish and limits.turns_away(queue, message):
                continue  # it is one of the queue's dead letters
            entry = queue.prepare(message, None if plain else self._overlay(message, due))
            queue.hidden.add(entry.seq, message.size)
            entries.append(entry)
        return True

    def _takes_over(self, queue: Queue) -> bool:
        """Whether what a queue refuses goes to its dead letters."""
        return queue.settings.overflow == REJECT_PUBLISH_DLX and queue.settings.dead_letter_exchange is not None

    def _overlay(self, message: Message, due: int) -> Overlay | None:
        """What is counted from now on: the time to live, the time until it may be delivered. Nobody sees BCC."""
        overlay = Overlay()
        if message.expires_at or due:
            expires_at, due = self.broker.times_of(message, self.broker.timers.now())
            if message.expires_at:
                overlay.expires_at = max(expires_at, AT_ONCE)
            overlay.visible_at = due
        if message.format != FORMAT_AMQP1 and "BCC" in self.broker.decode_headers(message):
            overlay.headers["BCC"] = None
        return overlay

    def _give_up(self, leaving: Entry) -> bool:
        """A message that no queue gets leaves its stage; False where it has to wait for room among the dead letters."""
        message = leaving.message
        queues = self._dead_letter_queues(message.address) if self.rule == DEAD_LETTER else []
        for queue in queues:
            if limits.refuses_publish(queue, message.size):
                self.waits_for = f"room in queue '{queue.name}'"
                return False
        self.unroutable += 1
        if queues:
            self.vhost.dead_letters.publish(leaving, UNROUTABLE)
        elif self.rule != DROP and self.unroutable == 1:
            exchange, key = split_address(message.address)
            logger.warning("a message that app '%s' has promoted to exchange '%s' with routing key '%s' in vhost '%s' has"
                           " no queue any more", self.app.name, exchange, key, self.vhost.name)
        return True

    def landed(self) -> None:
        """A slice is on disk."""
        self.flying -= 1
        if self.state == MOVED:
            if not self.flying:
                self._finish()
        elif self.state == MOVING:
            self.resume()

    def _finish(self) -> None:
        self.state = OVER
        also = self.also
        self.also = []
        self.stages.ended(self)
        already = False
        for done, _ in also:
            done(0 if already else self.promoted, 0 if already else self.unroutable, already)
            already = True

    def abandon(self) -> None:
        """The vhost is being deleted."""
        self.state = OVER
        also = self.also
        self.also = []
        for _, failed in also:
            failed(NotFound(f"vhost '{self.vhost.name}' is deleted"))
