"""Sessions: windows, links by handle, deliveries by id, dispositions (transport sections 2.5 and 2.6).

Outcomes of incoming deliveries are sent in order: a `Run` is a range of deliveries with the same outcome that wait for the
same commit. `unacked` contains the unsettled outgoing deliveries by delivery-id.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.broker.consumer import Client, Deliveries, UnackedOwner
from leveret.broker.errors import BrokerError
from leveret.broker.jobs import logged
from leveret.broker.message import Entry
from leveret.broker.queues import entry_return
from leveret.management.descriptions import ChannelInfo, SessionInfo
from leveret.protocols.amqp10.errors import ConnectionRefused, LinkRefused, SessionRefused, condition_of, make_error
from leveret.protocols.amqp10.link import attach
from leveret.protocols.amqp10.link.incoming import IncomingLink
from leveret.protocols.amqp10.link.link import Link
from leveret.protocols.amqp10.link.outgoing import LinkConsumer, OutgoingLink, Sending
from leveret.protocols.amqp10.session import dispositions, outcomes
from leveret.protocols.amqp10.session.errant_links import CrossedDetaches, ErrantLink
from leveret.protocols.amqp10.session.serial_numbers import MASK, WINDOW, Numbers
from leveret.protocols.amqp10.transaction import acquisition
from leveret.protocols.amqp10.transaction.acquisition import Acquired
from leveret.protocols.amqp10.transaction.retirement import Retirement
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.descriptors import DISPOSITION, END, TRANSFER
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Attach, Begin, Detach, Disposition, End, Error, Flow, Transfer

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.protocols.amqp10.link.pending_attach import PendingAttach
    from leveret.protocols.amqp10.management.link_pair import LinkPair
    from leveret.protocols.amqp10.terminus.target import IncomingDelivery
    from leveret.protocols.amqp10.terminus.terminus import Terminus
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction

logger = logging.getLogger("leveret.connection")

# Deliveries (as a power of two) that are scanned for one unit of work.
WORK_SHIFT: Final = 4
# Number of deliveries between two checks of the connection's limit on unsettled deliveries.
COUNTED_EVERY: Final = 64
# Maximum number of unsettled deliveries of a session while memory is low.
LOW_MEMORY_WINDOW: Final = 1000


class Run:
    """Incoming deliveries from `first` to `last` with one outcome, which is sent when `batch` is committed (0: at once).

    Attributes:
        link: the link of the deliveries. Nothing is sent after it is closed.
        state: descriptor of the outcome.
        answer: the outcome itself if it has fields.
        settled: whether the outcome settles the deliveries (receiver settle mode first).
    """

    __slots__ = ("answer", "batch", "first", "last", "link", "settled", "state")

    def __init__(
        self, link: IncomingLink, number: int, batch: int, state: int, settled: bool, answer: Composite | None
    ) -> None:
        self.link = link
        self.first = number
        self.last = number
        self.batch = batch
        self.state = state
        self.settled = settled
        self.answer = answer


class SessionEndpoint(UnackedOwner):
    """One session of a connection.

    Attributes:
        channel_in: the client's channel number.
        channel: the broker's channel number.
        client: names the session in trace messages.
        ended: whether the broker has sent end. From then on, every frame except the client's end is discarded.
        links: links by the client's handle.
        handles: links by the broker's handle.
        link_pairs: link pairs of the management node, by name.
        errant: links that the broker has detached with an error and the client has not yet detached, by the client's
            handle; None if there is no state to keep.
        crossed_detaches: links whose detaches crossed (strict mode only).
        unacked: unsettled outgoing deliveries by delivery-id.
        acquired: outgoing deliveries acquired under an open transaction, by delivery-id.
        copies: outgoing deliveries of browsing links. Settling them has no effect.
        retiring: outgoing deliveries whose outcome waits for the discharge of a transaction.
        unsettled: incoming deliveries of receiver settle mode second that the client has not settled, with their state
            at the terminus.
        termini: termini whose last link is or was in this session.
        suspended: suspended termini that do not outlive the session, oldest first.
        pending_attach: the attach whose frame is processed again in the next turn; None if there is none.
        sending: deliveries in several frames, sent one after the other. Links wait until it is empty.
    """

    def __init__(self, connection: Connection, begin: Begin, channel: int) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.log = connection.broker.log
        self.channel_in = begin.channel
        self.channel = channel
        self.number = channel
        self.client = Client(connection.peer.name, channel, connection.user)
        self.ended = False
        self.closing = False
        self.next_incoming_id = begin.next_outgoing_id
        self.incoming_window = WINDOW
        self.next_outgoing_id = 0
        self.remote_window = begin.incoming_window
        self.remote_outgoing_window = begin.outgoing_window
        self.remote_handle_max = begin.handle_max
        self.next_delivery_id = 0
        self.links: dict[int, Link] = {}
        self.handles: dict[int, Link] = {}
        self.numbers = Numbers()
        self.link_pairs: dict[str, LinkPair] = {}
        self.errant: dict[int, ErrantLink | None] = {}
        self.crossed_detaches = CrossedDetaches()
        self.unacked: dict[int, Entry] = {}
        # Unsettled deliveries by consumer, while the session ends.
        self.by_holder: dict[Consumer, list[int]] | None = None
        self.acquired: dict[int, Acquired] = {}
        self.copies: dict[int, OutgoingLink] = {}
        self.retiring: dict[int, Retirement] = {}
        self.unsettled: dict[int, IncomingDelivery | None] = {}
        self.termini: dict[Terminus, None] = {}
        self.suspended: dict[Terminus, None] = {}
        self.pending_attach: PendingAttach | None = None
        self.sending: deque[Sending] = deque()
        self.draining: list[OutgoingLink] = []
        self.runs: deque[Run] = deque()
        self.awaited_batch = 0
        self.listed = False
        self.published = 0
        self.delivered_no_ack = 0
        self.acked = 0
        # Whether the unsettled deliveries of any link are in the log.
        self.stores_unsettled = False
        # Whether a link was refused a delivery because too many are unsettled.
        self.window_full = False

    def start(self) -> None:
        """Reply to the client's begin."""
        self.broker.holders[self] = None
        self.broker.churn.channel_opened()
        self.connection.send(
            Begin(
                self.next_outgoing_id, WINDOW, WINDOW, self.channel_in, self.connection.own.links - 1, channel=self.channel
            )
        )

    # Input

    def receive(self, frame: Performative) -> None:
        """Process a frame of this session."""
        kind = frame.kind
        if self.ended:
            if kind == END:
                self.connection.sessions.forget(self)
            return
        if kind == TRANSFER:
            assert isinstance(frame, Transfer)
            self._transfer(frame)
        elif kind == DISPOSITION:
            assert isinstance(frame, Disposition)
            dispositions.receive(self, frame)
        elif kind == descriptors.FLOW:
            assert isinstance(frame, Flow)
            self._flow(frame)
        elif kind == descriptors.ATTACH:
            assert isinstance(frame, Attach)
            self._attach(frame)
        elif kind == descriptors.DETACH:
            assert isinstance(frame, Detach)
            self._detach(frame)
        else:
            self.release()
            self.ended = True
            self.connection.send(End(channel=self.channel))
            self.connection.sessions.forget(self)

    def repeat_transfer(self, frame: Transfer) -> None:
        """Process a transfer that has been counted again in a later turn, before all other frames."""
        self.incoming_window += 1
        self.next_incoming_id = (self.next_incoming_id - 1) & MASK
        self.connection.defer(frame)

    def _transfer(self, frame: Transfer) -> None:
        window = self.incoming_window
        if window <= 0:
            raise SessionRefused(
                constants.SESSION_WINDOW_VIOLATION, f"the transfer exceeds the incoming window of {WINDOW}"
            )
        self.incoming_window = window - 1
        self.next_incoming_id = (self.next_incoming_id + 1) & MASK
        if window - 1 <= WINDOW >> 1:
            self.incoming_window = WINDOW
            self.send_flow()
        link = self.links.get(frame.handle)
        if link is None:
            if frame.handle in self.errant and isinstance(frame.state, TransactionalState):
                self._fail_transaction(
                    self.connection.transactions.find(frame.state.txn_id), "its link was detached before it arrived"
                )
            self._unknown_handle(frame.handle, "transfer")
            return
        try:
            link.transfer(frame)
        except LinkRefused as refused:
            self._refuse_transfer(link, frame, refused.error())
        except BrokerError as error:
            self._refuse_transfer(link, frame, make_error(condition_of(error), str(error)))
        except DecodeError as malformed:
            self._refuse_transfer(link, frame, make_error(malformed.condition, f"the message cannot be read: {malformed}"))

    def _refuse_transfer(self, link: Link, frame: Transfer, error: Error) -> None:
        """Detach a link whose message is refused."""
        state = frame.state
        transaction = link.transaction
        if isinstance(state, TransactionalState):
            transaction = self.connection.transactions.find(state.txn_id)
        self._fail_transaction(transaction, str(error.description))
        self.refuse(link, error)

    def _fail_transaction(self, transaction: LocalTransaction | None, reason: str) -> None:
        """Make sure that the transaction of a refused message is not committed (transactions 4.4.4.1)."""
        if transaction is not None and not transaction.failed:
            transaction.fail(f"a message of the transaction was refused: {reason}")

    def _unknown_handle(self, handle: int, what: str) -> None:
        """Refuse a frame for a link that does not exist.

        Frames that were in flight when the broker detached their link with an error are discarded. The specification
        requires to end the session, as strict mode does.
        """
        if handle in self.errant:
            if self.connection.vhost.strict:
                raise SessionRefused(constants.SESSION_ERRANT_LINK, f"a {what} to a link that was detached with an error")
            return
        raise SessionRefused(constants.SESSION_UNATTACHED_HANDLE, f"a {what} to handle {handle}, which has no link")

    def _flow(self, frame: Flow) -> None:
        next_id = 0 if frame.next_incoming_id is None else frame.next_incoming_id
        window = (next_id + frame.incoming_window - self.next_outgoing_id) & MASK
        opened = self.remote_window <= 0
        # The client may reduce its window below the number of transfers in flight; the window is 0 then.
        self.remote_window = window if window <= frame.incoming_window else 0
        self.next_incoming_id = frame.next_outgoing_id
        self.remote_outgoing_window = frame.outgoing_window
        if frame.handle is None:
            if frame.echo:
                self.send_flow()
        else:
            link = self.links.get(frame.handle)
            if link is None:
                self._unknown_handle(frame.handle, "flow")
                return
            try:
                link.flow(frame)
            except LinkRefused as refused:
                self.refuse(link, refused.error())
        if opened and self.remote_window > 0:
            self.wake()

    def send_flow(self) -> None:
        """Send a flow with the state of the session."""
        self.connection.send(
            Flow(self.incoming_window, self.next_outgoing_id, WINDOW, self.next_incoming_id, channel=self.channel)
        )

    def _attach(self, frame: Attach) -> None:
        handle = frame.handle
        if handle >= self.connection.own.links:
            raise ConnectionRefused(
                constants.CONNECTION_FRAMING_ERROR,
                f"handle {handle} is above handle-max, {self.connection.own.links - 1}; the setting is amqp10.links",
            )
        if handle in self.links or handle in self.errant:
            raise SessionRefused(constants.SESSION_HANDLE_IN_USE, f"handle {handle} already has a link")
        if self.crossed_detaches.is_answer(frame):
            self.errant[handle] = None
            return
        attach.attach(self, frame)

    def add(self, link: Link) -> None:
        """Add a link whose attach was accepted."""
        self.links[link.handle_in] = link
        self.handles[link.handle] = link
        if link.stores_unsettled:
            self.stores_unsettled = True
        link.register()
        link.attached()

    def new_handle(self) -> int:
        """Return the lowest free handle for a new link."""
        number = self.numbers.lowest(self.handles)
        if number > self.remote_handle_max:
            raise SessionRefused(constants.RESOURCE_LIMIT_EXCEEDED, "the client's handle-max does not allow another link")
        return number

    def _detach(self, frame: Detach) -> None:
        handle = frame.handle
        link = self.links.get(handle)
        if link is None:
            if handle in self.errant:
                failed = self.errant.pop(handle)
                if failed is not None and self.connection.vhost.strict:
                    self.crossed_detaches.answer_detach(self, failed, frame)
                return
            raise SessionRefused(constants.SESSION_UNATTACHED_HANDLE, f"a detach of handle {handle}, which has no link")
        if frame.error is not None:
            logger.info(
                "%s: link '%s' detached by the client with %s: %s",
                self.connection.peer.subject,
                link.name,
                frame.error.condition,
                frame.error.description,
            )
        if frame.closed and link.terminus is not None:
            link.terminus.unsubscribe()
        self.resolve()
        link.detach(frame.closed)
        self.remove(link, frame.closed)
        self.connection.send(Detach(link.handle, frame.closed, channel=self.channel))

    def refuse(self, link: Link, error: Error) -> None:
        """Detach a link with an error. A terminus that outlives its link stays."""
        destroyed = link.terminus is None or not link.terminus.is_kept()
        self._end_link(link, error, destroyed, destroyed)

    def steal(self, link: Link, error: Error) -> None:
        """Detach a link whose terminus is attached elsewhere (transport section 2.6.1)."""
        self._end_link(link, error, False, True)

    def _end_link(self, link: Link, error: Error, destroyed: bool, closed: bool) -> None:
        if self.handles.get(link.handle) is not link:
            return
        logger.info(
            "%s: link '%s' detached with %s: %s",
            self.connection.peer.subject,
            link.name,
            error.condition,
            error.description,
        )
        self.resolve()
        transaction = link.transaction
        if transaction is not None and link.is_receiving_in(transaction):
            self._fail_transaction(transaction, "its link was detached before it was complete")
        link.detach(closed)
        self.remove(link, destroyed)
        self.errant[link.handle_in] = ErrantLink(link, closed)
        self.connection.send(Detach(link.handle, closed, error, channel=self.channel))

    def remove(self, link: Link, closed: bool) -> None:
        """Remove a link. If `closed`, destroy its terminus and requeue its unsettled deliveries."""
        self.links.pop(link.handle_in, None)
        if self.handles.pop(link.handle, None) is not None:
            self.numbers.release(link.handle)
        # A search for the deliveries of a link scans all of the session.
        self.broker.work += (len(self.acquired) + len(self.copies) + len(self.sending)) >> WORK_SHIFT
        if not link.receives:
            self._drop_sending(link)
        if closed:
            link.close()
            self.window_freed()
        else:
            link.suspend()

    def remember(self, terminus: Terminus) -> None:
        """Keep a suspended terminus until the session ends. The oldest one is destroyed if there are too many."""
        suspended = self.suspended
        suspended[terminus] = None
        if len(suspended) > self.connection.own.links:
            next(iter(suspended)).destroy()

    def _drop_sending(self, link: Link) -> None:
        """Drop the unsent rest of the deliveries of a link."""
        if self.sending:
            link.drop_unsent([item.delivery_id for item in self.sending if item.link is link])
            self.sending = deque(item for item in self.sending if item.link is not link)
            self.connection.transactions.aborts_sent()

    # Incoming deliveries

    def resolved(
        self, link: IncomingLink, number: int, batch: int, state: int, settled: bool, answer: Composite | None = None
    ) -> None:
        """Record the outcome of an incoming delivery, to be sent when `batch` is committed."""
        runs = self.runs
        if runs and answer is None:
            run = runs[-1]
            if (
                run.batch == batch
                and run.state == state
                and run.settled == settled
                and run.last + 1 == number
                and run.link is link
                and run.answer is None
            ):
                run.last = number
                if not settled:
                    self._note(number, batch, state, None)
                return
        runs.append(Run(link, number, batch, state, settled, answer))
        if not settled:
            self._note(number, batch, state, answer)
        if batch and batch != self.awaited_batch:
            self.awaited_batch = batch
            self.log.wait(self)
        if not self.listed:
            self.listed = True
            self.connection.touched.append(self)

    def _note(self, number: int, batch: int, state: int, answer: Composite | None) -> None:
        """Record the outcome of a delivery that the client must settle."""
        delivery = self.unsettled.get(number)
        if delivery is not None:
            delivery.resolve(state, answer, batch)
        else:
            self.unsettled[number] = None

    def committed(self, batch: int) -> None:
        if not self.ended:
            self.resolve()

    def resolve_listed(self) -> None:
        """Send outcomes for the connection, which has listed the session since the outcomes of this turn."""
        self.listed = False
        if not self.ended:
            self.resolve()

    def resolve(self) -> None:
        """Send outcomes in order, up to the first one whose commit is pending."""
        runs = self.runs
        committed = self.log.committed
        output = self.connection.output
        sent = False
        while runs and runs[0].batch <= committed:
            run = runs.popleft()
            if run.link.removed:
                continue
            last = run.last
            if run.answer is None:
                while (
                    runs
                    and runs[0].batch <= committed
                    and runs[0].state == run.state
                    and runs[0].answer is None
                    and runs[0].settled == run.settled
                    and runs[0].first == last + 1
                    and not runs[0].link.removed
                ):
                    last = runs.popleft().last
                output.send_disposition(self.channel, True, run.first, last, run.settled, run.state)
            else:
                output.send(Disposition(True, run.first, last, run.settled, run.answer, channel=self.channel))
            sent = True
        if sent:
            self.connection.mark()

    # Outgoing deliveries

    def take_delivery_id(self) -> int:
        """Return the next delivery-id."""
        number = self.next_delivery_id
        self.next_delivery_id = (number + 1) & MASK
        return number

    def count_transfer(self) -> None:
        """Count one more frame of a transfer against the client's window."""
        self.next_outgoing_id = (self.next_outgoing_id + 1) & MASK
        self.remote_window -= 1

    def send(self, sending: Sending) -> None:
        """Send a delivery that takes several frames, or has a state, after the ones before it."""
        self.sending.append(sending)
        self.pump()

    def send_under(
        self, link: OutgoingLink, number: int, settled: bool, head: bytes, body: Body, tail: bytes, state: Composite
    ) -> None:
        """Send a delivery with a transactional state."""
        self.send(Sending(link, number, link.tag_of(number), settled, head, body, tail, state=state))

    def forget_copies(self, link: OutgoingLink) -> None:
        """Drop the deliveries of a browsing link."""
        self.copies = {number: other for number, other in self.copies.items() if other is not link}

    def forget_link_state(self, number: int, entry: Entry) -> bool:
        """Remove the link state of a delivery from the log, in the commit of its settlement."""
        holder = entry.holder
        return isinstance(holder, LinkConsumer) and holder.forget(number, entry)

    def has_window(self) -> bool:
        """Return whether the limits allow one more unsettled delivery."""
        held = len(self.unacked) + len(self.retiring) + len(self.copies)
        connection = self.connection
        limit = connection.settings.unacked_per_channel
        if (held >= LOW_MEMORY_WINDOW and self.broker.tight) or 0 < limit <= held:
            self.window_full = True
            return False
        if held % COUNTED_EVERY == 0 and not connection.sessions.has_window(connection.own.unsettled):
            self.window_full = True
            return False
        return True

    def window_freed(self) -> None:
        """Wake links that were refused a delivery because too many deliveries were unsettled."""
        self.connection.sessions.window_freed_in(self)

    def wake_refused(self) -> None:
        """Wake links if one was refused a delivery because too many deliveries were unsettled."""
        if self.window_full:
            self.window_full = False
            self.wake()

    def pump(self) -> None:
        """Send deliveries in several frames while the window and the socket allow."""
        sending = self.sending
        connection = self.connection
        try:
            while sending and self.remote_window > 0 and not connection.is_full():
                if sending[0].send(self):
                    sending.popleft()
        except OSError as error:
            logger.error(
                "%s: connection aborted: a message body cannot be read from disk: %s", connection.peer.subject, error
            )
            sending.clear()
            connection.peer.abort()
        connection.transactions.aborts_sent()
        connection.mark()

    def wake(self) -> None:
        """Wake links: the window or the socket has room again."""
        if self.ended:
            return
        if self.sending:
            self.pump()
            if self.sending:
                return
        self.broker.work += len(self.handles) >> 1
        for link in self.handles.values():
            link.wake()

    def drain(self) -> None:
        """Use up the credit of draining links at the end of a turn."""
        draining = self.draining
        self.draining = []
        for link in draining:
            link.drain()

    def alarm(self, on: bool) -> None:
        """Withdraw the credit of publishers, or restore it."""
        self.broker.work += len(self.handles)
        for link in self.handles.values():
            link.alarm(on)

    def consumes(self) -> bool:
        """Return whether the client receives, or has something to settle."""
        if self.unacked or self.acquired or self.copies or self.retiring or self.unsettled:
            return True
        self.broker.work += len(self.handles) >> 3
        return any(not link.receives for link in self.handles.values())

    def numbers_of(self, consumer: Consumer) -> list[int]:
        """Return the ids of the unsettled deliveries to a consumer, in order."""
        if self.by_holder is not None:
            return self.by_holder.get(consumer, [])
        self.broker.work += len(self.unacked) >> WORK_SHIFT
        return [number for number, entry in self.unacked.items() if entry.holder is consumer]

    def _group_unacked(self) -> None:
        """Group the unsettled deliveries by consumer in one pass."""
        self.broker.work += len(self.unacked) >> WORK_SHIFT
        by_holder: dict[Consumer, list[int]] = {}
        last: Consumer | None = None
        numbers: list[int] = []
        for number, entry in self.unacked.items():
            holder = entry.holder
            if holder is not None:
                if holder is not last:
                    last = holder
                    numbers = by_holder.setdefault(holder, [])
                numbers.append(number)
        self.by_holder = by_holder

    def all_unacked(self) -> list[Entry]:
        entries = list(self.unacked.values())
        entries.extend([item.entry for item in self.retiring.values()])
        return entries

    def unacked_pieces(self) -> Iterator[list[Entry]]:
        yield [item.entry for item in self.retiring.values()]
        yield from self.deliveries().pieces()

    def deliveries(self) -> Deliveries:
        unacked, following = self.unacked, self.next_delivery_id
        return Deliveries(self.connection.number, self.channel, unacked, next(iter(unacked), following), following, MASK)

    # The end

    def end(self, error: Error) -> None:
        """End the session with an error. The client's end has yet to arrive."""
        if self.ended:
            return
        logger.info(
            "%s: session %d ended with %s: %s",
            self.connection.peer.subject,
            self.channel,
            error.condition,
            error.description,
        )
        self.resolve()
        self.release()
        self.ended = True
        self.connection.send(End(error, channel=self.channel))

    def release(self) -> None:
        """Release the session: remove its links and requeue unsettled deliveries."""
        if self.closing:
            return
        self.closing = True
        self.broker.churn.channel_closed()
        self.sending.clear()
        self.connection.transactions.aborts_sent()
        self.copies.clear()
        links = list(self.handles.values())
        # Links leave their queues before entries are requeued, so that they do not receive them again.
        for link in links:
            link.leave()
        for retirement in self.retiring.values():
            if not retirement.transaction.committing:
                retirement.transaction.fail("a session with deliveries of the transaction has ended")
        if self.acquired:
            acquisition.undo_for(self, None)
        unacked = self.unacked
        for number, retirement in self.retiring.items():
            if not retirement.transaction.committing:
                unacked[number] = retirement.entry
        self.retiring.clear()
        termini = list(self.termini)
        surviving = [terminus for terminus in termini if terminus.survives() or terminus.durable]
        self.unacked = {}
        returned = self._keep_unacked(unacked, surviving) if surviving else unacked
        entry_return.return_entries(self.broker, [returned[number] for number in sorted(returned)], outcomes.requeue)
        if self.unacked is not unacked:
            unacked.clear()  # a terminus that is being destroyed must not return the same ones
        for terminus in surviving:
            terminus.begin_moving()
        for link in links:
            if link.terminus is not None and link.terminus.moving:
                link.suspend()
            else:
                link.close()
        for terminus in termini:
            if not terminus.moving:
                terminus.session_ended()
        self.termini.clear()
        self.suspended.clear()
        self.links.clear()
        self.handles.clear()
        self.errant.clear()
        self.crossed_detaches.clear()
        self.draining.clear()
        self.runs.clear()
        self.unsettled.clear()
        self.broker.jobs.run_steps(self._moving(surviving))

    def _keep_unacked(self, unacked: dict[int, Entry], surviving: list[Terminus]) -> dict[int, Entry]:
        """Keep the unsettled deliveries of surviving termini for `_moving`. Return the others."""
        self.unacked = unacked
        self._group_unacked()
        by_holder = self.by_holder
        assert by_holder is not None
        kept: dict[Consumer, list[int]] = {}
        count = 0
        for terminus in surviving:
            consumer = terminus.last_consumer()
            if consumer is not None and consumer in by_holder:
                kept[consumer] = by_holder[consumer]
                count += len(kept[consumer])
        self.by_holder = kept
        if count == len(unacked):
            return {}
        self.unacked = {number: entry for number, entry in unacked.items() if entry.holder in kept}
        return {number: entry for number, entry in unacked.items() if number not in self.unacked}

    def _moving(self, surviving: list[Terminus]) -> Iterator[int]:
        """Move unsettled deliveries to the termini that outlive the session, in steps."""
        for terminus in surviving:
            if terminus.session is self:
                yield from logged(terminus.collecting())
            if terminus.session is self:
                terminus.session_ended()
            terminus.end_moving()
            yield 1
        self.by_holder = None
        self.unacked = {}
        self.broker.holders.pop(self, None)

    def count_acks(self, count: int) -> None:
        """Count accepted deliveries."""
        self.acked += count

    def describe(self) -> ChannelInfo:
        """Return the state of the session for listings."""
        connection = self.connection
        consumers = [link for link in self.handles.values() if link.consumes]
        return ChannelInfo(
            connection=connection.number,
            vhost=connection.vhost_name,
            user=connection.user,
            number=self.channel,
            consumers=len(consumers),
            unacked=len(self.unacked),
            prefetch=sum(link.credit for link in consumers),
            published=self.published,
            delivered=self.next_delivery_id,
            delivered_no_ack=self.delivered_no_ack,
            acked=self.acked,
            unconfirmed=sum(run.last - run.first + 1 for run in self.runs),
            mode="",
            state="running",
        )

    def describe_session(self) -> SessionInfo:
        """Return the windows of the session for listings."""
        return SessionInfo(
            channel=self.channel,
            handle_max=self.remote_handle_max,
            next_incoming_id=self.next_incoming_id,
            incoming_window=self.incoming_window,
            next_outgoing_id=self.next_outgoing_id,
            remote_incoming_window=max(self.remote_window, 0),
            remote_outgoing_window=self.remote_outgoing_window,
            unsettled=len(self.unacked),
        )
