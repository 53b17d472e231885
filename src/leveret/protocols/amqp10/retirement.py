"""Outcomes under a transaction (transactions section 4.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.message import Entry

if TYPE_CHECKING:
    from leveret.protocols.amqp10.outgoing import OutgoingLink
    from leveret.protocols.amqp10.work import Work


class Retirement:
    """An outcome that waits for the discharge; `settled`: the client has forgotten the delivery."""

    __slots__ = ("entry", "link", "number", "outcome", "session", "settled", "work")

    def __init__(self, link: OutgoingLink, number: int, entry: Entry, outcome: Any, settled: bool,
                 work: Work) -> None:
        self.link = link
        self.session = link.session
        self.number = number
        self.entry = entry
        self.outcome = outcome
        self.settled = settled
        self.work = work

    def forget_record(self) -> None:
        """The delivery is about to be settled, for good."""
        if self.session.recorded:
            self.session.forget_record(self.number, self.entry)
