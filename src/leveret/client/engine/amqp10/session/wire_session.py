"""A session on the wire: its windows, links and deliveries (transport 2.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.client.engine.amqp10.conditions import protocol_error, publish_error, session_error
from leveret.client.engine.amqp10.link.link import NO_HANDLE, Link
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import Error, InvalidMessage
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Attach, Begin, Detach, Disposition, End, Flow
from leveret.wire.amqp10.transport import Transfer as TransferFrame

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore
    from leveret.client.engine.amqp10.link.sender import SenderCore

_MASK: Final = 0xFFFFFFFF
# Maximum session window, because credit limits incoming messages.
WINDOW: Final = (1 << 31) - 1
_TERMINAL: Final = (
    descriptors.ACCEPTED,
    descriptors.REJECTED,
    descriptors.RELEASED,
    descriptors.MODIFIED,
    descriptors.DECLARED,
)


class WireSession:
    """A session on the wire.

    Attributes:
        number: Channel number of the client.
        opened: Both sides have begun the session, or are about to.
        ending: The client has sent an end.
        unsettled: Sent messages without an outcome, by delivery id.
        deliveries: Received messages that are not settled, by delivery id.
        remote_window: Number of transfer frames that the server accepts.
        transaction_id: Transaction of all work in the session, if any.
    """

    def __init__(self, connection: Amqp10ConnectionCore, number: int) -> None:
        self.connection = connection
        self.number = number
        self.opened = False
        self.ending = False
        self.unsettled: dict[int, Transfer] = {}
        self.deliveries: dict[int, Delivery] = {}
        self.next_delivery_id = 0
        self.remote_window = 0
        self.transaction_id: bytes | None = None
        self._next_outgoing_id = 0
        self._next_incoming_id: int | None = None
        self._links: dict[int, Link] = {}
        self._remote_links: dict[int, Link] = {}
        self._begun = Waiters(connection.frontend)
        self._ended = Waiters(connection.frontend)
        # Outcomes that are not sent yet: a range of delivery ids, and the descriptor of their state.
        self._first = 0
        self._last = -1
        self._kind = 0

    def take_delivery_id(self) -> int:
        """Return the next delivery id."""
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & 0xFFFFFFFF
        return delivery_id

    def work_in(self, transaction_id: bytes | None) -> None:
        """Do all work from now on in a transaction, or in none."""
        self.transaction_id = transaction_id

    # Overridden by the channel.

    def forget_sender(self, sender: SenderCore) -> None: ...

    def on_outcome(self, transfer: Transfer, state: Composite | None) -> None:
        """Handle the outcome of a message."""
        transfer.outcome(
            state,
            publish_error(state, transfer.describe()) if state is not None and state.kind != descriptors.ACCEPTED else None,
        )

    def ended_by_peer(self, error: Error) -> None:
        """Handle the end of the session by the server."""

    # Beginning and ending

    def begin(self) -> Waiter:
        """Send the begin and return a waiter for the server's."""
        self.begin_unawaited()
        waiter: Waiter = self._begun.new()
        self.connection.ensure_reading()
        return waiter

    def begin_unawaited(self) -> None:
        """Send the begin without waiting for the server's."""
        self.opened = True
        self.ending = False
        self._next_outgoing_id = 0
        self.next_delivery_id = 0
        self._next_incoming_id = None
        self.remote_window = 0
        self._links.clear()
        self._remote_links.clear()
        self._last = -1
        self._kind = 0
        self.send(Begin(0, WINDOW, WINDOW, channel=self.number))

    def began(self, begin: Begin) -> None:
        """Handle the server's begin."""
        self._next_incoming_id = begin.next_outgoing_id
        self.remote_window = begin.incoming_window
        self._begun.wake()

    def end(self) -> Waiter:
        """Send the end and return a waiter for the server's.

        The waiter is done with RabbitMQ 3, which may stop before it has sent its end. The number stays taken until that
        arrives, or the connection ends.
        """
        self.flush_settled()
        self.ending = True
        self.opened = False
        self.send(End(channel=self.number))
        waiter: Waiter = self._ended.new()
        if self.connection.addresses.form == "v1":
            self._ended.wake()
        self.connection.ensure_reading()
        return waiter

    def _end_received(self, frame: End) -> None:
        self.connection.forget_session(self)
        if self.ending:
            self._ended.wake()
            return
        self.send(End(channel=self.number))
        self.ending = True
        self.opened = False
        self.ended_by_peer(session_error(frame.error))

    def finish(self, error: Error | None) -> None:
        """End all links, and wake all waiters."""
        links, self._links = list(self._links.values()), {}
        self._remote_links.clear()
        for link in links:
            link.finish(error)
        self.deliveries.clear()
        if error is not None:
            self._begun.wake(error)
        self._ended.wake()

    def connection_lost(self, error: Error) -> None:
        """Handle the loss of a connection that will be reconnected."""
        self.opened = False
        links, self._links = list(self._links.values()), {}
        self._remote_links.clear()
        self.deliveries.clear()
        self._begun.wake(error)
        self._ended.wake()
        for link in links:
            link.lost()

    # Links

    def add_link(self, link: Link) -> int:
        """Assign a handle to a link."""
        handle = 0
        while handle in self._links:
            handle += 1
        self._links[handle] = link
        return handle

    def remove_link(self, link: Link) -> None:
        """Free the handles of a link."""
        for links in (self._links, self._remote_links):
            for handle, other in list(links.items()):
                if other is link:
                    del links[handle]

    @property
    def links(self) -> list[Link]:
        """Links with a handle."""
        return list(self._links.values())

    # Received frames

    def receive(self, frame: Performative) -> None:
        """Dispatch a frame to its link."""
        if isinstance(frame, TransferFrame):
            self._next_incoming_id = ((self._next_incoming_id or 0) + 1) & _MASK
            link: Any = self._remote_links.get(frame.handle)
            if link is not None:
                link.transfer(frame)
        elif isinstance(frame, Disposition):
            self._disposition(frame)
        elif isinstance(frame, Flow):
            self._flow_received(frame)
        elif isinstance(frame, Attach):
            self._attach(frame)
        elif isinstance(frame, Detach):
            detached = self._remote_links.get(frame.handle)
            if detached is not None:
                detached.detach_received(frame)
        elif isinstance(frame, End):
            self._end_received(frame)

    def _attach(self, frame: Attach) -> None:
        is_receiver = frame.role == constants.ROLE_SENDER
        for link in self._links.values():
            if link.name == frame.name and link.is_receiver == is_receiver:
                if link in self._remote_links.values():
                    text = f"a second attach of link '{link.name}'"
                    self.connection.fail(protocol_error(constants.NOT_ALLOWED, text))
                    return
                self._remote_links[frame.handle] = link
                link.attach_received(frame)
                return

    def _flow_received(self, frame: Flow) -> None:
        seen = 0 if frame.next_incoming_id is None else frame.next_incoming_id
        window = (seen + frame.incoming_window - self._next_outgoing_id) & _MASK
        self.remote_window = window if window < 1 << 31 else 0
        if frame.handle is None:
            if frame.echo:
                self.send_flow()
            self.pump()
            return
        link = self._remote_links.get(frame.handle)
        if link is not None:
            link.flow_received(frame)
        self.pump()

    def pump(self) -> None:
        """Send the messages that wait for the window."""
        for link in list(self._links.values()):
            if not link.is_receiver and link.attached:
                waiting: Any = link
                if waiting.queue:
                    waiting.pump()

    def _disposition(self, frame: Disposition) -> None:
        last = frame.first if frame.last is None else frame.last
        if last < frame.first:
            last += _MASK + 1
        if frame.role == constants.ROLE_SENDER:
            self._settled_by_server(frame, last)
            return
        state = frame.state
        if isinstance(state, TransactionalState):
            state = state.outcome
        terminal = isinstance(state, Composite) and state.kind in _TERMINAL
        if not terminal and not frame.settled:
            return
        accepted = terminal and state.kind == descriptors.ACCEPTED
        unsettled = self.unsettled
        second = False
        for number in range(frame.first, last + 1):
            transfer = unsettled.pop(number & _MASK, None)
            if transfer is None:
                continue
            if not frame.settled:
                second = True
            if accepted and transfer.publisher is not None and transfer.transaction is None:
                # The common case.
                transfer.settle(None)
            else:
                self.on_outcome(transfer, state)
        if second:
            self.send(Disposition(constants.ROLE_SENDER, frame.first, frame.last, True, None, channel=self.number))

    def _settled_by_server(self, frame: Disposition, last: int) -> None:
        if not frame.settled:
            return
        for number in range(frame.first, last + 1):
            delivery = self.deliveries.pop(number & _MASK, None)
            if delivery is not None:
                delivery.link.settled_by_peer(frame, delivery)

    # Sent frames

    def send(self, frame: Performative) -> None:
        """Send a frame. Raises `InvalidMessage` if it cannot be encoded."""
        if self._last >= 0:
            self.flush_settled()
        try:
            self.connection.engine.send(frame)
        except EncodeError as error:
            raise InvalidMessage(str(error)) from error
        self.connection.frontend.flush_soon()

    def transferred(self) -> None:
        """Count a transfer frame against the windows."""
        self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
        self.remote_window -= 1

    def send_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        credit: int | None = None,
        *,
        available: int | None = None,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        """Send the flow state of the session, or of a link if a handle is given."""
        if handle == NO_HANDLE or not self.opened:
            return
        self.send(
            Flow(
                WINDOW,
                self._next_outgoing_id,
                WINDOW,
                self._next_incoming_id,
                handle,
                delivery_count,
                credit,
                available,
                drain,
                echo,
                channel=self.number,
            )
        )

    def send_outcome(self, delivery_id: int, state: Composite, settled: bool) -> None:
        """Send the outcome of a delivery. Consecutive deliveries with equal outcomes are sent as a range."""
        kind = state.kind
        if not settled or (kind != descriptors.ACCEPTED and kind != descriptors.RELEASED):
            self.send(Disposition(constants.ROLE_RECEIVER, delivery_id, None, settled, state, channel=self.number))
            return
        if self._last >= 0 and self._kind == kind and self._last + 1 == delivery_id:
            self._last = delivery_id
        else:
            self.flush_settled()
            self._first = self._last = delivery_id
            self._kind = kind
            self.connection.unflushed.append(self)
        self.connection.frontend.flush_soon()

    def flush_settled(self) -> None:
        """Send the accumulated outcomes."""
        if self._last >= 0:
            last, self._last = self._last, -1
            self.connection.engine.output.send_disposition(
                self.number, constants.ROLE_RECEIVER, self._first, last, True, self._kind
            )
