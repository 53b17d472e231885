"""Sorted queues deliver in the order of a header."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.jobs import STEP_WORK
from leveret.broker.queues.loading import Waiting
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.sorted_queue import order_of
from leveret.broker.transactions.transaction import Transaction
from tests.broker.leases.support import restart
from tests.broker.support import Taker, World, text_of
from tests.broker.test_policies import set_policy

# More entries than a `get` passes in one turn.
MANY = 5000


def declare(world: World, **arguments: Any) -> Queue:
    return world.vhost.declare_queue("q", None, durable=True, arguments={"x-sort-key": "rank", **arguments})


def put(world: World, queue: Queue, *ranks: Any, **options: Any) -> None:
    """Push messages whose body is the rank."""
    for rank in ranks:
        assert world.push(queue, str(rank), headers={"rank": rank}, **options)


class TestOrder:
    def test_ascending_and_equal_values_in_the_order_of_arrival(self, world: World) -> None:
        queue = declare(world)
        for body, rank in (("a", 3), ("b", 1), ("c", 3), ("d", 2), ("e", 1)):
            world.push(queue, body, headers={"rank": rank})
        assert world.contents(queue) == ["b", "e", "d", "a", "c"]

    def test_values_of_all_types_have_an_order(self) -> None:
        time = datetime(2026, 1, 1, tzinfo=UTC)
        ordered: list[Any] = [None, float("nan"), -1, Decimal("9.25"), 9.5, 10, time, "10", b"8", "9", False, True, [1]]
        places = [order_of(value, seq) for seq, value in enumerate(ordered)]
        assert sorted(places) == places

    def test_a_header_that_dead_lettering_adds(self, world: World) -> None:
        queue = world.vhost.declare_queue("q", None, arguments={"x-sort-key": "x-first-death-queue"})
        for name in ("c", "a", "b"):
            source = world.queue(name, dead_letter_exchange="", dead_letter_routing_key="q", max_length=0)
            world.push(source, name)
        world.run()
        assert world.contents(queue) == ["a", "b", "c"]

    def test_a_message_without_the_header_is_first(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, -1)
        world.push(queue, "none")
        assert world.contents(queue) == ["none", "-1"]

    def test_priorities_of_messages_do_not_matter(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 2, priority=9)
        put(world, queue, 1, priority=1)
        assert world.contents(queue) == ["1", "2"]

    def test_a_consumer_gets_what_arrives_in_between(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 5, 3)
        taker = Taker(queue, credit=1)
        world.run()
        put(world, queue, 1, 4)
        taker.give(3)
        world.run()
        assert taker.bodies() == ["3", "1", "4", "5"]

    def test_a_requeued_message_returns_to_its_sorted_place(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 1, 2, 3)
        first = queue.get(False)
        assert first is not None
        put(world, queue, 0, 1)
        queue.requeue(first)
        assert world.contents(queue) == ["0", "1", "1", "2", "3"]

    def test_many_in_any_order_with_removals(self, world: World) -> None:
        queue = declare(world)
        ranks = random.Random(1).choices(range(500), k=5000)
        put(world, queue, *ranks)
        world.run()
        got = [queue.get(True) for _ in range(2000)]
        assert all(got)
        assert len({id(entry) for entry in got}) == 2000
        world.run()
        assert queue.ready_count == 3000
        assert world.contents(queue) == [str(rank) for rank in sorted(ranks)[2000:]]

    def test_a_restart_keeps_the_order(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 3, 1, 2, persistent=True)
        again = restart(world)
        again.run()
        found = again.vhost.queues["q"]
        put(again, found, 0)
        assert again.contents(found) == ["0", "1", "2", "3"]

    def test_a_transaction(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 2)
        transaction = Transaction(world.log)
        for rank in (3, 1):
            transaction.publish(world.message(str(rank), headers={"rank": rank}, persistent=True), [queue])
        transaction.commit(lambda: None)
        world.run()
        assert world.contents(queue) == ["1", "2", "3"]


class TestWithOtherFeatures:
    def test_an_expired_message_is_dead_lettered_not_delivered(self, world: World) -> None:
        dead = world.queue("dead")
        queue = declare(world, **{"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        put(world, queue, 2)
        world.sleep(600)
        put(world, queue, 1)
        world.sleep(600)
        assert world.contents(dead) == ["2"]
        assert world.contents(queue) == ["1"]

    def test_a_length_limit_drops_the_oldest(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 2})
        put(world, queue, 1, 3, 2)
        world.run()
        assert world.contents(queue) == ["2", "3"]

    def test_a_rejected_message_is_gone(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 1, 2)
        entry = queue.get(False)
        assert entry is not None
        queue.reject(entry)
        assert world.contents(queue) == ["2"]

    @pytest.mark.parametrize("persistent", [True, False])
    def test_a_rejected_message_is_delivered_again_after_a_delay(self, world: World, persistent: bool) -> None:
        queue = declare(world, **{"x-retry-delays": "5s"})
        put(world, queue, 1, 2, persistent=persistent)
        taker = Taker(queue, credit=1)
        world.run()
        queue.reject(taker.taken.pop())
        world.run()
        put(world, queue, 3, 0)
        world.sleep(6000)
        taker.give(-1)
        world.run()
        assert taker.bodies() == ["0", "1", "2", "3"]

    def test_a_selective_consumer_gets_its_messages_in_order(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 30, 20, 31, 10)
        only = Taker(queue, only=b"3")
        world.run()
        assert only.bodies() == ["30", "31"]
        put(world, queue, 15, 3)
        world.run()
        assert only.bodies() == ["30", "31", "3"]
        every = Taker(queue)
        world.run()
        assert every.bodies() == ["10", "15", "20"]

    def test_a_consumer_gets_what_a_selective_one_that_has_left_did_not_want(self, world: World) -> None:
        queue = declare(world)
        every = Taker(queue, credit=0)
        world.run()
        only = Taker(queue, only=b"3")
        put(world, queue, 1, 2)
        world.run()
        queue.remove_consumer(only)
        every.give(-1)
        world.run()
        assert every.bodies() == ["1", "2"]

    def test_a_purge_keeps_the_places_of_unacked_messages(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 2, 3)
        entry = queue.get(False)
        assert entry is not None
        assert queue.purge() == 1
        world.run()
        put(world, queue, 1, 4)
        queue.requeue(entry)
        assert world.contents(queue) == ["1", "2", "4"]

    def test_a_single_active_consumer(self, world: World) -> None:
        queue = declare(world, **{"x-single-active-consumer": True})
        first, second = Taker(queue, credit=1), Taker(queue)
        put(world, queue, 2, 1)
        world.run()
        assert len(first.taken) == 1
        assert second.taken == []

    def test_a_policy_limits_a_sorted_queue(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, 2, 1, 3)
        set_policy(world, "p", "q", max_length=2)
        world.run()
        assert world.contents(queue) == ["1", "3"]


class TestGet:
    """A scope gets no entry that it has refused, and looks for others in steps."""

    @pytest.fixture(params=["sorted", "classic"])
    def queue(self, world: World, request: pytest.FixtureRequest) -> Queue:
        queue = declare(world) if request.param == "sorted" else world.queue()
        put(world, queue, *range(MANY))
        world.run()
        return queue

    def refuse_all(self, queue: Queue, scope: object) -> None:
        for entry in [queue.get(False) for _ in range(queue.ready_count)]:
            assert entry is not None
            queue.refuse(entry, scope)
            queue.requeue(entry)

    def get_in_steps(self, world: World, queue: Queue, scope: object) -> tuple[str | None, int]:
        """Return the body of the next entry for the scope, and the number of steps to find it."""
        for step in itertools.count(1):
            world.end_turn()
            entry = queue.get(True, 0, scope)
            assert world.broker.work <= 2 * STEP_WORK
            if entry is not None or not queue.paging.must_load(0, scope):
                return (None if entry is None else text_of(entry)), step
            assert world.posted
            notified = Notified()
            queue.paging.wait_loaded(notified)
            world.run()
            assert notified.count == 1
        raise AssertionError

    def test_refused_entries_are_passed_in_steps(self, world: World, queue: Queue) -> None:
        scope = object()
        self.refuse_all(queue, scope)
        put(world, queue, MANY)
        world.run()
        body, steps = self.get_in_steps(world, queue, scope)
        assert body == str(MANY)
        assert steps > 2
        assert queue.get(True, 0, object()) is not None

    def test_the_next_get_looks_at_no_entry_again(self, world: World, queue: Queue) -> None:
        scope = object()
        self.refuse_all(queue, scope)
        assert self.get_in_steps(world, queue, scope)[0] is None
        put(world, queue, 7, MANY)
        world.run()
        found = [self.get_in_steps(world, queue, scope) for _ in range(3)]
        assert found[0] == ("7", 1)
        assert [body for body, _ in found] == ["7", str(MANY), None]
        assert self.get_in_steps(world, queue, scope) == (None, 1)

    def test_two_scopes_at_the_same_time(self, world: World, queue: Queue) -> None:
        scopes = (object(), object())
        for scope in scopes:
            self.refuse_all(queue, scope)
        put(world, queue, MANY, MANY + 1)
        world.run()
        got: dict[object, str] = {}
        while len(got) < 2:
            for scope in scopes:
                entry = queue.get(True, 0, scope)
                if entry is not None:
                    got[scope] = text_of(entry)
                world.end_turn()
            world.run()
        assert sorted(got.values()) == [str(MANY), str(MANY + 1)]

    def test_a_purge_ends_the_search(self, world: World, queue: Queue) -> None:
        scope = object()
        self.refuse_all(queue, scope)
        world.end_turn()
        assert queue.get(True, 0, scope) is None
        assert queue.purge() == MANY
        assert not queue.paging.must_load(0, scope)
        put(world, queue, 1)
        world.run()
        assert self.get_in_steps(world, queue, scope) == ("1", 1)


class Notified(Waiting):
    def __init__(self) -> None:
        self.count = 0

    def loaded(self) -> None:
        self.count += 1


class TestDeclaring:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"x-sort-key": "k", "x-max-priority": 5}, "invalid arg 'x-max-priority'"),
            ({"x-sort-key": "k", "x-queue-type": "stream"}, "invalid arg 'x-sort-key'"),
            ({"x-sort-key": "k", "x-queue-type": "last-value"}, "invalid arg 'x-sort-key'"),
            ({"x-sort-key": "k", "x-last-value-key": "k"}, "invalid arg 'x-last-value-key'"),
            ({"x-queue-type": "sorted"}, "without 'x-sort-key'"),
        ],
    )
    def test_what_cannot_work_is_refused_by_name(self, world: World, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(PreconditionFailed, match=text):
            world.vhost.declare_queue("q", None, durable=True, arguments=arguments)
