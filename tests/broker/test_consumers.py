"""Dispatch: turns, credit, consumer priorities, single active consumers, selective ones."""

from __future__ import annotations

import pytest

from leveret.broker.message import Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World, figures


def test_consumers_take_turns(world: World) -> None:
    queue = world.queue()
    consumers = [Taker(queue, str(number)) for number in range(3)]
    world.push(queue, *"abcdefg")
    world.run()
    assert [consumer.bodies() for consumer in consumers] == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    world.push(queue, *"hij")
    world.run()
    assert [consumer.bodies()[-1] for consumer in consumers] == ["j", "h", "i"]


def test_a_consumer_without_credit_is_skipped_until_it_wakes(world: World) -> None:
    queue = world.queue()
    slow = Taker(queue, "slow", credit=1)
    fast = Taker(queue, "fast")
    world.push(queue, *"abcd")
    world.run()
    assert slow.bodies() == ["a"]
    assert fast.bodies() == ["b", "c", "d"]
    assert slow.parked and not fast.parked
    slow.give(1)
    world.push(queue, "e", "f", "g")
    world.run()
    assert len(slow.bodies()) == 2
    assert sorted(slow.history + fast.history) == list("abcdefg")


def test_without_credit_messages_wait(world: World) -> None:
    queue = world.queue()
    consumer = Taker(queue, credit=0)
    world.push(queue, *"abc")
    world.run()
    assert consumer.bodies() == []
    assert figures(queue) == (3, 3, 0)
    consumer.give(2)
    world.run()
    assert consumer.bodies() == ["a", "b"]
    assert figures(queue) == (1, 1, 2)
    assert consumer.unacked == 2


def test_waking_twice_gives_no_second_turn(world: World) -> None:
    queue = world.queue()
    first = Taker(queue, "1", credit=0)
    second = Taker(queue, "2")
    world.push(queue, "a")
    world.run()
    first.give(-1)
    first.wake()
    first.wake()
    world.push(queue, *"bcde")
    world.run()
    assert len(first.taken) == 2
    assert len(second.taken) == 3


def test_no_ack_settles_deliveries(world: World) -> None:
    queue = world.queue(durable=True)
    consumer = Taker(queue, no_ack=True)
    world.push(queue, "a", "b", persistent=True)
    world.run()
    assert consumer.history == ["a", "b"]
    assert figures(queue) == (0, 0, 0)
    assert consumer.unacked == 0
    assert world.log.rows == {}


def test_a_requeued_message_prefers_another_consumer(world: World) -> None:
    queue = world.queue()
    first = Taker(queue, "1")
    second = Taker(queue, "2")
    world.push(queue, "a")
    world.run()
    assert first.bodies() == ["a"]
    first.requeue()
    world.run()
    assert second.bodies() == ["a"]
    second.credit = 0
    first.credit = 1
    second.requeue()
    world.run()
    assert first.bodies() == ["a"]


def test_a_requeued_message_returns_to_the_only_consumer(world: World) -> None:
    queue = world.queue()
    consumer = Taker(queue)
    world.push(queue, "a")
    world.run()
    consumer.requeue()
    world.run()
    assert consumer.bodies() == ["a"]
    assert consumer.taken[0].acquired_count == 2


def test_a_cancelled_consumer_gets_no_more_and_keeps_its_unacked_messages(world: World) -> None:
    queue = world.queue()
    consumer = Taker(queue, credit=1)
    world.push(queue, "a", "b")
    world.run()
    queue.remove_consumer(consumer)
    consumer.give(-1)
    world.run()
    assert consumer.bodies() == ["a"]
    assert figures(queue) == (1, 1, 1)
    consumer.ack()
    assert figures(queue) == (1, 1, 0)


class TestPriority:
    """x-priority of consumers."""

    def test_the_highest_priority_with_credit_is_first(self, world: World) -> None:
        queue = world.queue()
        low = Taker(queue, "low", priority=-1)
        high = Taker(queue, "high", credit=2, priority=5)
        middle = Taker(queue, "middle", credit=1)
        world.push(queue, *"abcd")
        world.run()
        assert high.bodies() == ["a", "b"]
        assert middle.bodies() == ["c"]
        assert low.bodies() == ["d"]

    def test_a_woken_consumer_precedes_lower_priorities(self, world: World) -> None:
        queue = world.queue()
        high = Taker(queue, "high", credit=0, priority=5)
        low = Taker(queue, "low")
        world.push(queue, "a")
        world.run()
        assert low.bodies() == ["a"]
        high.give(1)
        world.push(queue, "b", "c")
        world.run()
        assert high.bodies() == ["b"]
        assert low.bodies() == ["a", "c"]

    def test_equals_take_turns(self, world: World) -> None:
        queue = world.queue()
        low = Taker(queue, "low")
        high = [Taker(queue, f"high{number}", priority=1) for number in range(2)]
        world.push(queue, *"abcd")
        world.run()
        assert [consumer.bodies() for consumer in high] == [["a", "c"], ["b", "d"]]
        assert low.bodies() == []

    def test_when_the_highest_leaves_the_next_one_is_served(self, world: World) -> None:
        queue = world.queue()
        high = Taker(queue, "high", priority=1)
        low = Taker(queue, "low")
        queue.remove_consumer(high)
        world.push(queue, "a")
        world.run()
        assert low.bodies() == ["a"]


class TestSingleActive:
    """x-single-active-consumer."""

    def test_only_the_active_consumer_gets_messages(self, world: World) -> None:
        queue = world.queue(single_active_consumer=True)
        first = Taker(queue, "1", credit=1)
        second = Taker(queue, "2")
        world.push(queue, "a", "b")
        world.run()
        assert first.bodies() == ["a"] and second.bodies() == []
        assert figures(queue)[0] == 1
        second.wake()
        world.run()
        assert second.bodies() == []

    def test_the_next_consumer_becomes_active(self, world: World) -> None:
        queue = world.queue(single_active_consumer=True)
        first = Taker(queue, "1")
        second = Taker(queue, "2")
        third = Taker(queue, "3")
        queue.remove_consumer(first)
        world.push(queue, "a")
        world.run()
        assert second.bodies() == ["a"] and third.bodies() == []
        assert second.active and not third.active

    def test_a_waiting_consumer_may_leave(self, world: World) -> None:
        queue = world.queue(single_active_consumer=True)
        first = Taker(queue, "1")
        second = Taker(queue, "2")
        queue.remove_consumer(second)
        world.push(queue, "a")
        world.run()
        assert first.bodies() == ["a"]
        assert first.active

    def test_the_highest_priority_becomes_active(self, world: World) -> None:
        queue = world.queue(single_active_consumer=True)
        first = Taker(queue, "1")
        second = Taker(queue, "2")
        third = Taker(queue, "3", priority=1)
        queue.remove_consumer(first)
        world.push(queue, "a")
        world.run()
        assert third.bodies() == ["a"] and second.bodies() == []


class TestSelective:
    """Consumers that do not accept every message (no-local)."""

    def test_unwanted_messages_stay_for_others(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, "picky", only=b"x")
        world.push(queue, "a", "x1", "b", "x2")
        world.run()
        assert picky.bodies() == ["x1", "x2"]
        assert figures(queue) == (2, 2, 2)
        other = Taker(queue, "other")
        world.run()
        assert other.bodies() == ["a", "b"]
        assert figures(queue) == (0, 0, 4)

    def test_without_it_the_queue_is_ordinary_again(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, "picky", only=b"x")
        other = Taker(queue, "other")
        queue.remove_consumer(picky)
        assert not queue.dispatcher.selective
        world.push(queue, "a", "x")
        world.run()
        assert other.bodies() == ["a", "x"]

    def test_two_consumers_alternate_over_messages_that_both_want(self, world: World) -> None:
        queue = world.queue()
        first = Taker(queue, "1", only=b"x")
        second = Taker(queue, "2")
        world.push(queue, "x1", "x2", "a1", "a2")
        world.run()
        assert first.bodies() == ["x1"]
        assert second.bodies() == ["x2", "a1", "a2"]

    def test_credit_counts_here_too(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, "picky", only=b"x", credit=1)
        other = Taker(queue, "other", credit=1)
        world.push(queue, "x1", "x2", "x3", "a")
        world.run()
        assert picky.bodies() == ["x1"]
        assert other.bodies() == ["x2"]
        picky.give(1)
        world.run()
        assert picky.bodies() == ["x1", "x3"]

    def test_a_requeued_message_prefers_another_consumer(self, world: World) -> None:
        queue = world.queue()
        first = Taker(queue, "1", only=b"x")
        world.push(queue, "x")
        world.run()
        second = Taker(queue, "2")
        first.requeue()
        world.run()
        assert second.bodies() == ["x"] and first.bodies() == []

    def test_messages_unwanted_by_a_higher_priority_go_to_a_lower_one(self, world: World) -> None:
        queue = world.queue()
        high = Taker(queue, "high", only=b"x", priority=1)
        low = Taker(queue, "low")
        world.push(queue, "a", "x", "b")
        world.run()
        assert high.bodies() == ["x"]
        assert low.bodies() == ["a", "b"]

    def test_a_lower_priority_gets_the_oldest_if_the_higher_has_no_credit(self, world: World) -> None:
        queue = world.queue()
        high = Taker(queue, "high", only=b"x", priority=1, credit=0)
        low = Taker(queue, "low", credit=1)
        world.push(queue, "x1", "x2")
        world.run()
        assert high.bodies() == []
        assert low.bodies() == ["x1"]

    def test_unwanted_messages_are_not_scanned_for_each_new_message(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, only=b"x")
        offered: list[bytes] = []
        wants = picky.wants
        picky.wants = lambda message, entry: offered.append(message.body) or wants(message, entry)  # type: ignore
        for number in range(50):
            world.push(queue, f"a{number}")
            world.run()
        assert len(offered) == 50
        world.push(queue, "x")
        world.run()
        assert picky.bodies() == ["x"]

    def test_unwanted_messages_are_offered_to_new_or_woken_consumers(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, "picky", only=b"x")
        world.push(queue, "a", "b", "y")
        world.run()
        other = Taker(queue, "other", only=b"b")
        world.run()
        assert other.bodies() == ["b"]
        last = Taker(queue, "last", only=b"y", credit=0)
        world.push(queue, "c")
        world.run()
        last.give(1)
        world.run()
        assert last.bodies() == ["y"] and picky.bodies() == []

    def test_requeued_messages_are_offered_again(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, "picky", only=b"x")
        world.push(queue, "a")
        plain = Taker(queue, "plain", credit=1)
        world.run()
        world.push(queue, "b", "c")
        world.run()
        entry = plain.taken.pop()
        entry.message.body = b"x, but for the test it was something else"
        queue.requeue(entry)
        world.run()
        assert len(picky.taken) == 1

    def test_a_transaction_after_skipped_messages_is_offered(self, world: World) -> None:
        from leveret.broker.transactions.transaction import Transaction

        log = world.held_log
        queue = world.queue(durable=True)
        picky = Taker(queue, "picky", only=b"x")
        log.held = True
        world.end_turn()
        transaction = Transaction(log)
        transaction.publish(world.message("x", persistent=True), [queue])
        transaction.commit(lambda: None)
        world.push(queue, "a")
        world.run()
        assert picky.taken == []
        log.release_all()
        world.run()
        assert picky.bodies() == ["x"]

    def test_expired_messages_behind_the_head_are_not_delivered(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, "picky", only=b"x", credit=0)
        world.push(queue, "a")
        world.push(queue, "x", ttl=10)
        world.run()
        world.clock.time += 10
        picky.give(1)
        world.run()
        assert picky.taken == []

    def test_no_ack(self, world: World) -> None:
        queue = world.queue()
        picky = Taker(queue, only=b"x", no_ack=True)
        world.push(queue, "x", "a")
        world.run()
        assert picky.history == ["x"]
        assert figures(queue) == (1, 1, 0)

    def test_a_channel_never_gets_a_message_that_it_rejected(self, world: World) -> None:
        """Strict mode's basic.reject with requeue."""
        queue = world.queue()
        scope = object()
        refusing = Taker(queue, "1", scope=scope)
        same_channel = Taker(queue, "2", scope=scope, credit=0)
        world.push(queue, "a")
        world.run()
        entry = refusing.taken.pop()
        queue.refuse(entry, scope)
        queue.requeue(entry)
        same_channel.give(-1)
        world.run()
        assert refusing.taken == same_channel.taken == []
        other = Taker(queue, "3")
        world.run()
        assert other.bodies() == ["a"]


def test_unwanted_messages_do_not_hide_paged_or_new_ones(world: World) -> None:
    small = World(page_above=1)
    queue = small.queue()
    picky = Taker(queue, only=b"x")
    small.push(queue, "a", "b", "x1", "c", "x2")
    small.run()
    assert picky.bodies() == ["x1", "x2"]
    assert figures(queue) == (3, 3, 2)


def test_draining_in_the_middle_of_a_turn_keeps_the_figures_right(world: World) -> None:
    queue: ClassicQueue = world.queue(max_length_bytes=3)
    consumer = Taker(queue, credit=2)
    world.push(queue, *"abcdef")
    assert consumer.bodies() == ["a", "b"]
    assert figures(queue) == (3, 3, 2)
    world.run()
    assert world.contents(queue) == ["d", "e", "f"]


class TestMistakes:
    """An unexpected exception while a queue delivers."""

    def test_affects_neither_other_queues_nor_the_counters(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        broken, sound = world.queue("broken"), world.queue("sound")
        clumsy, other = Clumsy(broken), Taker(sound)
        world.push(broken, *"ab")
        world.push(sound, "c")
        world.run()
        assert other.bodies() == ["c"]
        assert "cannot deliver from queue 'broken'" in caplog.text
        assert clumsy.bodies() == ["a"]
        clumsy.broken = False
        broken.activate()
        world.run()
        assert clumsy.bodies() == ["a", "b"]
        assert figures(broken) == (0, 0, 2) and broken.ready.memory == 0


class Clumsy(Taker):
    """A consumer that fails after it accepted an entry."""

    broken = True

    def deliver(self, entry: Entry) -> None:
        super().deliver(entry)
        if self.broken:
            raise RuntimeError("a mistake")
