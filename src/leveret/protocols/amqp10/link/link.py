"""Base class of links in both directions (transport section 2.6)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from leveret.management.descriptions import SessionLinkInfo
from leveret.protocols.amqp10.errors import SessionRefused, make_error
from leveret.protocols.amqp10.session.serial_numbers import MASK
from leveret.wire.amqp10 import constants

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.terminus.terminus import Key, Terminus
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction
    from leveret.wire.amqp10.transport import Attach, Flow, Transfer

# Names of settle modes by their values.
SENDER_SETTLE_MODES: Final = ("unsettled", "settled", "mixed")
RECEIVER_SETTLE_MODES: Final = ("first", "second")


class Link:
    """One link endpoint of the broker, created for an attach of the client.

    Attributes:
        receives: whether the broker is the receiver.
        consumes: whether the link has a consumer of a queue.
        stores_unsettled: whether unsettled deliveries are in the log.
        handle_in: handle of the client.
        handle: handle of the broker.
        delivery_count: delivery-count of flow control.
        credit: link credit.
        terminus: the terminus that outlives the link; None if there is none.
        transaction: the transaction of the current delivery, or under which the link acquires.
        removed: whether a detach has closed the link. Nothing more is sent about its deliveries.
    """

    receives = False
    consumes = False

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int) -> None:
        self.session = session
        self.name = frame.name
        self.key: Key = session.connection.link_key(frame)
        self.handle_in = frame.handle
        self.handle = handle
        self.snd_settle_mode = frame.snd_settle_mode
        self.rcv_settle_mode = frame.rcv_settle_mode
        self.stores_unsettled = False
        self.delivery_count = 0
        self.credit = 0
        self.terminus: Terminus | None = None
        self.transaction: LocalTransaction | None = None
        self.closed = False
        self.removed = False

    def take_delivery_id(self) -> int:
        """Count one more delivery that the broker sends, and return its delivery-id."""
        self.delivery_count = (self.delivery_count + 1) & MASK
        return self.session.take_delivery_id()

    def use_credit(self) -> int:
        """Use credit for one more delivery that the broker sends, and return its delivery-id."""
        self.credit -= 1
        return self.take_delivery_id()

    def address_text(self) -> str:
        """Return the address of the node; "" if it has none."""
        return "" if self.terminus is None else self.terminus.address()

    def queue_name(self) -> str:
        """Return the name of the queue from which the broker sends; "" for none."""
        return ""

    def size_limit(self) -> int:
        """Return the maximum size of a message that the receiver accepts; 0 for no limit."""
        return 0

    def describe(self) -> SessionLinkInfo:
        """Describe the link for listings."""
        return SessionLinkInfo(
            session=self.session.channel,
            handle=self.handle_in,
            name=self.name,
            receives=self.receives,
            address=self.address_text(),
            queue=self.queue_name(),
            credit=self.credit,
            delivery_count=self.delivery_count,
            sender_settle_mode=SENDER_SETTLE_MODES[self.snd_settle_mode],
            max_message_size=self.size_limit(),
        )

    def register(self) -> None:
        """Add the link to the registry."""
        self.session.connection.shared.links[self.key] = self

    def attached(self) -> None:
        """Start the link, after it is in its session and the attach has been sent."""

    @abstractmethod
    def flow(self, frame: Flow) -> None:
        """Handle a flow of the client."""

    def transfer(self, frame: Transfer) -> None:
        """Receive one frame of a delivery.

        Raises:
            SessionRefused: the broker is the sender.
        """
        raise SessionRefused(constants.NOT_ALLOWED, f"a transfer to link '{self.name}', whose sender is the broker")

    def is_receiving_in(self, transaction: LocalTransaction) -> bool:
        """Return whether a delivery of the transaction is incomplete."""
        return False

    def alarm(self, on: bool) -> None:
        """Withdraw the credit of a publisher, or restore it."""

    def drop_unsent(self, numbers: list[int]) -> None:
        """Record deliveries that were incomplete when the link was detached."""

    def wake(self) -> None:
        """Send more: the session's window or the socket has room again."""

    def leave(self) -> None:
        """Stop deliveries, before the link is closed."""

    @abstractmethod
    def close(self) -> None:
        """Close the link and destroy its terminus."""

    def suspend(self) -> None:
        """Close the link but keep its terminus, if it has one."""
        self.close()

    def node_deleted(self, text: str) -> None:
        """Detach the link because its node was deleted."""
        session = self.session
        if self.closed or session.closing or session.connection.responses.detach_later(self, text):
            return
        session.refuse(self, make_error(constants.RESOURCE_DELETED, text))

    def deleted(self) -> None:
        """Close the link, which an operator deletes."""
        session = self.session
        session.refuse(self, make_error(constants.LINK_DETACH_FORCED, f"link '{self.name}' was deleted by an operator"))
        session.connection.broker.end_turn()

    def detach(self, closed: bool) -> None:
        """Note that a detach ends the link. If it is `closed`, nothing more is sent about its deliveries."""
        self.removed = closed

    def forget(self) -> None:
        """Remove the link from the registry."""
        self.closed = True
        connection = self.session.connection
        registry = connection.shared.links
        if registry.get(self.key) is self:
            del registry[self.key]
