"""A list of queues that changes while it is walked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.queues.queue import Queue
from leveret.broker.queues.queue_list import QueueList
from tests.broker.support import World

ADD, REMOVE, STEP = range(3)


def make(count: int) -> tuple[QueueList[Queue], list[Queue]]:
    world = World()
    queues: list[Queue] = [world.queue(f"q{number}") for number in range(count)]
    listed: QueueList[Queue] = QueueList()
    for queue in queues:
        listed.add(queue)
    return listed, queues


def test_queues_come_in_the_order_of_their_addition() -> None:
    listed, queues = make(5)
    listed.add(queues[2])
    assert list(listed.walk()) == queues
    assert len(listed) == 5 and queues[0].id in listed


def test_removed_queues_are_forgotten() -> None:
    listed, queues = make(5)
    for queue in (queues[4], queues[1], queues[1]):
        listed.discard(queue)
    assert set(listed.walk()) == {queues[0], queues[2], queues[3]}
    assert queues[1].id not in listed and len(listed) == 3


def test_a_queue_that_moves_to_the_part_behind_is_not_missed() -> None:
    listed, queues = make(4)
    walk = listed.walk()
    assert next(walk) is queues[0]
    listed.discard(queues[0])  # the last one takes its place
    assert list(walk) == [queues[1], queues[2], queues[3]]


def test_an_abandoned_walk_leaves_nothing() -> None:
    listed, queues = make(3)
    walk = listed.walk()
    next(walk)
    del walk
    assert listed._walks == []
    assert list(listed.walk()) == queues


@given(st.lists(st.tuples(st.sampled_from([ADD, REMOVE, STEP, STEP]), st.integers(0, 1 << 16)), max_size=60))
def test_a_walk_yields_once_what_is_there_all_the_time(changes: list[tuple[int, int]]) -> None:
    listed, queues = make(40)
    present = dict.fromkeys(queues[:20])
    for queue in queues[20:]:
        listed.discard(queue)
    walk = listed.walk()
    throughout = set(present)
    found: list[Queue] = []
    for what, number in changes:
        if what == ADD:
            queue = queues[number % 40]
            if queue not in throughout:
                listed.add(queue)
                present[queue] = None
        elif what == REMOVE and present:
            queue = list(present)[number % len(present)]
            listed.discard(queue)
            del present[queue]
            throughout.discard(queue)
        else:
            queue_or_none = next(walk, None)
            if queue_or_none is not None:
                assert queue_or_none in present
                found.append(queue_or_none)
    found.extend(walk)
    assert throughout <= set(found)
    assert all(found.count(queue) == 1 for queue in throughout)
    assert set(listed.walk()) == set(present)
