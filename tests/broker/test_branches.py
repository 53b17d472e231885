"""Branches of distributed transactions: invisible before the decision, and durable once prepared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.broker.errors import BrokerError, NotFound, PreconditionFailed, ResourceError, ResourceLocked
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import Entry
from leveret.broker.queues.queue import Queue
from leveret.broker.transactions.branch import (
    COMMITTED,
    ENDED,
    PREPARED,
    ROLLBACK_ONLY,
    Branch,
    BranchSettings,
    format_identifier,
    parse_identifier,
)
from leveret.broker.transactions.branches import DONE, FAILED, HAS_TIMED_OUT, WAS_ROLLED_BACK
from leveret.broker.transactions.transaction import ACCEPT, LARGE, REJECT, REQUEUE
from tests.broker.support import HeldLog, Taker, World, figures
from tests.support.queues import classic

MANY = 2 * LARGE


class StubWorker:
    """A worker whose work the test does itself."""

    def __init__(self, demarcated: bool = False) -> None:
        self.demarcated = demarcated
        self.is_detached = False
        self.reasons: list[str] = []

    def flushing(self, branch: Branch) -> Iterator[int]:
        return iter(())

    def detached(self) -> None:
        self.is_detached = True

    def rolled_back(self, branch: Branch, reason: str) -> None:
        self.reasons.append(reason)


class FailingLog(HeldLog):
    """A log that fails to store an entry, after `calls` others; never with -1."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = -1

    def store(self, entry: Entry) -> None:
        self.calls -= 1
        if self.calls == -1:
            raise RuntimeError("a mistake")
        super().store(entry)


class Outcomes(list[int]):
    def __call__(self, outcome: int) -> None:
        self.append(outcome)


def begin(world: World, name: str = "x", worker: StubWorker | None = None) -> Branch:
    return world.vhost.branches.begin(name, "user", worker or StubWorker())


def publish(world: World, branch: Branch, queues: list[Queue], body: str, *, persistent: bool = False) -> None:
    branch.publish(world.message(body, key=queues[0].name, persistent=persistent), queues)


def take(queue: Queue) -> Entry:
    entry = queue.get(False)
    assert entry is not None
    return entry


def prepared(world: World, branch: Branch) -> None:
    outcomes = Outcomes()
    world.vhost.branches.prepare(branch, outcomes)
    world.run()
    assert outcomes == [DONE] and branch.state == PREPARED


def commit(world: World, name: str = "x", one_phase: bool = False) -> list[int]:
    outcomes = Outcomes()
    world.vhost.branches.commit(world.vhost.branches.find(name, None), one_phase, outcomes)
    world.run()
    return outcomes


def rollback(world: World, name: str = "x") -> list[int]:
    outcomes = Outcomes()
    world.vhost.branches.rollback(world.vhost.branches.find(name, None), outcomes)
    world.run()
    return outcomes


def again(world: World, clean: bool = False) -> World:
    """Return the world after a start from the committed log."""
    world.run()
    log, recovery = world.held_log.recovery(clean)
    new = World(log=log, recovery=recovery, time=world.clock.time)
    new.run()
    return new


def left(world: World) -> list[str]:
    """Return the log's records of branches, and of entries without a queue."""
    known = {queue.id for queue in world.vhost.queues.values()}
    return [key for kind, key in world.held_log.metadata if kind == "branch"] + [
        str(place) for place in world.held_log.kept if place[0] not in known
    ]


def test_prepare_and_commit_are_reported_once_on_disk(world: World) -> None:
    queue = world.queue(durable=True)
    consumer = Taker(queue)
    branch = begin(world)
    publish(world, branch, [queue], "a", persistent=True)
    log = world.held_log
    log.release_all() if log.flying else None
    log.held = True
    outcomes = Outcomes()
    world.vhost.branches.prepare(branch, outcomes)
    world.run()
    assert outcomes == []
    log.release_all()
    assert outcomes == [DONE]
    world.vhost.branches.commit(branch, False, outcomes)
    world.run()
    assert outcomes == [DONE] and consumer.history == []
    log.release_all()
    world.run()
    assert outcomes == [DONE, DONE] and consumer.history == ["a"]
    assert left(world) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_commit_after_starts(world: World, clean: bool, restarts: int) -> None:
    one, two = world.queue("one", durable=True), world.queue("two", durable=True)
    world.push(one, *"abcdef", persistent=True)
    branch = begin(world)
    for _ in range(2):
        branch.settle(take(one), ACCEPT)
    kept = take(one)
    branch.settle(take(one), REQUEUE)
    one.requeue(kept)
    publish(world, branch, [two], "1", persistent=True)
    publish(world, branch, [two], "2", persistent=True)
    publish(world, branch, [one, two], "3", persistent=True)
    prepared(world, branch)
    for _ in range(restarts):
        world = again(world, clean)
        one, two = classic(world.vhost.queues["one"]), classic(world.vhost.queues["two"])
        assert (one.ready_count, one.unacked, two.ready_count, len(one.hidden)) == (3, 3, 0, 0)
        assert one.next_seq == 7
    assert commit(world) == [DONE]
    assert one.unacked == 0
    assert world.contents(one) == ["c", "d", "e", "f", "3"]
    assert world.contents(two) == ["1", "2", "3"]
    world = again(world)
    assert left(world) == []
    assert [world.contents(queue) for queue in world.vhost.queues.values()] == [[], []]


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_rollback_after_starts(world: World, restarts: int) -> None:
    queue = world.queue(durable=True)
    world.push(queue, *"abc", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), ACCEPT)
    branch.settle(take(queue), REJECT)
    publish(world, branch, [queue], "new", persistent=True)
    prepared(world, branch)
    for _ in range(restarts):
        world = again(world)
        queue = classic(world.vhost.queues["q"])
    assert rollback(world) == [DONE]
    consumer = Taker(queue)
    world.run()
    assert consumer.bodies() == ["a", "b", "c"]
    assert [entry.acquired_count > 1 for entry in consumer.taken[:2]] == [True, True]
    world = again(world)
    assert left(world) == []
    assert world.contents(world.vhost.queues["q"]) == ["a", "b", "c"]


def test_a_decision_while_the_log_is_read(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), ACCEPT)
    publish(world, branch, [queue], "b", persistent=True)
    prepared(world, branch)
    log, recovery = world.held_log.recovery()
    new = World(log=log, recovery=recovery)
    outcomes = Outcomes()
    branches = new.vhost.branches
    branches.commit(branches.find("x", None), False, outcomes)
    assert outcomes == [] and not log.changes
    with pytest.raises(PreconditionFailed, match="being decided"):
        branches.rollback(branches.find("x", None), outcomes)
    assert new.vhost.queues["q"].purge() == 0
    new.run()
    assert outcomes == [DONE]
    assert new.vhost.queues["q"].ready_count == 1
    new = again(new)
    assert new.contents(new.vhost.queues["q"]) == ["b"]


def test_transient_content_does_not_survive(world: World) -> None:
    durable, transient = world.queue("durable", durable=True), world.queue("transient")
    world.push(durable, "a")
    branch = begin(world)
    branch.settle(take(durable), ACCEPT)
    publish(world, branch, [durable], "gone")
    publish(world, branch, [transient, durable], "kept", persistent=True)
    prepared(world, branch)
    world = again(world)
    durable = classic(world.vhost.queues["durable"])
    assert figures(durable) == (0, 0, 0)
    assert commit(world) == [DONE]
    assert world.contents(durable) == ["kept"]


def test_an_empty_prepared_branch_is_in_doubt(world: World) -> None:
    prepared(world, begin(world))
    world = again(world)
    assert [branch.name for branch in world.vhost.branches.in_doubt("user")] == ["x"]
    assert world.vhost.branches.in_doubt("other") == []
    assert commit(world) == [DONE]
    assert left(again(world)) == []


def test_a_one_phase_commit_writes_no_branch(world: World) -> None:
    queue = world.queue(durable=True)
    branch = begin(world)
    publish(world, branch, [queue], "a", persistent=True)
    assert commit(world, one_phase=True) == [DONE]
    assert not any(change[1] == "branch" for change in world.held_log.changes)
    assert world.contents(queue) == ["a"]


def test_unprepared_branches_do_not_survive_a_restart(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), ACCEPT)
    publish(world, branch, [queue], "b", persistent=True)
    world.run()
    world = again(world)
    assert not world.vhost.branches.by_name
    assert world.contents(world.vhost.queues["q"]) == ["a"]


def test_a_purge_spares_the_entries_of_a_branch(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", "b", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), ACCEPT)
    prepared(world, branch)
    assert queue.purge() == 1
    world.run()
    world = again(world)
    assert rollback(world) == [DONE]
    assert world.contents(world.vhost.queues["q"]) == ["a"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_queue_that_is_deleted_under_a_branch(world: World, restart: bool) -> None:
    queue, other = world.queue(durable=True), world.queue("other", durable=True)
    world.push(queue, "a", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), ACCEPT)
    publish(world, branch, [queue], "lost", persistent=True)
    publish(world, branch, [queue, other], "b", persistent=True)
    prepared(world, branch)
    if restart:
        world = again(world)
    world.vhost.remove_queue(world.vhost.queues["q"])
    world.run()
    if restart:
        world = again(world)
    assert commit(world) == [DONE]
    assert world.contents(world.vhost.queues["other"]) == ["b"]
    assert left(again(world)) == []


def test_a_deleted_vhost_leaves_no_branches(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), ACCEPT)
    publish(world, branch, [queue], "b", persistent=True)
    prepared(world, branch)
    world.broker.remove_vhost("/")
    world.run()
    assert not world.held_log.kept
    assert not any(kind == "branch" for kind, _ in world.held_log.metadata)
    assert not world.broker.holders


def test_a_full_queue_refuses_the_prepare_and_no_commit(world: World) -> None:
    queue = world.queue(durable=True, max_length=1, overflow="reject-publish")
    branch = begin(world)
    publish(world, branch, [queue], "a", persistent=True)
    late = begin(world, "late")
    publish(world, late, [queue], "b", persistent=True)
    prepared(world, late)
    world.push(queue, "full", persistent=True)
    outcomes = Outcomes()
    world.vhost.branches.prepare(branch, outcomes)
    assert outcomes == [WAS_ROLLED_BACK] and branch.state == ROLLBACK_ONLY
    assert commit(world, "late") == [DONE]
    assert world.contents(queue) == ["full", "b"]


def test_a_branch_times_out_unless_it_is_prepared(world: World) -> None:
    world.broker.branch_settings = BranchSettings(timeout=1000)
    queue = world.queue(durable=True)
    world.push(queue, "a", persistent=True)
    worker = StubWorker(demarcated=True)
    lost = begin(world, "lost", worker)
    lost.settle(take(queue), ACCEPT)
    safe = begin(world, "safe")
    prepared(world, safe)
    world.sleep(1001)
    assert lost.timed_out and len(worker.reasons) == 1
    assert queue.ready_count == 1
    assert safe.state == PREPARED
    with pytest.raises(PreconditionFailed):
        lost.join(StubWorker())
    assert lost.workers
    world.sleep(4_000_000)
    assert commit(world, "lost", one_phase=True) == [HAS_TIMED_OUT]
    with pytest.raises(NotFound):
        world.vhost.branches.find("lost", None)


def test_a_timed_out_branch_is_finally_forgotten(world: World) -> None:
    world.broker.branch_settings = BranchSettings(timeout=1000)
    worker = StubWorker(demarcated=True)
    branch = begin(world, worker=worker)
    branch.end(worker, False)
    world.sleep(1001)
    assert branch.timed_out and world.vhost.branches.by_name
    world.sleep(4_000_000)
    assert not world.vhost.branches.by_name and not world.broker.holders


def test_joined_work_ends_when_all_have_ended(world: World) -> None:
    one, two = StubWorker(demarcated=True), StubWorker(demarcated=True)
    branch = begin(world, worker=one)
    branch.join(two)
    branch.end(one, False)
    with pytest.raises(PreconditionFailed, match="has not been ended"):
        commit(world, one_phase=True)
    branch.end(two, False)
    assert branch.state == ENDED
    branch.join(one)
    branch.end(one, True)
    assert branch.state == ROLLBACK_ONLY
    assert commit(world, one_phase=True) == [WAS_ROLLED_BACK]
    assert rollback(world) == [DONE]


def test_work_without_demarcation_ends_with_the_decision(world: World) -> None:
    worker = StubWorker()
    begin(world, worker=worker)
    assert commit(world, one_phase=True) == [DONE]
    assert worker.is_detached


def test_an_outcome_by_hand_is_listed_until_it_is_forgotten(world: World) -> None:
    queue = world.queue(durable=True)
    branch = begin(world)
    publish(world, branch, [queue], "a", persistent=True)
    prepared(world, branch)
    with pytest.raises(PreconditionFailed, match="is prepared"):
        world.vhost.branches.forget(branch)
    outcomes = Outcomes()
    world.vhost.branches.commit(branch, False, outcomes, remember=True)
    world.run()
    assert outcomes == [DONE]
    world = again(world)
    assert world.contents(world.vhost.queues["q"]) == ["a"]
    branch = world.vhost.branches.find("x", None)
    assert branch.state == COMMITTED
    assert commit(world) == [DONE]
    with pytest.raises(PreconditionFailed, match="forget it"):
        rollback(world)
    world.vhost.branches.forget(branch)
    world.run()
    assert left(again(world)) == []


def test_refused_beginnings(world: World) -> None:
    world.broker.branch_settings = BranchSettings(count=1)
    for name in ("", "x" * 256):
        with pytest.raises(PreconditionFailed):
            begin(world, name)
    begin(world)
    with pytest.raises(ResourceLocked):
        begin(world)
    with pytest.raises(ResourceError, match=r"dtx\.max_branches"):
        begin(world, "y")


@pytest.mark.parametrize("name", ["x1", "hex:00", "\udcff\x00", "ä"])
def test_names_can_be_shown(name: str) -> None:
    text = format_identifier(name)
    assert text.isascii() and text.isprintable()
    assert parse_identifier(text) == name


def test_a_dead_letter_is_part_of_the_commit(world: World) -> None:
    dead = world.queue("dead", durable=True)
    queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(queue, "a", persistent=True)
    branch = begin(world)
    branch.settle(take(queue), REJECT)
    prepared(world, branch)
    world = again(world)
    dead = classic(world.vhost.queues["dead"])
    assert dead.ready_count == 0
    assert commit(world) == [DONE]
    assert world.contents(dead) == ["a"]


def test_commits_reach_streams_and_sink_transactions(world: World) -> None:
    stream = world.vhost.declare_queue("s", None, durable=True, arguments={"x-queue-type": "stream"})
    world.vhost.sink_transactions.open("stage", "app", "user")
    stage = world.vhost.sink_transactions.by_uuid["stage"]
    branch = begin(world)
    publish(world, branch, [stream], "a", persistent=True)
    branch.publish(world.message("b", exchange="leveret.stage:stage:", key="q", persistent=True), [stage])
    prepared(world, branch)
    assert (stream.ready_count, stage.count) == (0, 0)
    world = again(world)
    assert commit(world) == [DONE]
    assert (world.vhost.queues["s"].ready_count, world.vhost.sink_transactions.by_uuid["stage"].count) == (1, 1)


def test_a_refusal_is_a_broker_error(world: World) -> None:
    with pytest.raises(BrokerError, match="branch 'y' does not exist"):
        world.vhost.branches.find("y", None)


def large(world: World) -> tuple[Branch, Queue, Queue]:
    """A branch that acknowledges a complete queue, and publishes as much to another one."""
    source, target = world.queue("from", durable=True), world.queue("to", durable=True)
    for number in range(MANY):
        world.push(source, str(number), persistent=True)
    world.end_turn()
    branch = begin(world)
    for number in range(MANY):
        publish(world, branch, [target], str(number), persistent=True)
        branch.settle(take(source), ACCEPT)
    return branch, source, target


def test_a_large_branch_is_prepared_in_steps_with_one_record(world: World) -> None:
    branch, _, _ = large(world)
    outcomes = Outcomes()
    world.vhost.branches.prepare(branch, outcomes)
    with pytest.raises(PreconditionFailed, match="being decided"):
        world.vhost.branches.commit(branch, True, outcomes)
    stored = turns = 0
    seen = []
    world.end_turn()
    while world.posted:
        if len(left(world)) not in seen:
            seen.append(len(left(world)))
        assert outcomes == []
        world.posted.pop(0)()
        assert len(branch.stored) - stored <= STEP_WORK
        stored = len(branch.stored)
        world.end_turn()
        turns += 1
    assert turns > MANY // STEP_WORK and outcomes == [DONE] and branch.state == PREPARED
    assert seen == [0] and len(left(world)) == 1 + MANY
    world = again(world)
    assert commit(world) == [DONE]
    assert world.contents(world.vhost.queues["to"]) == [str(number) for number in range(MANY)]
    assert world.vhost.queues["from"].unacked == 0 and left(world) == []


def test_a_failed_prepare_of_a_large_branch_leaves_no_records(world: World) -> None:
    log = FailingLog()
    world = World(log=log)
    branch, source, target = large(world)
    log.calls = LARGE + 10
    outcomes = Outcomes()
    world.vhost.branches.prepare(branch, outcomes)
    world.run()
    assert outcomes == [FAILED] and left(world) == [] and log.completion is None
    assert (source.unacked, target.ready_count) == (MANY, 0)
    prepared(world, branch)
    assert commit(world) == [DONE]
    assert world.contents(target) == [str(number) for number in range(MANY)]


def test_a_large_branch_whose_commit_fails_can_be_committed_again() -> None:
    log = FailingLog()
    world = World(log=log)
    branch, source, target = large(world)
    prepared(world, branch)
    log.calls = LARGE + 10
    assert commit(world) == [FAILED]
    assert (source.unacked, target.ready_count, len(target.hidden)) == (MANY, 0, 0)
    assert len(left(world)) == 1 + MANY and not branch.deciding
    assert commit(world) == [DONE]
    assert world.contents(target) == [str(number) for number in range(MANY)]
    assert source.unacked == 0 and left(world) == []


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_small_branch_whose_commit_fails_can_be_decided_again(is_prepared: bool, decision: str) -> None:
    log = FailingLog()
    world = World(log=log)
    dead, target = world.queue("dead", durable=True), world.queue("to", durable=True)
    source = world.queue("from", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(source, *"abc", persistent=True)
    branch = begin(world)
    for outcome in (REQUEUE, REJECT, ACCEPT):
        branch.settle(take(source), outcome)
    publish(world, branch, [target], "d", persistent=True)
    if is_prepared:
        prepared(world, branch)
    else:
        world.run()
    state = branch.state
    log.calls = 1  # the dead letter
    with pytest.raises(RuntimeError):
        world.vhost.branches.commit(branch, not is_prepared, Outcomes())
    world.run()
    assert branch.state in (state, ENDED) and not branch.deciding
    assert (source.ready_count, source.unacked, dead.ready_count, target.ready_count) == (0, 3, 0, 0)
    assert len(target.hidden) == len(dead.hidden) == 0
    if is_prepared:
        assert [queue.unacked for queue in again(world).vhost.queues.values()] == [0, 0, 3]
    if decision == "commit":
        assert commit(world, one_phase=not is_prepared) == [DONE]
        assert [world.contents(queue) for queue in (source, dead, target)] == [["a"], ["b"], ["d"]]
    else:
        assert rollback(world) == [DONE]
        assert [world.contents(queue) for queue in (source, dead, target)] == [["a", "b", "c"], [], []]
    world.run()
    assert left(world) == []


def test_a_failed_prepare_leaves_no_records() -> None:
    log = FailingLog()
    world = World(log=log)
    queue = world.queue(durable=True)
    branch = begin(world)
    for body in "abc":
        publish(world, branch, [queue], body, persistent=True)
    log.calls = 1
    with pytest.raises(RuntimeError):
        world.vhost.branches.prepare(branch, Outcomes())
    world.run()
    assert left(world) == [] and branch.state == ENDED
    assert rollback(world) == [DONE]


@pytest.mark.parametrize("how", ["failed", "timed out", "rolled back"])
def test_a_large_branch_is_released_in_steps(world: World, how: str) -> None:
    world.broker.branch_settings = BranchSettings(timeout=1000)
    branch, source, _ = large(world)
    consumer = Taker(source)
    outcomes = Outcomes()
    if how == "failed":
        branch.fail()
    elif how == "timed out":
        world.clock.time += 1001
        world.broker.timers.run(world.clock.time)
    else:
        world.vhost.branches.rollback(branch, outcomes)
    before = source.ready_count
    assert before <= STEP_WORK
    while world.posted:
        assert classic(source).dispatcher.frozen or source.ready_count + source.counters.delivered in (MANY, 2 * MANY)
        world.posted.pop(0)()
        assert source.ready_count + len(consumer.taken) - before <= STEP_WORK or not classic(source).dispatcher.frozen
        before = source.ready_count
        world.end_turn()
    world.run()
    assert outcomes == ([DONE] if how == "rolled back" else [])
    assert consumer.bodies() == [str(number) for number in range(MANY)]


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_large_branch_is_decided_in_steps_with_one_record(world: World, decision: str) -> None:
    count = 2 * LARGE
    source, target = world.queue("from", durable=True), world.queue("to", durable=True)
    for number in range(count):
        world.push(source, str(number), persistent=True)
    world.end_turn()
    branch = begin(world)
    for number in range(count):
        publish(world, branch, [target], str(number), persistent=True)
        branch.settle(take(source), ACCEPT)
    prepared(world, branch)
    outcomes = Outcomes()
    if decision == "commit":
        world.vhost.branches.commit(branch, False, outcomes)
    else:
        world.vhost.branches.rollback(branch, outcomes)
    assert outcomes == []
    seen = []
    turns = 0
    world.end_turn()
    while world.posted:
        log, recovery = world.held_log.recovery()
        after = World(log=log, recovery=recovery)
        after.run()
        found = [
            len(after.vhost.branches.by_name),
            after.vhost.queues["from"].ready_count,
            after.vhost.queues["to"].ready_count,
        ]
        if found not in seen:
            seen.append(found)
        world.posted.pop(0)()
        world.end_turn()
        turns += 1
    assert turns > 2 and outcomes == [DONE]
    expected = [0, 0, count] if decision == "commit" else [0, count, 0]
    assert seen in ([[1, 0, 0], expected], [[1, 0, 0]])
    assert (source.ready_count, target.ready_count) == (expected[1], expected[2])
    assert not source.dispatcher.frozen and not target.dispatcher.frozen and source.unacked == 0 and not target.hidden.bytes
    queue = target if decision == "commit" else source
    assert world.contents(queue) == [str(number) for number in range(count)]
    world.run()
    assert not world.held_log.kept
