"""An exception in a later step of long work: waiting clients get an error, and the rest of the work is done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.broker.jobs import STEP_WORK, Job
from leveret.broker.message import Entry
from tests.broker.support import HeldLog, Taker, World

MANY = 10_000


class FailingLog(HeldLog):
    """A log of which one settlement fails: the one after `calls` others, -1 for none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = -1

    def settle(self, entry: Entry) -> None:
        if self.calls >= 0:
            self.calls -= 1
            if self.calls < 0:
                raise RuntimeError("a mistake")
        super().settle(entry)


class FailingTaker(Taker):
    """A consumer that fails when it is notified of the end of its queue."""

    def queue_deleted(self) -> None:
        raise RuntimeError("a mistake")


def working(steps: int) -> Iterator[int]:
    for _ in range(steps):
        yield STEP_WORK
    raise RuntimeError("a mistake")


def test_a_failure_in_a_later_step_is_reported_to_the_waiter() -> None:
    world = World()
    done: list[str] = []
    assert not world.broker.jobs.run_steps(working(2), lambda: done.append("done"), lambda: done.append("failed"))
    world.run()
    assert done == ["failed"]


def test_a_failure_of_the_callback_is_reported_too() -> None:
    world = World()
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("a mistake")

    assert not world.broker.jobs.run_steps(iter([STEP_WORK, 1]), fail, lambda: done.append("failed"))
    world.run()
    assert done == ["failed"]


def test_a_failure_in_the_first_step_is_that_of_the_caller() -> None:
    world = World()
    with pytest.raises(RuntimeError):
        world.broker.jobs.run_steps(working(0), None, pytest.fail)
    world.run()


def test_a_failed_job_is_notified() -> None:
    world = World()
    done: list[str] = []

    class Failing(Job):
        def step(self) -> bool:
            raise RuntimeError("a mistake")

        def failed(self) -> None:
            done.append("failed")

    world.broker.jobs.add(Failing(world.broker.jobs))
    world.run()
    assert done == ["failed"]


@pytest.mark.parametrize("calls", [5_000, 9_000])
def test_a_queue_delivers_the_rest_after_a_failure_to_expire(calls: int) -> None:
    log = FailingLog()
    world = World(log=log)
    queue = world.queue(durable=True)
    for number in range(MANY):
        world.push(queue, str(number), ttl=5, persistent=True)
    world.push(queue, "fresh", persistent=True)
    world.end_turn()
    world.clock.time += 1000
    log.calls = calls
    taker = Taker(queue)
    world.run()
    assert log.calls == -1
    assert not queue.dispatcher.frozen and queue.ready_count == 0 and taker.bodies() == ["fresh"]


def test_all_consumers_of_a_deleted_queue_are_notified_although_one_fails() -> None:
    world = World()
    queue = world.queue()
    takers = [FailingTaker(queue, str(number)) if number == 5 else Taker(queue, str(number)) for number in range(10)]
    world.vhost.delete_queue("q", None)
    world.run()
    assert [taker.gone for taker in takers] == [number != 5 for number in range(10)]
