"""A channel of 0-9: tickets, an identity that can be resumed, and what its classes differ in from 0-9-1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.message import FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09, Entry, Message
from leveret.protocols.amqp09.channel.consumers import publisher_of
from leveret.protocols.amqp09.contents.files import Files
from leveret.protocols.amqp09.contents.messages import Messages
from leveret.protocols.amqp09.contents.streams import Pace
from leveret.protocols.amqp09.realms import WRITE, Tickets
from leveret.protocols.amqp091.channel.channel import Channel as Channel091
from leveret.protocols.amqp091.content import MAX_EXPIRATION
from leveret.protocols.ingress_throttle import ALARM
from leveret.wire.amqp0.classes import BASIC, FILE, STREAM, class_of
from leveret.wire.amqp0.commands import TICKET_SHIFT, ContentMethod, Publish

if TYPE_CHECKING:
    from leveret.protocols.amqp09.channel.dtx import DtxSession
    from leveret.protocols.amqp09.connection.base import BaseConnection

log = logging.getLogger("leveret.connection")

# Of an expiration that is a point in time.
MAX_DIGITS: Final = 16
_FLAGS: Final = (1 << TICKET_SHIFT) - 1
# By class; messages of class message are returned by its own means.
_RETURNS: Final = {FILE: "file.return", STREAM: "stream.return"}


class Channel(Channel091):
    """One channel. `id` is what channel.open-ok says, for channel.resume; `opened_on` is its connection; `pace` what
    stream.qos asked for; `recovers`: basic.recover came in a pause by channel.flow, and is for the end of that.

    With methods in requests and responses, of the method that is being carried out, and 0 otherwise:
    request     the id of the request that it came in: what answers it later than the next one names it
    answers_from, answers_to
                the first and the last of the broker's requests that it answers; as a client may name millions at once,
                look for what is awaited among them, not the other way round
    """

    def __init__(self, connection: BaseConnection, number: int, id: str) -> None:
        super().__init__(connection, number)
        self.format = FORMAT_BASIC_AMQP09
        self.publisher = publisher_of(connection, BASIC)
        self.id = id
        self.recovers = False
        self.request = 0
        self.answers_from = 0
        self.answers_to = 0
        self.opened_on = connection
        self.files = Files(self)
        self.pace: Pace | None = None
        self.messages = Messages(self)
        self.dtx: DtxSession | None = None
        self.tickets = Tickets(connection.realms, connection.user, self, connection.tickets)

    def publish(self, command: Publish) -> None:
        ticket = command.flags >> TICKET_SHIFT
        if ticket or self.tickets.required:
            command.flags &= _FLAGS
            address = command.address
            self.tickets.check(ticket, WRITE, address[1 : 1 + address[0]].decode("utf-8", "surrogateescape"))
        Channel091.publish(self, command)

    def tag_owner(self, tag: str) -> Channel091 | None:
        """The channel that has the consumer of this tag."""
        return self if tag in self.consumers else self.opened_on.tag_owner(tag)

    def expiry(self, expiration: bytes) -> int:
        # Old ones of Qpid's clients send it empty, or 0, where there is none.
        if not expiration or (expiration == b"0" and self.opened_on.of_qpid):
            return 0
        # They say when, in milliseconds since 1970, and not after how long: later than 1980, that is beyond what is taken
        # for a time to live.
        if len(expiration) < MAX_DIGITS and expiration.isdigit() and int(expiration) > MAX_EXPIRATION:
            return int(expiration)
        return Channel091.expiry(self, expiration)

    def excludes_rejecting_channel(self) -> bool:
        return True  # basic.reject.requeue.01: not to this channel again

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

    def check_pause(self) -> None:
        """Who publishes although it was asked to pause, and should know, is not read any more."""
        if self.paused and (self.pause_known or self.broker.timers.now() > self.pause_until):
            self.connection.ingress.pause(ALARM)

    # Class file

    def begin_stage(self, method: ContentMethod) -> None:
        self.incoming = self.files.begin(method)

    def grow_transaction(self, size: int) -> None:
        Channel091.grow_transaction(self, size)
        if self.dtx is not None:
            self.vhost.branches.check_room(self.tx_size)

    def transaction_ended(self, committed: bool) -> None:
        self.files.transaction_ended(committed)
        self.messages.transaction_ended(committed)

    def outstanding(self) -> int:
        return Channel091.outstanding(self) + len(self.files.opens) + self.messages.incomplete

    def all_held(self) -> list[Entry]:
        opens = [opened.entry for opened in self.files.opens]
        return Channel091.all_held(self) + opens + [transfer.entry for transfer in self.messages.in_flight()]

    def requeuing_all(self) -> Iterator[int]:
        for requeue_pending in (self.files.requeue_pending, self.messages.requeue_pending):
            try:
                requeue_pending()
            except Exception:  # the rest goes back all the same
                log.exception("%s: channel %d failed to give deliveries back", self.connection.peer.name, self.number)
        yield from Channel091.requeuing_all(self)

    # Interruption

    def make_way(self, queue: str) -> None:
        """A queue is to be used again by a user who may have lost the connection that had it to itself."""
        self.vhost.make_way(queue)
        self.opened_on.shared.interrupted.make_way(self.opened_on.user, self.vhost.queues.get(queue))

    def interrupt(self) -> None:
        """The connection is lost, and the channel may be resumed on another one. What its consumers hold stays theirs; what
        was under way is not: contents in part, staging in both directions, commands that wait behind others."""
        self.incoming = []
        self.backlog.clear()
        self.backlog_size = 0
        self.files.interrupt()
        self.messages.interrupt()

    def move(self, connection: BaseConnection, number: int) -> None:
        """Resume as a channel of another connection."""
        self.messages.interrupt()
        if self.connection.engine.uses_requests or connection.engine.uses_requests:
            self.messages.forget_requests()
        self.connection = connection
        self.opened_on = connection
        self.number = number
        self.publisher = publisher_of(connection, BASIC)
        self.tickets.move(connection.tickets)
        for consumer in self.consumers.values():
            consumer.owner = connection
        # The new connection knows nothing of our asking to pause.
        self.paused = False
        if self.files.full:
            self.ask_to_pause()
        self.set_counted()
        self.counted_deliveries = self.counted_bytes = 0
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
