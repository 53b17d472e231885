"""Dispositions of the client: the outcomes of outgoing deliveries, and that it has settled incoming ones (transport section
2.7.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.log import CommitWaiter
from leveret.protocols.v1_0 import acquisition, outcomes
from leveret.protocols.v1_0.errors import SessionRefused
from leveret.protocols.v1_0.retirement import Retirement
from leveret.protocols.v1_0.serial import HALF, MODULUS
from leveret.wire.amqp1 import constants, descriptors
from leveret.wire.amqp1.composite import Composite
from leveret.wire.amqp1.transactions import TransactionalState
from leveret.wire.amqp1.transport import Disposition

if TYPE_CHECKING:
    from leveret.protocols.v1_0.endpoint import SessionEndpoint
    from leveret.protocols.v1_0.work import Work


def receive(session: SessionEndpoint, frame: Disposition) -> None:
    """A disposition of the client: for its own deliveries that we have answered, or for ours."""
    first = frame.first
    last = first if frame.last is None else frame.last
    span = (last - first) % MODULUS
    if span >= HALF:
        raise SessionRefused(constants.INVALID_FIELD, f"a disposition from {first} to {last}")
    if not frame.role:
        if frame.settled and session.unsettled:
            for number in _within(session.unsettled, first, span):
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
        _retire(session, first, span, state, frame.settled)
        return
    elif not isinstance(state, Composite):
        raise SessionRefused(constants.NOT_IMPLEMENTED, "a disposition with a state that is not known")
    elif state.kind == descriptors.RECEIVED and not frame.settled:
        return
    if session.acquired and _is_acquired_otherwise(session, first, span, None):
        return
    if session.retiring and frame.settled:
        for number in _within(session.retiring, first, span):
            session.retiring[number].settled = True
    if session.copies:
        _dispose_of_copies(session, first, span, frame.settled, state)
    numbers = _within(session.unacked, first, span)
    if not numbers:
        return
    recorded = False
    if session.recorded:
        for number in numbers:
            recorded = session.forget_record(number, session.unacked[number]) or recorded
    outcomes.apply(session, numbers, state)
    if not frame.settled:
        if recorded:
            # The client will forget them, so they must not come again after a crash.
            session.log.wait(_SettlingLater(session, numbers, state))
        else:
            settle_too(session, numbers, state)
    if session.held_up:
        session.held_up = False
        session.wake()


def _retire(session: SessionEndpoint, first: int, span: int, state: TransactionalState, settled: bool) -> None:
    """Outcomes that take place when their transaction is discharged."""
    work = session.connection.works.get(state.txn_id) if isinstance(state.txn_id, bytes) else None
    if work is None:
        raise SessionRefused(constants.TRANSACTION_UNKNOWN_ID, "a disposition under an unknown transaction")
    if session.copies:
        _dispose_of_copies(session, first, span, settled, state)
    if session.acquired and _is_acquired_otherwise(session, first, span, work):
        return
    for number in _within(session.retiring, first, span):
        retirement = session.retiring[number]
        if retirement.work is not work:
            work.failed = f"delivery {number} has an outcome under another transaction"
            session.connection.end_work(work)
            return
        retirement.outcome = state.outcome
        retirement.settled = retirement.settled or settled
    for number in _within(session.unacked, first, span):
        retirement = Retirement(session, number, session.unacked.pop(number), state.outcome, settled, work)
        session.retiring[number] = retirement
        work.retirements.append(retirement)


def _is_acquired_otherwise(session: SessionEndpoint, first: int, span: int, work: Work | None) -> bool:
    """Whether outcomes under a transaction, or none, are for deliveries that were acquired under another one. Neither
    can be committed then."""
    other = acquisition.is_wrong(session, _within(session.acquired, first, span), work)
    if other is None:
        return False
    for wrong in (other, work):
        if wrong is not None and not wrong.failed:
            wrong.failed = "a delivery that was acquired under a transaction has an outcome outside of it"
            session.connection.end_work(wrong)
    return True


def _dispose_of_copies(session: SessionEndpoint, first: int, span: int, settled: bool, state: Any) -> None:
    """Outcomes of what was browsed have no effect, in a transaction neither, so they are settled at once."""
    numbers = _within(session.copies, first, span)
    if not numbers:
        return
    for number in numbers:
        del session.copies[number]
    if not settled:
        settle_too(session, numbers, state)
    if session.held_up:
        session.held_up = False
        session.wake()


def settle_too(session: SessionEndpoint, numbers: list[int], state: Any) -> None:
    """Tell the client, who settles second, that its outcomes have taken place."""
    begin = numbers[0]
    before = begin
    for number in [*numbers[1:], -1]:
        if number != before + 1:
            session.connection.send(Disposition(False, begin, before, True, state, channel=session.channel))
            begin = number
        before = number


class _SettlingLater(CommitWaiter):
    """Tells a client, who settles second, that its outcomes have taken place, once that is on disk."""

    def __init__(self, session: SessionEndpoint, numbers: list[int], state: Any) -> None:
        self.session = session
        self.numbers = numbers
        self.state = state

    def committed(self, batch: int) -> None:
        if not self.session.closing:
            settle_too(self.session, self.numbers, self.state)


def _within(numbers: dict[int, Any], first: int, span: int) -> list[int]:
    """Those of the delivery-ids that are in the range, in its order. The range may be as large as clients like."""
    if span == 0:
        return [first] if first in numbers else []
    if span >= len(numbers):
        found = [number for number in numbers if (number - first) % MODULUS <= span]
        found.sort(key=lambda number: (number - first) % MODULUS)
        return found
    return [number for offset in range(span + 1) if (number := (first + offset) % MODULUS) in numbers]
