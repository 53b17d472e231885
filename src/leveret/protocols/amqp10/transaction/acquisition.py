"""Transactional acquisition (transactions 4.4.3 and 4.4.4.3): deliveries that a link acquires under a transaction.

The flow that grants credit names the transaction in its properties, and the link acquires under it until the discharge.
Until then, the client may settle such a delivery only under that transaction. A rollback requeues it and settles it as
released. Deliveries that are sent settled also stay acquired until the discharge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.queues import entry_return
from leveret.broker.queues.frozen import FrozenQueues
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.messages import body_of, tail_of
from leveret.protocols.amqp10.transaction.retirement import Retirement
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.messaging import Accepted, Released
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Disposition
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.message import Entry
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction


class Acquired:
    """A delivery that was acquired under a transaction."""

    __slots__ = ("link", "number", "session", "transaction")

    def __init__(self, session: SessionEndpoint, number: int, link: OutgoingLink, transaction: LocalTransaction) -> None:
        self.session = session
        self.number = number
        self.link = link
        self.transaction = transaction


def join(link: OutgoingLink, id: Checked) -> None:
    """Make the link acquire under the transaction with this id, or outside transactions if the id is None.

    Raises:
        LinkRefused: the transaction is unknown.
    """
    if id is None:
        leave(link)
        return
    transaction = link.session.connection.transactions.find(id)
    if transaction is None:
        raise LinkRefused(constants.TRANSACTION_UNKNOWN_ID, "credit under an unknown transaction")
    if link.consumer.seen is not None:
        raise LinkRefused(constants.NOT_IMPLEMENTED, "a link of distribution mode copy cannot acquire under a transaction")
    if link.stores_unsettled:
        raise LinkRefused(
            constants.NOT_IMPLEMENTED, "a source with durable unsettled state cannot acquire under a transaction"
        )
    if link.transaction is transaction:
        return
    leave(link)
    link.join(transaction)
    transaction.links.append(link)


def leave(link: OutgoingLink) -> None:
    """Make the link acquire outside transactions again."""
    transaction = link.transaction
    if transaction is not None:
        transaction.links.remove(link)
        link.leave_transaction()


def acquire(link: OutgoingLink, transaction: LocalTransaction, number: int, entry: Entry, head: bytes) -> None:
    """Send an entry acquired under a transaction, after the sections in `head`, with a state that names the transaction."""
    session = link.session
    settled = link.sends_settled()
    acquired = session.acquired[number] = Acquired(session, number, link, transaction)
    transaction.acquired.append(acquired)
    if settled:
        retirement = Retirement(link, number, entry, Accepted(), True, transaction)
        session.retiring[number] = retirement
        transaction.retirements.append(retirement)
    else:
        session.unacked[number] = entry
    message = entry.message
    if not settled:
        link.freeze(number, head)
    session.send_under(link, number, settled, head, body_of(message), tail_of(message), TransactionalState(transaction.id))


def find_conflict(
    session: SessionEndpoint, numbers: list[int], transaction: LocalTransaction | None
) -> LocalTransaction | None:
    """Return a transaction other than `transaction` that acquired one of these deliveries; None if there is none."""
    for number in numbers:
        other = session.acquired[number].transaction
        if other is not transaction and not other.committing:
            return other
    return None


def end(transaction: LocalTransaction) -> None:
    """End the acquisitions of a transaction that is being committed.

    Its links acquire outside transactions again, and its deliveries remain with the client.
    """
    for link in list(transaction.links):
        leave(link)
    for session in transaction.link.session.connection.sessions.by_channel.values():
        if session.sending:
            item = session.sending[0]
            acquired = session.acquired.get(item.delivery_id)
            if item.first and acquired is not None and acquired.transaction is transaction:
                item.clear_state()


def forgetting(transaction: LocalTransaction) -> Iterator[int]:
    """Forget the acquisitions of a transaction that is being committed, in steps."""
    acquired = transaction.acquired
    while acquired:
        item = acquired.pop()
        item.session.acquired.pop(item.number, None)
        yield 1


def undoing(transaction: LocalTransaction) -> Iterator[int]:
    """Roll back the acquisitions of a transaction in steps.

    Requeue entries, youngest first, and abort incomplete deliveries.
    """
    for link in list(transaction.links):
        leave(link)
    frozen = FrozenQueues()
    acquired = transaction.acquired
    try:
        while acquired:
            item = acquired.pop()
            if item.session.acquired.pop(item.number, None) is not None:
                entry = _take_back(item)
                if entry is not None:
                    frozen.freeze(entry.queue)
                    _requeue(entry)
            yield 5
    finally:
        frozen.thaw()


def undo_for(session: SessionEndpoint, link: OutgoingLink | None) -> None:
    """Requeue the unsettled acquisitions of a closed link, or of the whole session if `link` is None."""
    entries: list[Entry] = []
    for acquired in list(session.acquired.values()):
        if acquired.transaction.committing:
            continue
        if link is None or (acquired.link is link and acquired.number in session.unacked):
            del session.acquired[acquired.number]
            entry = _take_back(acquired)
            if entry is not None:
                entries.append(entry)
    entry_return.return_entries(session.broker, entries, _requeue)


def _requeue(entry: Entry) -> None:
    entry.queue.requeue(entry, False)


def _take_back(acquired: Acquired) -> Entry | None:
    """Settle a delivery as released and return its entry; None if it is no longer unsettled."""
    session, number = acquired.session, acquired.number
    retirement = session.retiring.pop(number, None)
    forgotten = retirement is not None and retirement.settled
    entry = session.unacked.pop(number, None) if retirement is None else retirement.entry
    if entry is None:
        return None
    if not session.closing and not acquired.link.closed and not _abort(acquired) and not forgotten:
        session.connection.send(Disposition(False, number, None, True, Released(), channel=session.channel))
    return entry


def _abort(acquired: Acquired) -> bool:
    """Abort a delivery that is being sent. Return False if it is complete."""
    sending = acquired.session.sending
    # A link acquires only while nothing else is being sent, so the delivery is the first one.
    if not sending or sending[0].delivery_id != acquired.number:
        return False
    aborted = sending[0] = sending[0].aborting()
    acquired.transaction.aborted.append((acquired.session, aborted))
    return True
