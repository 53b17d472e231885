"""No-local, and rejections in strict mode, when unwanted messages fill the queue's share of memory."""

from __future__ import annotations

import pytest

from leveret.broker.message import Entry, Message
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World, figures


class NoLocal(Taker):
    """A consumer that accepts messages of other connections than `number`."""

    def __init__(self, queue: ClassicQueue, *, number: int, credit: int = -1) -> None:
        super().__init__(queue, credit=credit, join=False)
        self.number = number
        self.select()
        queue.add_consumer(self)

    def wants(self, message: Message, entry: Entry | None) -> bool:
        return self.wants_of(message.publisher)

    def wants_of(self, publisher: int) -> bool:
        return publisher != self.number


@pytest.fixture
def small() -> World:
    return World(page_above=10_000)


@pytest.fixture
def deep(small: World) -> ClassicQueue:
    queue = small.queue(durable=True)
    for number in range(100):
        small.push(queue, f"{number:03}", persistent=True, publisher=2 if number % 30 == 29 else 1)
    small.run()
    small.broker.page_down()
    assert queue.ready.backlog.paged > 80
    return queue


def test_messages_of_other_connections_are_found(small: World, deep: ClassicQueue) -> None:
    picky = NoLocal(deep, number=1)
    small.run()
    assert picky.history == ["029", "059", "089"]
    assert figures(deep) == (97, 291, 3)
    assert deep.ready.memory < 15_000
    assert small.contents(deep) == [f"{number:03}" for number in range(100) if number % 30 != 29]
    assert figures(deep) == (0, 0, 3) and deep.ready.memory == 0


def test_with_credit_of_one(small: World, deep: ClassicQueue) -> None:
    picky = NoLocal(deep, number=1, credit=1)
    small.run()
    assert picky.history == ["029"]
    picky.requeue()
    picky.give(1)
    small.run()
    assert picky.history == ["029", "029"]
    picky.give(1)
    small.run()
    small.push(deep, "new", persistent=True, publisher=2)
    small.push(deep, "own", persistent=True, publisher=1)
    picky.give(5)
    small.run()
    assert picky.history == ["029", "029", "059", "089", "new"]


def test_loaded_but_refused_messages_keep_their_place(small: World, deep: ClassicQueue) -> None:
    picky = NoLocal(deep, number=1, credit=1)
    small.end_turn()
    picky.credit = 0  # while it is being read
    small.run()
    assert picky.history == []
    everybody = Taker(deep)
    small.run()
    assert everybody.history == [f"{number:03}" for number in range(100)]


def test_a_purge_meanwhile(small: World, deep: ClassicQueue) -> None:
    picky = NoLocal(deep, number=1)
    small.end_turn()
    assert deep.purge() == 100
    small.run()
    assert picky.history == [] and figures(deep) == (0, 0, 0) and deep.ready.memory == 0
    assert small.log.rows == {}


def test_messages_not_rejected_by_the_channel_are_found(small: World, deep: ClassicQueue) -> None:
    refusing = Taker(deep, credit=40)
    small.run()
    for entry in reversed(refusing.taken):
        deep.refuse(entry, refusing.scope)
        deep.requeue(entry)
    refusing.taken.clear()
    small.broker.page_down()
    small.run()
    small.broker.page_down()
    assert len(deep.ready.refusals) > 20
    refusing.give(-1)
    small.run()
    assert refusing.history[40:] == [f"{number:03}" for number in range(40, 100)]
    assert deep.ready.memory < 50_000
    assert deep.ready_count == 40
