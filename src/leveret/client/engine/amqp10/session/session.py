"""A session: its links, publishing by exchange and routing key, consumers of queues, gets, and settling."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.client.amqp10 import no_local as no_local_filter
from leveret.client.engine.amqp10.conditions import publish_error
from leveret.client.engine.amqp10.link import batches
from leveret.client.engine.amqp10.link.outgoing import Amqp10Encoder, Transfer
from leveret.client.engine.amqp10.link.receiver import Getter, ReceiverCore
from leveret.client.engine.amqp10.link.replies import Replies
from leveret.client.engine.amqp10.link.sender import OUTCOMES, SenderCore
from leveret.client.engine.amqp10.management.operations import Amqp10Operations
from leveret.client.engine.amqp10.session.wire_session import WireSession
from leveret.client.engine.amqp10.transactions import ChannelTransactions, TransactionCore
from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.frontend import Procedure, Waiter
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import (
    BatchFailed,
    ChannelClosed,
    Error,
    InvalidMessage,
    LinkClosed,
    TransactionLost,
    copy_error,
)
from leveret.wire import record_batches
from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Modified, Source, Target
from leveret.wire.amqp10.short import RELEASED_STATE
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.values import Int, Symbol
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore
    from leveret.client.engine.common.batches import Rows

# Maximum number of links for publishes and for gets per channel.
MAX_SENDERS: Final = 64
MAX_GETTERS: Final = 16
# Number of unconfirmed messages waiting for credit above which `publish` blocks, and below which it resumes.
QUEUE_HIGH: Final = 1000
QUEUE_LOW: Final = 250
_PRIORITY: Final = "rabbitmq:priority"


class SessionCore(WireSession, BaseChannelCore):
    """A session of the application.

    Attributes:
        internal: The session is not recovered with its connection.
        link_scoped: The session closes with its link.
        app_senders: Senders that the application opened.
        received: Number of deliveries so far.
    """

    connection: Amqp10ConnectionCore
    consumers: dict[ReceiverCore, ReceiverCore]

    def __init__(
        self, connection: Amqp10ConnectionCore, number: int, confirms: bool, transactional: bool, internal: bool = False
    ) -> None:
        super().__init__(connection, number)
        self.internal = internal
        self.link_scoped = False
        self.confirms = confirms
        self.transactional = transactional
        self.api_channel = None
        self.flowing = False
        self.error = None
        self.generation = 0
        self.received = 0
        self.consumers = {}
        self.replies: Replies | None = None
        self.app_senders: list[SenderCore] = []
        self._senders: dict[str, SenderCore] = {}
        self._getters: dict[tuple[str, bool], Getter] = {}
        self._flow = Waiters(connection.frontend)
        self._full = False
        self._published = 0
        self._again: list[Transfer] = []
        self._transactions = ChannelTransactions(self) if transactional else None

    @property
    def operations(self) -> Amqp10Operations:
        return Amqp10Operations(self)

    def new_encoder(self) -> Amqp10Encoder:
        return Amqp10Encoder(self.connection.addresses)

    @property
    def batches(self) -> bool:
        properties = self.connection.server_properties
        return not self.transactional and properties.get(record_batches.SERVER_PROPERTY) == record_batches.ADDRESS

    def encode_batch(self, rows: Rows, first: int, stop: int, flags: int) -> Transfer:
        return batches.encode_batch(rows, first, stop, flags)

    def read_report(self, error: Error) -> BatchFailed | None:
        return batches.read_report(error)

    @property
    def expecting(self) -> bool:
        """Whether a caller waits for the server."""
        return (
            bool(self.unsettled)
            or any(getter.expecting for getter in self._getters.values())
            or (self.replies is not None and self.replies.expecting)
        )

    def _check_open(self) -> None:
        if not self.opened:
            raise copy_error(self.not_open_error())

    def not_open_error(self) -> Error:
        """Return the error for a call on a session that is not open."""
        return self.error or self.connection.not_open_error()

    # Opening and closing

    def open(self) -> Procedure:
        """Begin the session on the wire, for the first time or again (a procedure)."""
        if self.connection.is_lost or self.connection.is_closed:
            raise copy_error(self.connection.last_error)
        self.generation += 1
        self._full = False
        yield self.begin()
        if self._transactions is not None:
            yield from self._transactions.begin()
        self.update_flow()

    def close(self) -> Procedure:
        """End the session; pending calls fail (a procedure)."""
        closed = ChannelClosed("the channel was closed by the application")
        if not self.opened:
            if self.error is None:
                self.ended(closed, consumers_error=False)
            if not self.ending:
                self.connection.forget_session(self)
            return
        waiter = self.end()
        self.ended(closed, consumers_error=False)
        yield waiter

    def abandon(self) -> None:
        """End the session without waiting for the reply; if it is not open, only free its number."""
        if self.opened:
            self.end()
        elif not self.ending:
            self.connection.forget_session(self)
        if self.error is None:
            self.ended(ChannelClosed("the channel was abandoned by the application"))

    def ended_by_peer(self, error: Error) -> None:
        self.ended(error)

    def lost(self, error: Error, recoverable: bool) -> None:
        """Handle the loss of the connection. Calls fail at once; publishes and consumers wait for the next one, if any."""
        self.flowing = False
        if not recoverable or self.internal:
            self.ended(error)
            self.connection.forget_session(self)
            return
        if self.error is not None:
            # It was being closed.
            self.connection.forget_session(self)
            return
        if self._transactions is not None:
            self._transactions.connection_lost()
        self._keep_unsettled(error)
        self.connection_lost(error)
        if self.replies is not None:
            self.replies.fail(error)
            self.replies = None
        self._flow.wake()

    def ended(self, error: Error, consumers_error: bool = True) -> None:
        """Close the session for good."""
        self.opened = self.flowing = False
        if self.error is None:
            self.error = copy_error(error)
        if self._transactions is not None:
            self._transactions.connection_lost()
        for consumer in list(self.consumers.values()):
            if not consumers_error:
                consumer.begin_cancelling()
        consumers = list(self.consumers.values())
        self.finish(error)
        for consumer in consumers:
            # Consumers of a connection that was lost before have no handle.
            consumer.finish(error)
        for sender in [*self._senders.values(), *self.app_senders]:
            sender.finish(error)
        unsettled, self.unsettled = self.unsettled, {}
        for transfer in [*unsettled.values(), *self._again]:
            transfer.outcome(None, copy_error(error))
        self._again = []
        if self.replies is not None:
            self.replies.fail(error)
        self._flow.wake(error)

    # Publishing

    def update_flow(self) -> None:
        """Update `flowing`, and wake the callers that wait for it."""
        self.flowing = self.opened and self.connection.flowing and not self._full
        if self.flowing:
            self._flow.wake()

    def flow_waiter(self) -> Waiter:
        """Return a waiter for permission to publish. Raises the error of a channel that is closed for good."""
        if self.error is not None:
            raise copy_error(self.error)
        return self._flow.new()

    def blocked_reason(self) -> str:
        """Return the reason why publishes wait, for timeout messages."""
        if not self.connection.opened:
            return "there is no connection"
        return "the server grants no credit" if self._full else "the socket's write buffer is full"

    def publish(self, outgoing: Transfer) -> None:
        """Send a publish, a `Transfer`; `flowing` must be true.

        Raises:
            InvalidMessage: The message exceeds the server's maximum size.
            Error: The sender is closed.
        """
        link: SenderCore | None = outgoing.link
        if link is None:
            link = self._senders.get(outgoing.target) or self._new_sender(outgoing.target)
        elif link.finished:
            raise copy_error(link.error or LinkClosed(f"{link.description} was closed by the application"))
        limit = link.remote.max_message_size if link.remote is not None else None
        if limit and outgoing.size > limit:
            raise InvalidMessage(f"the message takes {outgoing.size} bytes; {link.description} accepts at most {limit}")
        if outgoing.transaction is not None:
            outgoing.transaction.check()
            outgoing.transaction.posted()
        transactions = self._transactions
        outgoing.settled = link.settled or not (self.confirms or self.transactional or outgoing.transaction is not None)
        if transactions is not None:
            if transactions.deferred is not None:
                transactions.deferred.append(partial(self._send, link, outgoing))
                outgoing.settle(None)
                return
            transactions.use()
        self._send(link, outgoing)
        if outgoing.settled or transactions is not None:
            outgoing.settle(None)

    def _send(self, link: SenderCore, outgoing: Transfer) -> None:
        if self._transactions is not None:
            self._transactions.use()
        self._published += 1
        outgoing.number = self._published
        if link.finished:
            self.on_failed(outgoing, link.error or LinkClosed(f"{link.description} was closed"))
            return
        link.publish(outgoing)
        if outgoing.settled and len(link.queue) > QUEUE_HIGH and not self._full:
            self._full = True
            self.update_flow()
        connection = self.connection
        if connection.paused:
            connection.ensure_reading()
        connection.frontend.flush_soon()

    def _new_sender(self, target: str) -> SenderCore:
        if len(self._senders) >= MAX_SENDERS:
            for address, sender in list(self._senders.items()):
                if not sender.queue and not any(transfer.link is sender for transfer in self.unsettled.values()):
                    del self._senders[address]
                    sender.detach(True)
                    break
        sender = SenderCore(self, self.connection.new_name(), Target(target))
        self._senders[target] = sender
        sender.attach()
        return sender

    def are_sent(self, target: str) -> bool:
        """Return whether all publishes to this address are sent."""
        sender = self._senders.get(target)
        return sender is not None and sender.credit > 0 and not sender.queue

    def forget_sender(self, sender: SenderCore) -> None:
        """Remove a sender that has ended."""
        for address, other in list(self._senders.items()):
            if other is sender:
                del self._senders[address]
        if sender in self.app_senders:
            self.app_senders.remove(sender)
        if self.link_scoped and self.opened:
            self.abandon()

    def on_outcome(self, transfer: Transfer, state: Composite | None) -> None:
        error = (
            publish_error(state, transfer.describe())
            if state is not None and state.kind not in (descriptors.ACCEPTED, descriptors.DECLARED)
            else None
        )
        if (
            state is not None
            and state.kind == descriptors.RELEASED
            and transfer.exchange
            and not transfer.mandatory
            and self.connection.addresses.is_routing
        ):
            # No queue took it, and the publish is not mandatory.
            error = None
        if error is not None:
            self.on_failed(transfer, error, state)
        else:
            transfer.outcome(state, None)
        if transfer.transaction is not None:
            transfer.transaction.answered()
        if self._transactions is not None:
            self._transactions.try_discharge()

    def on_failed(self, transfer: Transfer, error: Error, state: Composite | None = None) -> None:
        """Fail a message, and the transaction that it belongs to."""
        if self._transactions is not None:
            self._transactions.failed(error)
        transfer.outcome(state, error)

    @property
    def is_sending(self) -> bool:
        """Whether a message has no outcome yet, apart from those to the coordinator."""
        return any(
            not isinstance(transfer.link, SenderCore) or not transfer.link.control for transfer in self.unsettled.values()
        ) or any(sender.queue for sender in [*self._senders.values(), *self.app_senders])

    def pump(self) -> None:
        super().pump()
        if self._full and all(len(sender.queue) < QUEUE_LOW for sender in self._senders.values()):
            self._full = False
            self.update_flow()
        if self._transactions is not None:
            self._transactions.try_discharge()

    # Pending confirms of a lost connection

    def _keep_unsettled(self, error: Error) -> None:
        """Classify the messages without an outcome: publish again, resume by their link, or fail."""
        transfers = list(self.unsettled.values())
        for sender in [*self._senders.values(), *self.app_senders]:
            transfers.extend(sender.queue)
            sender.queue.clear()
        self.unsettled = {
            number: transfer
            for number, transfer in self.unsettled.items()
            if isinstance(transfer.link, SenderCore) and transfer.link.control
        }
        for transfer in transfers:
            link = transfer.link
            if link is not None and link.control:
                continue
            if transfer.transaction is not None or self.transactional:
                transfer.outcome(None, TransactionLost("the connection was lost during the transaction"))
                if transfer.transaction is not None:
                    transfer.transaction.answered()
            elif transfer.at_most_once:
                transfer.outcome(None, error)
            elif link is not None and link.app_owned and link.durable and transfer.tag:
                link.resumed.append(transfer)
            else:
                transfer.tag = b""
                if link is not None and not link.app_owned:
                    transfer.link = None
                self._again.append(transfer)
        for sender in list(self._senders.values()):
            sender.closing = True
        self._senders.clear()

    def republish(self) -> int:
        """Publish the unconfirmed messages of the lost connection again, in order, and return their number."""
        again, self._again = sorted(self._again, key=lambda transfer: transfer.number), []
        count = 0
        for transfer in again:
            if transfer.waiter is not None and transfer.waiter.done():
                continue
            try:
                self.publish(transfer)
                count += 1
            except Error as error:
                transfer.outcome(None, error)
        return count

    # Consuming

    def new_consumer(self, queue: str, prefetch: int, no_ack: bool, no_local: bool, priority: int | None) -> ReceiverCore:
        """Return a consumer of a queue that has not started."""
        source = Source(self.connection.addresses.of_queue(queue), outcomes=OUTCOMES, default_outcome=Modified(True))
        if no_local:
            filter = no_local_filter()
            source.filter = {Symbol(str(filter.descriptor)): filter.described()}
        properties: dict[Symbol, WireValue] | None = None if priority is None else {Symbol(_PRIORITY): Int(priority)}
        return ReceiverCore(self, queue, source, prefetch, settled=no_ack, properties=properties)

    def consume(self, consumer: ReceiverCore) -> Waiter:
        """Attach a consumer; the result is None."""
        self._check_open()
        if not consumer.tag:
            consumer.tag = self.connection.new_name()
        if not consumer.name:
            # Link names must be unique per connection; tags are unique per channel.
            consumer.name = f"{consumer.tag}.{self.number}"
        if consumer.source.address is not None and not consumer.durable and consumer.queue:
            consumer.source.address = self.connection.addresses.of_queue(consumer.queue)
        self.consumers[consumer.key] = consumer
        try:
            consumer.attach()
        except Error:
            del self.consumers[consumer.key]
            raise
        return consumer.attach_waiter()

    def cancel(self, consumer: ReceiverCore) -> Waiter:
        """Detach a consumer. Messages that the application has not taken are released, including later arrivals."""
        consumer.cancel()
        if not consumer.closing:
            # The link stays attached until the messages taken from it are settled.
            self.consumers.pop(consumer.key, None)
            consumer.end(None)
            waiter: Waiter = self.connection.frontend.new_waiter()
            waiter.set_result(None)
            return waiter
        return consumer.detach_waiter()

    def cancel_nowait(self, consumer: ReceiverCore) -> None:
        """Cancel a consumer without waiting, even if it has not started or its connection is lost."""
        if self.opened and consumer.handle >= 0:
            consumer.cancel()
            if not consumer.closing:
                consumer.detach(True)
        else:
            consumer.begin_cancelling()
            consumer.drop_messages()
            consumer.finish(None)

    def forget_receiver(self, receiver: ReceiverCore) -> None:
        """Remove a receiver that has ended."""
        if self.consumers.pop(receiver.key, None) is not None and receiver is not self.replies:
            self.connection.consumer_removed(receiver.queue)
        if receiver is self.replies:
            self.replies = None
        if self.link_scoped and self.opened:
            self.abandon()

    def set_active(self, active: bool) -> Waiter:
        """Pause or resume deliveries, by credit."""
        self._check_open()
        for consumer in self.consumers.values():
            consumer.stop(not active)
        waiter: Waiter = self.connection.frontend.new_waiter()
        waiter.set_result(None)
        return waiter

    def get(self, queue: str, no_ack: bool) -> Waiter:
        """Get a message; the result is a message or None."""
        self._check_open()
        key = (queue, no_ack)
        getter = self._getters.get(key)
        if getter is None:
            for other, idle in list(self._getters.items()):
                if len(self._getters) >= MAX_GETTERS and idle.idle:
                    del self._getters[other]
                    idle.detach(True)
            source = Source(self.connection.addresses.of_queue(queue), outcomes=OUTCOMES, default_outcome=Modified(True))
            getter = self._getters[key] = Getter(self, queue, source, no_ack, self.connection.new_name())
            getter.attach()
        return getter.get()

    def forget_getter(self, getter: Getter) -> None:
        """Remove a getter that has ended."""
        for key, other in list(self._getters.items()):
            if other is getter:
                del self._getters[key]

    # Requests

    def reply_to_waiter(self) -> Waiter | None:
        """Return a waiter for `reply_to` to be known; None if it is."""
        self._check_open()
        replies = self.ensure_reply_consumer()
        return None if replies.attached else replies.attach_waiter()

    @property
    def reply_to(self) -> str:
        """The address for replies."""
        replies = self.ensure_reply_consumer()
        return replies.address

    def ensure_reply_consumer(self) -> Replies:
        """Return the link that receives replies."""
        if self.replies is None or self.replies.finished:
            self.replies = Replies(self, self.connection.new_name())
            self.replies.attach()
        return self.replies

    # Settling. Messages of a lost connection are delivered again, so settling them does nothing.

    def settle(self, delivery: Delivery, state: Composite, transaction: TransactionCore | None) -> None:
        """Settle a delivery, in a transaction if there is one."""
        if self.error is not None:
            raise copy_error(self.error)
        transactions = self._transactions
        if transactions is not None and transactions.deferred is not None:
            transactions.deferred.append(partial(self.settle, delivery, state, None))
            return
        if not self.opened or delivery.generation != self.generation or delivery.delivery_id not in self.deliveries:
            if transactions is not None:
                transactions.use()
            return
        if transaction is not None:
            transaction.check()
            transaction.retired(delivery)
            self.send_outcome(delivery.delivery_id, TransactionalState(transaction.txn_id, state), False)
        elif transactions is not None:
            transactions.use()
            transactions.retired(delivery)
            self.send_outcome(delivery.delivery_id, TransactionalState(self.transaction_id, state), False)
        elif delivery.link.settle_second:
            self.send_outcome(delivery.delivery_id, state, False)
        else:
            self.send_outcome(delivery.delivery_id, state, True)
            self.settled(delivery)

    def requeue_outcome(self) -> Composite:
        """Return the outcome of a failed attempt. RabbitMQ 3 does not support modified."""
        return RELEASED_STATE if self.connection.addresses.form == "v1" else Modified(True)

    def settled(self, delivery: Delivery) -> None:
        """Handle a delivery that is settled on both sides, or that the server need not settle."""
        if delivery.generation == self.generation and self.deliveries.pop(delivery.delivery_id, None) is not None:
            link = delivery.link
            link.delivery_settled()
            if link.cancelling:
                link.detach_if_settled()

    def unsettled_up_to(self, number: int) -> list[Delivery]:
        """Return the unsettled deliveries up to this number, in order."""
        return [delivery for delivery in self.deliveries.values() if delivery.number <= number and not delivery.settled]

    # Transactions

    def transaction(self, name: str) -> Waiter:
        """Commit or roll back.

        Raises:
            TransactionLost: A commit of work that was lost with its connection.
        """
        self._check_open()
        transactions = self._transactions
        if transactions is None:
            raise RuntimeError("the channel has no transactions; open it with channel(transactional=True)")
        fail = name != "tx.commit"
        if transactions.take_lost() and not fail:
            transactions.discharge(True)
            raise TransactionLost("the connection was lost during the transaction: none of it took effect")
        waiter: Waiter = transactions.discharge(fail)
        return waiter

    def forget_transaction(self) -> None:
        """Accept that the transaction was rolled back with its connection."""
        if self._transactions is not None:
            self._transactions.forget()
