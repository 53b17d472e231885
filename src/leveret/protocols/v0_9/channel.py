"""A channel of 0-9: tickets, an identity that can be resumed, and what its classes differ in from 0-9-1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.message import FORMAT_BASIC_0_9, Entry
from leveret.protocols.v0_9.realms import WRITE, Tickets
from leveret.protocols.v0_9_1.channel import Channel as Channel091
from leveret.wire.amqp0.commands import TICKET_SHIFT, Publish

if TYPE_CHECKING:
    from leveret.protocols.v0_9.connection import Connection

_FLAGS: Final = (1 << TICKET_SHIFT) - 1


class Channel(Channel091):
    """One channel. `id` is what channel.open-ok says, for channel.resume; `opened_on` is its connection."""

    def __init__(self, connection: Connection, number: int, id: str) -> None:
        super().__init__(connection, number)
        self.format = FORMAT_BASIC_0_9
        self.id = id
        self.opened_on = connection
        self.tickets = Tickets(connection.realms, connection.user, self, connection.tickets)

    def publish(self, command: Publish) -> None:
        ticket = command.flags >> TICKET_SHIFT
        if ticket or self.tickets.required:
            command.flags &= _FLAGS
            address = command.address
            self.tickets.check(ticket, WRITE, address[1 : 1 + address[0]].decode("utf-8", "surrogateescape"))
        Channel091.publish(self, command)

    def give_back(self, entry: Entry) -> None:
        # basic.reject.requeue.01: not to this channel again.
        entry.queue.requeue_elsewhere(entry, self.scope)

    def close(self) -> None:
        if not self.closing:
            self.tickets.close()
        Channel091.close(self)
