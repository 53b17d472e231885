"""Retries of rejected messages (`x-retry-delays`)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.arguments import RETRY_DELAYS
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Entry, make_address
from leveret.broker.queues.classic.queue import RETRY_COUNT, ClassicQueue
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.registry import parse_queue_arguments
from leveret.broker.transactions.relocation import moved_overlay
from leveret.broker.transactions.transaction import REJECT, Transaction
from leveret.storage.records import decode_overlay, encode_overlay
from tests.broker.support import Taker, World


def acquire(queue: Queue) -> Entry:
    entry = queue.get(False)
    assert entry is not None
    return entry


def reject(queue: Queue) -> None:
    queue.reject(acquire(queue))


def counts(queue: Queue) -> tuple[int, int, int]:
    return queue.ready_count, queue.delayed_count, queue.retrying_count


def retrying(world: World, delays: str = "1s,5s", **arguments: Any) -> ClassicQueue:
    return world.queue(durable=True, retry_delays=delays, **arguments)


def count_of(entry: Entry) -> object:
    return None if entry.overlay is None else entry.overlay.headers.get(RETRY_COUNT)


def test_a_rejected_message_returns_after_each_delay_and_is_then_dead_lettered(world: World) -> None:
    dead = world.queue("dead")
    queue = retrying(world, dead_letter_exchange="", dead_letter_routing_key="dead")
    taker = Taker(queue)
    world.push(queue, "a")
    world.run()
    for number, delay in enumerate((1000, 5000)):
        assert count_of(taker.taken[0]) == (number or None)
        queue.reject(taker.taken.pop())
        world.run()
        assert counts(queue) == (0, 1, 1) and queue.unacked == 0
        world.sleep(delay - 1)
        assert not taker.taken
        world.sleep(1)
        assert counts(queue) == (0, 0, 0)
    assert count_of(taker.taken[0]) == 2 and taker.taken[0].acquired_count == 3
    queue.reject(taker.taken.pop())
    world.run()
    entry = acquire(dead)
    assert entry.overlay is not None
    deaths = entry.overlay.headers["x-death"]
    assert isinstance(deaths, list) and isinstance(deaths[0], dict)
    assert (len(deaths), deaths[0]["reason"], deaths[0]["count"]) == (1, "rejected", 1)
    assert count_of(entry) == 2
    assert (queue.counters.published, queue.counters.removed) == (1, 1)


def test_each_queue_counts_from_zero(world: World) -> None:
    second = world.queue("second", retry_delays="1s")
    queue = retrying(world, "0s", dead_letter_exchange="", dead_letter_routing_key="second")
    world.push(queue, "a")
    reject(queue)
    world.sleep(1)
    reject(queue)
    reject(second)
    assert counts(second) == (0, 1, 1)
    world.sleep(1000)
    assert count_of(acquire(second)) == 1


def test_without_a_dead_letter_exchange_it_is_dropped(world: World) -> None:
    queue = retrying(world, "1s")
    world.push(queue, "a", persistent=True)
    reject(queue)
    world.sleep(1000)
    reject(queue)
    world.run()
    assert counts(queue) == (0, 0, 0) and world.held_log.kept == {}


def test_a_requeue_returns_at_once_and_counts_for_the_delivery_limit(world: World) -> None:
    queue = retrying(world, delivery_limit=1)
    world.push(queue, "a")
    reject(queue)
    world.sleep(1000)
    queue.requeue(acquire(queue))
    assert counts(queue) == (1, 0, 0)
    queue.requeue(acquire(queue))
    assert counts(queue) == (0, 0, 0)


def test_an_operator_moves_it_without_the_count(world: World) -> None:
    dead = world.queue("dead")
    queue = retrying(world, "0s", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(queue, "a")
    reject(queue)
    world.sleep(1)
    reject(queue)
    overlay = moved_overlay(acquire(dead), make_address("", "q"))
    assert overlay is not None and RETRY_COUNT not in overlay.headers and "x-death" in overlay.headers


@pytest.mark.parametrize("overflow", [False, True])
def test_paged_out_messages_return(overflow: bool) -> None:
    world = World(page_above=10_000, overflow=True)
    queue = retrying(world, "1s,1s")
    world.push(queue, *[f"{number:02}" for number in range(40)], persistent=not overflow)
    world.run()
    for number in (1, 2):
        entries: list[Entry] = []
        while len(entries) < 40:
            entry = queue.get(False)
            if entry is None:
                world.run()
                continue
            entries.append(entry)
        assert [count_of(entry) for entry in entries] == [number - 1 or None] * 40
        for entry in entries:
            queue.reject(entry)
        world.run()
        world.broker.page_down()
        assert counts(queue) == (0, 40, 40) and queue.ready.memory < 12_000
        world.sleep(1000)
        assert counts(queue) == (40, 0, 0)
    assert world.contents(queue) == [f"{number:02}" for number in range(40)]


def test_a_start_finds_waiting_messages_and_their_counts(world: World) -> None:
    queue = retrying(world)
    world.push(queue, "a", persistent=True)
    reject(queue)
    world.run()
    log, recovery = world.held_log.recovery()
    after = World(log=log, recovery=recovery, time=world.clock.now())
    found = after.vhost.queues["q"]
    taker = Taker(found)
    after.run()
    assert counts(found) == (0, 1, 1) and not taker.taken
    after.sleep(1000)
    found.reject(taker.taken.pop())
    after.sleep(4999)
    assert counts(found) == (0, 1, 1)
    after.sleep(1)
    entry = taker.taken[0]
    assert (count_of(entry), entry.acquired_count > 1) == (2, True)


def test_the_record_of_an_overlay_has_the_count(world: World) -> None:
    queue = retrying(world)
    world.push(queue, "a")
    entry = acquire(queue)
    queue.reject(entry)
    assert entry.overlay is not None
    read = decode_overlay(encode_overlay(entry.overlay))
    assert (read.retries, read.visible_at, read.headers) == (1, entry.overlay.visible_at, {RETRY_COUNT: 1})


def test_a_rejection_in_a_transaction_waits_for_the_commit(world: World) -> None:
    queue = retrying(world)
    world.push(queue, "a", persistent=True)
    transaction = Transaction(world.log)
    transaction.settle(acquire(queue), REJECT)
    assert queue.unacked == 1
    world.sleep(2000)
    done: list[bool] = []
    transaction.commit(lambda: done.append(True))
    world.run()
    assert done and counts(queue) == (0, 1, 1)
    world.sleep(999)
    assert counts(queue) == (0, 1, 1)
    world.sleep(1)
    assert counts(queue) == (1, 0, 0)


def test_a_transaction_that_fails_retries_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = retrying(world), world.queue("other", durable=True)
    world.push(queue, "a", persistent=True)
    world.push(other, "b", persistent=True)
    transaction = Transaction(world.log)
    transaction.settle(acquire(queue), REJECT)
    transaction.settle(acquire(other), REJECT)

    def fail(entry: Entry) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(world.log, "settle", fail)
    with pytest.raises(RuntimeError):
        transaction.commit(lambda: None)
    monkeypatch.undo()
    assert (counts(queue), counts(other)) == ((1, 0, 0), (1, 0, 0))
    assert count_of(acquire(queue)) is None


def test_a_purge_and_a_deletion_remove_waiting_messages(world: World) -> None:
    queue = retrying(world)
    world.push(queue, "a", "b", persistent=True)
    reject(queue)
    assert queue.purge() == 2
    world.run()
    world.push(queue, "c", persistent=True)
    reject(queue)
    world.vhost.remove_queue(queue)
    world.run()
    world.sleep(10_000)
    assert world.held_log.kept == {} and queue.retrying_count == 0


def test_the_time_to_live_continues(world: World) -> None:
    dead = world.queue("dead")
    queue = retrying(world, message_ttl=500, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(queue, "a")
    reject(queue)
    world.sleep(999)
    assert counts(queue) == (0, 1, 1) and dead.ready_count == 0
    world.sleep(1)
    world.run()
    assert counts(queue) == (0, 0, 0) and dead.ready_count == 1


def test_a_waiting_message_counts_for_reject_publish(world: World) -> None:
    queue = retrying(world, max_length=1, overflow="reject-publish")
    world.push(queue, "a")
    reject(queue)
    assert not world.push(queue, "b")


def test_a_policy_sets_the_delays_of_existing_queues(world: World) -> None:
    queue = world.queue(durable=True)
    policies = world.vhost.policies
    policies.set(policies.user, "again", "^q$", {"retry-delays": "2s"})
    world.push(queue, "a")
    reject(queue)
    assert counts(queue) == (0, 1, 1)
    with pytest.raises(PreconditionFailed, match="invalid key 'retry-delays': received 'soon', expected delays"):
        policies.set(policies.user, "again", "^q$", {"retry-delays": "soon"})
    policies.delete(policies.user, "again")
    world.sleep(2000)
    reject(queue)
    assert counts(queue) == (0, 0, 0)


@pytest.mark.parametrize(
    "value", ["", "5", "5s,", "5s;6s", "-5s", "5ms", "11Y", "²s", ",".join(["1s"] * 100), 5, True, ["5s"]]
)
def test_bad_delays_are_refused(value: object) -> None:
    with pytest.raises(PreconditionFailed, match=r"invalid arg 'x-retry-delays': received .*expected delays"):
        parse_queue_arguments(
            {RETRY_DELAYS: value},  # type: ignore[dict-item]
            durable=True,
            exclusive=False,
            auto_delete=False,
            strict=False,
        )


@pytest.mark.parametrize("kind", ["stream", "last-value"])
def test_other_queue_types_refuse_it(world: World, kind: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"'{RETRY_DELAYS}'.*'{kind}'"):
        world.declare(durable=True, retry_delays="1s", queue_type=kind)


def test_spaces_and_bytes_are_accepted() -> None:
    settings = parse_queue_arguments(
        {RETRY_DELAYS: b"5s, 1m,2h"}, durable=False, exclusive=False, auto_delete=False, strict=False
    )
    assert settings.retry_delays == (5000, 60_000, 7_200_000)
