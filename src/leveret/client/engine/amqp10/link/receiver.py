"""A receiving link: credit, deliveries that the application has not taken, and waiters for the next delivery."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.client.delivery import Delivery
from leveret.client.engine.amqp10.conditions import link_error
from leveret.client.engine.amqp10.link.link import Link
from leveret.client.engine.common.channel import BaseConsumerCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import ChannelClosed, ConsumerCancelled, Error, copy_error
from leveret.wire.amqp0.values import Arguments
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.messaging import Source, Target
from leveret.wire.amqp10.transport import Attach, Detach, Disposition, Flow
from leveret.wire.amqp10.transport import Error as Condition
from leveret.wire.amqp10.transport import Transfer as Performative
from leveret.wire.amqp10.values import Checked, Symbol
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.session.session import SessionCore

_MASK: Final = 0xFFFFFFFF
# Bytes that a transfer frame counts for at least, which limits the number of frames of a message.
MIN_FRAME_BYTES: Final = 64
# Credit of a receiver without a prefetch limit, renewed as messages are taken.
DEFAULT_CREDIT: Final = 1000


class ReceiverCore(Link, BaseConsumerCore):
    """A receiving link.

    Attributes:
        queue: Queue as the application named it.
        prefetch: Maximum number of unsettled deliveries; 0 is unlimited.
        tag: Consumer tag.
        settled: The server sends all deliveries settled.
        settle_second: The server settles after the client (receiver settle mode second).
        durable: Unsettled deliveries survive a detach; at the end the link is detached, not closed.
        stopped: Credit is withheld.
        unsettled: Number of unsettled deliveries.
        available: The server's last count of available messages.
        cancelling: A cancel is pending; messages that still arrive are released.

    `active`, `ended` and `messages` are as in `BaseConsumerCore`.
    """

    is_receiver = True
    session: SessionCore
    channel: SessionCore
    messages: deque[Delivery]

    def __init__(
        self,
        session: SessionCore,
        queue: str,
        source: Source,
        prefetch: int,
        *,
        settled: bool = False,
        settle_second: bool = False,
        durable: bool = False,
        properties: dict[Symbol, WireValue] | None = None,
        capabilities: tuple[str, ...] = (),
        name: str = "",
        tag: str = "",
    ) -> None:
        super().__init__(session, name)
        self.channel = session
        self.queue = queue
        self.source = source
        self.prefetch = prefetch
        self.settled = settled
        self.settle_second = settle_second
        self.durable = durable
        self.tag = tag
        self.messages = deque()
        self.active = False
        self.cancelling = False
        self.ended = False
        self.stopped = False
        self.unsettled = 0
        self.available: int | None = None
        self._properties = properties
        self._capabilities = capabilities
        self._fixed_name = name
        self._credit = 0
        self._delivery_count = 0
        self._partial: Performative | None = None
        self._partial_payloads: list[bytes] = []
        self._partial_size = 0
        self._max_size = session.connection.parameters.max_message_size
        self._waiters = Waiters(session.connection.frontend)
        self._counted = prefetch == 0 or settled
        self._sized = self._counted
        self._limit = prefetch or DEFAULT_CREDIT
        self._delivery_class = session.connection.frontend.delivery_class

    def count_bytes(self) -> None:
        if not self._sized:
            self._sized = True
            for delivery in self.messages:
                self.session.connection.add_buffered(delivery.payload_size)

    @property
    def key(self) -> ReceiverCore:
        """Key of the receiver in its session."""
        return self

    @property
    def description(self) -> str:
        return f"the source {self.source.address!r}" if self.source.address is not None else "the dynamic source"

    @property
    def address(self) -> str | None:
        """The source address; for a dynamic source, the server-assigned one."""
        source: Checked = self.remote.source if self.remote is not None else self.source
        found: str | None = getattr(source, "address", None)
        return found

    @property
    def filters(self) -> Arguments:
        """The filters that the server applies."""
        source: Checked = self.remote.source if self.remote is not None else None
        found = getattr(source, "filter", None)
        return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}

    def clone(self) -> ReceiverCore:
        """Return an equal receiver that has not started."""
        return ReceiverCore(
            self.session,
            self.queue,
            self.source,
            self.prefetch,
            settled=self.settled,
            settle_second=self.settle_second,
            durable=self.durable,
            properties=self._properties,
            capabilities=self._capabilities,
            name=self._fixed_name,
        )

    def performative(self) -> Attach:
        mode = constants.SENDER_SETTLE_MODE_SETTLED if self.settled else constants.SENDER_SETTLE_MODE_UNSETTLED
        return Attach(
            self.name,
            0,
            constants.ROLE_RECEIVER,
            mode,
            int(self.settle_second),
            self.source,
            Target(self.session.connection.container_id),
            max_message_size=self._max_size,
            properties=self._properties,
            desired_capabilities=self._capabilities,
        )

    def on_attached(self, attach: Attach) -> None:
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self.unsettled = 0
        self.active = True
        if not self.stopped:
            self._top_up()

    def begin(self) -> Waiter:
        """Start the receiver; see `SessionCore.consume`."""
        return self.channel.consume(self)

    def withdraw(self) -> Waiter:
        """Cancel the receiver; see `SessionCore.cancel`."""
        return self.channel.cancel(self)

    def abandon(self) -> None:
        """Cancel the receiver without waiting; see `SessionCore.cancel_nowait`."""
        self.channel.cancel_nowait(self)

    # Received frames

    def transfer(self, frame: Performative) -> None:
        """Handle a transfer frame; the last one completes a delivery."""
        if self.finished:
            return
        coming = self._partial
        if coming is None:
            coming = frame
            self._partial_size = 0
            if not frame.resume:
                self._credit -= 1
                self._delivery_count = (self._delivery_count + 1) & _MASK
            if frame.resume or self._credit < 0:
                # Resumed without credit, sent before the credit was withdrawn, or beyond it, as RabbitMQ 3 does when the
                # credit is renewed.
                self.count_bytes()
        elif frame.settled:
            coming.settled = True
        if frame.aborted:
            self._partial = None
            self._partial_payloads = []
            return
        size = len(frame.payload)
        self._partial_size += max(size, MIN_FRAME_BYTES) if frame.more else size
        if self._partial_size > self._max_size:
            self._refuse()
            return
        if frame.more:
            self._partial = coming
            self._partial_payloads.append(frame.payload)
            return
        if self._partial_payloads:
            self._partial_payloads.append(frame.payload)
            payload = b"".join(self._partial_payloads)
            self._partial_payloads = []
        else:
            payload = frame.payload
        self._partial = None
        session = self.session
        settled = bool(coming.settled) or self.settled
        delivery = self._delivery_class(
            session, self, coming.delivery_id or 0, coming.delivery_tag or b"", payload, settled
        )
        if not settled:
            self.unsettled += 1
            session.deliveries[delivery.delivery_id] = delivery
        self.delivered(delivery)

    def _refuse(self) -> None:
        """Detach the link because the server sent a message that is too large."""
        self._partial = None
        self._partial_payloads = []
        text = f"a message of more than {self._max_size} bytes from {self.description}"
        condition = Condition(constants.LINK_MESSAGE_SIZE_EXCEEDED, text)
        if not self.closing:
            self.session.send(Detach(self.handle, not self.durable, condition, channel=self.session.number))
            self.closing = True
        what = "the client detached the link (option max_message_size)"
        self.finish(link_error(what, condition))

    def delivered(self, delivery: Delivery) -> None:
        """Buffer a delivery for the application."""
        if self.cancelling or self.closing:
            if not delivery.settled:
                delivery.release()
            return
        self.messages.append(delivery)
        if self._sized:
            self.session.connection.add_buffered(delivery.payload_size)
        if not self._counted and not self._credit:
            self._top_up()
        if self._waiters.waiting:
            self._waiters.wake()

    def flow_received(self, flow: Flow) -> None:
        self.available = flow.available
        if flow.delivery_count is not None and self._partial is None:
            passed = (flow.delivery_count - self._delivery_count) & _MASK
            if 0 < passed <= self._credit:
                # The server has drained the link.
                self._credit -= passed
                self._delivery_count = flow.delivery_count
                self.on_drained()
        if flow.echo and self.attached:
            self._send_credit()

    def on_drained(self) -> None:
        """Handle a drain: the server had no messages for the remaining credit."""

    # Credit

    def delivery_settled(self) -> None:
        """Count a delivery as settled."""
        self.unsettled -= 1
        self._top_up()

    def _top_up(self) -> None:
        """Renew the credit once half of it is used, so that one flow serves many messages."""
        if not self.attached or self.cancelling or self.stopped:
            return
        outstanding = len(self.messages) if self._counted else self.unsettled
        credit = self._limit - outstanding
        missing = credit - self._credit
        if credit > 0 and missing > 0 and (missing >= self._limit >> 1 or self._credit <= 0):
            self._credit = credit
            self._send_credit()

    def _send_credit(self, drain: bool = False, echo: bool = False) -> None:
        self.session.send_flow(self.handle, self._delivery_count, max(self._credit, 0), drain=drain, echo=echo)

    def stop(self, stopped: bool) -> None:
        """Withhold or renew credit. Messages in transit still arrive."""
        self.stopped = stopped
        if not self.attached:
            return
        if stopped:
            self._credit = 0
            self._send_credit()
        else:
            self._top_up()

    # For the front ends

    def take(self) -> Delivery:
        """Return the next message. Raises IndexError if there is none."""
        delivery = self.messages.popleft()
        if self._sized:
            self.session.connection.remove_buffered(delivery.payload_size)
        if self._counted:
            self._top_up()
        return delivery

    def message_waiter(self) -> Waiter:
        """Return a waiter for a message or the end of the receiver."""
        return self._waiters.new()

    def drop_messages(self) -> list[Delivery]:
        """Drop and return the messages that the application has not taken."""
        forgotten = list(self.messages)
        self.messages.clear()
        if self._sized:
            for delivery in forgotten:
                self.session.connection.remove_buffered(delivery.payload_size)
        return forgotten

    # Closing

    def begin_cancelling(self) -> None:
        """Note that the consumer is being cancelled."""
        self.cancelling = True

    def cancel(self) -> None:
        """Stop deliveries and release the messages that the application has not taken.

        The link is closed once the taken messages are settled, because closing it earlier would release them too.
        """
        self.cancelling = True
        if self.attached and self._credit > 0:
            self._credit = 0
            self._send_credit()
        for delivery in self.drop_messages():
            if not delivery.settled:
                delivery.release()
        self.detach_if_settled()

    def detach_if_settled(self) -> None:
        """Detach a cancelled receiver if its deliveries are settled."""
        if self.cancelling and not self.closing and (self.unsettled <= 0 or self.durable):
            self.session.flush_settled()
            self.detach(not self.durable)

    def lost(self) -> None:
        self._partial = None
        self._partial_payloads = []
        self._credit = 0
        self.unsettled = 0
        if not self.settled:
            self.drop_messages()
        if self.cancelling:
            self.closing = True
        super().lost()

    def on_finished(self, error: Error | None) -> None:
        if error is not None and not self.settled:
            self.drop_messages()
        if error is not None and error.condition == constants.RESOURCE_DELETED:
            cancelled = ConsumerCancelled(
                f"the server cancelled consumer '{self.tag}': {error}", consumer_tag=self.tag, reply_text=error.reply_text
            )
            cancelled.condition, cancelled.info = error.condition, error.info
            self.error = error = cancelled
        self.session.forget_receiver(self)
        self.end(None if self.cancelling else error)

    def end(self, error: Error | None) -> None:
        """End the receiver. Messages that have arrived can still be taken before `error` is raised."""
        if self.ended:
            return
        self.active = False
        self.ended = True
        if self.error is None:
            self.error = error
        self._waiters.wake()

    def settled_by_peer(self, disposition: Disposition, delivery: Checked) -> None:
        """Handle the settlement of a delivery by the other side."""
        delivery.settled_by_server(disposition.state)
        self.delivery_settled()
        self.detach_if_settled()


class Getter(ReceiverCore):
    """Receiver for single messages, with a credit of one and a drain, so that the server sends a message or none."""

    def __init__(self, session: SessionCore, queue: str, source: Source, settled: bool, name: str) -> None:
        super().__init__(session, queue, source, 1, settled=settled, name=name)
        self._pending_gets: deque[Result] = deque()
        self.stopped = True
        # RabbitMQ 3 fails on a drain, but answers an echo with the number of available messages.
        self._no_drain = session.connection.addresses.form == "v1"

    def get(self) -> Waiter:
        """Return a waiter for a message or None."""
        waiter: Waiter = self.session.connection.frontend.new_waiter()
        self._pending_gets.append(waiter)
        self.session.connection.ensure_reading()
        if self.finished:
            waiter.set_exception(copy_error(self.error or ChannelClosed("the channel was closed by the application")))
        elif len(self._pending_gets) == 1 and self.attached:
            self._ask()
        return waiter

    @property
    def idle(self) -> bool:
        """Whether the link can be closed."""
        return not self._pending_gets and self.unsettled <= 0

    @property
    def expecting(self) -> bool:
        """Whether a get is pending."""
        return bool(self._pending_gets)

    def _ask(self) -> None:
        self._credit = 1
        self._send_credit(drain=not self._no_drain, echo=self._no_drain)

    def flow_received(self, flow: Flow) -> None:
        super().flow_received(flow)
        if self._no_drain and flow.available == 0 and self._credit > 0 and self._partial is None:
            self._credit = 0
            self._send_credit()
            self.on_drained()

    def on_attached(self, attach: Attach) -> None:
        super().on_attached(attach)
        if self._pending_gets:
            self._ask()

    def delivered(self, delivery: Delivery) -> None:
        self._answer(delivery)

    def on_drained(self) -> None:
        self._answer(None)

    def _answer(self, delivery: Delivery | None) -> None:
        if self._pending_gets:
            waiter = self._pending_gets.popleft()
            if not waiter.done():
                if delivery is not None:
                    delivery.message_count = self.available
                waiter.set_result(delivery)
                delivery = None
        if delivery is not None and not delivery.settled:
            # The caller has stopped waiting.
            delivery.release()
        if self._pending_gets:
            self._ask()

    def _fail(self, error: Error) -> None:
        asking, self._pending_gets = self._pending_gets, deque()
        for waiter in asking:
            if not waiter.done():
                waiter.set_exception(error)

    def lost(self) -> None:
        self._fail(self.session.connection.last_error)
        super().lost()
        self.finish(None)

    def on_finished(self, error: Error | None) -> None:
        self.session.forget_getter(self)
        self._fail(error or ChannelClosed("the channel was closed by the application"))
