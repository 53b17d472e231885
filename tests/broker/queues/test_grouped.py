"""Message groups: a group sticks to one consumer while that has unacked messages of it."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import ACQUIRED, Entry, Message, own_overlay
from leveret.broker.queues.queue import Queue
from leveret.broker.transactions.transaction import ACCEPT, REQUEUE, Transaction
from leveret.broker.values import FieldValue, compact_key
from tests.broker.leases.support import restart
from tests.broker.support import HeldLog, Keeper, Taker, World, body_of, text_of
from tests.broker.test_branches import StubWorker
from tests.broker.test_policies import set_policy
from tests.support.queues import classic


def declare(world: World, key: str = "group", /, **arguments: Any) -> Queue:
    return world.vhost.declare_queue("q", None, durable=True, arguments={"x-group-key": key, **arguments})


def put(world: World, queue: Queue, *bodies: str, **options: Any) -> None:
    """Push messages whose first character is the group; `-` stands for no group."""
    for body in bodies:
        assert world.push(queue, body, headers=None if body[0] == "-" else {"group": body[0]}, **options)


class TestHolding:
    def test_a_group_sticks_to_the_consumer_with_unacked_messages(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue), Taker(queue)
        put(world, queue, "a1", "b1", "a2", "b2", "a3")
        world.run()
        assert (first.bodies(), second.bodies()) == (["a1", "a2", "a3"], ["b1", "b2"])
        put(world, queue, "b3", "a4")
        world.run()
        assert (first.bodies(), second.bodies()) == (["a1", "a2", "a3", "a4"], ["b1", "b2", "b3"])

    def test_a_group_without_unacked_messages_is_free(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue, credit=1), Taker(queue, credit=0)
        put(world, queue, "a1", "a2")
        world.run()
        second.give(-1)
        world.run()
        assert (first.bodies(), second.bodies()) == (["a1"], [])
        first.ack()
        world.run()
        assert second.bodies() == ["a2"]

    def test_messages_without_a_group_pass_those_that_wait(self, world: World) -> None:
        queue = declare(world)
        Taker(queue, credit=1)
        put(world, queue, "a1", "a2", "a3")
        world.run()
        other = Taker(queue)
        put(world, queue, "-1", "b1", "-2", "a4")
        world.run()
        assert other.bodies() == ["-1", "b1", "-2"]

    def test_a_consumer_gets_its_groups_and_others_in_the_order_of_arrival(self, world: World) -> None:
        queue = declare(world)
        only = Taker(queue, credit=1)
        put(world, queue, "a1", "-1", "a2", "b1", "-2", "a3", "b2")
        world.run()
        only.give(-1)
        world.run()
        assert only.bodies() == ["a1", "-1", "a2", "b1", "-2", "a3", "b2"]

    def test_several_groups_of_a_consumer_without_credit(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=3)
        put(world, queue, "a1", "b1", "c1", "c2", "b2", "a2", "c3")
        world.run()
        other = Taker(queue)
        world.run()
        holder.ack()
        world.run()
        assert other.bodies() == ["a2"]
        holder.give(-1)
        world.run()
        assert holder.bodies() == ["b1", "c1", "c2", "b2", "c3"]

    def test_a_consumer_without_acknowledgements_holds_nothing(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue, no_ack=True, credit=1), Taker(queue, credit=0)
        put(world, queue, "a1", "a2")
        world.run()
        second.give(1)
        world.run()
        assert (first.bodies(), second.bodies()) == (["a1"], ["a2"])

    def test_a_holder_of_a_lower_priority_gets_its_groups(self, world: World) -> None:
        queue = declare(world)
        low = Taker(queue, priority=1)
        put(world, queue, "a1")
        world.run()
        high = Taker(queue, priority=2)
        put(world, queue, "a2", "b1")
        world.run()
        assert (low.bodies(), high.bodies()) == (["a1", "a2"], ["b1"])

    def test_a_single_active_consumer(self, world: World) -> None:
        queue = declare(world, **{"x-single-active-consumer": True})
        first, second = Taker(queue, credit=2), Taker(queue)
        put(world, queue, "a1", "a2", "a3", "b1")
        world.run()
        assert (first.bodies(), second.bodies()) == (["a1", "a2"], [])
        queue.remove_consumer(first)
        world.run()
        assert second.bodies() == ["b1"]
        first.requeue_all()
        world.run()
        assert second.bodies() == ["b1", "a1", "a2", "a3"]


class TestOrder:
    def test_a_requeued_message_precedes_the_rest_of_its_group(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue, credit=1), Taker(queue, credit=0)
        put(world, queue, "a1", "a2", "a3")
        world.run()
        second.give(-1)
        first.requeue()
        world.run()
        assert second.bodies() == ["a1", "a2", "a3"]

    def test_a_requeued_message_goes_to_the_holder_of_others(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue, credit=2), Taker(queue)
        put(world, queue, "a1", "a2", "a3")
        world.run()
        first.requeue()
        world.run()
        assert (first.bodies(), second.bodies()) == (["a2"], [])
        first.give(2)
        world.run()
        assert (first.bodies(), second.bodies()) == (["a2", "a1", "a3"], [])

    def test_the_messages_of_a_consumer_that_died_go_to_another_one_in_order(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue, credit=3), Taker(queue, credit=0)
        put(world, queue, "a1", "a2", "b1", "a3", "b2")
        world.run()
        queue.remove_consumer(first)
        second.give(-1)
        world.run()
        assert second.bodies() == []
        first.requeue_all()
        world.run()
        assert second.bodies() == ["a1", "a2", "b1", "a3", "b2"]

    def test_a_group_is_held_for_a_cancelled_consumer_until_its_messages_are_settled(self, world: World) -> None:
        queue = declare(world)
        first, second = Taker(queue, credit=2), Taker(queue)
        put(world, queue, "a1", "a2", "a3")
        world.run()
        queue.remove_consumer(first)
        first.ack()
        put(world, queue, "a4")
        world.run()
        assert second.bodies() == []
        first.ack()
        world.run()
        assert second.bodies() == ["a3", "a4"]

    def test_a_rejected_message_is_dead_lettered_and_the_group_continues(self, world: World) -> None:
        dead = world.queue("dead")
        queue = declare(world, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-delivery-limit": 0})
        first = Taker(queue, credit=1)
        put(world, queue, "a1", "a2", "a3")
        world.run()
        queue.reject(first.taken.pop())
        first.give(1)
        world.run()
        assert first.bodies() == ["a2"]
        first.requeue()  # exceeds the delivery limit
        first.give(1)
        world.run()
        assert first.bodies() == ["a3"]
        assert world.contents(dead) == ["a1", "a2"]

    def test_a_message_that_no_consumer_wants_holds_up_its_group(self, world: World) -> None:
        queue = declare(world)
        only = Taker(queue, only=b"a1")
        put(world, queue, "a0", "a1", "b1")
        world.run()
        assert only.bodies() == []
        put(world, queue, "c1")
        every = Taker(queue)
        world.run()
        assert (only.bodies(), every.bodies()) == ([], ["a0", "a1", "b1", "c1"])

    def test_a_holder_that_does_not_want_a_message(self, world: World) -> None:
        queue = declare(world)
        only, every = Taker(queue, only=b"a"), Taker(queue, credit=0)
        world.push(queue, "a1", headers={"group": "g"})
        world.run()
        world.push(queue, "b2", headers={"group": "g"})
        world.push(queue, "a3", headers={"group": "g"})
        every.give(-1)
        world.run()
        assert (only.bodies(), every.bodies()) == (["a1"], [])
        only.ack()
        world.run()
        assert (only.bodies(), every.bodies()) == ([], ["b2", "a3"])

    def test_a_holder_gets_the_messages_of_its_other_groups(self, world: World) -> None:
        queue = declare(world)
        only = Taker(queue, only=b"a")
        for body, group in (("a1", "g"), ("a2", "h"), ("b3", "g"), ("a4", "h"), ("b5", "h"), ("a6", "g")):
            world.push(queue, body, headers={"group": group})
        world.run()
        assert only.bodies() == ["a1", "a2", "a4"]
        world.push(queue, "a7", headers={"group": "i"})
        world.run()
        assert only.bodies() == ["a1", "a2", "a4", "a7"]
        only.ack()
        every = Taker(queue)
        world.run()
        assert (only.bodies(), every.bodies()) == (["a2", "a4", "a7"], ["b3", "a6"])

    def test_a_holder_that_has_refused_a_message_of_one_group(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=3)
        put(world, queue, "a1", "a2", "b1", "b2")
        world.run()
        entry = holder.taken.pop(1)
        queue.refuse(entry, holder.scope)
        queue.requeue(entry)
        holder.give(-1)
        world.run()
        assert holder.bodies() == ["a1", "b1", "b2"]
        holder.ack()
        world.run()
        other = Taker(queue)
        world.run()
        assert other.bodies() == ["a2"]


class TestGet:
    def test_a_get_passes_held_groups(self, world: World) -> None:
        queue = declare(world)
        Taker(queue, credit=1)
        put(world, queue, "a1", "a2", "-1", "b1", "b2")
        world.run()
        assert world.contents(queue) == ["-1", "b1", "b2"]
        assert queue.ready_count == 1

    def test_gets_of_one_scope_hold_a_group(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2", "b1", "a3", "a4")
        mine, other = object(), object()
        got = [queue.get(False, 0, scope) for scope in (mine, other, mine, mine)]
        assert [None if entry is None else text_of(entry) for entry in got] == ["a1", "b1", "a2", "a3"]
        consumer = Taker(queue)
        world.run()
        assert consumer.bodies() == []
        assert queue.get(False, 0, other) is None
        for index in (0, 2, 3):
            entry = got[index]
            assert entry is not None
            queue.requeue(entry)
        world.run()
        assert consumer.bodies() == ["a1", "a2", "a3", "a4"]

    def test_a_message_that_returns_to_the_group_of_a_scope_that_has_looked_far(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2", *["-"] * 2500)
        world.run()
        scope = object()
        first, *others = [queue.get(False, 0, scope) for _ in range(2502)]
        assert first is not None
        for entry in others[1:]:
            assert entry is not None
            queue.refuse(entry, scope)
            queue.requeue(entry)
        while queue.get(False, 0, scope) is None and queue.paging.must_load(0, scope):
            world.run()
        queue.requeue(first)
        assert queue.get(False, 0, scope) is first

    def test_a_consumer_is_served_when_a_get_takes_a_message_that_it_does_not_want(self, world: World) -> None:
        queue = declare(world)
        only = Taker(queue, only=b"a2")
        put(world, queue, "a1", "a2")
        world.run()
        assert only.bodies() == []
        assert queue.get(True, 0, object()) is not None
        world.run()
        assert only.bodies() == ["a2"]

    def test_a_get_without_acknowledgement_holds_nothing(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2")
        assert queue.get(True, 0, object()) is not None
        consumer = Taker(queue)
        world.run()
        assert consumer.bodies() == ["a2"]


class TestKeys:
    def test_values_of_the_key(self, world: World) -> None:
        queue = declare(world)
        values: list[FieldValue] = ["x", 7, 7.0, True, ["x"], "", None, "y" * 1000]
        for value in values:
            world.push(queue, repr(value)[:5], headers={"group": value})
        takers = [Taker(queue, credit=1) for _ in values]
        world.run()
        assert [taker.bodies() for taker in takers] == [
            ["'x'"],
            ["7"],
            ["True"],
            ["['x']"],
            ["''"],
            ["None"],
            ["'yyyy"],
            [],
        ]

    def test_annotations_of_an_outcome_do_not_change_the_group(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2", "b1", persistent=True)
        entry = queue.get(False)
        assert entry is not None
        own_overlay(entry).headers["group"] = "b"  # `modified` of AMQP 1.0
        queue.requeue(entry)
        again = restart(world)
        again.run()
        for each in (queue, again.vhost.queues["q"]):
            takers = [Taker(each), Taker(each)]
            (world if each is queue else again).run()
            assert [taker.bodies() for taker in takers] == [["a1", "a2"], ["b1"]]

    def test_a_client_cannot_choose_keys_with_the_same_hash(self) -> None:
        pairs = _colliding_pairs(20)
        assert len({hash(pair) for pair in pairs}) == 1
        assert len({hash(compact_key(list(pair))) for pair in pairs}) == len(pairs)

    def test_the_property_group_id(self, world: World) -> None:
        queue = declare(world, "group-id")
        world.push(queue, "1", headers={"other": 1}, **{"group-id": "a"})
        world.push(queue, "2", headers={"group-id": "a"}, **{"group-id": "b"})
        world.push(queue, "3")
        takers = [Taker(queue, credit=1) for _ in range(3)]
        world.run()
        assert [taker.bodies() for taker in takers] == [["1"], ["3"], []]


class TestWithOtherFeatures:
    def test_a_restart(self, world: World) -> None:
        queue = declare(world)
        first = Taker(queue, credit=1)
        put(world, queue, "a1", "a2", "b1", "-1", "b2", persistent=True)
        world.run()
        assert first.bodies() == ["a1"]
        again = restart(world)
        again.run()
        found = again.vhost.queues["q"]
        takers = [Taker(found, credit=2), Taker(found, credit=2), Taker(found)]
        again.run()
        assert [taker.bodies() for taker in takers] == [["a1", "a2"], ["b1", "b2"], ["-1"]]

    def test_an_expired_message_is_passed(self, world: World) -> None:
        dead = world.queue("dead")
        queue = declare(world, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        holder = Taker(queue, credit=1)
        put(world, queue, "a1")
        put(world, queue, "a2", ttl=1000)
        put(world, queue, "a3")
        put(world, queue, "b1", ttl=1000)
        put(world, queue, "b2")
        world.run()
        world.sleep(2000)
        holder.give(1)
        other = Taker(queue)
        world.run()
        assert (holder.bodies(), other.bodies()) == (["a1", "a3"], ["b2"])
        assert sorted(world.contents(dead)) == ["a2", "b1"]

    def test_a_length_limit_drops_the_oldest_of_a_held_group(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 2})
        holder = Taker(queue, credit=1)
        put(world, queue, "a1", "a2", "a3", "a4", "a5")
        world.run()
        holder.give(-1)
        world.run()
        assert holder.bodies() == ["a1", "a4", "a5"]

    def test_a_purge_keeps_the_holder(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=1)
        put(world, queue, "a1", "a2", "b1", "b2", "a3")
        world.run()
        assert queue.purge() == 4
        put(world, queue, "a4", "b3", "a5")
        other = Taker(queue)
        world.run()
        assert other.bodies() == ["b3"]
        holder.requeue()
        holder.give(-1)
        world.run()
        assert sorted(holder.bodies() + other.bodies()) == ["a1", "a4", "a5", "b3"]
        assert ["a1", "a4", "a5"] in (holder.bodies(), other.bodies()[1:])

    def test_a_deleted_queue(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=2)
        world.broker.holders[Keeper(holder)] = None
        put(world, queue, "a1", "a2", "a3", "b1")
        world.run()
        world.vhost.remove_queue(queue)
        world.run()
        assert holder.gone
        holder.ack()
        holder.requeue()
        again = declare(world)
        put(world, again, "a1")
        world.run()
        assert world.contents(again) == ["a1"]

    def test_a_transaction(self, world: World) -> None:
        queue = declare(world)
        holder, other = Taker(queue, credit=1), Taker(queue)
        put(world, queue, "a1")
        world.run()
        transaction = Transaction(world.log)
        for body in ("a2", "b1"):
            transaction.publish(world.message(body, headers={"group": body[0]}, persistent=True), [queue])
        transaction.commit(lambda: None)
        world.run()
        holder.give(1)
        world.run()
        assert (holder.bodies(), other.bodies()) == (["a1", "a2"], ["b1"])

    @pytest.mark.parametrize("outcome", [ACCEPT, REQUEUE])
    def test_a_prepared_branch_holds_groups_after_a_start(self, world: World, outcome: int) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2", "a3", "b1", "-1", "-2", persistent=True)
        branches = world.vhost.branches
        branch = branches.begin("x", "user", StubWorker())
        scope = object()
        for _ in range(2):
            entry = queue.get(False, 0, scope)
            assert entry is not None
            branch.settle(entry, outcome)
        branches.prepare(branch, lambda result: None)
        again = restart(restart(world))
        found = again.vhost.queues["q"]
        taker = Taker(found)
        again.run()
        assert (taker.bodies(), found.unacked) == (["b1", "-1", "-2"], 5)
        branches = again.vhost.branches
        branches.commit(branches.find("x", None), False, lambda result: None)
        again.run()
        assert taker.bodies()[3:] == (["a3"] if outcome == ACCEPT else ["a1", "a2", "a3"])

    def test_a_transaction_that_fails_keeps_the_groups_held(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = declare(world)
        put(world, queue, "a1", "b1", "b2", "a2", persistent=True)
        world.run()
        holder = Taker(queue, credit=2)
        world.run()
        transaction = Transaction(world.log)
        for entry in holder.taken:
            transaction.settle(entry, ACCEPT)
        settled = []
        original = HeldLog.settle

        def failing(log: HeldLog, entry: Entry) -> None:
            settled.append(entry)
            if len(settled) == 2:
                raise RuntimeError("a mistake")
            original(log, entry)

        monkeypatch.setattr(HeldLog, "settle", failing)
        with pytest.raises(RuntimeError):
            for _ in transaction.writing():
                pass
        for _ in transaction.undoing():
            pass
        other = Taker(queue)
        world.run()
        assert other.bodies() == []
        holder.ack(2)
        world.run()
        assert other.bodies() == ["b2", "a2"]

    def test_a_delayed_message_joins_its_group_when_it_is_visible(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=1)
        queue.delay(world.message("a0", headers={"group": "a"}), world.clock.now() + 1000)
        put(world, queue, "a1", "a2")
        world.run()
        world.sleep(2000)
        holder.give(-1)
        world.run()
        assert holder.bodies() == ["a1", "a0", "a2"]

    def test_an_immediate_message_of_a_held_group(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=1)
        put(world, queue, "a1")
        world.run()
        Taker(queue)

        def can_deliver(group: str) -> bool:
            return queue.can_deliver_now(world.message(headers={"group": group}))

        assert (can_deliver("a"), can_deliver("b")) == (False, True)
        holder.give(1)
        assert can_deliver("a")
        put(world, queue, "a2", "a3")
        assert (can_deliver("a"), can_deliver("b")) == (False, True)

    def test_an_immediate_message_after_a_purge(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=1)
        put(world, queue, "a1", "a2", *["b1"] * 3000)
        world.run()
        queue.purge()
        assert world.posted  # the groups are purged in steps
        holder.give(1)
        assert queue.can_deliver_now(world.message(headers={"group": "a"}))
        assert queue.can_deliver_now(world.message(headers={"group": "b"}))

    def test_a_paused_queue_continues(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, credit=1)
        put(world, queue, "a1", "a2")
        world.run()
        queue.set_paused(True)
        holder.ack()
        holder.give(1)
        world.run()
        assert holder.bodies() == []
        queue.set_paused(False)
        world.run()
        assert holder.bodies() == ["a2"]

    def test_a_policy_limits_it(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2", "a3")
        set_policy(world, "retries", "q", priority=2, retry_delays="5s")
        set_policy(world, "length", "q", max_length=2)
        world.run()
        assert world.contents(queue) == ["a2", "a3"]

    def test_an_operator_removes_a_message(self, world: World) -> None:
        queue = declare(world)
        put(world, queue, "a1", "a2", "a3")
        inspection = queue.inspect()
        for entry in inspection.walk().next(2, 1000):
            assert inspection.withdraw(entry, "deleted")
        assert world.contents(queue) == ["a3"]


class TestAtAnyScale:
    def test_messages_that_wait_for_a_holder_cost_others_nothing(self, world: World) -> None:
        queue = declare(world)
        Taker(queue, credit=1)
        for _ in range(20):
            put(world, queue, *["a"] * 1000)
            world.run()
        other = Taker(queue)
        put(world, queue, "b1")
        world.end_turn()
        put(world, queue, "-1")
        queue.drain()
        assert world.broker.work < 100
        assert other.bodies() == ["b1", "-1"]
        begun = world.broker.work
        assert queue.get(True, 0, object()) is None
        assert world.broker.work - begun < 100

    def test_too_many_consumers_to_ask_in_one_turn(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue, only=b"a")
        put(world, queue, "a1", "a2")
        world.run()
        for _ in range(20_000):
            Taker(queue, only=b"nothing")
        put(world, queue, "b1")
        world.end_turn()  # asks only some of them
        entry = holder.taken.pop(0)
        queue.refuse(entry, holder.scope)
        queue.requeue(entry)
        for _ in range(100):
            if world.posted:
                world.posted.pop(0)()
        assert not world.posted
        every = Taker(queue)
        world.run()
        assert (holder.bodies(), every.bodies()) == (["a2"], ["b1"])

    def test_many_groups_of_a_consumer_without_credit(self, world: World) -> None:
        queue = declare(world)
        holder = Taker(queue)
        for number in range(2000):
            world.push(queue, "1", headers={"group": number})
        world.run()
        holder.give(0)
        for number in range(2000):
            world.push(queue, "2", headers={"group": number})
        world.run()
        other = Taker(queue)
        world.push(queue, "other", headers={"group": -1})
        world.end_turn()
        queue.drain()
        assert world.broker.work < 100
        assert other.bodies() == ["other"]
        assert queue.purge() == 2000
        assert world.broker.work <= 2 * STEP_WORK

    @pytest.mark.parametrize("held", [False, True])
    @pytest.mark.parametrize("operation", ["purge", "delete", "delete and dead-letter"])
    def test_the_memory_of_a_group_is_released_in_steps(self, world: World, operation: str, held: bool) -> None:
        queue = classic(declare(world))
        holder = Taker(queue, credit=int(held))
        world.broker.holders[Keeper(holder)] = None
        put(world, queue, "a0", *["a1"] * 20_000, *[f"{chr(number)}1" for number in range(1000, 3000)])
        world.run()
        entries = list(queue.ready.backlog.head)
        queue.purge() if operation == "purge" else queue.delete(operation != "delete")
        kept = _references(entries)
        while world.posted:
            world.posted.pop(0)()
            world.end_turn()
            before, kept = kept, _references(entries)
            assert before - kept < 10_000
        assert kept == _references([object() for _ in entries])

    def test_the_memory_of_the_groups_of_a_holder_is_released(self, world: World) -> None:
        queue = classic(declare(world))
        holder = Taker(queue)
        groups = [chr(number) for number in range(1000, 4000)]
        put(world, queue, *[f"{group}1" for group in groups])
        world.run()
        holder.give(0)
        put(world, queue, *[f"{group}2" for group in groups])
        world.run()
        entries = list(queue.ready.backlog.head)
        queue.purge()
        world.run()
        assert _references(entries) == _references([object() for _ in entries])
        put(world, queue, "b1")
        holder.give(-1)
        world.run()
        assert holder.bodies()[3000:] == ["b1"]


def _colliding_pairs(count: int) -> list[tuple[int, int]]:
    """Return pairs of integers that have the same hash in CPython, which hashes tuples like xxHash, without a secret."""
    prime, mask = 0xC2B2AE3D27D4EB4F, (1 << 64) - 1
    inverse = pow(prime, -1, 1 << 64)
    pairs: list[tuple[int, int]] = []
    for first in range(1000):
        sum = (0x27D4EB2F165667C5 + first * prime) & mask
        begun = (sum << 31 | sum >> 33) * 0x9E3779B185EBCA87 & mask
        second = (12345 - begun) * inverse & mask
        if second < sys.hash_info.modulus and len(pairs) < count:
            pairs.append((first, second))
    return pairs


def _references(objects: Sequence[object]) -> int:
    return sum([sys.getrefcount(item) for item in objects])


class _Picky(Taker):
    """A consumer that wants only messages with an even number."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        super().__init__(queue, join=False, **options)
        self.select()
        queue.add_consumer(self)

    def wants(self, message: Message, entry: Entry | None) -> bool:
        return int(body_of(message)[1:]) % 2 == 0


class _Model:
    """Random operations, and what must hold after each of them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.queue = declare(world, **({"x-max-length": 40} if seed % 3 == 0 else {}))
        self.picky = seed % 2 == 1
        self.takers: list[Taker] = []
        self.got: list[Entry] = []
        self.number = 0
        self.dead: set[str] = set()

    def step(self) -> None:
        choice = self.random.random()
        busy = [taker for taker in self.takers if taker.taken]
        if choice < 0.35:
            for _ in range(self.random.randint(1, 5)):
                self.number += 1
                put(self.world, self.queue, f"{self.random.choice('aaabbcd-')}{self.number:05}")
        elif choice < 0.43:
            kind = _Picky if self.picky and self.random.random() < 0.5 else Taker
            self.takers.append(kind(self.queue, credit=self.random.randint(0, 3), priority=self.random.randint(0, 1)))
        elif choice < 0.65 and busy:
            taker = self.random.choice(busy)
            entry = taker.taken.pop(self.random.randrange(len(taker.taken)))
            outcome = self.random.choice((self.queue.settle, self.queue.settle, self.queue.requeue, self.queue.reject))
            outcome(entry)
        elif choice < 0.85 and self.takers:
            self.random.choice(self.takers).give(self.random.randint(1, 3))
        elif choice < 0.9 and self.takers:
            taker = self.takers.pop(self.random.randrange(len(self.takers)))
            self.queue.remove_consumer(taker)
            taker.requeue_all()
        elif choice < 0.97:
            got = self.queue.get(self.random.random() < 0.5, 0, self)
            if got is not None and got.state == ACQUIRED:
                self.got.append(got)
            elif got is None and self.got:
                self.queue.requeue(self.got.pop(self.random.randrange(len(self.got))))
        elif choice < 0.98:
            self.queue.purge()

    def check(self) -> None:
        """Each group has one holder, and a consumer with credit has nothing to wait for."""
        holders: dict[str, set[int]] = {}
        for number, entries in enumerate([self.got, *(taker.taken for taker in self.takers)]):
            for entry in entries:
                holders.setdefault(text_of(entry)[0], set()).add(number)
        holders.pop("-", None)
        assert all(len(numbers) == 1 for numbers in holders.values()), holders
        ready = self.queue.inspect().walk().next(10_000, 1 << 20)
        assert len(ready) == self.queue.ready_count
        first: dict[str, Entry] = {}
        for entry in ready:
            body = text_of(entry)
            first.setdefault(body if body[0] == "-" else body[0], entry)
        for number, taker in enumerate(self.takers, 1):
            if taker.credit:
                waiting = [
                    text_of(entry)
                    for entry in first.values()
                    if holders.get(text_of(entry)[0], {number}) == {number} and taker.wants(entry.message, entry)
                ]
                assert waiting == [], (number, holders)


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(world: World, seed: int) -> None:
    model = _Model(world, seed)
    for _ in range(400):
        model.step()
        world.run()
        model.check()
    for taker in model.takers:
        model.queue.remove_consumer(taker)
        taker.requeue_all()
    for entry in model.got:
        model.queue.requeue(entry)
    world.run()
    left = world.contents(model.queue)
    assert left == sorted(left, key=lambda body: body[1:])
    assert model.queue.ready_count == 0


class TestDeclaring:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"x-max-priority": 5}, "invalid arg 'x-max-priority'"),
            ({"x-retry-delays": "5s"}, "invalid arg 'x-retry-delays': .*keeps the order within a group"),
            ({"x-sort-key": "k"}, "invalid arg 'x-group-key': received together with 'x-sort-key'"),
            ({"x-last-value-key": "k"}, "invalid arg 'x-last-value-key'"),
            ({"x-queue-type": "stream"}, "invalid arg 'x-group-key'"),
            ({"x-queue-type": "quorum"}, "invalid arg 'x-group-key'"),
        ],
    )
    def test_what_cannot_work_is_refused_by_name(self, world: World, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(PreconditionFailed, match=text):
            declare(world, **arguments)

    def test_the_type_needs_the_key(self, world: World) -> None:
        with pytest.raises(PreconditionFailed, match="without 'x-group-key'"):
            world.vhost.declare_queue("q", None, arguments={"x-queue-type": "grouped"})

    def test_leases_are_refused(self, world: World) -> None:
        with pytest.raises(PreconditionFailed, match="message groups"):
            declare(world).make_leases()
