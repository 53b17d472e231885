"""Lists of what belongs to queues are produced while queues come and go: no turn visits all queues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from leveret.broker.broker import VhostSettings
from leveret.management.operations.operation import Context, Later, Operator, VhostContext
from leveret.management.operations.streams import Match, StreamNames, match
from leveret.management.operations.table import OPERATIONS
from leveret.management.structs import Request
from tests.broker.support import Taker, World
from tests.management.harness import Harness

QUEUES = 30


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    harness.broker.add_vhost("/", VhostSettings())
    for number in range(QUEUES):
        harness.broker.vhost("/").declare_queue(f"q{number}", None)
    yield harness
    harness.close()


def items(harness: Harness, name: str) -> Iterator[Any]:
    operation = OPERATIONS[name]
    request = Request() if operation.request is Request else operation.request()
    found = operation.function(Context(harness.managed, Operator()), request)
    assert isinstance(found, Iterator)
    return found


@pytest.mark.parametrize("name", ["consumers.list", "leases.list", "vhosts.list"])
def test_a_part_of_a_list_looks_at_some_queues(harness: Harness, name: str) -> None:
    found = items(harness, name)
    assert list(islice(found, QUEUES)) == [None] * QUEUES
    rest = list(found)
    assert [item.queues for item in rest if item is not None] == ([QUEUES] if name == "vhosts.list" else [])


def test_queues_that_come_and_go_meanwhile(harness: Harness) -> None:
    vhost = harness.broker.vhost("/")
    for name in ("q3", "q29"):
        Taker(vhost.queues[name], name)
    queues, consumers = items(harness, "queues.list"), items(harness, "consumers.list")
    names = [next(queues).name for _ in range(10)]
    tags = [item.tag for item in islice(consumers, 11) if item is not None]
    for number in (1, 5, 20):
        vhost.delete_queue(f"q{number}", None)
    vhost.declare_queue("new", None)
    names.extend(item.name for item in queues)
    tags.extend(item.tag for item in consumers if item is not None)
    assert sorted(set(names) - {"new"}) == sorted(f"q{number}" for number in range(QUEUES) if number != 20)
    assert len(names) == len(set(names))
    assert tags == ["q3", "q29"]


def test_streams_to_match_are_found_in_steps() -> None:
    world = World()
    for number in range(5000):
        world.declare(f"t{number}", durable=True, queue_type="stream")
    for name in ("s1", "s2"):
        world.declare(name, durable=True, queue_type="stream")
    world.run()
    answers: list[Any] = []
    later: Later[StreamNames] = match(VhostContext(world.vhost, Operator(), None), Match(pattern="s.*"))
    later.when_resolved(answers.append)
    steps = 0
    while world.posted:
        assert not answers
        world.posted.pop(0)()
        steps += 1
    assert answers == [StreamNames(streams=["s1", "s2"])]
    assert steps >= 2
