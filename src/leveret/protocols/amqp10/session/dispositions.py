"""Dispositions of the client: outcomes of outgoing deliveries, settlement of incoming ones (transport section 2.7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from leveret.broker.log import CommitWaiter
from leveret.broker.message import Entry
from leveret.protocols.amqp10.errors import SessionRefused
from leveret.protocols.amqp10.link.outgoing import LinkConsumer, OutgoingLink
from leveret.protocols.amqp10.session import outcomes
from leveret.protocols.amqp10.session.serial_numbers import HALF, MASK
from leveret.protocols.amqp10.transaction import acquisition
from leveret.protocols.amqp10.transaction.retirement import Retirement
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Disposition
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction

Delivered = TypeVar("Delivered")


# Deliveries (as a power of two) scanned in 1 µs.
SCAN_SHIFT: Final = 4
# Ready messages (as a power of two) searched in 1 µs for the position of a requeued one.
DEEP_SHIFT: Final = 11
# Deliveries (as a power of two) removed from their session in 1 µs.
REMOVE_SHIFT: Final = 3
# Maximum number of deliveries whose outcomes are applied in one turn; later frames wait for the rest.
MAX_AT_ONCE: Final = 10_000


def receive(session: SessionEndpoint, frame: Disposition) -> None:
    """Process a disposition of the client, for deliveries in either direction."""
    first = frame.first
    last = first if frame.last is None else frame.last
    span = (last - first) & MASK
    if span >= HALF:
        raise SessionRefused(constants.INVALID_FIELD, f"a disposition from {first} to {last}: last precedes first")
    if not frame.role:
        if frame.settled and session.unsettled:
            numbers = _within(session, session.unsettled, first, span)
            _defer(session, frame, numbers)
            for number in numbers:
                delivery = session.unsettled.pop(number)
                if delivery is not None:
                    delivery.terminus.forget(delivery)
            session.alarm(bool(session.connection.services.alarm))
        return
    state = frame.state
    if state is None:
        if not frame.settled:
            return
    elif isinstance(state, TransactionalState):
        _retire(session, frame, first, span, state)
        return
    elif not isinstance(state, Composite):
        raise SessionRefused(constants.NOT_IMPLEMENTED, "a disposition with an unknown state")
    elif state.kind == descriptors.RECEIVED and not frame.settled:
        return
    if session.acquired and _is_acquired_elsewhere(session, first, span, None):
        return
    if session.retiring and frame.settled:
        for number in _within(session, session.retiring, first, span):
            session.retiring[number].settle()
    if session.copies:
        _dispose_of_copies(session, first, span, frame.settled, state)
    numbers = _within(session, session.unacked, first, span)
    if not numbers:
        return
    if state is not None and state.kind in (descriptors.ACCEPTED, descriptors.REJECTED):
        _defer(session, frame, numbers)
    else:
        # They leave the session at once, and are requeued in steps, youngest first, so that each becomes the head. Finding
        # the position of the first one takes longer in a deep queue.
        queue = session.unacked[numbers[len(numbers) - 1]].queue
        session.connection.broker.work += (len(numbers) >> REMOVE_SHIFT) + (queue.ready_count >> DEEP_SHIFT)
    has_link_state = False
    links: list[OutgoingLink] = []
    if session.stores_unsettled:
        for number in numbers:
            links.append(_link_of(session.unacked[number]))
            has_link_state = session.forget_link_state(number, session.unacked[number]) or has_link_state
    outcomes.apply(session, numbers, state)
    if not frame.settled:
        if has_link_state:
            # The client will forget them, so they must not be delivered again after a crash.
            session.log.wait(_SettlementWaiter(session, numbers, links, state))
        else:
            confirm_settlement(session, numbers, state)
    session.window_freed()


def _retire(session: SessionEndpoint, frame: Disposition, first: int, span: int, state: TransactionalState) -> None:
    """Record outcomes that take effect when their transaction is discharged."""
    settled = frame.settled
    transaction = session.connection.transactions.find(state.txn_id)
    if transaction is None:
        raise SessionRefused(constants.TRANSACTION_UNKNOWN_ID, "a disposition under an unknown transaction")
    if session.copies:
        _dispose_of_copies(session, first, span, settled, state)
    if session.acquired and _is_acquired_elsewhere(session, first, span, transaction):
        return
    for number in _within(session, session.retiring, first, span):
        retirement = session.retiring[number]
        if retirement.transaction.committing:
            continue
        if retirement.transaction is not transaction:
            transaction.fail(f"delivery {number} has an outcome under another transaction")
            transaction.end_link()
            return
        retirement.replace(state.outcome, settled)
    numbers = _within(session, session.unacked, first, span)
    _defer(session, frame, numbers)
    for number in numbers:
        entry = session.unacked.pop(number)
        retirement = Retirement(_link_of(entry), number, entry, state.outcome, settled, transaction)
        session.retiring[number] = retirement
        transaction.retirements.append(retirement)


def _link_of(entry: Entry) -> OutgoingLink:
    """Return the link of an unsettled delivery of the session."""
    consumer = entry.holder
    assert isinstance(consumer, LinkConsumer)
    return consumer.link


def _is_acquired_elsewhere(session: SessionEndpoint, first: int, span: int, transaction: LocalTransaction | None) -> bool:
    """Fail transactions whose deliveries get outcomes under another transaction, or under none.

    The other transaction fails, too. Return whether there was such a delivery.
    """
    other = acquisition.find_conflict(session, _within(session, session.acquired, first, span), transaction)
    if other is None:
        return False
    for wrong in (other, transaction):
        if wrong is not None and not wrong.failed:
            wrong.fail("a delivery that was acquired under a transaction has an outcome outside it")
            wrong.end_link()
    return True


def _dispose_of_copies(session: SessionEndpoint, first: int, span: int, settled: bool, state: Checked) -> None:
    """Settle browsed deliveries at once: their outcomes have no effect, not even in a transaction."""
    numbers = _within(session, session.copies, first, span)
    if not numbers:
        return
    for number in numbers:
        del session.copies[number]
    if not settled:
        confirm_settlement(session, numbers, state)
    session.window_freed()


def confirm_settlement(session: SessionEndpoint, numbers: list[int], state: Checked) -> None:
    """Settle deliveries after the client's unsettled outcomes have taken effect (receiver settle mode second)."""
    begin = numbers[0]
    before = begin
    for number in [*numbers[1:], -1]:
        if number != before + 1:
            session.connection.send(Disposition(False, begin, before, True, state, channel=session.channel))
            begin = number
        before = number


class _SettlementWaiter(CommitWaiter):
    """Waiter that calls `confirm_settlement` when the outcomes are on disk."""

    def __init__(self, session: SessionEndpoint, numbers: list[int], links: list[OutgoingLink], state: Checked) -> None:
        self.session = session
        self.numbers = numbers
        self.links = links
        self.state = state

    def committed(self, batch: int) -> None:
        numbers = [number for number, link in zip(self.numbers, self.links, strict=True) if not link.removed]
        if numbers and not self.session.closing:
            confirm_settlement(self.session, numbers, self.state)


def _defer(session: SessionEndpoint, frame: Disposition, numbers: list[int]) -> None:
    """Defer the deliveries of a disposition that exceed the limit of a turn to the next turn.

    The disposition does not apply to deliveries sent in the meantime, even if they are within the range.
    """
    if len(numbers) > MAX_AT_ONCE:
        session.connection.defer(
            Disposition(
                frame.role, numbers[MAX_AT_ONCE], numbers[-1], frame.settled, frame.state, frame.batchable, frame.channel
            )
        )
        del numbers[MAX_AT_ONCE:]
    session.connection.broker.work += len(numbers)


def _within(session: SessionEndpoint, numbers: dict[int, Delivered], first: int, span: int) -> list[int]:
    """Return the delivery-ids within a range, in the order of the range, which may be arbitrarily large."""
    session.connection.broker.work += min(span, len(numbers)) >> SCAN_SHIFT
    if span == 0:
        return [first] if first in numbers else []
    if span >= len(numbers):
        found = [number for number in numbers if (number - first) & MASK <= span]
        found.sort(key=lambda number: (number - first) & MASK)
        return found
    if first + span <= MASK:
        return [number for number in range(first, first + span + 1) if number in numbers]
    return [number for offset in range(span + 1) if (number := (first + offset) & MASK) in numbers]
