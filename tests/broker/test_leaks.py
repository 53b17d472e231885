"""Objects do not outlive their owners."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from leveret.broker.consumer import Consumer
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World


def count_of(name: str) -> int:
    """Return the number of objects of a class. Weak references to objects of compiled classes are not safe."""
    gc.collect()
    return tracked(name)


def tracked(name: str) -> int:
    """Return the number of objects of a class, garbage included."""
    return sum(1 for item in gc.get_objects() if type(item).__name__ == name)


def test_created_and_deleted_queues(world: World) -> None:
    """With expiry, lifetime, consumers, bindings and dead letters: everything that refers to a queue."""
    world.queue("dead")
    before = count_of("ClassicQueue")
    for number in range(20):
        queue = world.queue(
            f"q{number}",
            durable=True,
            expires=10**9,
            message_ttl=10**8,
            max_length=3,
            dead_letter_exchange="",
            dead_letter_routing_key="dead",
        )
        world.vhost.bind(queue, "amq.topic", f"{number}.#", {"a": 1})
        consumer = Taker(queue, credit=1)
        for priority in (1, 5):
            world.push(queue, "a", "b", "c", persistent=True, priority=priority)
        world.run()
        queue.reject(consumer.taken.pop())
        assert tracked("ClassicQueue") > before
        queue.remove_consumer(consumer)
        world.vhost.delete_queue(f"q{number}", None)
        world.run()
    del queue, consumer
    world.route("", "dead")
    # The timers remove stale items only if there are many.
    world.clock.heap.clear()
    assert count_of("ClassicQueue") == before


def test_a_deleted_queue_is_freed_without_a_garbage_collection(world: World) -> None:
    before = count_of("ClassicQueue")
    gc.disable()
    try:
        queue = world.queue(max_length=3)
        world.push(queue, "a", "b")
        world.run()
        assert tracked("ClassicQueue") == before + 1
        world.vhost.delete_queue(queue.name, None)
        del queue
        world.run()
        assert tracked("ClassicQueue") == before
    finally:
        gc.enable()


def test_deleted_queues_do_not_wait_for_their_timers(world: World) -> None:
    before = count_of("ClassicQueue")
    for number in range(2000):
        world.queue(f"q{number}", expires=10**9)
        world.vhost.delete_queue(f"q{number}", None)
    world.run()
    assert count_of("ClassicQueue") < before + 600


def test_messages_once_they_are_settled(world: World) -> None:
    queue = world.queue(durable=True)
    consumer = Taker(queue)
    before = count_of("Message"), count_of("Entry"), count_of("MemoryRow")
    for _ in range(50):
        world.push(queue, "a", "b", persistent=True, ttl=10**6)
        world.run()
        consumer.ack(2)
    consumer.history.clear()
    world.run()
    gc.collect()
    assert (count_of("Message"), count_of("Entry"), count_of("MemoryRow")) == before


def test_a_requeued_message_does_not_refer_to_its_consumer(world: World) -> None:
    """Nor to its channel and connection, however long it waits in the queue."""

    class Owner:
        pass

    queue = world.queue()
    world.push(queue, "a")
    references: list[weakref.ref[Any]] = []
    for _ in range(3):
        owner = Owner()
        references.append(weakref.ref(owner))
        consumer = Taker(queue, owner=owner)
        world.run()
        leave(queue, consumer)
        world.run()
    del owner, consumer
    assert queue.ready_count == 1
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def leave(queue: ClassicQueue, consumer: Taker) -> None:
    """Requeue like a closing channel."""
    consumer.deactivate()
    queue.consumers.leave(consumer)
    consumer.requeue_all()
    queue.remove_consumer(consumer)


def test_created_and_deleted_exchanges(world: World) -> None:
    queue = world.queue("q")
    before = count_of("TopicExchange")
    for number in range(20):
        exchange = world.vhost.declare_exchange(f"x{number}", "topic")
        assert tracked("TopicExchange") > before
        world.vhost.bind(queue, f"x{number}", "#", {})
        world.vhost.bind(exchange, "amq.fanout", "", {})
        world.route(f"x{number}", "k")
        world.route("amq.fanout", "k")
        world.vhost.delete_exchange(f"x{number}")
    del exchange
    assert count_of("TopicExchange") == before


def test_a_vhost_that_is_removed(world: World) -> None:
    from leveret.broker.broker import VhostSettings

    before = count_of("Vhost"), count_of("ClassicQueue")
    vhost = world.broker.add_vhost("other", VhostSettings())
    queue = vhost.declare_queue("q", None, durable=True)
    Taker(queue)
    assert (count_of("Vhost"), count_of("ClassicQueue")) == (before[0] + 1, before[1] + 1)
    world.broker.remove_vhost("other")
    world.run()
    del vhost, queue
    assert (count_of("Vhost"), count_of("ClassicQueue")) == before


def test_hot_objects_have_no_dictionaries() -> None:
    """There may be millions of them."""
    from leveret.broker.message import Entry, Message, Overlay

    for kind in (Entry, Message, Overlay):
        assert "__dict__" not in dir(kind)
    assert "__slots__" in vars(Consumer)
