"""Transactions: all or nothing, in order, invisible before the commit."""

from __future__ import annotations

import pytest

from leveret.broker.message import Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.transactions.transaction import ACCEPT, REJECT, REQUEUE, Transaction
from tests.broker.support import HeldLog, Taker, World, figures


@pytest.fixture
def held() -> World:
    """A world whose commits return on request."""
    world = World()
    world.held_log.held = True
    return world


class Commit:
    """A transaction of these publishes and settlements, committed at once."""

    def __init__(
        self,
        world: World,
        publishes: list[tuple[ClassicQueue, str]],
        settlements: list[tuple[Entry, int]] = [],  # noqa: B006
        *,
        persistent: bool = True,
    ) -> None:
        self.done = False
        transaction = Transaction(world.log)
        for queue, body in publishes:
            transaction.publish(world.message(body, key=queue.name, persistent=persistent), [queue])
        for entry, outcome in settlements:
            transaction.settle(entry, outcome)
        transaction.commit(self._done)
        world.run()

    def _done(self) -> None:
        self.done = True


def kept(log: HeldLog, queue: ClassicQueue) -> list[int]:
    """Return the sequence numbers that a restart would find in a queue."""
    return sorted(seq for queue_id, seq in log.kept if queue_id == queue.id)


def test_publishes_are_invisible_before_the_commit_has_returned(held: World) -> None:
    queue = held.queue(durable=True)
    held.held_log.release_all()
    consumer = Taker(queue)
    commit = Commit(held, [(queue, "a"), (queue, "b")])
    assert not commit.done and consumer.history == []
    assert figures(queue) == (0, 0, 0)
    held.held_log.release()
    held.run()
    assert commit.done and consumer.history == ["a", "b"]


def test_without_anything_durable_it_is_visible_at_once(held: World) -> None:
    queue = held.queue()
    commit = Commit(held, [(queue, "a")])
    assert commit.done
    assert held.contents(queue) == ["a"]


def test_publishes_and_settlements_share_one_commit(held: World) -> None:
    one, two = held.queue("one", durable=True), held.queue("two", durable=True)
    held.push(one, "x", persistent=True)
    held.held_log.release_all()
    entry = one.get(False)
    assert entry is not None
    log = held.held_log
    Commit(held, [(two, "y")], [(entry, ACCEPT)])
    assert (len(kept(log, one)), len(kept(log, two))) == (1, 0)
    log.release()
    assert (len(kept(log, one)), len(kept(log, two))) == (0, 1)


def test_only_settlements(held: World) -> None:
    queue = held.queue(durable=True)
    held.push(queue, "x", persistent=True)
    held.held_log.release_all()
    entry = queue.get(False)
    assert entry is not None
    commit = Commit(held, [], [(entry, ACCEPT)])
    assert not commit.done
    held.held_log.release_all()
    assert commit.done


def test_the_outcomes(world: World) -> None:
    dead = world.queue("dead")
    queue = world.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(queue, "accepted", "requeued", "rejected")
    entries = [queue.get(False) for _ in range(3)]
    outcomes = [
        (entry, outcome) for entry, outcome in zip(entries, (ACCEPT, REQUEUE, REJECT), strict=True) if entry is not None
    ]
    assert Commit(world, [], outcomes).done
    assert world.contents(queue) == ["requeued"]
    assert world.contents(dead) == ["rejected"]
    assert queue.unacked == 0


def test_order_within_and_against_others(held: World) -> None:
    queue = held.queue(durable=True)
    held.held_log.release_all()
    Commit(held, [(queue, "t1"), (queue, "t2")])
    held.push(queue, "later", persistent=True)
    held.run()
    assert figures(queue) == (1, 5, 0)
    held.held_log.release_all()
    held.run()
    assert held.contents(queue) == ["t1", "t2", "later"]


def test_two_transactions_in_one_turn_keep_their_order(held: World) -> None:
    queue = held.queue(durable=True)
    held.held_log.release_all()
    commits = [Commit(held, [(queue, f"{number}")]) for number in range(3)]
    held.held_log.release_all()
    held.run()
    assert all(commit.done for commit in commits)
    assert held.contents(queue) == ["0", "1", "2"]


def test_a_crash_before_the_commit_undoes_it(held: World) -> None:
    one, two = held.queue("one", durable=True), held.queue("two", durable=True)
    held.push(one, "x", persistent=True)
    held.held_log.release_all()
    entry = one.get(False)
    assert entry is not None
    Commit(held, [(two, "y")], [(entry, ACCEPT)])
    log, recovery = held.held_log.recovery()
    after = World(log=log, recovery=recovery)
    assert after.contents(after.vhost.queues["one"]) == ["x"]
    assert after.contents(after.vhost.queues["two"]) == []


def test_a_purge_while_the_commit_runs_spares_the_transaction(held: World) -> None:
    queue = held.queue(durable=True)
    held.held_log.release_all()
    commit = Commit(held, [(queue, "hidden")])
    held.push(queue, "visible", persistent=True)
    assert queue.purge() == 1
    held.run()
    held.held_log.release_all()
    held.run()
    assert commit.done and queue.ready_count == 1
    log, recovery = held.held_log.recovery()
    after = World(log=log, recovery=recovery)
    assert after.contents(after.vhost.queues["q"]) == ["hidden"]


def test_a_queue_that_is_deleted_while_the_commit_runs(held: World) -> None:
    queue = held.queue(durable=True)
    held.held_log.release_all()
    commit = Commit(held, [(queue, "a")])
    held.vhost.remove_queue(queue)
    held.held_log.release_all()
    held.run()
    held.held_log.release_all()
    assert commit.done
    assert held.log.rows == {} and held.held_log.kept == {}


@pytest.mark.parametrize("call", ["store", "settle"])
def test_a_failure_in_the_middle_undoes_everything(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    world = World()
    one, two = world.queue("one", durable=True), world.queue("two", durable=True)
    world.push(one, *"abc", persistent=True)
    world.run()
    transaction = Transaction(world.log)
    for body in "xyz":
        transaction.publish(world.message(body, key="two", persistent=True), [two])
    for _ in range(3):
        entry = one.get(False)
        assert entry is not None
        transaction.settle(entry, ACCEPT)
    calls = []
    original = getattr(HeldLog, call)

    def failing(log: HeldLog, entry: Entry) -> None:
        calls.append(entry)
        if len(calls) == 2:
            raise RuntimeError("a mistake")
        original(log, entry)

    monkeypatch.setattr(HeldLog, call, failing)
    with pytest.raises(RuntimeError):
        transaction.commit(lambda: None)
    world.run()
    assert (len(kept(world.held_log, one)), kept(world.held_log, two)) == (3, [])
    assert (one.unacked, one.ready_count, two.ready_count, len(two.hidden)) == (0, 3, 0, 0)
    assert world.contents(one) == ["a", "b", "c"]


@pytest.mark.parametrize("call", ["store", "settle"])
@pytest.mark.parametrize("failing", range(1, 5))
def test_a_failure_after_rejects_and_requeues_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, call: str, failing: int
) -> None:
    world = World()
    dead = world.queue("dead", durable=True)
    one = world.queue("one", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead", delivery_limit=1)
    world.push(one, *"abcde", persistent=True)
    spent = one.get(False)
    assert spent is not None
    one.requeue(spent)
    world.run()
    consumer = Taker(one)
    world.run()
    transaction = Transaction(world.log)
    for entry, outcome in zip(consumer.taken, (REQUEUE, REJECT, REQUEUE, ACCEPT, REJECT), strict=True):
        transaction.settle(entry, outcome)
    one.remove_consumer(consumer)
    calls = []
    original = getattr(HeldLog, call)

    def fail(log: HeldLog, entry: Entry) -> None:
        calls.append(entry)
        if len(calls) == failing:
            raise RuntimeError("a mistake")
        original(log, entry)

    monkeypatch.setattr(HeldLog, call, fail)
    if call == "store" and failing == 4:  # there are three dead letters
        transaction.commit(lambda: None)
        world.run()
        assert (world.contents(one), world.contents(dead)) == (["c"], ["a", "b", "e"])
        return
    with pytest.raises(RuntimeError):
        transaction.commit(lambda: None)
    monkeypatch.setattr(HeldLog, call, original)
    world.run()
    assert (one.unacked, one.ready_count, dead.ready_count, len(dead.hidden)) == (0, 4, 1, 0)
    assert (len(kept(world.held_log, one)), len(kept(world.held_log, dead))) == (4, 1)
    assert (world.contents(one), world.contents(dead)) == (["b", "c", "d", "e"], ["a"])


def test_dead_letters_of_a_transaction_become_visible_with_it(held: World) -> None:
    dead = held.queue("dead", durable=True)
    queue = held.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    held.push(queue, "a", persistent=True)
    held.held_log.release_all()
    entry = queue.get(False)
    assert entry is not None
    commit = Commit(held, [], [(entry, REJECT)])
    assert not commit.done and (dead.ready_count, len(dead.hidden)) == (0, 1)
    held.held_log.release_all()
    assert commit.done and held.contents(dead) == ["a"]


def test_a_queue_that_was_deleted_before(world: World) -> None:
    queue = world.queue(durable=True)
    transaction = Transaction(world.log)
    transaction.publish(world.message("a", persistent=True), [queue])
    world.vhost.remove_queue(queue)
    done: list[bool] = []
    transaction.commit(lambda: done.append(True))
    world.run()
    assert done == [True] and world.log.rows == {}


def test_limits_apply_after_the_commit(world: World) -> None:
    queue = world.queue(durable=True, max_length=2)
    Commit(world, [(queue, "a"), (queue, "b"), (queue, "c")])
    assert world.contents(queue) == ["b", "c"]


def test_a_time_to_live_of_zero_still_reaches_a_consumer(world: World) -> None:
    queue = world.queue(durable=True, message_ttl=0)
    consumer = Taker(queue)
    Commit(world, [(queue, "a")])
    assert consumer.history == ["a"]
