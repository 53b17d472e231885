"""The list of leases is created in steps, and is limited."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import ResourceError
from leveret.broker.leases.leases import Leases
from leveret.management.operations import leases
from leveret.management.operations.leases import OfQueue, list_leases
from leveret.management.operations.operation import Operator, VhostContext
from tests.broker.support import World


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("one", "two"):
        queue = world.queue(name, durable=True)
        for number in range(4):
            queue.make_leases().acquire(f"l{number}")
    return world


@pytest.fixture
def context(world: World) -> VhostContext:
    """The context of a user who may read everything."""
    return VhostContext(world.vhost, Operator(), None)


def test_the_list_is_created_in_steps(context: VhostContext, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "STEP_WORK", 3 * leases.LEASE_WORK)
    found: list[Any] = []
    list_leases(context, OfQueue()).when_resolved(found.append)
    assert not found
    Leases.of(context.vhost.queues["two"], "l3").release("l3")
    world.run()
    [answer] = found
    assert [(lease.queue, lease.lease) for lease in answer.leases] == [
        *(("one", f"l{number}") for number in range(4)),
        *(("two", f"l{number}") for number in range(3)),
    ]


def test_too_many_are_refused_unless_a_queue_is_named(context: VhostContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_LISTED", 5)
    found: list[Any] = []
    list_leases(context, OfQueue()).when_resolved(found.append)
    [error] = found
    assert isinstance(error, ResourceError)
    assert str(error).startswith("8 leases and batches exceed the maximum of 5 in a reply; expected a queue name")
    found.clear()
    list_leases(context, OfQueue(queue="one")).when_resolved(found.append)
    assert len(found[0].leases) == 4
