"""x-max-length and x-max-length-bytes with drop-head, reject-publish and reject-publish-dlx."""

from __future__ import annotations

import pytest

from leveret.broker.content_policy import DROP_FIRST, DROP_IN_ORDER, DROP_NEVER, ContentPolicy
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import FORMAT_AMQP0, Message
from tests.broker.support import Taker, World, body_of, deaths_in, figures


class TestDropHead:
    def test_the_oldest_are_dropped(self, world: World) -> None:
        queue = world.queue(max_length=3)
        assert world.push(queue, *"abcde")
        assert figures(queue) == (3, 3, 0)
        assert world.contents(queue) == ["c", "d", "e"]

    def test_by_bytes(self, world: World) -> None:
        queue = world.queue(max_length_bytes=6)
        world.push(queue, "aaa", "bbb")
        assert queue.ready_bytes == 6
        world.push(queue, "c")
        assert world.contents(queue) == ["bbb", "c"]

    def test_one_message_too_large_for_the_queue_empties_it(self, world: World) -> None:
        queue = world.queue(max_length_bytes=4)
        world.push(queue, "a", "too large")
        assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0

    def test_both_limits(self, world: World) -> None:
        queue = world.queue(max_length=2, max_length_bytes=5)
        world.push(queue, "aaaa", "b", "c", "dddd")
        assert world.contents(queue) == ["c", "dddd"]

    def test_zero_keeps_no_messages(self, world: World) -> None:
        queue = world.queue(max_length=0)
        assert world.push(queue, "a")
        assert figures(queue) == (0, 0, 0)

    def test_zero_still_serves_a_consumer(self, world: World) -> None:
        queue = world.queue(max_length=0)
        consumer = Taker(queue, credit=1)
        world.push(queue, "a", "b")
        world.run()
        assert consumer.bodies() == ["a"]
        assert figures(queue) == (0, 0, 1)

    def test_consumers_with_credit_are_served_first(self, world: World) -> None:
        queue = world.queue(max_length=2)
        consumer = Taker(queue, credit=3)
        world.push(queue, *"abcdef")
        world.run()
        assert consumer.bodies() == ["a", "b", "c"]
        assert world.contents(queue) == ["e", "f"]

    def test_unacked_messages_do_not_count(self, world: World) -> None:
        queue = world.queue(max_length=2)
        consumer = Taker(queue, credit=2)
        world.push(queue, *"abcd")
        world.run()
        assert figures(queue) == (2, 2, 2)
        consumer.requeue_all()
        world.run()
        assert figures(queue) == (2, 2, 0)
        assert world.contents(queue) == ["c", "d"]

    def test_a_durable_queue_settles_dropped_messages(self, world: World) -> None:
        queue = world.queue(durable=True, max_length=1)
        world.push(queue, *"abc", persistent=True)
        world.run()
        assert sum(row.live for row in world.log.rows.values()) == 1

    def test_the_head_is_the_next_message_to_deliver(self, world: World) -> None:
        """As in RabbitMQ, a queue with priorities drops the highest first."""
        queue = world.queue(max_length=2)
        world.push(queue, "high", priority=9)
        world.push(queue, "low", "lower", priority=1)
        assert world.contents(queue) == ["low", "lower"]


class TestRejectPublish:
    def test_a_full_queue_refuses(self, world: World) -> None:
        queue = world.queue(max_length=2, overflow="reject-publish")
        assert world.push(queue, "a", "b")
        assert not world.push(queue, "c")
        assert world.contents(queue) == ["a", "b"]
        assert world.push(queue, "d")

    def test_by_bytes(self, world: World) -> None:
        queue = world.queue(max_length_bytes=4, overflow="reject-publish")
        assert world.push(queue, "aaa", "b")
        assert not world.push(queue, "c")
        assert world.contents(queue) == ["aaa", "b"]

    def test_a_message_that_does_not_fit_is_refused_and_displaces_nothing(self, world: World) -> None:
        queue = world.queue(max_length_bytes=4, overflow="reject-publish")
        assert world.push(queue, "aaa")
        assert not world.push(queue, "bb")
        assert world.push(queue, "c")
        assert world.contents(queue) == ["aaa", "c"]

    def test_consumers_with_credit_make_room(self, world: World) -> None:
        queue = world.queue(max_length=1, overflow="reject-publish")
        consumer = Taker(queue, credit=2)
        assert world.push(queue, "a", "b", "c")
        assert not world.push(queue, "d")
        assert consumer.bodies() == ["a", "b"]

    def test_requeued_messages_displace_no_others(self, world: World) -> None:
        queue = world.queue(max_length=2, overflow="reject-publish")
        consumer = Taker(queue, credit=2)
        world.push(queue, "a", "b")
        world.run()
        world.push(queue, "c", "d")
        consumer.requeue_all()
        world.run()
        assert world.contents(queue) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
    def test_a_refused_message_is_not_stored(self, world: World, overflow: str) -> None:
        queue = world.queue(durable=True, max_length=1, overflow=overflow)
        world.push(queue, "a", "b", "c", persistent=True)
        world.run()
        assert sum(row.live for row in world.log.rows.values()) == 1


class TestRejectPublishDlx:
    def test_refused_messages_are_dead_letters(self, world: World) -> None:
        queue = world.queue(
            max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="dead"
        )
        dead = world.queue("dead")
        assert world.push(queue, "a")
        assert not world.push(queue, "b")
        entry = dead.get(True)
        assert entry is not None and entry.overlay is not None
        assert entry.message.body == b"b"
        assert deaths_in(entry.overlay.headers)[0]["reason"] == "maxlen"
        assert world.contents(queue) == ["a"]


def test_a_limit_by_bytes_counts_correctly_while_dead_letters_arrive(world: World) -> None:
    """A dead letter of another queue arrives in the middle of a drain; messages that fit must not be dropped."""
    world.queue("limited", max_length_bytes=10, dead_letter_exchange="", dead_letter_routing_key="other")
    limited = world.vhost.queues["limited"]
    world.queue("other", max_length=0, dead_letter_exchange="", dead_letter_routing_key="limited")
    consumer = Taker(limited, credit=0)
    once_rejected = {"x-death": [{"queue": "elsewhere", "reason": "rejected", "count": 1}]}
    world.push(limited, "aa", "bb")
    world.push(limited, "cc", ttl=10, headers=once_rejected)
    world.push(limited, "dd", "ee")
    world.run()
    world.clock.time += 10
    consumer.give(3)
    world.run()
    assert consumer.bodies() == ["aa", "bb", "dd"]
    assert world.contents(limited) == ["ee"]
    assert limited.paging.memory() == 0


class _ByBody(ContentPolicy):
    """Overflow drops messages that begin with `f` first, and never those that begin with `n`."""

    def overflow_rule(self, message: Message) -> int:
        return {b"f": DROP_FIRST, b"n": DROP_NEVER}.get(body_of(message)[:1], DROP_IN_ORDER)


class TestRules:
    """Content policies say which messages are dropped first, and which never."""

    @pytest.fixture(autouse=True)
    def policy(self, world: World) -> None:
        world.broker.content_policies[FORMAT_AMQP0] = _ByBody()

    def test_the_order(self, world: World) -> None:
        queue = world.queue(max_length=4)
        world.push(queue, "n1", "a1", "f1", "a2", "f2", "n2", "n3", "n4", "n5", "n6")
        assert world.contents(queue) == ["n1", "n2", "n3", "n4", "n5", "n6"]

    @pytest.mark.parametrize(("first", "dropped"), [("n", "a"), ("a", "f")])
    @pytest.mark.parametrize("sort_key", [None, "rank"])
    def test_one_among_many_others_is_found_in_steps(
        self, world: World, first: str, dropped: str, sort_key: str | None
    ) -> None:
        queue = world.queue(**({} if sort_key is None else {"sort_key": sort_key}))
        for _ in range(10):
            world.push(queue, *[first] * 1000)
            world.run()
        world.push(queue, dropped, "n")
        queue.limits.note_droppable()
        world.run()
        policies = world.vhost.policies
        policies.set(policies.user, "length", "q", {"max-length": 10_001}, apply_to="all", priority=0)
        world.end_turn()
        assert queue.ready_count == 10_002  # still looking
        turns = 0
        while queue.ready_count > 10_001:
            world.end_turn()
            queue.drain()
            assert world.broker.work <= 2 * STEP_WORK
            turns += 1
        assert 2 < turns < 50
        world.run()
        contents = world.contents(queue)
        assert (dropped in contents, len(contents)) == (False, 10_001)

    def test_what_is_never_dropped_is_examined_once(self, world: World) -> None:
        queue = world.queue(max_length=1)
        for _ in range(10):
            world.push(queue, *["n"] * 1000)
            world.run()
        world.push(queue, "n")
        assert world.broker.work < 100
        world.run()
        world.push(queue, "a")
        assert queue.ready_count == 10_001

    def test_many_that_are_first_are_dropped_beyond_the_memory_for_them(self, world: World) -> None:
        world.broker.droppable_backlog = 9_000
        queue = world.queue()
        for _ in range(10):
            world.push(queue, *["a"] * 1000)
            world.run()
        world.push(queue, "f")
        queue.limits.note_droppable()
        world.end_turn()
        assert queue.ready_count == 10_001  # still looking
        world.run()
        assert queue.ready_count == 10_000

    def test_a_message_that_becomes_visible_late(self, world: World) -> None:
        queue = world.queue(max_length=3)
        world.push(queue, "a")
        late = queue.prepare(world.message("f1"))
        world.push(queue, "b", "f2", "b")
        Taker(queue, only=b"b")
        world.run()
        assert queue.ready_count == 1
        queue.insert_new(late)
        world.push(queue, "c", "d")
        assert world.contents(queue) == ["a", "c", "d"]
