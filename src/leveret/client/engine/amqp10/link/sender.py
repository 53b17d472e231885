"""A sending link: messages that wait for credit, and transfers (transport 2.6.7, 2.6.12)."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.link.link import Link
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.amqp10.link.resumption import resume
from leveret.client.errors import Error, LinkClosed, NotFound, Returned, copy_error
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Attach, Flow
from leveret.wire.amqp10.transport import Transfer as Performative
from leveret.wire.amqp10.values import Checked, Symbol
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.session.session import SessionCore

OUTCOMES: Final = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")
_PACK_TAG: Final = struct.Struct(">I").pack
_MASK: Final = 0xFFFFFFFF
# Upper bound on the encoded size of a transfer performative.
_MAX_HEAD_SIZE: Final = 128


class SenderCore(Link):
    """A sending link.

    Attributes:
        control: The link leads to the transaction coordinator.
        queue: Messages that wait for credit or for the session's window.
        credit: Number of messages that the server allows.
        settle_second: The server settles after the client (receiver settle mode second).
        settled: All messages are sent settled.
        durable: Unsettled deliveries are resumed after a lost connection.
        app_owned: The application opened the link; it is attached again after a lost connection.
        resumed: Deliveries of the last connection, to resume first.
    """

    control = False

    session: SessionCore

    def __init__(
        self,
        session: SessionCore,
        name: str,
        target: Checked,
        *,
        settled: bool = False,
        settle_second: bool = False,
        durable: bool = False,
        app_owned: bool = False,
        properties: dict[Symbol, WireValue] | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> None:
        super().__init__(session, name)
        self.target = target
        self.settled = settled
        self.settle_second = settle_second
        self.durable = durable
        self.app_owned = app_owned
        self.queue: deque[Transfer] = deque()
        self.resumed: deque[Transfer] = deque()
        self.credit = 0
        self._properties = properties
        self._capabilities = capabilities
        self._delivery_count = 0
        self._tags = 0
        # The first message in the queue: bytes sent, delivery id, and complete payload.
        self._offset = 0
        self._delivery_id = 0
        self._whole = b""

    @property
    def address(self) -> str | None:
        """The target address; for a dynamic target, the server-assigned one."""
        target = self.remote.target if self.remote is not None else self.target
        found: str | None = getattr(target, "address", None)
        return found

    @property
    def requested_address(self) -> str:
        """The requested address; "" for the anonymous terminus and a dynamic one."""
        return getattr(self.target, "address", None) or ""

    @property
    def description(self) -> str:
        if self.control:
            return "the transaction coordinator"
        return f"the target {self.requested_address!r}" if self.requested_address else "the anonymous or dynamic target"

    def performative(self) -> Attach:
        unsettled: dict[bytes, WireValue] | None = None
        if self.durable:
            unsettled = {transfer.tag: transfer.state for transfer in self.resumed} or None
        mode = constants.SENDER_SETTLE_MODE_SETTLED if self.settled else constants.SENDER_SETTLE_MODE_UNSETTLED
        if self.durable:
            # A resumed delivery that already has its outcome is sent settled.
            mode = constants.SENDER_SETTLE_MODE_MIXED
        return Attach(
            self.name,
            0,
            constants.ROLE_SENDER,
            mode,
            int(self.settle_second),
            self._source(),
            self.target,
            unsettled,
            initial_delivery_count=self._delivery_count,
            properties=self._properties,
            desired_capabilities=self._capabilities,
        )

    def _source(self) -> Source:
        source = Source(self.session.connection.container_id, outcomes=OUTCOMES)
        if self.durable:
            source.durable = constants.TERMINUS_DURABILITY_UNSETTLED_STATE
            source.expiry_policy = constants.TERMINUS_EXPIRY_POLICY_NEVER
        return source

    def on_attached(self, attach: Attach) -> None:
        if self.resumed:
            resume(self, attach.unsettled)

    # Sending

    def publish(self, transfer: Transfer) -> None:
        """Send a message as soon as there is credit."""
        transfer.link = self
        self.queue.append(transfer)
        if self.credit > 0:
            self.pump()

    def pump(self) -> None:
        """Send as many messages as credit and window allow."""
        session = self.session
        queue = self.queue
        output = session.connection.engine.output
        largest = output.max_frame_size - _MAX_HEAD_SIZE
        while queue and self.credit > 0 and session.remote_window > 0:
            transfer = queue[0]
            if transfer.waiter is not None and transfer.waiter.done() and not self._offset:
                # The caller has already seen it fail.
                queue.popleft()
                continue
            if (
                transfer.size > largest
                or transfer.transaction is not None
                or (session.transaction_id is not None and not self.control)
            ):
                if not self._send_in_parts(transfer, largest):
                    return
                queue.popleft()
                continue
            queue.popleft()
            delivery_id = self._begin(transfer)
            session.transferred()
            output.send_transfer(
                session.number, self.handle, delivery_id, transfer.tag, transfer.settled, transfer.payload, transfer.size
            )

    def _begin(self, transfer: Transfer) -> int:
        """Assign a delivery id and tag, and keep the message until it is settled."""
        session = self.session
        delivery_id = session.take_delivery_id()
        if not transfer.tag:
            transfer.tag = _PACK_TAG(self._tags)
            self._tags = (self._tags + 1) & _MASK
        self.credit -= 1
        self._delivery_count = (self._delivery_count + 1) & _MASK
        if not transfer.settled:
            session.unsettled[delivery_id] = transfer
        return delivery_id

    def count_resumed(self) -> None:
        """Count a resumed delivery."""
        self._delivery_count = (self._delivery_count + 1) & _MASK

    def _send_in_parts(self, transfer: Transfer, largest: int) -> bool:
        """Send as many frames as the session's window allows, and return whether the message is complete."""
        session = self.session
        txn_id = transfer.transaction.txn_id if transfer.transaction is not None else session.transaction_id
        if self.control:
            txn_id = None
        state = TransactionalState(txn_id) if txn_id is not None else None
        if not self._offset:
            self._whole = b"".join(transfer.payload)
            self._delivery_id = self._begin(transfer)
        whole = self._whole
        while True:
            end = min(self._offset + largest, len(whole))
            more = end < len(whole)
            if self._offset:
                frame = Performative(self.handle, more=more, payload=whole[self._offset : end], channel=session.number)
            else:
                frame = Performative(
                    self.handle,
                    self._delivery_id,
                    transfer.tag,
                    0,
                    transfer.settled,
                    more,
                    None,
                    state,
                    payload=whole[self._offset : end],
                    channel=session.number,
                )
            session.transferred()
            session.connection.engine.output.send(frame)
            self._offset = end
            if not more:
                self._offset = 0
                self._whole = b""
                return True
            if session.remote_window <= 0:
                return False

    def flow_received(self, flow: Flow) -> None:
        if flow.link_credit is None:
            return
        theirs = self._delivery_count if flow.delivery_count is None else flow.delivery_count
        credit = (theirs + flow.link_credit - self._delivery_count) & _MASK
        self.credit = credit if credit < 1 << 31 else 0
        self.pump()
        if flow.drain and not self.queue:
            self._delivery_count = (self._delivery_count + self.credit) & _MASK
            self.credit = 0
        if flow.drain or flow.echo:
            self.send_flow()

    def send_flow(self) -> None:
        """Send the state of the link."""
        self.session.send_flow(self.handle, self._delivery_count, self.credit, available=len(self.queue))

    # Closing

    def on_finished(self, error: Error | None) -> None:
        """Fail the messages of the link: they will have no outcome."""
        session = self.session
        mine = [(number, transfer) for number, transfer in session.unsettled.items() if transfer.link is self]
        for number, _ in mine:
            del session.unsettled[number]
        for transfer in [*[transfer for _, transfer in mine], *self.resumed, *self.queue]:
            transfer.outcome(None, self._failure(transfer, error))
        self.queue.clear()
        self.resumed.clear()
        # Ends the session if it is the link's own, whose error is less specific.
        session.forget_sender(self)

    def _failure(self, transfer: Transfer, error: Error | None) -> Error:
        if error is None:
            return LinkClosed(f"{self.description} was closed by the application")
        if isinstance(error, NotFound) and not transfer.exchange and not self.app_owned:
            # The address names a queue that does not exist.
            returned = Returned(
                f"the message has no queue: {error}", messages=[transfer.describe()], reply_text=error.reply_text
            )
            returned.condition, returned.info = error.condition, error.info
            return returned
        return copy_error(error)

    def lost(self) -> None:
        self.credit = 0
        self._offset = 0
        self._whole = b""
        super().lost()
