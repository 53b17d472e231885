"""A message received over AMQP 1.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.client.amqp10 import Address, Map, Sequence, Value
from leveret.client.amqp10 import Message as Amqp10Message
from leveret.client.engine.amqp10.messages import decode_body, decode_message
from leveret.client.engine.amqp10.properties import decode_sections
from leveret.client.errors import InvalidMessage
from leveret.client.message import Message
from leveret.client.properties import Properties, PropertyValue
from leveret.wire.amqp0.values import FieldTable
from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Modified, Rejected
from leveret.wire.amqp10.sections import Sections, split
from leveret.wire.amqp10.short import ACCEPTED_STATE, RELEASED_STATE
from leveret.wire.amqp10.transport import Error as Condition
from leveret.wire.amqp10.values import Checked
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.link.receiver import ReceiverCore
    from leveret.client.engine.amqp10.session.session import SessionCore
    from leveret.client.engine.amqp10.transactions import TransactionCore
    from leveret.client.message import AnyTransaction

_EXCHANGE: Final = "x-exchange"
_ROUTING_KEY: Final = "x-routing-key"


T = TypeVar("T")


class Delivery(Message):
    """A `Message` with the attributes of AMQP 1.0. Sections are decoded on access.

    Attributes:
        tag: Delivery tag, chosen by the sender.
        link: Receiver of the delivery.
        payload: Encoded sections.
        payload_size: Size of the encoded sections in bytes.
        state: Outcome; None before the delivery is settled. With `settle_second`, the server's final state.
    """

    __slots__ = ("_sections", "delivery_id", "link", "number", "payload", "payload_size", "state", "tag", "transaction")

    def __init__(
        self, session: SessionCore, link: ReceiverCore, delivery_id: int, tag: bytes, payload: bytes, settled: bool
    ) -> None:
        # Not the constructor of the base class, whose messages are 0-9-1 commands.
        self._channel = session  # type: ignore[assignment]
        self.generation = session.generation
        self._properties: Properties | None = None
        self.settled = settled
        self.message_count: int | None = None
        self._sections: Sections | None = None
        session.received += 1
        self.number = session.received
        self.delivery_id = delivery_id
        self.link = link
        self.tag = tag
        self.payload = payload
        self.payload_size = len(payload)
        self.state: Composite | None = None
        self.transaction: TransactionCore | None = None

    # Content

    @property
    def sections(self) -> Sections:
        """Positions of the sections in `payload`. Raises `InvalidMessage` for a malformed message."""
        if self._sections is None:
            try:
                self._sections = split(self.payload)
            except DecodeError as error:
                raise InvalidMessage(f"received a malformed message: {error}") from error
        return self._sections

    @property
    def body(self) -> bytes:
        """The body as bytes.

        Data sections and binary or text values are returned as bytes, other values and sequences as encoded sections.
        `content` is the body with its type.
        """
        content = self.content
        if isinstance(content, bytes):
            return content
        if isinstance(content, list) and not isinstance(content[0], Sequence):
            return b"".join(part for part in content if isinstance(part, bytes))
        if isinstance(content, Value):
            if type(content.value) is bytes:
                return content.value
            if type(content.value) is str:
                return content.value.encode()
        sections = self.sections
        return self.payload[sections.body : sections.body_end]

    @property
    def content(self) -> bytes | Value | Sequence | list[bytes] | list[Sequence]:
        """The body with its type: bytes, an `amqp10.Value`, an `amqp10.Sequence`, or a list of several sections."""
        try:
            found: bytes | Value | Sequence | list[bytes] | list[Sequence] = decode_body(self.sections)
        except DecodeError as error:
            raise InvalidMessage(f"received a malformed body: {error}") from error
        return found

    @property
    def message(self) -> Amqp10Message:
        """The complete message, decoded."""
        return decode_message(self.sections)

    @property
    def size(self) -> int:
        """Size of `body` in bytes."""
        return len(self.body)

    @property
    def delivery_tag(self) -> int:
        """Number of the delivery on its channel, from 1."""
        return self.number

    @property
    def redelivered(self) -> bool:
        """Whether the message may have been delivered before, or a delivery attempt has failed."""
        sections = self.sections
        return sections.delivery_count > 0 or (
            sections.header >= 0 and not sections.first_acquirer and self.link.session.connection.addresses.form != "plain"
        )

    @property
    def delivery_count(self) -> int:
        """Number of failed delivery attempts."""
        return self.sections.delivery_count

    @property
    def consumer_tag(self) -> str:
        """Tag of the consumer."""
        return self.link.tag

    @property
    def exchange(self) -> str:
        """Exchange of the publish, if the server adds it (annotation `x-exchange`)."""
        return self._annotated(_EXCHANGE)

    @property
    def routing_key(self) -> str:
        """Routing key of the publish, if the server adds it (annotation `x-routing-key`)."""
        return self._annotated(_ROUTING_KEY)

    def _annotated(self, name: str) -> str:
        value = self.annotations.get(name)
        return str(value) if isinstance(value, str) else ""

    @property
    def properties(self) -> Properties:
        """Properties, converted from the sections; see docs/conversion.md."""
        if self._properties is None:
            self._properties = decode_sections(self.sections)
        return self._properties

    @property
    def annotations(self) -> dict[Any, WireValue]:
        """The message annotations."""
        return _as_dict(self._map(sections_of.message_annotations))

    @property
    def delivery_annotations(self) -> dict[Any, WireValue]:
        """The delivery annotations."""
        return _as_dict(self._map(sections_of.delivery_annotations))

    @property
    def application_properties(self) -> dict[str, Any]:
        """The application properties."""
        return _as_dict(self._map(sections_of.application_properties))

    @property
    def footer(self) -> dict[Any, WireValue]:
        """The footer."""
        return _as_dict(self._map(sections_of.footer))

    def _map(self, read: Callable[[Sections], T]) -> T:
        try:
            return read(self.sections)
        except DecodeError as error:
            raise InvalidMessage(f"received a malformed message: {error}") from error

    # Settling

    def accept(self, transaction: AnyTransaction | None = None) -> None:
        """Settle with the outcome accepted: the message was processed."""
        self.settle_as(ACCEPTED_STATE, transaction)

    def release(self, transaction: AnyTransaction | None = None) -> None:
        """Settle with the outcome released: the message was not processed and returns to its place in the queue."""
        self.settle_as(RELEASED_STATE, transaction)

    def modify(
        self,
        *,
        delivery_failed: bool = True,
        undeliverable_here: bool = False,
        annotations: FieldTable | None = None,
        transaction: AnyTransaction | None = None,
    ) -> None:
        """Settle with the outcome modified: the message returns to the queue.

        Args:
            delivery_failed: Count a failed delivery attempt.
            undeliverable_here: Do not deliver the message to this link again.
            annotations: Message annotations to merge.
            transaction: Transaction of the outcome, if any.
        """
        self.settle_as(Modified(delivery_failed or None, undeliverable_here or None, annotations), transaction)

    def reject(
        self,
        requeue: bool = False,
        *,
        condition: str = "",
        description: str = "",
        transaction: AnyTransaction | None = None,
    ) -> None:
        """Settle with the outcome rejected: the message is invalid and is dead-lettered. `requeue` releases it instead."""
        if requeue:
            self.release(transaction)
            return
        error = Condition(condition, description or None) if condition else None
        self.settle_as(Rejected(error), transaction)

    def ack(self, multiple: bool = False) -> None:
        """Accept the delivery; with `multiple`, also all earlier ones of the channel."""
        self._settle_each(multiple, ACCEPTED_STATE)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Return the message to the queue as a failed attempt, or reject it if `requeue` is false."""
        self._settle_each(multiple, self.link.session.requeue_outcome() if requeue else Rejected())

    def _settle_each(self, multiple: bool, state: Composite) -> None:
        if multiple:
            for delivery in self.link.session.unsettled_up_to(self.number):
                if delivery is not self:
                    delivery.settle_as(state, None)
        self.settle_as(state, None)

    def settle_as(self, state: Composite, transaction: AnyTransaction | None) -> None:
        """Settle with this outcome. Raises RuntimeError if the delivery is already settled."""
        self._settle()
        self.state = state
        self.link.session.settle(self, state, transaction.core if transaction is not None else None)

    def settled_by_server(self, state: Composite | None) -> None:
        """Handle the server's settlement: the second one of `settle_second`, or one by the server itself."""
        self.settled = True
        if state is not None:
            self.state = state

    def respond(self, body: bytes | bytearray | memoryview | str, **properties: PropertyValue) -> Any:
        """Publish a response to the message's `reply_to`; see `Message.respond`."""
        reply_to = self._reply_to()
        if not reply_to:
            raise ValueError("cannot respond: the message has no reply_to")
        properties.setdefault("correlation_id", self.properties.correlation_id or self.properties.message_id)
        return self._channel.api_channel.publish(body, Address(reply_to), **properties)

    def _reply_to(self) -> str:
        fields = self._map(sections_of.properties)
        return str(fields.reply_to) if fields is not None and fields.reply_to is not None else ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.delivery_tag}: {self.payload_size} bytes of {self.link.description}>"


def _as_dict(value: Checked) -> dict[Any, WireValue]:
    if value is None:
        return {}
    return {str(key): item for key, item in value.pairs} if isinstance(value, Map) else value
