"""The coordinator: declares and discharges transactions (transactions sections 4.2 and 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.errors import LinkRefused, make_error
from leveret.protocols.amqp10.link.incoming import IncomingLink
from leveret.protocols.amqp10.transaction.transaction import LocalTransaction
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import decode_value, from_described
from leveret.wire.amqp10.messaging import Accepted, Rejected
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transactions import Declare, Declared, Discharge
from leveret.wire.amqp10.transport import Attach, Transfer
from leveret.wire.amqp10.values import Described

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint

CAPABILITIES: Final = (
    constants.TXN_CAPABILITY_LOCAL_TRANSACTIONS,
    constants.TXN_CAPABILITY_MULTI_TXNS_PER_SSN,
    constants.TXN_CAPABILITY_MULTI_SSNS_PER_TXN,
)
# Maximum number of open transactions of a connection.
MAX_TRANSACTIONS: Final = 1000


class CoordinatorLink(IncomingLink):
    """A link to the coordinator: its messages declare and discharge transactions."""

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int) -> None:
        super().__init__(session, frame, handle)
        self.second_mode = frame.rcv_settle_mode == constants.RECEIVER_SETTLE_MODE_SECOND
        self.spools = False
        self.transactions: dict[bytes, LocalTransaction] = {}

    def is_alarm_exempt(self) -> bool:
        """Return True: consumers also acknowledge in transactions."""
        return True

    def begun(self, frame: Transfer) -> None:
        if self.settled:
            raise LinkRefused(constants.NOT_ALLOWED, "a message to the coordinator must not be settled")

    def complete(self, payload: bytes) -> None:
        """Perform a declare or a discharge."""
        sections = split(payload)
        if sections.body_kind != descriptors.AMQP_VALUE:
            raise LinkRefused(constants.INVALID_FIELD, "the coordinator expects a declare or a discharge")
        value = decode_value(payload, sections.body, sections.body_end)[0]
        content = value.value if isinstance(value, Described) else value
        if isinstance(content, Described):
            content = from_described(content)
        if isinstance(content, Declare):
            self._declare(content)
        elif isinstance(content, Discharge):
            self._discharge(content)
        else:
            raise LinkRefused(constants.INVALID_FIELD, "the coordinator expects a declare or a discharge")

    def answer(self, number: int, state: Composite) -> None:
        """Send the outcome of a declare or discharge. Detach the link instead of a rejection that the source forbids."""
        if isinstance(state, Rejected) and not self.may_reject and state.error is not None:
            self.session.refuse(self, state.error)
            return
        self.session.resolved(self, number, 0, state.kind, not self.second_mode, state)
        self.session.resolve()

    def _declare(self, declare: Declare) -> None:
        connection = self.session.connection
        if declare.global_id is not None:
            self.answer(
                self.delivery_id,
                Rejected(make_error(constants.NOT_IMPLEMENTED, "distributed transactions are not supported")),
            )
            return
        if len(connection.transactions) >= MAX_TRANSACTIONS:
            self.answer(
                self.delivery_id,
                Rejected(
                    make_error(
                        constants.RESOURCE_LIMIT_EXCEEDED,
                        f"the connection has {MAX_TRANSACTIONS} open transactions, the maximum",
                    )
                ),
            )
            return
        transaction = connection.transactions.declare(self)
        self.transactions[transaction.id] = transaction
        self.answer(self.delivery_id, Declared(transaction.id))

    def _discharge(self, discharge: Discharge) -> None:
        connection = self.session.connection
        id = discharge.txn_id
        transaction = self.transactions.pop(id, None) if isinstance(id, bytes) else None
        if transaction is None:
            self.answer(
                self.delivery_id,
                Rejected(make_error(constants.TRANSACTION_UNKNOWN_ID, "the transaction does not exist on this link")),
            )
            return
        connection.transactions.discharge(transaction)
        transaction.over()
        if connection.sessions.has_partial(transaction):
            transaction.fail("a delivery of the transaction is incomplete")
            self.session.broker.jobs.removals.add(transaction.rolling_back())
            raise LinkRefused(constants.TRANSACTION_ROLLBACK, transaction.failed)
        if discharge.fail:
            transaction.roll_back(self.delivery_id, Accepted())
        elif transaction.failed:
            transaction.roll_back(self.delivery_id)
        else:
            transaction.commit(self.delivery_id)

    def close(self) -> None:
        """Roll back the transactions that the controller did not discharge."""
        transactions = self.transactions
        self.transactions = {}
        for transaction in transactions.values():
            self.session.connection.transactions.discharge(transaction)
            transaction.over()
            transaction.fail("the control link was closed")
            self.session.broker.jobs.removals.add(transaction.rolling_back())
        super().close()
