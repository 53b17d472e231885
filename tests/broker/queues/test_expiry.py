"""Time to live: of messages, by queue and by message, and of queues."""

from __future__ import annotations

from tests.broker.support import START, Taker, World, figures


class TestMessages:
    def test_a_message_expires_when_its_time_is_over(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "a", ttl=1000)
        world.run()
        world.sleep(999)
        assert figures(queue) == (1, 1, 0)
        world.sleep(1)
        assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0

    def test_the_queue_sets_the_time_too(self, world: World) -> None:
        queue = world.queue(message_ttl=1000)
        world.push(queue, "a")
        world.run()
        world.sleep(500)
        world.push(queue, "b")
        world.run()
        world.sleep(500)
        assert queue.ready_count == 1
        world.sleep(500)
        assert queue.ready_count == 0

    def test_the_shorter_of_both_counts(self, world: World) -> None:
        queue = world.queue(message_ttl=1000)
        world.push(queue, "a", ttl=500)
        world.push(queue, "b", ttl=5000)
        world.run()
        world.sleep(500)
        assert queue.ready_count == 1
        world.sleep(500)
        assert queue.ready_count == 0

    def test_only_the_head_expires(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "long", ttl=1000)
        world.push(queue, "short", ttl=10)
        world.push(queue, "never")
        world.run()
        world.sleep(500)
        assert queue.ready_count == 3
        world.sleep(500)
        assert queue.ready_count == 1
        assert world.contents(queue) == ["never"]

    def test_after_a_get_the_next_head_expires_on_time(self, world: World) -> None:
        """The next entry may expire before the one that the get took."""
        queue = world.queue()
        world.push(queue, "long", ttl=1000)
        world.push(queue, "short", ttl=10)
        world.run()
        entry = queue.get(False)
        assert entry is not None
        world.run()
        world.sleep(9)
        assert figures(queue) == (1, 5, 1)
        world.sleep(1)
        assert figures(queue) == (0, 0, 1)

    def test_expired_messages_are_never_delivered(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "never")
        world.push(queue, "short", ttl=10)
        world.run()
        world.sleep(500)
        consumer = Taker(queue)
        world.run()
        assert consumer.bodies() == ["never"]
        assert figures(queue) == (0, 0, 1)

    def test_expired_messages_are_not_returned_by_get(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "short", "short", ttl=10)
        world.push(queue, "long", ttl=1000)
        world.clock.time += 10
        assert world.contents(queue) == ["long"]

    def test_unacked_messages_do_not_expire(self, world: World) -> None:
        queue = world.queue()
        consumer = Taker(queue, credit=1)
        world.push(queue, "a", ttl=10)
        world.run()
        world.sleep(100)
        assert figures(queue) == (0, 0, 1)
        consumer.requeue()
        world.run()
        world.sleep(0)
        assert figures(queue) == (0, 0, 0)

    def test_a_message_requeued_to_an_empty_queue_expires(self, world: World) -> None:
        dead = world.queue("dead")
        queue = world.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
        consumer = Taker(queue)
        world.push(queue, "a", ttl=10)
        world.run()
        queue.remove_consumer(consumer)
        consumer.requeue()
        world.run()
        world.sleep(10)
        assert (queue.ready_count, dead.ready_count) == (0, 1)

    def test_a_requeued_message_keeps_its_time(self, world: World) -> None:
        queue = world.queue(message_ttl=100)
        world.push(queue, "a")
        entry = queue.get(False)
        assert entry is not None
        world.sleep(90)
        queue.requeue(entry)
        world.run()
        assert queue.ready_count == 1
        world.sleep(10)
        assert queue.ready_count == 0

    def test_selective_consumers_get_no_expired_messages(self, world: World) -> None:
        queue = world.queue()
        consumer = Taker(queue, only=b"x")
        consumer.credit = 0
        world.push(queue, "x1", ttl=10)
        world.push(queue, "x2")
        world.run()
        world.clock.time += 10
        consumer.give(-1)
        world.run()
        assert consumer.bodies() == ["x2"]

    def test_each_priority_expires_separately(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "high", priority=9)
        world.push(queue, "low", priority=1, ttl=10)
        world.run()
        world.sleep(10)
        assert queue.ready_count == 1
        assert world.contents(queue) == ["high"]

    def test_a_message_of_ten_years_waits(self, world: World) -> None:
        queue = world.queue(message_ttl=3653 * 86_400_000)
        world.push(queue, "a")
        world.run()
        world.sleep(3652 * 86_400_000)
        assert queue.ready_count == 1
        world.sleep(86_400_000)
        assert queue.ready_count == 0


class TestZero:
    """A time to live of 0: delivered at once or never (RabbitMQ's)."""

    def test_expires_without_a_consumer(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "a", ttl=0)
        world.run()
        world.sleep(0)
        assert queue.ready_count == 0

    def test_reaches_a_consumer_that_waits(self, world: World) -> None:
        for queue in (world.queue("by-message"), world.queue("by-queue", message_ttl=0)):
            consumer = Taker(queue, credit=1)
            world.push(queue, "a", "b", ttl=0)
            world.clock.time += 5  # however long the turn takes
            world.run()
            world.sleep(0)
            assert consumer.bodies() == ["a"]
            assert figures(queue) == (0, 0, 1)

    def test_reaches_a_selective_consumer_that_waits(self, world: World) -> None:
        queue = world.queue(message_ttl=0)
        consumer = Taker(queue, only=b"x")
        world.push(queue, "x")
        world.clock.time += 5
        world.run()
        assert consumer.bodies() == ["x"]

    def test_is_not_requeued(self, world: World) -> None:
        queue = world.queue(message_ttl=0)
        consumer = Taker(queue)
        world.push(queue, "a")
        world.run()
        consumer.requeue()
        world.run()
        assert consumer.bodies() == []
        assert figures(queue) == (0, 0, 0)

    def test_is_not_kept_for_later_credit(self, world: World) -> None:
        queue = world.queue()
        consumer = Taker(queue, credit=1)
        world.push(queue, "a", "b")
        world.push(queue, "at once", ttl=0)
        world.run()
        assert queue.ready_count == 2
        consumer.give(-1)
        world.run()
        assert consumer.bodies() == ["a", "b"]
        assert figures(queue) == (0, 0, 2)

    def test_is_not_returned_by_get(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "a", ttl=0)
        assert queue.get(True) is None


class TestQueues:
    """x-expires."""

    def test_an_unused_queue_is_deleted(self, world: World) -> None:
        queue = world.queue(expires=1000)
        world.push(queue, "a")
        world.run()
        world.sleep(999)
        assert "q" in world.vhost.queues
        world.sleep(1)
        assert "q" not in world.vhost.queues and queue.deleted

    def test_a_declaration_is_use(self, world: World) -> None:
        world.queue(expires=1000)
        world.sleep(600)
        world.queue(expires=1000)
        world.sleep(600)
        assert "q" in world.vhost.queues
        world.sleep(400)
        assert "q" not in world.vhost.queues

    def test_publishing_is_not(self, world: World) -> None:
        queue = world.queue(expires=1000)
        world.sleep(600)
        world.push(queue, "a")
        world.run()
        world.sleep(400)
        assert "q" not in world.vhost.queues

    def test_consumers_keep_it(self, world: World) -> None:
        queue = world.queue(expires=1000)
        consumer = Taker(queue)
        world.sleep(5000)
        queue.lifetime.touch()
        world.sleep(5000)
        assert "q" in world.vhost.queues
        queue.remove_consumer(consumer)
        world.sleep(999)
        assert "q" in world.vhost.queues
        world.sleep(1)
        assert "q" not in world.vhost.queues

    def test_a_deleted_queue_has_no_timer(self, world: World) -> None:
        queue = world.queue(expires=1000)
        timer = queue.lifetime.unused
        assert timer is not None and timer.due
        world.vhost.delete_queue("q", None)
        queue.lifetime.touch()
        assert not timer.due and timer.queue is None

    def test_a_name_declared_again_is_another_queue(self, world: World) -> None:
        first = world.queue(expires=1000)
        world.vhost.delete_queue("q", None)
        world.sleep(500)
        second = world.queue(expires=1000)
        world.sleep(500)
        assert first.deleted and world.vhost.queues["q"] is second
        world.sleep(500)
        assert second.deleted


def test_the_test_clock_moves_only_on_request(world: World) -> None:
    assert world.clock.now() == START
