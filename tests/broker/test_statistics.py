"""Counters of queues, exchanges and vhosts."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.consumer import NO_CLIENT
from leveret.broker.message import make_address
from leveret.broker.queues.queue import Queue
from leveret.broker.statistics import QUEUE_COUNTERS
from leveret.broker.transactions.transaction import ACCEPT, REJECT, Transaction
from leveret.broker.vhost import MAX_ROUTES
from tests.broker.support import Taker, World


def counters(queue: Queue) -> dict[str, int]:
    """Return the counters of a queue that are not 0."""
    return {name: value for name, value in zip(QUEUE_COUNTERS, queue.counters.totals(), strict=True) if value}


def published(world: World, exchange: str, key: str, count: int = 1, **options: Any) -> None:
    """Publish messages as a channel does."""
    for _ in range(count):
        message = world.message(exchange=exchange, key=key, **options)
        route = world.vhost.route(message.address)
        queues = route.queues
        if route.dynamic:
            queues = world.vhost.route_message(route, message, [], NO_CLIENT)
        else:
            route.published += 1
        for queue in queues:
            queue.push(message)
    world.run()


def fold(world: World) -> None:
    for route in world.vhost.routes.values():
        world.vhost.statistics.fold(route)


def test_deliveries_acknowledgements_and_redeliveries(world: World) -> None:
    queue = world.queue()
    taker = Taker(queue)
    world.push(queue, *"abc")
    world.run()
    assert counters(queue) == {"publish": 3, "deliver_get": 3}
    taker.ack()
    taker.requeue_all()
    world.run()
    assert counters(queue) == {"publish": 3, "deliver_get": 5, "redeliver": 2, "ack": 1}
    taker.ack(2)
    assert counters(queue)["ack"] == 3 and queue.counters.settled == 3


def test_a_requeued_message_that_a_consumer_refuses_is_not_redelivered(world: World) -> None:
    queue = world.queue()
    taker = Taker(queue, credit=1)
    world.push(queue, "a")
    world.run()
    taker.requeue()
    for _ in range(3):
        queue.activate()
        world.run()
    assert counters(queue) == {"publish": 1, "deliver_get": 1}
    taker.give(1)
    world.run()
    assert counters(queue) == {"publish": 1, "deliver_get": 2, "redeliver": 1}


def test_deliveries_without_acknowledgement(world: World) -> None:
    queue = world.queue()
    Taker(queue, no_ack=True)
    world.push(queue, *"ab")
    world.run()
    assert counters(queue) == {"publish": 2, "deliver_get": 2, "deliver_no_ack": 2}
    assert queue.counters.settled == 2


def test_deliveries_to_selective_consumers(world: World) -> None:
    queue = world.queue()
    taker = Taker(queue, only=b"a")
    Taker(queue, only=b"b", no_ack=True)
    world.push(queue, "a", "b", "c")
    world.run()
    taker.requeue_all()
    world.run()
    assert counters(queue) == {"publish": 3, "deliver_get": 3, "deliver_no_ack": 1, "redeliver": 1}


def test_gets(world: World) -> None:
    queue = world.queue()
    world.push(queue, *"ab")
    world.run()
    first = queue.get(False)
    assert first is not None and queue.get(True) is not None
    queue.requeue(first)
    world.run()
    again = queue.get(False)
    assert again is not None
    queue.settle(again)
    assert counters(queue) == {"publish": 2, "deliver_get": 3, "get": 2, "get_no_ack": 1, "redeliver": 1, "ack": 1}


def test_dropped_and_rejected_messages_are_not_acknowledged(world: World) -> None:
    queue = world.queue(max_length=1)
    taker = Taker(queue, credit=0)
    world.push(queue, *"abc")
    world.run()
    taker.give(1)
    world.run()
    queue.reject(taker.taken.pop())
    assert counters(queue) == {"publish": 3, "deliver_get": 1}
    assert queue.counters.settled == 3


def test_publishes_are_counted_for_exchanges(world: World) -> None:
    statistics = world.vhost.statistics
    exchange = world.vhost.exchanges["amq.fanout"]
    published(world, "amq.fanout", "k", 2)
    for name in "ab":
        world.vhost.bind(world.queue(name), "amq.fanout", "", {})
    published(world, "amq.fanout", "k", 3)
    fold(world)
    assert (exchange.publish_in, exchange.publish_out) == (5, 6)
    assert (statistics.publish_in, statistics.publish_out, statistics.unroutable) == (5, 6, 2)
    published(world, "amq.headers", "k", 2)
    assert world.vhost.exchanges["amq.headers"].publish_in == 2
    assert (statistics.publish_in, statistics.unroutable) == (7, 4)


def test_counts_survive_a_full_cache_of_routes(world: World) -> None:
    before = world.vhost.topology
    for key in range(MAX_ROUTES + 1):
        world.vhost.route(make_address("amq.topic", f"k{key}")).published += 1
    assert world.vhost.topology > before  # connections drop their routes, too
    while len(world.vhost.routes) == 1 and world.vhost.exchanges["amq.topic"].publish_in < MAX_ROUTES:
        world.run()
    fold(world)
    assert world.vhost.exchanges["amq.topic"].publish_in == MAX_ROUTES + 1


def test_totals_include_deleted_queues(world: World) -> None:
    queue = world.queue()
    world.push(queue, *"abc")
    world.run()
    assert queue.get(True) is not None
    world.vhost.remove_queue(queue)
    found = dict(zip(QUEUE_COUNTERS, world.vhost.statistics.queues, strict=True))
    assert (found["publish"], found["deliver_get"], found["get_no_ack"]) == (3, 1, 1)


def test_streams_count_deliveries_and_acknowledgements(world: World) -> None:
    stream = world.declare("s", durable=True, queue_type="stream")
    takers = []
    for no_ack in (False, True):
        taker = Taker(stream, no_ack=no_ack, join=False)
        taker.arguments = {"x-stream-offset": "first"}
        stream.add_consumer(taker)
        takers.append(taker)
    assert world.push(stream, *"ab")
    world.broker.end_turn()
    first, second = takers[0].taken
    stream.settle(first)
    stream.reject(second)
    assert counters(stream) == {"publish": 2, "deliver_get": 4, "deliver_no_ack": 2, "ack": 1}
    assert stream.counters.settled == 4


@pytest.mark.parametrize("outcome", [ACCEPT, REJECT])
def test_undone_settlements_are_not_counted(world: World, outcome: int) -> None:
    queue = world.queue()
    taker = Taker(queue)
    world.push(queue, *"ab")
    world.run()
    transaction = Transaction(world.log)
    for entry in taker.taken:
        transaction.settle(entry, outcome)
    for pieces in (transaction.writing(), transaction.undoing()):
        for _ in pieces:
            pass
    assert counters(queue) == {"publish": 2, "deliver_get": 2}
    assert (queue.counters.settled, queue.unacked) == (0, 2)
