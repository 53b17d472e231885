"""A large transaction is discharged in steps: as one record of the log, and all visible at once."""

from __future__ import annotations

import pytest

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import Entry
from leveret.broker.transactions.transaction import LARGE
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Accepted, Rejected, Released
from leveret.wire.amqp10.transactions import Discharge, TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition
from leveret.wire.amqp10.values import Symbol
from tests.broker.support import HeldLog
from tests.protocols.amqp10.support import Session, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site
from tests.support.queues import classic

MANY = 2 * LARGE
# More than one step of work.
ACQUIRED = 3 * LARGE


class FailingLog(HeldLog):
    """A log of which one settlement fails: the one after `calls` others, -1 for none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = -1

    def settle(self, entry: Entry) -> None:
        if self.calls >= 0:
            self.calls -= 1
            if self.calls < 0:
                raise RuntimeError("a mistake")
        super().settle(entry)


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
def site(log: FailingLog) -> Site:
    site = make_site(log=log)
    for name in ("from", "to"):
        site.vhost.declare_queue(name, None, durable=True)
    return site


class Started:
    """A transaction that takes all of `from` and posts as much to `to`, and its discharge, of which one step is made."""

    def __init__(
        self, site: Site, outcome: Accepted | Rejected | Released | None = None, *, settled: bool = True, fail: bool = False
    ) -> None:
        self.site = site
        self.session: Session = connect(site).begin()
        filling = self.session.sender("/queues/from")
        for number in range(MANY):
            filling.send(message(b"%d" % number, durable=True), settled=True, run=number % 100 == 99)
        receiver = self.session.receiver("/queues/from")
        receiver.flow(MANY, window=2 * MANY)
        assert len(receiver.bodies()) == MANY
        self.controller = Controller(self.session)
        self.id = self.controller.declare()
        posting = self.session.sender("/queues/to")
        for number in range(MANY):
            posting.send(
                message(b"%d" % number, durable=True),
                state=TransactionalState(self.id),
                settled=True,
                run=number % 100 == 99,
            )
        self.session.dispose(0, MANY - 1, TransactionalState(self.id, outcome or Accepted()), settled=settled)
        self.session.client.run()
        self.session.client.received.clear()
        self.number = self.controller.link.send(b"\x00\x53\x77" + encode_composite(Discharge(self.id, fail)), run=False)
        client = self.session.client
        client.session.data_received(client.output.to_send())
        assert bool(site.broker.jobs.commits.pending) != fail

    def step(self) -> bool:
        self.site.broker.end_turn()
        if not self.site.posted:
            return False
        self.site.posted.pop(0)()
        return True

    def outcome(self) -> object:
        self.session.client.run()
        for frame in self.session.client.all(Disposition):
            if frame.role and frame.first <= self.number <= (frame.first if frame.last is None else frame.last):
                return frame.state
        return None


class Acquiring:
    """A transaction that acquires all of `from`, and of which the discharge is sent."""

    def __init__(self, site: Site, *, settled: bool = False, fail: bool = False) -> None:
        self.session: Session = connect(site).begin()
        filling = self.session.sender("/queues/from")
        for number in range(ACQUIRED):
            filling.send(message(b"%d" % number, durable=True), settled=True, run=number % 100 == 99)
        self.controller = Controller(self.session)
        self.id = self.controller.declare()
        receiver = self.session.receiver("/queues/from", snd_settle_mode=1 if settled else 0)
        receiver.flow(ACQUIRED, window=2 * ACQUIRED, properties={Symbol("txn-id"): self.id})
        assert len(receiver.bodies()) == ACQUIRED
        self.endpoint = next(iter(self.session.client.session.sessions.by_channel.values()))
        client = self.session.client
        client.received.clear()
        self.controller.link.send(b"\x00\x53\x77" + encode_composite(Discharge(self.id, fail)), run=False)
        client.session.data_received(client.output.to_send())
        self.site = site

    def step(self) -> int:
        """Make a step; how many acquisitions it ends."""
        before = len(self.endpoint.acquired)
        self.site.broker.end_turn()
        self.site.posted.pop(0)()
        return before - len(self.endpoint.acquired)


@pytest.mark.parametrize("settled", [False, True])
def test_acquisitions_are_committed_in_steps(site: Site, log: FailingLog, settled: bool) -> None:
    acquiring = Acquiring(site, settled=settled)
    endpoint, queue = acquiring.endpoint, site.vhost.queues["from"]
    assert len(endpoint.acquired) == ACQUIRED
    while endpoint.acquired:
        assert acquiring.step() <= STEP_WORK
    acquiring.session.client.run()
    assert not endpoint.retiring
    assert (len(endpoint.unacked), queue.unacked) == ((0, 0) if settled else (ACQUIRED, ACQUIRED))
    acquiring.session.dispose(0, ACQUIRED - 1, Accepted())
    assert queue.unacked == 0 and counts(site, log) == (0, 0)


def test_a_delivery_is_settled_while_its_acquisition_is_committed(site: Site, log: FailingLog) -> None:
    acquiring = Acquiring(site)
    acquiring.step()
    client = acquiring.session.client
    client.send(Disposition(True, 0, 0, True, Accepted(), channel=acquiring.session.channel))
    client.session.data_received(client.output.to_send())
    assert acquiring.endpoint.acquired
    acquiring.session.client.run()
    assert client.all(Detach) == []
    assert site.vhost.queues["from"].unacked == ACQUIRED - 1


@pytest.mark.parametrize("settled", [False, True])
def test_a_session_ends_while_acquisitions_are_committed(site: Site, log: FailingLog, settled: bool) -> None:
    acquiring = Acquiring(site, settled=settled)
    acquiring.step()
    assert acquiring.endpoint.acquired
    acquiring.session.client.drop()
    site.run()
    queue = site.vhost.queues["from"]
    assert (queue.unacked, queue.ready_count, classic(queue).dispatcher.frozen) == (0, 0 if settled else ACQUIRED, 0)
    assert counts(site, log) == (queue.ready_count, 0) and log.completion is None


def counts(site: Site, log: HeldLog) -> tuple[int, int]:
    """Return the number of messages that a restart would find in each of the two queues."""
    queues = site.vhost.queues
    return tuple(sum(queue_id == queues[name].id for queue_id, _ in log.kept) for name in ("from", "to"))  # type: ignore[return-value]


def test_it_is_one_record_of_the_log(site: Site, log: FailingLog) -> None:
    started = Started(site)
    seen = set()
    steps = 0
    while started.step():
        steps += 1
        seen.add(counts(site, log))
    assert steps > 3 and seen == {(MANY, 0), (0, MANY)}
    assert isinstance(started.outcome(), Accepted)
    queue = classic(site.vhost.queues["to"])
    assert [entry.seq for entry in queue.ready.backlog.head] == sorted(entry.seq for entry in queue.ready.backlog.head)
    assert queue.ready_count == MANY and not classic(queue).dispatcher.frozen and site.vhost.queues["from"].unacked == 0


def test_released_messages_are_redelivered_in_order(site: Site, log: FailingLog) -> None:
    started = Started(site, Released(), settled=False)
    other = connect(site).begin().receiver("/queues/from", 5)
    assert other.bodies() == [b"%d" % number for number in range(5)]
    assert isinstance(started.outcome(), Accepted)
    assert counts(site, log) == (MANY, MANY) and not classic(site.vhost.queues["from"]).dispatcher.frozen


@pytest.mark.parametrize("steps", [0, 3])
def test_it_is_carried_out_or_rolled_back_as_a_whole_if_its_connection_is_lost(
    site: Site, log: FailingLog, steps: int
) -> None:
    started = Started(site)
    for _ in range(steps):
        started.step()
    started.session.client.drop()
    site.run()
    queue = site.vhost.queues["from"]
    assert counts(site, log) in ((0, MANY), (MANY, 0))
    assert counts(site, log) == (queue.ready_count, site.vhost.queues["to"].ready_count)
    assert queue.unacked == 0 and not classic(queue).dispatcher.frozen and log.completion is None


@pytest.mark.parametrize("settled", [False, True])
def test_it_is_rolled_back_in_steps(site: Site, log: FailingLog, settled: bool) -> None:
    started = Started(site, settled=settled, fail=True)
    session = next(iter(started.session.client.session.sessions.by_channel.values()))
    queue = site.vhost.queues["from"]
    before = len(session.retiring)
    assert before > MANY - STEP_WORK
    while started.step():
        assert before - len(session.retiring) <= STEP_WORK
        before = len(session.retiring)
        assert not queue.ready_count or classic(queue).dispatcher.frozen or queue.ready_count == MANY
    assert isinstance(started.outcome(), Accepted)
    assert counts(site, log) == (MANY, 0) and not classic(queue).dispatcher.frozen and not session.retiring
    assert (queue.ready_count, len(session.unacked)) == ((MANY, 0) if settled else (0, MANY))


def test_it_is_rejected_if_a_queue_is_full(site: Site, log: FailingLog) -> None:
    started = Started(site)
    queue = site.vhost.queues["to"]
    classic(queue).limits.max_length, classic(queue).limits.rejects_when_full = MANY - 1, True
    outcome = started.outcome()
    assert isinstance(outcome, Rejected) and outcome.error is not None
    assert (outcome.error.condition, outcome.error.description) == ("amqp:transaction:rollback", "a queue is full")
    assert counts(site, log) == (MANY, 0) and queue.ready_count == 0


@pytest.mark.parametrize("outcome", [Accepted(), Rejected()])
def test_a_failure_ends_the_control_link(site: Site, log: FailingLog, outcome: Accepted | Rejected) -> None:
    started = Started(site, outcome)
    log.calls = LARGE + 10
    started.session.client.run()
    detach = started.session.client.take(Detach)
    assert detach is not None and detach.error is not None and detach.error.condition == "amqp:internal-error"
    assert counts(site, log) == (MANY, 0) and not site.vhost.queues["to"].hidden.bytes
    assert site.vhost.queues["from"].ready_count == MANY
    queue = site.vhost.queues["from"]
    assert queue.unacked == 0 and not classic(queue).dispatcher.frozen and log.completion is None
