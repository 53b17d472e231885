"""Deduplication in a queue: which messages are dropped, how long keys last, and one commit for a key and its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.arguments import CACHE_TTL, DEDUPLICATION_HEADER
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.registry import parse_queue_arguments
from leveret.broker.transactions.branches import DONE
from leveret.broker.transactions.relocation import Relocation
from leveret.broker.transactions.transaction import Transaction
from tests.broker.support import HeldLog, Taker, World
from tests.broker.test_branches import begin, commit, rollback

WINDOW = 60_000


def windowed(world: World, name: str = "q", window: int = WINDOW, **arguments: Any) -> ClassicQueue:
    return world.queue(name, durable=True, deduplication_window=window, **arguments)


def present(world: World, name: str = "q", **arguments: Any) -> ClassicQueue:
    """Declare a queue as users of RabbitMQ's plugin do."""
    return world.queue(name, durable=True, message_deduplication=True, **arguments)


def push(
    world: World,
    queue: ClassicQueue,
    key: Any,
    body: str = "m",
    *,
    persistent: bool = True,
    more: dict[str, Any] | None = None,
) -> bool:
    """Push a message with a key and more headers; return whether the queue has one more message."""
    before = queue.counters.published
    headers = {} if key is None else {DEDUPLICATION_HEADER: key}
    assert queue.push(world.message(body, persistent=persistent, headers={**headers, **(more or {})}))
    return queue.counters.published > before


def push_many(world: World, queue: ClassicQueue, count: int) -> None:
    """Push messages with the keys 0, 1 and so on, in turns that the log can take."""
    for number in range(count):
        push(world, queue, number)
        if not number % 500:
            world.run()


def keys_of(queue: ClassicQueue) -> int:
    assert queue.deduplication is not None
    return len(queue.deduplication)


def records(world: World) -> list[str]:
    world.run()
    return [key for kind, key in world.held_log.metadata if kind == metadata.DEDUPLICATION]


def again(world: World, clean: bool = False) -> tuple[World, ClassicQueue]:
    """Return the world and the queue after a start from the committed log."""
    log, recovery = world.held_log.recovery(clean)
    new = World(log=log, recovery=recovery, time=world.clock.time)
    new.run()
    queue = new.vhost.queues["q"]
    assert isinstance(queue, ClassicQueue)
    return new, queue


def acquire(queue: ClassicQueue) -> Entry:
    entry = queue.get(False)
    assert entry is not None
    return entry


# Keys


def test_a_duplicate_within_the_window_is_dropped(world: World) -> None:
    queue = windowed(world)
    assert push(world, queue, "a", "first")
    assert not push(world, queue, "a", "second")
    assert push(world, queue, "b", "third")
    world.sleep(WINDOW - 1)
    assert not push(world, queue, "a")
    world.sleep(1)
    assert push(world, queue, "a", "fourth")
    assert not push(world, queue, "a")
    assert world.contents(queue) == ["first", "third", "fourth"]
    assert not push(world, queue, "a")
    assert queue.deduplication is not None and queue.deduplication.dropped == 4


@pytest.mark.parametrize(
    ("first", "other", "equal"),
    [
        ("a", "a", True),
        ("a", "A", False),
        ("1", 1, False),
        (1, 1, True),
        (1, True, False),
        (True, True, True),
        (1.5, 1.5, True),
        ([1, "a"], [1, "a"], True),
        ([1, "a"], ["a", 1], False),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}, True),
        ("x" * 100_000, "x" * 100_000, True),
        ("", "", True),
    ],
)
def test_values_of_the_header(world: World, first: Any, other: Any, equal: bool) -> None:
    queue = windowed(world)
    assert push(world, queue, first)
    assert push(world, queue, other) is not equal


def test_a_message_without_the_header_is_no_duplicate(world: World) -> None:
    queue = windowed(world)
    for key in (None, None):
        assert push(world, queue, key)
    void = world.message(headers={DEDUPLICATION_HEADER: None})
    assert queue.push(void) and queue.push(void)
    assert queue.ready_count == 4 and keys_of(queue) == 0


def test_the_header_is_chosen_by_an_argument(world: World) -> None:
    queue = windowed(world, deduplication_header="order")
    assert push(world, queue, None, more={"order": 7})
    assert push(world, queue, None, more={"order": 8})
    assert not push(world, queue, None, more={"order": 7})
    assert push(world, queue, "k") and push(world, queue, "k")


def test_a_message_may_tell_how_long_its_key_lasts(world: World) -> None:
    queue = windowed(world)
    for key, lifetime in (("short", 1000), ("bad", "soon"), ("negative", -1), ("flag", True)):
        assert push(world, queue, key, more={CACHE_TTL: lifetime})
    assert push(world, queue, "long", more={CACHE_TTL: 2 * WINDOW})
    world.sleep(1000)
    assert push(world, queue, "short")
    assert not any(push(world, queue, key) for key in ("bad", "negative", "flag", "long"))
    world.sleep(WINDOW)
    assert all(push(world, queue, key) for key in ("bad", "negative", "flag"))
    assert not push(world, queue, "long")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-deduplication-window": 0},
        {"x-deduplication-window": "1m"},
        {"x-message-deduplication": "yes"},
        {"x-message-deduplication": True, "x-cache-size": 0},
        {"x-message-deduplication": True, "x-cache-size": 10_000_001},
        {"x-message-deduplication": True, "x-cache-persistence": "tape"},
        {"x-cache-size": 10},
        {"x-deduplication-header": "id", "x-message-deduplication": False},
        {"x-queue-type": "stream", "x-message-deduplication": True},
        {"x-queue-type": "stream", "x-deduplication-window": 1000},
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match="'x-"):
        parse_queue_arguments(arguments, durable=True, exclusive=False, auto_delete=False, strict=True)


def test_arguments_of_the_plugin_are_accepted(world: World) -> None:
    arguments: dict[str, Any] = {"x-message-deduplication": True, "x-cache-size": 10, "x-cache-persistence": "disk"}
    parse_queue_arguments(arguments, durable=True, exclusive=False, auto_delete=False, strict=True)
    world.queue("none", message_deduplication=False)
    world.vhost.declare_queue("none", None)  # the default


# Until the message leaves the queue


def leave_by_ack(world: World, queue: ClassicQueue) -> None:
    queue.settle(acquire(queue))


def leave_by_get(world: World, queue: ClassicQueue) -> None:
    assert queue.get(True) is not None


def leave_by_delivery(world: World, queue: ClassicQueue) -> None:
    Taker(queue, no_ack=True, credit=1)
    world.run()


def leave_by_rejection(world: World, queue: ClassicQueue) -> None:
    queue.reject(acquire(queue))


def leave_by_expiry(world: World, queue: ClassicQueue) -> None:
    world.sleep(WINDOW)


def leave_by_purge(world: World, queue: ClassicQueue) -> None:
    assert queue.purge() == 1


def leave_by_overflow(world: World, queue: ClassicQueue) -> None:
    assert queue.push(world.message(persistent=True))


def leave_by_operator(world: World, queue: ClassicQueue) -> None:
    head = queue.inspect().head()
    assert head is not None and queue.inspect().withdraw(head, "deleted")


def leave_by_transaction(world: World, queue: ClassicQueue) -> None:
    transaction = Transaction(world.log)
    transaction.settle(acquire(queue), 0)
    transaction.commit(lambda: None)


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_ack,
        leave_by_get,
        leave_by_delivery,
        leave_by_rejection,
        leave_by_expiry,
        leave_by_purge,
        leave_by_overflow,
        leave_by_operator,
        leave_by_transaction,
    ],
)
@pytest.mark.parametrize("kind", ["classic", "quorum", "last-value", "sorted", "grouped"])
def test_without_a_window_a_key_lasts_until_the_message_leaves(
    world: World, kind: str, leave: Callable[[World, ClassicQueue], None]
) -> None:
    arguments: dict[str, Any] = {"queue_type": kind, "message_ttl": WINDOW, "max_length": 1}
    if kind in ("sorted", "grouped"):
        arguments["sort_key" if kind == "sorted" else "group_key"] = "other"
    queue = present(world, **arguments)
    assert push(world, queue, "a")
    world.sleep(WINDOW - 1)
    assert not push(world, queue, "a")
    world.run()
    leave(world, queue)
    world.run()
    assert keys_of(queue) == 0 and records(world) == []
    assert push(world, queue, "a")


def test_an_unacked_message_is_in_the_queue(world: World) -> None:
    queue = present(world)
    push(world, queue, "a")
    entry = acquire(queue)
    assert not push(world, queue, "a")
    queue.requeue(entry)
    assert not push(world, queue, "a")
    world.run()
    new, queue = again(world)
    assert not push(new, queue, "a")
    assert new.contents(queue) == ["m"]
    new.run()
    new, queue = again(new)
    assert push(new, queue, "a")


def test_the_settlement_of_a_later_message_keeps_the_key(world: World) -> None:
    """An entry that came as a dead letter has the key of another one."""
    queue = present(world)
    push(world, queue, "a")
    dead_letter = queue.prepare(world.message(headers={DEDUPLICATION_HEADER: "a"}))
    queue.insert_new(dead_letter)
    first = acquire(queue)
    queue.settle(acquire(queue))
    assert not push(world, queue, "a")
    queue.settle(first)
    assert push(world, queue, "a")


def test_leases_need_a_window(world: World) -> None:
    with pytest.raises(PreconditionFailed, match="'x-deduplication-window'"):
        present(world).make_leases()
    windowed(world, "windowed").make_leases()


# Other publishes


def test_transactions(world: World) -> None:
    queue = windowed(world)
    message = world.message("a", persistent=True, headers={DEDUPLICATION_HEADER: "a"})
    begin(world, "aborted").publish(message, [queue])
    assert rollback(world, "aborted") == [DONE] and keys_of(queue) == 0
    branch = begin(world, "committed")
    for body in ("first", "second"):
        branch.publish(world.message(body, persistent=True, headers={DEDUPLICATION_HEADER: "a"}), [queue])
    assert commit(world, "committed", one_phase=True) == [DONE]
    assert world.contents(queue) == ["first"]
    assert not push(world, queue, "a")


def test_a_transaction_that_fails_leaves_no_key(world: World) -> None:
    queue = windowed(world)
    transaction = Transaction(world.log)
    transaction.publish(world.message("a", persistent=True, headers={DEDUPLICATION_HEADER: "a"}), [queue])
    for _ in transaction.writing():
        pass
    assert not push(world, queue, "a")
    for _ in transaction.undoing():
        pass
    assert keys_of(queue) == 0 and records(world) == []
    assert push(world, queue, "a")


def test_a_duplicate_in_a_transaction_waits_for_the_commit_of_the_first() -> None:
    log = HeldLog(held=True)
    world = World(log=log)
    queue = windowed(world)
    log.release_all()
    push(world, queue, "a")
    world.end_turn()
    done: list[bool] = []
    transaction = Transaction(log)
    transaction.publish(world.message("a", persistent=True, headers={DEDUPLICATION_HEADER: "a"}), [queue])
    transaction.commit(lambda: done.append(True))
    assert not done
    log.release_all()
    assert done == [True]


def test_a_dead_letter_is_no_duplicate(world: World) -> None:
    """It may return to its queue, as by retries through another queue: dropping it would lose the message."""
    queue = windowed(world, dead_letter_exchange="", dead_letter_routing_key="retry")
    world.queue("retry", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="q")
    push(world, queue, "a", "message")
    queue.reject(acquire(queue))
    world.sleep(1000)
    assert world.contents(queue) == ["message"]


def test_a_message_that_an_operator_moves_is_no_duplicate(world: World) -> None:
    queue = windowed(world)
    dead = world.queue("dead")
    push(world, queue, "a", "message")
    queue.settle(acquire(queue))
    world.push(dead, "message", headers={DEDUPLICATION_HEADER: "a"})
    head = dead.inspect().head()
    assert head is not None
    relocation = Relocation(dead)
    assert relocation.move(head, head.message, [queue], lambda _: None, "moved")
    relocation.commit(lambda: None)
    world.run()
    assert world.contents(queue) == ["message"]


def test_a_delayed_message_counts_from_its_publish(world: World) -> None:
    queue = windowed(world)
    headers = {DEDUPLICATION_HEADER: "a"}
    assert queue.delay(world.message("first", headers=headers), world.clock.now() + 1000)
    assert queue.delay(world.message("second", headers=headers), world.clock.now() + 10)
    assert not push(world, queue, "a", persistent=False)
    world.sleep(1000)
    assert world.contents(queue) == ["first"]


def test_a_full_queue_that_rejects_notes_no_key(world: World) -> None:
    queue = windowed(world, max_length=1, overflow="reject-publish")
    push(world, queue, "a")
    assert not queue.push(world.message(headers={DEDUPLICATION_HEADER: "b"}))
    world.contents(queue)
    assert push(world, queue, "b")


# Limits


def test_the_oldest_keys_are_forgotten_above_the_maximum(world: World) -> None:
    queue = windowed(world, cache_size=100)
    for number in range(1000):
        assert push(world, queue, number)
    assert keys_of(queue) == 100 and len(records(world)) <= 3
    assert not any(push(world, queue, number) for number in range(900, 1000))
    assert push(world, queue, 899)
    assert push(world, queue, 900)
    assert not push(world, queue, 902)


def test_expired_keys_are_dropped_in_steps(world: World) -> None:
    queue = windowed(world)
    push_many(world, queue, 5000)
    assert keys_of(queue) == 5000 and len(records(world)) == 79
    world.clock.time += WINDOW
    world.held_log.behind = True
    world.clock.run(world.clock.time)
    assert keys_of(queue) == 5000
    world.held_log.behind = False
    world.clock.time += 100
    world.clock.run(world.clock.time)
    assert 0 < keys_of(queue) < 5000
    while keys_of(queue):
        before = keys_of(queue)
        world.sleep(1)
        assert before - 1024 <= keys_of(queue) < before
    assert records(world) == []


def test_removed_keys_leave_no_records(world: World) -> None:
    """Even if an old message stays in the queue."""
    queue = present(world)
    push(world, queue, "old")
    first = acquire(queue)
    for number in range(2000):
        push(world, queue, number)
        queue.settle(acquire(queue))
        world.run()
    assert keys_of(queue) == 1 and len(records(world)) == 1
    queue.settle(first)
    assert records(world) == []


# The log


def test_keys_survive_a_start(world: World) -> None:
    queue = windowed(world)
    for number in range(200):
        push(world, queue, number)
    push(world, queue, "transient", persistent=False)
    push(world, queue, "short", more={CACHE_TTL: 1})
    world.contents(queue)
    world.run()
    world.clock.time += 1
    for clean in (True, False):
        world, queue = again(world, clean)
        assert keys_of(queue) == 200
        assert not any(push(world, queue, number) for number in range(200))
    # The message is lost, too.
    assert push(world, queue, "transient") and push(world, queue, "short")
    world.sleep(WINDOW)
    assert records(world) == [] and keys_of(queue) == 0
    assert push(world, queue, 0)
    world, queue = again(world)
    assert keys_of(queue) == 0  # its commit was lost


def test_a_persistent_message_is_no_duplicate_of_a_transient_one(world: World) -> None:
    """Its confirm means that it is on disk."""
    queue = windowed(world)
    assert push(world, queue, "a", persistent=False)
    assert push(world, queue, "a", persistent=True)
    assert not push(world, queue, "a", persistent=True)
    assert not push(world, queue, "a", persistent=False)
    world.run()
    assert not push(*again(world), "a")


@pytest.mark.parametrize("committed", range(3))
def test_a_key_and_its_message_are_one_commit(committed: int) -> None:
    """After a crash at any commit, each message has its key, and each key its message."""
    log = HeldLog(held=True)
    world = World(log=log)
    queue = windowed(world)
    log.release_all()
    for key in "abc":
        push(world, queue, key, key)
        world.end_turn()
    for _ in range(committed):
        log.release()
        world.end_turn()
    new, found = again(world)
    accepted = [key for key in "abc" if push(new, found, key, key)]
    assert new.contents(found) == [*sorted({*"abc"} - {*accepted}), *accepted]


def test_a_duplicate_is_confirmed_with_the_first() -> None:
    log = HeldLog(held=True)
    world = World(log=log)
    queue = windowed(world)
    log.release_all()
    push(world, queue, "a")
    world.end_turn()
    duplicate = world.message(persistent=True, headers={DEDUPLICATION_HEADER: "a"})
    queue.push(duplicate)
    assert duplicate.row is not None and duplicate.slot == -1
    log.release_all()
    later = world.message(persistent=True, headers={DEDUPLICATION_HEADER: "a"})
    queue.push(later)
    assert later.row is None


def test_a_duplicate_in_two_queues_is_confirmed_with_the_later_of_the_first_ones() -> None:
    log = HeldLog(held=True)
    world = World(log=log)
    queues = [windowed(world, "one"), windowed(world, "two")]
    log.release_all()
    for queue in queues:
        push(world, queue, "a")
        world.end_turn()
    for targets in (queues, queues[::-1]):
        duplicate = world.message(persistent=True, headers={DEDUPLICATION_HEADER: "a"})
        for queue in targets:
            queue.push(duplicate)
        assert duplicate.row is not None
        assert duplicate.row.batch == log.filling


def test_a_duplicate_is_stored_in_another_queue(world: World) -> None:
    queue = windowed(world)
    other = world.queue("other", durable=True)
    push(world, queue, "a")
    message = world.message("second", persistent=True, headers={DEDUPLICATION_HEADER: "a"})
    for target in (queue, other):
        target.push(message)
    world.run()
    new, _ = again(world)
    assert new.contents(new.queue("other", durable=True)) == ["second"]


def test_a_purge_forgets_the_keys(world: World) -> None:
    queue = windowed(world)
    push_many(world, queue, 3000)
    world.run()
    assert queue.purge() == 3000 and keys_of(queue) == 0
    push(world, queue, 1)
    world.end_turn()
    # Even if the removal from the log is interrupted.
    new, queue = again(world)
    assert keys_of(queue) == 1
    assert push(new, queue, 2) and not push(new, queue, 1)
    assert len(records(new)) == 2


def test_a_deleted_queue_leaves_no_records(world: World) -> None:
    queue = windowed(world)
    push(world, queue, "a")
    assert len(records(world)) == 1
    world.vhost.delete_queue("q", None)
    assert records(world) == []
    world.held_log.put(metadata.DEDUPLICATION, metadata.make_key("99", "1"), b"")
    windowed(world)
    world.run()
    new, _ = again(world)
    assert records(new) == []
