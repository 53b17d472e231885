"""Local transactions: the coordinator link, and the work in a transaction (transactions 4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leveret.client.engine.amqp10.conditions import text_of
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.amqp10.link.sender import SenderCore
from leveret.client.engine.common.frontend import Procedure, Waiter
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import ConnectionClosed, Error, TransactionLost, copy_error
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.message import encode_body_value
from leveret.wire.amqp10.messaging import Rejected
from leveret.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.engine.amqp10.session.session import SessionCore

OnOutcome = Callable[[Composite | None, Error | None], None]
_LOST = "the connection was lost during the transaction: none of it took effect"


class Control(Transfer):
    """A declare or a discharge, whose outcome is passed to `on_outcome`."""

    __slots__ = ("_on_outcome",)

    def __init__(self, body: Composite, on_outcome: OnOutcome) -> None:
        encoded = encode_body_value(body)
        super().__init__("", "", "", 0, [encoded], len(encoded), b"")
        self._on_outcome = on_outcome

    def outcome(self, state: Composite | None, error: Error | None) -> None:
        self._on_outcome(state, error)

    def settle(self, error: Error | None) -> None:
        self._on_outcome(None, error)


class CoordinatorLink(SenderCore):
    """The link to the coordinator."""

    control = True

    def __init__(self, session: SessionCore, name: str) -> None:
        super().__init__(session, name, Coordinator(("amqp:local-transactions", "amqp:multi-txns-per-ssn")))

    def publish(self, transfer: Transfer) -> None:
        super().publish(transfer)
        self.session.connection.ensure_reading()
        self.session.connection.frontend.flush_soon()

    def declare(self, on_outcome: Callable[[bytes | None, Error | None], None]) -> None:
        """Declare a transaction. `on_outcome` receives its id or an error."""

        def answered(state: Composite | None, error: Error | None) -> None:
            if isinstance(state, Declared):
                on_outcome(state.txn_id, None)
            else:
                on_outcome(None, error or TransactionLost(f"the server did not declare a transaction: {_reason(state)}"))

        self.publish(Control(Declare(), answered))

    def discharge(self, txn_id: bytes, fail: bool, on_outcome: Callable[[Error | None], None]) -> None:
        """Commit a transaction, or roll it back if `fail` is true. `on_outcome` receives None or an error."""

        def answered(state: Composite | None, error: Error | None) -> None:
            if isinstance(state, Rejected):
                error = TransactionLost(f"the server rolled back the transaction: {_reason(state)}")
                if state.error is not None:
                    error.condition, error.reply_text = state.error.condition, state.error.description or ""
                    error.info = state.error.info
            on_outcome(error)

        self.publish(Control(Discharge(txn_id, fail), answered))

    def lost(self) -> None:
        session = self.session
        error = TransactionLost(_LOST)
        controls = [number for number, transfer in session.unsettled.items() if transfer.link is self]
        waiting = [session.unsettled.pop(number) for number in controls] + list(self.queue)
        self.queue.clear()
        super().lost()
        for control in waiting:
            control.outcome(None, copy_error(error))
        self.finish(error)


def _reason(state: Composite | None) -> str:
    return text_of(state.error) if isinstance(state, Rejected) else "no reason given"


class TransactionCore:
    """A transaction of a connection. Work in it takes effect when it is committed.

    Attributes:
        txn_id: Id of the transaction; None before the declare and after the discharge.
        error: Why the transaction has ended.
    """

    def __init__(self, session: SessionCore) -> None:
        self.session = session
        self.txn_id: bytes | None = None
        self.error: Error | None = None
        self._coordinator = CoordinatorLink(session, session.connection.new_name())
        self._posted = 0
        self._idle = Waiters(session.connection.frontend)
        self._retired: list[Delivery] = []

    @property
    def lost(self) -> bool:
        """Whether the transaction was lost with its connection."""
        return self.txn_id is not None and self._coordinator.finished

    def begin(self) -> Procedure:
        """Attach to the coordinator and declare (a procedure)."""
        yield from self.session.open()
        self._coordinator.attach()
        yield self._coordinator.attach_waiter()
        waiter: Waiter = self.session.connection.frontend.new_waiter()

        def declared(txn_id: bytes | None, error: Error | None) -> None:
            self.txn_id = txn_id
            _resolve(waiter, error)

        self._coordinator.declare(declared)
        yield waiter

    def check(self) -> None:
        """Raise an error if the transaction has ended."""
        if self.txn_id is None:
            raise copy_error(self.error) if self.error is not None else RuntimeError("the transaction has ended")
        if self._coordinator.finished:
            error = self._coordinator.error
            raise TransactionLost(_LOST) if error is None or isinstance(error, ConnectionClosed) else copy_error(error)

    def posted(self) -> None:
        """Count a message that is sent in the transaction."""
        self._posted += 1

    def answered(self) -> None:
        """Count the outcome of a message."""
        self._posted -= 1
        if not self._posted:
            self._idle.wake()

    def retired(self, delivery: Delivery) -> None:
        """Record a delivery that is settled in the transaction."""
        self._retired.append(delivery)

    def discharge(self, fail: bool) -> Procedure:
        """Commit or roll back (a procedure). Raises `TransactionLost` if a commit fails."""
        try:
            self.check()
            while self._posted and not fail:
                yield self._idle.new()
            self.check()
        except TransactionLost:
            if not fail:
                raise
            return
        waiter: Waiter = self.session.connection.frontend.new_waiter()
        txn_id, self.txn_id = self.txn_id, None
        assert txn_id is not None

        def discharged(error: Error | None) -> None:
            self.error = error
            finish_retired(self._retired, error is None and not fail)
            _resolve(waiter, None if fail else error)

        self._coordinator.discharge(txn_id, fail, discharged)
        yield waiter

    def close(self) -> Procedure:
        """End the session of the transaction (a procedure)."""
        self.txn_id = None
        yield from self.session.close()


def finish_retired(retired: list[Delivery], committed: bool) -> None:
    """Settle the deliveries of a committed transaction. After a rollback they can be settled again."""
    for delivery in retired:
        if committed:
            delivery.link.session.settled(delivery)
        else:
            delivery.settled = False
            delivery.state = None
    retired.clear()


def _resolve(waiter: Waiter, error: Error | None) -> None:
    if not waiter.done():
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class ChannelTransactions:
    """The transactions of a transactional channel: after a commit or rollback, the next one is declared.

    Attributes:
        deferred: Work deferred until the pending discharge is answered; None if no discharge is pending.
        error: Why the transaction cannot be committed.
        used: The transaction contains work.
        lost: Work was lost with its connection.
    """

    def __init__(self, session: SessionCore) -> None:
        self.session = session
        self.deferred: list[Callable[[], None]] | None = None
        self.error: Error | None = None
        self.used = False
        self.lost = False
        self._coordinator: CoordinatorLink | None = None
        self._retired: list[Delivery] = []
        self._fail = False
        self._waiter: Waiter | None = None

    def begin(self) -> Procedure:
        """Attach to the coordinator and declare the first transaction (a procedure)."""
        session = self.session
        self.deferred = None
        self.error = None
        coordinator = self._coordinator = CoordinatorLink(session, session.connection.new_name())
        coordinator.attach()
        yield coordinator.attach_waiter()
        waiter: Waiter = session.connection.frontend.new_waiter()

        def declared(txn_id: bytes | None, error: Error | None) -> None:
            session.work_in(txn_id)
            _resolve(waiter, error)

        coordinator.declare(declared)
        yield waiter

    def use(self) -> None:
        """Note that the transaction contains work."""
        self.used = True

    def take_lost(self) -> bool:
        """Return whether work was lost with its connection, and forget it."""
        lost, self.lost = self.lost, False
        return lost

    def forget(self) -> None:
        """Forget that there was work."""
        self.lost = self.used = False

    def retired(self, delivery: Delivery) -> None:
        """Record a delivery that is settled in the transaction."""
        self._retired.append(delivery)

    def failed(self, error: Error) -> None:
        """Mark the transaction as failed, so that it cannot be committed."""
        if self.error is None:
            self.error = error

    def discharge(self, fail: bool) -> Waiter:
        """Start to commit or roll back, and return a waiter."""
        waiter: Waiter = self.session.connection.frontend.new_waiter()
        if self.deferred is not None:
            # A discharge is pending.
            self.deferred.append(partial(self._discharge, fail, waiter))
        else:
            self._discharge(fail, waiter)
        return waiter

    def _discharge(self, fail: bool, waiter: Waiter) -> None:
        self.used = False
        self._fail = fail
        self._waiter = waiter
        self.deferred = []
        self.try_discharge()

    def try_discharge(self) -> None:
        """Discharge the transaction if all of its messages have an outcome."""
        session = self.session
        coordinator = self._coordinator
        if self._waiter is None or coordinator is None or session.is_sending:
            return
        waiter, self._waiter = self._waiter, None
        failed, self.error = self.error, None
        fail = self._fail or failed is not None

        def discharged(error: Error | None) -> None:
            finish_retired(self._retired, error is None and not fail)
            _resolve(waiter, None if self._fail else failed or error)

        txn_id = session.transaction_id
        if txn_id is None:
            _resolve(waiter, TransactionLost(_LOST))
            return
        coordinator.discharge(txn_id, fail, discharged)
        coordinator.declare(self._declared)

    def _declared(self, txn_id: bytes | None, error: Error | None) -> None:
        self.session.work_in(txn_id)
        deferred, self.deferred = self.deferred or [], None
        if error is not None and not isinstance(error, TransactionLost):
            self.session.ended(error)
            return
        for number, act in enumerate(deferred, 1):
            act()
            if self.deferred is not None:
                # This was another commit.
                self.deferred.extend(deferred[number:])
                return

    def connection_lost(self) -> None:
        """Fail a pending discharge, and drop the work of the transaction."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            _resolve(waiter, TransactionLost(_LOST))
        self._retired.clear()
        self.deferred = None
        self.session.work_in(None)
        self.lost = self.lost or self.used
        self.used = False
