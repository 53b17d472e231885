"""AMQP 1.0 links with durable unsettled state: each delivery that sender and receiver resume after a power cut is settled
once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from leveret.wire.amqp10.messaging import Accepted
from tests.faults.power.workload import Event, Journal, Survivor, Workload, in_threads
from tests.faults.test_amqp10_links_kill9 import Sending, Taking, drain
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp10 import message
from tests.support.peers.connection import Closed

MOST = 1 << 30
# Number of messages to send after the power cut.
AFTER = 3


class SyncCallback(dict[bytes, Any]):
    """The state of one end of a link; every change is recorded in the journal."""

    def __init__(self, journal: Journal | None, name: str, of: dict[bytes, Any]) -> None:
        super().__init__(of)
        self.journal = journal
        self.name = name

    def __setitem__(self, tag: bytes, value: Any) -> None:
        if self.journal is not None:
            # A payload is derived from its tag.
            known = value if isinstance(value, int) else isinstance(value, Accepted)
            self.journal(self.name, "set", tag.hex(), known)
        super().__setitem__(tag, value)

    def __delitem__(self, tag: bytes) -> None:
        if self.journal is not None:
            self.journal(self.name, "del", tag.hex())
        super().__delitem__(tag)

    def pop(self, tag: bytes, *default: Any) -> Any:
        if self.journal is not None:
            self.journal(self.name, "done", tag.hex())
        return super().pop(tag, *default)


class Ends:
    """Both clients, in the state after the events of a journal."""

    def __init__(self, journal: Journal | None = None, events: list[Event] | None = None) -> None:
        self.sending, self.taking = Sending(), Taking()
        sent: dict[bytes, Any] = {}
        taken: dict[bytes, Any] = {}
        bodies: dict[bytes, Any] = {}
        for name, verb, text, *value in events or ():
            tag = bytes.fromhex(text)
            which = {"sent": sent, "taken": taken, "bodies": bodies}[name]
            if verb != "set":
                gone = which.pop(tag)
                if name == "sent":
                    self.sending.settled.append(int(tag))
                elif verb == "done":
                    self.taking.done.append(gone)
                continue
            if name == "sent":
                self.sending.next = max(self.sending.next, int(tag) + 1)
                which[tag] = message(tag, durable=True)
            elif name == "bodies":
                which[tag] = value[0]
            else:
                which[tag] = Accepted() if value[0] else None
        # Completed deliveries are forgotten after that.
        taken = {tag: value for tag, value in taken.items() if tag in bodies}
        self.sending.unsettled = SyncCallback(journal, "sent", sent)
        self.taking.unsettled = SyncCallback(journal, "taken", taken)
        self.taking.bodies = SyncCallback(journal, "bodies", bodies)


class Links(Workload):
    """A sender and a receiver with settle mode second, on one queue."""

    ends: Ends | None = None

    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        ends = self.ends = self.ends or Ends(journal)
        started()
        return in_threads(
            journal, lambda: ends.sending.run(process, MOST), lambda: ends.taking.run(process, random.Random(self.seed))
        )

    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        ends = Ends(events=events)
        sending, taking = ends.sending, ends.taking
        total = sending.next + AFTER
        try:
            sending.run(broker, total)
            sure = random.Random(0)
            sure.random = lambda: 0.0  # type: ignore[method-assign]
            taking.run(broker, sure, total)
        except Closed as error:
            return [f"a link was refused: {error}"]
        wrong: list[str] = []
        if sending.unsettled:
            wrong.append(f"the sender was refused {len(sending.unsettled)} deliveries")
        lost = set(range(total)) - set(taking.done)
        if lost:
            wrong.append(f"{len(lost)} lost, such as {min(lost)}")
        if len(set(taking.done)) != len(taking.done):
            wrong.append("some deliveries were settled twice")
        invented = set(taking.done) - set(range(total))
        if invented:
            wrong.append(f"invented: {sorted(invented)[:5]}")
        left = drain(broker)
        if left:
            wrong.append(f"{len(left)} are still in the queue, such as {left[0]!r}")
        return wrong
