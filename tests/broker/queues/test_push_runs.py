"""Runs of messages: a queue takes them as it takes single ones, or leaves those that need a check of their own."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.message import Message
from leveret.broker.queues.queue import Queue
from tests.broker.support import Taker, World, figures

ROOM = 64 << 20
LITTLE = 10_000


def mixed(world: World) -> list[Message]:
    """Return messages that differ in what queueing needs."""
    options: list[dict[str, Any]] = [
        {},
        {"persistent": True},
        {"ttl": 500},
        {"ttl": 0, "persistent": True},
        {"priority": 7},
    ]
    return [world.message(f"{number:03}", key="q", **options[number // 7 % len(options)]) for number in range(70)]


def plain(world: World) -> list[Message]:
    return [world.message(f"{number:03}", key="q", persistent=True) for number in range(70)]


def push_all(queue: Queue, messages: list[Message], runs: bool) -> list[int]:
    """Push messages, in runs if possible; return the indices of those that the queue refused."""
    refused: list[int] = []
    index = 0
    while index < len(messages):
        pushed = queue.push_run(messages, index, min(index + 20, len(messages))) if runs else index
        if pushed == index:
            if not queue.push(messages[index]):
                refused.append(index)
            pushed += 1
        index = pushed
    return refused


@pytest.mark.parametrize("make", [mixed, plain])
@pytest.mark.parametrize("page_above", [ROOM, LITTLE])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_priority": 9},
        {"max_length": 30},
        {"max_length": 30, "overflow": "reject-publish"},
        {"message_ttl": 200},
        {"queue_type": "quorum"},
    ],
)
def test_a_run_leaves_a_queue_as_single_messages_do(make: Any, page_above: int, arguments: dict[str, Any]) -> None:
    found: list[tuple[object, ...]] = []
    for runs in (False, True):
        world = World(page_above=page_above, overflow=True)
        queue = world.queue(durable=True, **arguments)
        refused = push_all(queue, make(world), runs)
        state = (refused, figures(queue), queue.ready.memory, queue.counters.published, queue.next_seq)
        world.run()
        world.sleep(300)
        kept = [(seq, entry.message.body) for (_, seq), (entry, _, _) in sorted(world.held_log.kept.items())]
        found.append((*state, kept, world.contents(queue), figures(queue)))
    assert found[0] == found[1]


def test_a_consumer_gets_a_run_in_order(world: World) -> None:
    queue = world.queue()
    consumer = Taker(queue)
    messages = plain(world)
    assert queue.push_run(messages, 0, len(messages)) == len(messages)
    world.run()
    assert consumer.history == [f"{number:03}" for number in range(70)]


@pytest.mark.parametrize("arguments", [{"max_length": 5}, {"message_ttl": 5}])
def test_a_queue_with_checks_leaves_a_run_to_single_pushes(world: World, arguments: dict[str, Any]) -> None:
    queue = world.declare(durable=True, **arguments)
    assert queue.push_run(plain(world), 3, 70) == 3
    world.run()
    assert queue.ready_count == 0


def test_a_stream_leaves_messages_of_named_publishers_to_single_pushes(world: World) -> None:
    queue = world.declare(durable=True, queue_type="stream")
    messages = plain(world)
    messages[40] = world.message("named", headers={"x-stream-publisher": "p", "x-stream-sequence": 1})
    assert queue.push_run(messages, 3, 70) == 40
    assert queue.push_run(messages, 40, 70) == 40 and queue.push(messages[40])
    assert queue.push_run(messages, 41, 70) == 70
    world.run()
    taker = Taker(queue, credit=100, join=False)
    taker.arguments = {"x-stream-offset": "first"}
    queue.add_consumer(taker)
    world.run()
    assert taker.bodies() == [
        *(f"{number:03}" for number in range(3, 40)),
        "named",
        *(f"{number:03}" for number in range(41, 70)),
    ]
