"""Trace points: what is recorded, and how much."""

from __future__ import annotations

import pytest

from leveret.broker.tracing import MAX_POINTS, Tracing
from tests.broker.support import World

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@pytest.fixture
def traced() -> tuple[World, Tracing]:
    world = World()
    tracing = world.broker.tracing = Tracing(world.broker, 1.0)
    return world, tracing


def test_a_queue_that_is_not_traced_has_no_watch() -> None:
    world = World()
    queue = world.queue()
    assert queue.watch is None and not queue.guarded


def test_steps_in_order(traced: tuple[World, Tracing]) -> None:
    world, tracing = traced
    world.queue()
    world.publish("", "q", headers=HEADERS)
    points, dropped = tracing.take()
    assert [(point.step, point.name, point.protocol) for point in points] == [
        ("publish", "", "0-9-1"),
        ("route", "q", "0-9-1"),
    ]
    assert {point.parent for point in points} == {f"{TRACE}-00f067aa0ba902b7"}
    assert points[0].time <= points[1].time and dropped == 0
    assert tracing.take() == ([], 0)


def test_points_beyond_the_limit_are_counted(traced: tuple[World, Tracing]) -> None:
    world, tracing = traced
    world.queue()
    for _ in range(MAX_POINTS // 2 + 5):
        world.publish("", "q", headers=HEADERS)
    points, dropped = tracing.take()
    assert (len(points), dropped) == (MAX_POINTS, 10)
    assert tracing.take() == ([], 0)
