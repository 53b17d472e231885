"""Channels of 0-9: tickets, resumption, and the state of the content classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import StoredBody
from leveret.broker.consumer import Client
from leveret.broker.message import FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09, Entry, Message
from leveret.broker.routing import Route
from leveret.protocols.amqp09.channel.consumers import publisher_of
from leveret.protocols.amqp09.channel.dtx import DtxSession
from leveret.protocols.amqp09.contents.files import Files
from leveret.protocols.amqp09.contents.messages import Messages
from leveret.protocols.amqp09.contents.streams import Pace
from leveret.protocols.amqp09.realms import WRITE, Tickets
from leveret.protocols.amqp091.channel.channel import Channel as Channel091
from leveret.protocols.amqp091.content import MAX_EXPIRATION
from leveret.wire.amqp0.classes import BASIC, FILE, STREAM, class_of
from leveret.wire.amqp0.commands import TICKET_SHIFT, ContentMethod, Method, Publish
from leveret.wire.record_batches import ADDRESS_PREFIX

if TYPE_CHECKING:
    from leveret.protocols.amqp09.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")

# An expiration that is a point in time has fewer digits.
MAX_DIGITS: Final = 16
_FLAGS: Final = (1 << TICKET_SHIFT) - 1
# Return methods by class; class message uses message.reject instead.
_RETURNS: Final = {FILE: "file.return", STREAM: "stream.return"}


class Channel(Channel091):
    """One channel.

    The last three attributes describe the current method if methods are sent in requests and responses;
    otherwise they are 0.

    Attributes:
        id: the channel-id in channel.open-ok, for channel.resume.
        opened_on: the connection of the channel.
        pace: limits set by stream.qos.
        recovers: whether basic.recover was received while the client had paused deliveries by channel.flow. It is
            performed when they resume.
        method: the method that is being performed; None between methods.
        request: id of the request. A deferred reply names it.
        replied_first: first of the broker's requests that the method replies to.
        replied_last: last of these. The range may contain millions of ids, so iterate over the pending requests, not over
            the range.
    """

    def __init__(self, connection: BaseConnection, number: int, id: str) -> None:
        super().__init__(connection, number)
        self.format = FORMAT_BASIC_AMQP09
        self.publisher = publisher_of(connection, BASIC)
        self.id = id
        self.recovers = False
        self.method: Method | None = None
        self.request = 0
        self.replied_first = 0
        self.replied_last = 0
        self.opened_on = connection
        self.files = Files(self)
        self.pace: Pace | None = None
        self.messages = Messages(self)
        self.dtx: DtxSession | None = None
        self.tickets = Tickets(connection.realms, connection.user, self, connection.tickets)

    def publish(self, command: Publish) -> None:
        ticket = command.flags >> TICKET_SHIFT
        if ticket or self.tickets.required:
            address = command.address
            if not address.startswith(ADDRESS_PREFIX):
                command.flags &= _FLAGS
                self._check_ticket(ticket, address)
        Channel091.publish(self, command)

    def check_row(self, ticket: int, address: bytes) -> None:
        if ticket or self.tickets.required:
            self._check_ticket(ticket, address)

    def _check_ticket(self, ticket: int, address: bytes) -> None:
        """Check that a ticket permits publishing to the exchange of an address."""
        self.tickets.check(ticket, WRITE, address[1 : 1 + address[0]].decode("utf-8", "surrogateescape"))

    def tag_owner(self, tag: str) -> Channel091 | None:
        """Return the channel that has the consumer with this tag."""
        return self if tag in self.consumers.by_tag else self.opened_on.tag_owner(tag)

    def expiry(self, expiration: bytes) -> int:
        # Old Qpid clients send an empty string or 0 if there is no expiration.
        if not expiration or (expiration == b"0" and self.opened_on.is_qpid_client()):
            return 0
        # Qpid clients send a point in time, in milliseconds since 1970, instead of a time to live. Times after 1980 exceed
        # the maximum time to live, which distinguishes them.
        if len(expiration) < MAX_DIGITS and expiration.isdigit() and int(expiration) > MAX_EXPIRATION:
            return int(expiration)
        return Channel091.expiry(self, expiration)

    def excludes_rejecting_channel(self) -> bool:
        return True  # rule basic.reject.requeue.01

    def send_return(self, message: Message, code: int, text: str) -> None:
        name = _RETURNS.get(class_of(message.header)) if message.format == FORMAT_CLASS_AMQP09 else None
        if name is None:
            Channel091.send_return(self, message, code, text)
            return
        self.send_content(
            name,
            {"reply_code": code, "reply_text": text, "exchange": message.exchange, "routing_key": message.routing_key},
            message.header,
            message,
        )

    def begin_method(self, command: Method) -> None:
        """Note a method and its ids before it is performed."""
        self.method = command
        self.request = command.request
        self.replied_first = command.replied_first
        self.replied_last = command.replied_last

    def end_method(self) -> None:
        """Forget a method that was performed."""
        self.method = None

    def write_ahead(self, route: Route, message: Message, use: Callable[[StoredBody], None]) -> bool:
        """Write a large message to the log, pass its new body to `use`, and perform the current method again.

        Returns:
            Whether the method must wait; False if the message can be published now.
        """
        command = self.method
        return (
            command is not None
            and message.persistent
            and self.perform_again_with(command, route, message.header, message.body, use)
        )

    def recover_when_active(self) -> None:
        """Perform a basic.recover when the client resumes deliveries."""
        self.recovers = True

    def take_recovers(self) -> bool:
        """Return whether a basic.recover is due since the last call."""
        recovers = self.recovers
        self.recovers = False
        return recovers

    def select_dtx(self, demarcated: bool) -> None:
        """Prepare the channel for distributed transactions."""
        self.dtx = DtxSession(self, demarcated)

    def set_in_branch(self, inside: bool) -> None:
        """Enter or leave a branch. Inside, publishes and acknowledgements belong to the transaction."""
        self.set_transacted(inside)

    def own_pace(self) -> Pace:
        """Return the limits set by stream.qos for this channel."""
        if self.pace is None:
            self.pace = Pace({self.number: self})
        return self.pace

    # Class file

    def begin_stage(self, method: ContentMethod) -> None:
        self.body.begin(self.files.begin(method))

    def grow_transaction(self, size: int) -> None:
        Channel091.grow_transaction(self, size)
        if self.dtx is not None:
            self.vhost.branches.check_room(self.transaction.size)

    def transaction_kind(self) -> str:
        return "tx" if self.dtx is None else "dtx"

    def transaction_ended(self, committed: bool) -> None:
        self.files.transaction_ended(committed)
        self.messages.transaction_ended(committed)

    def outstanding(self) -> int:
        return Channel091.outstanding(self) + len(self.files.opens) + self.messages.incomplete

    def all_unacked(self) -> list[Entry]:
        return Channel091.all_unacked(self) + self._transfers()

    def unacked_pieces(self) -> Iterator[list[Entry]]:
        yield self._transfers()
        yield from Channel091.unacked_pieces(self)

    def _transfers(self) -> list[Entry]:
        """Return the entries of class file and class message that are being transferred."""
        opens = [opened.entry for opened in self.files.opens]
        return opens + [transfer.entry for transfer in self.messages.in_flight()]

    def requeuing_all(self) -> Iterator[int]:
        for requeue_pending in (self.files.requeue_pending, self.messages.requeue_pending):
            try:
                requeue_pending()
            except Exception:  # requeue the rest nevertheless
                logger.exception("%s: channel %d failed to requeue deliveries", self.connection.peer.subject, self.number)
        yield from Channel091.requeuing_all(self)

    # Interruption

    def release_exclusive(self, queue: str) -> None:
        """Release an exclusive queue that a lost connection of the same user still owns."""
        self.vhost.remove_orphan(queue)
        self.opened_on.shared.interrupted.release_exclusive(self.opened_on.user, self.vhost.queues.get(queue))

    def interrupt(self) -> None:
        """Handle the loss of the connection: the channel may be resumed on another one.

        Its consumers keep their unacknowledged deliveries. Incomplete contents, staging in both directions and queued
        commands are dropped.
        """
        self.body.drop()
        self.backlog.clear()
        self.files.interrupt()
        self.messages.interrupt()

    def move(self, connection: BaseConnection, number: int) -> None:
        """Move the channel to the connection that resumes it."""
        self.messages.interrupt()
        if self.connection.engine.uses_requests or connection.engine.uses_requests:
            self.messages.forget_requests()
        self.connection = connection
        self.opened_on = connection
        self.number = number
        self.client = Client(connection.peer.name, number, connection.user)
        self.publisher = publisher_of(connection, BASIC)
        self.tickets.move(connection.tickets)
        for consumer in self.consumers.by_tag.values():
            consumer.move(connection)
        # The new connection has not been asked to pause.
        self.pause = None
        if self.files.full:
            self.ask_to_pause()
        self.set_counted()
        self.window.move()
        self.update_window()

    def close(self, done: Callable[[], None] | None = None) -> None:
        try:
            if not self.closing:
                self.opened_on.shared.interrupted.closed(self)
                self.tickets.close()
                self.files.close()
                if self.pace is not None:
                    self.pace.close(self.broker.timers)
                self.messages.close()
                if self.dtx is not None:
                    self.dtx.close()
        finally:
            Channel091.close(self, done)
