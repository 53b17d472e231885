"""Interfaces of a channel (a session in AMQP 1.0) and its consumers, for the front ends and the connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leveret.client.engine.common.frontend import Procedure, Waiter
from leveret.client.errors import BatchFailed, Error, NotSupported
from leveret.wire.amqp0.values import FieldMapping

if TYPE_CHECKING:
    from leveret.client.engine.common.batches import Rows
    from leveret.client.engine.common.connection import BaseConnectionCore
    from leveret.client.engine.common.encoding import Encoder
    from leveret.client.engine.common.outgoing import Outgoing
    from leveret.client.message import Message


class BaseConsumerCore(ABC):
    """A consumer: messages that the application has not taken, and waiters for the next message.

    Attributes:
        channel: Channel of the consumer.
        queue: Name of the queue, updated if a server-named queue is renamed by a reconnect.
        tag: Consumer tag.
        messages: Messages that the application has not taken.
        active: The server has started the consumer and it has not ended, even if the connection is lost.
        ended: No more messages will arrive. `error` is the cause; None if the client cancelled the consumer.
    """

    __slots__ = ("active", "ended", "error", "queue", "tag")

    queue: str
    tag: str
    active: bool
    ended: bool
    error: Error | None

    if TYPE_CHECKING:

        @property
        def channel(self) -> BaseChannelCore: ...

        @property
        def messages(self) -> Sequence[Message]: ...

    @abstractmethod
    def clone(self) -> BaseConsumerCore:
        """Return an equal consumer that has not started and has no tag."""

    @abstractmethod
    def count_bytes(self) -> None:
        """Pause the connection while too many bytes are buffered, even with a prefetch limit."""

    @abstractmethod
    def begin(self) -> Waiter:
        """Start the consumer; the result is None."""

    @abstractmethod
    def withdraw(self) -> Waiter:
        """Cancel the consumer; the result is None. Messages that the application has not taken are requeued."""

    @abstractmethod
    def abandon(self) -> None:
        """Cancel the consumer without waiting, even if it has not started or its connection is lost."""

    @abstractmethod
    def take(self) -> Message:
        """Return the next message. Raises IndexError if there is none."""

    @abstractmethod
    def message_waiter(self) -> Waiter:
        """Return a waiter for a message or the end of the consumer."""

    @abstractmethod
    def end(self, error: Error | None) -> None:
        """End the consumer. Messages that have arrived can still be taken before `error` is raised."""


class RepliesCore(ABC):
    """Pending requests of a channel."""

    __slots__ = ()

    @abstractmethod
    def await_answer(self, correlation_id: str) -> Waiter:
        """Return a waiter for the reply with that correlation id."""

    @abstractmethod
    def forget_request(self, correlation_id: str) -> None:
        """Forget a request, whose reply will be dropped."""


class Operations(ABC):
    """Operations that declare, bind and delete. The topology is updated when the reply arrives."""

    __slots__ = ()

    @abstractmethod
    def declare_queue(
        self, name: str, durable: bool, exclusive: bool, auto_delete: bool, passive: bool, arguments: FieldMapping | None
    ) -> Waiter:
        """Declare a queue; the result is the `DeclaredQueue`, its message count and its consumer count."""

    @abstractmethod
    def delete_queue(self, name: str) -> Waiter:
        """Delete a queue; the result is the number of deleted messages."""

    @abstractmethod
    def purge_queue(self, name: str) -> Waiter:
        """Purge a queue; the result is the number of removed messages."""

    @abstractmethod
    def declare_exchange(
        self, name: str, type: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldMapping | None
    ) -> Waiter:
        """Declare an exchange; the result is None."""

    @abstractmethod
    def delete_exchange(self, name: str) -> Waiter:
        """Delete an exchange; the result is None."""

    @abstractmethod
    def bind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        """Bind a queue or an exchange; the result is None."""

    @abstractmethod
    def unbind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        """Remove a binding; the result is None."""


class BaseChannelCore(ABC):
    """One channel. It survives the loss of its connection.

    Attributes:
        connection: Connection of the channel.
        number: Channel number.
        opened: The channel is open on the wire.
        error: Cause of the close, if the channel is closed for good.
        confirms: Publishes are confirmed.
        transactional: Publishes and acknowledgements take effect on commit.
        flowing: Publishes may be sent now.
        generation: Counts the events that invalidate deliveries, such as a lost connection.
        api_channel: The application's channel object.
        consumers: Consumers by their key on the wire.
    """

    __slots__ = ("api_channel", "confirms", "error", "flowing", "generation", "number", "opened", "transactional")

    number: int
    opened: bool
    error: Error | None
    confirms: bool
    transactional: bool
    flowing: bool
    generation: int
    api_channel: Any

    if TYPE_CHECKING:

        @property
        def connection(self) -> BaseConnectionCore: ...

        @property
        def consumers(self) -> Mapping[Any, BaseConsumerCore]: ...

    @property
    @abstractmethod
    def operations(self) -> Operations:
        """Operations that declare, bind and delete."""

    @property
    @abstractmethod
    def expecting(self) -> bool:
        """Whether a caller waits for the server."""

    @abstractmethod
    def new_encoder(self) -> Encoder:
        """Return a new encoder of publishes."""

    # Opening and closing

    @abstractmethod
    def open(self) -> Procedure:
        """Open the channel on the wire, for the first time or again (a procedure).

        Raises the error of a connection that was lost, which can happen between two steps of a procedure.
        """

    @abstractmethod
    def close(self) -> Procedure:
        """Close the channel; pending calls fail (a procedure)."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the channel without waiting for the reply; if it is not open, only free its number."""

    @abstractmethod
    def lost(self, error: Error, recoverable: bool) -> None:
        """Handle the loss of the connection. Calls fail at once; publishes and consumers wait for the next one, if any."""

    # Publishing

    @abstractmethod
    def update_flow(self) -> None:
        """Update `flowing`, and wake the callers that wait for it."""

    @abstractmethod
    def flow_waiter(self) -> Waiter:
        """Return a waiter for permission to publish. Raises the error of a channel that is closed for good."""

    @abstractmethod
    def blocked_reason(self) -> str:
        """Return the reason why publishes wait, for timeout messages."""

    @abstractmethod
    def publish(self, outgoing: Any) -> None:
        """Send a publish made by the channel's encoder; `flowing` must be true.

        It is settled by its confirm, or now on a channel without confirms.

        Raises:
            InvalidMessage: The message exceeds a limit of the connection.
        """

    @property
    def batches(self) -> bool:
        """Whether the server accepts record batches on this channel, once the connection is open."""
        return False

    def encode_batch(self, rows: Rows, first: int, stop: int, flags: int) -> Outgoing:
        """Return a record batch of the rows from `first` up to `stop` (exclusive).

        Raises:
            InvalidMessage: An address cannot be encoded.
        """
        raise NotSupported("the channel has no record batches")

    def read_report(self, error: Error) -> BatchFailed | None:
        """Return the numbers of the rows in the error of a record batch; None if it has none."""
        return error if isinstance(error, BatchFailed) else None

    # Consuming

    @abstractmethod
    def get(self, queue: str, no_ack: bool) -> Waiter:
        """Get a message; the result is a message or None."""

    @abstractmethod
    def set_active(self, active: bool) -> Waiter:
        """Pause or resume deliveries; the result is None."""

    # Requests

    @abstractmethod
    def reply_to_waiter(self) -> Waiter | None:
        """Return a waiter for `reply_to` to be known; None if it is."""

    @property
    @abstractmethod
    def reply_to(self) -> str:
        """The address for replies."""

    @abstractmethod
    def ensure_reply_consumer(self) -> RepliesCore:
        """Return the consumer of replies, and start it if necessary."""

    # Transactions

    @abstractmethod
    def transaction(self, name: str) -> Waiter:
        """Run `tx.commit` or `tx.rollback`.

        Raises:
            TransactionLost: A commit of work that was lost with its connection.
        """

    @abstractmethod
    def forget_transaction(self) -> None:
        """Accept that the transaction was rolled back with its connection."""
