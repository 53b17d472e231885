"""Outcomes under a transaction (transactions section 4.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.message import Entry
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction


class Retirement:
    """An outcome that waits for the discharge. `settled` is true if the client has settled the delivery."""

    __slots__ = ("entry", "link", "number", "outcome", "session", "settled", "transaction")

    def __init__(
        self, link: OutgoingLink, number: int, entry: Entry, outcome: Checked, settled: bool, transaction: LocalTransaction
    ) -> None:
        self.link = link
        self.session = link.session
        self.number = number
        self.entry = entry
        self.outcome = outcome
        self.settled = settled
        self.transaction = transaction

    def settle(self) -> None:
        """Note that the client has settled the delivery."""
        self.settled = True

    def replace(self, outcome: Checked, settled: bool) -> None:
        """Replace the outcome, and settle the delivery if `settled`."""
        self.outcome = outcome
        self.settled = self.settled or settled

    def forget_link_state(self) -> None:
        """Remove the link state of the delivery, which is about to be settled."""
        if self.session.stores_unsettled:
            self.session.forget_link_state(self.number, self.entry)
