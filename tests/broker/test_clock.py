"""The system clock is set while the broker runs: deadlines do not move, absolute times follow the clock."""

from __future__ import annotations

import pytest

from leveret.broker.timers import MAX_KEPT_STEP, Timed, Timers
from tests.broker.support import START, Clock, World


class Clocks(Clock):
    """Timers with test clocks: `advance` moves both, `set` only the system clock."""

    def __init__(self, wall: int = START) -> None:
        self.wall_ms = wall
        self.monotonic_ms = 5_000
        super().__init__(wall)

    def now(self) -> int:
        return Timers.now(self)

    def wall(self) -> float:
        return self.wall_ms / 1000

    def monotonic(self) -> float:
        return self.monotonic_ms / 1000

    def advance(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.monotonic_ms += milliseconds
        self.check_clock()
        self.run(self.now())

    def set(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.check_clock()


class Recorder(Timed):
    def __init__(self) -> None:
        super().__init__()
        self.fired = 0

    def fire(self, now: int) -> None:
        self.fired += 1


@pytest.mark.parametrize("seconds", [-120, 120, -7_200, 86_400])
def test_a_step_moves_no_deadline(seconds: int, caplog: pytest.LogCaptureFixture) -> None:
    clocks, timed = Clocks(), Recorder()
    assert clocks.now() == clocks.unix() == START
    clocks.at(clocks.now() + 10_000, timed)
    clocks.advance(5_000)
    clocks.set(seconds * 1000)
    clocks.advance(4_999)
    assert timed.fired == 0
    clocks.advance(1)
    assert timed.fired == 1
    assert clocks.now() == START + 10_000
    direction = "forward" if seconds > 0 else "back"
    assert caplog.messages == [
        f"the system's clock was set {direction} by {abs(seconds)}.0 seconds; deadlines are not affected"
    ]


def test_absolute_times_follow_the_clock() -> None:
    clocks = Clocks()
    clocks.set(-120_000)
    assert clocks.unix() == START - 120_000
    assert clocks.from_unix(clocks.unix() + 60_000) == clocks.now() + 60_000
    clocks.set(120_000)
    assert clocks.unix() == clocks.now()


def test_less_than_a_second_is_no_step(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.set(600)
    assert clocks.step == 0
    clocks.set(600)
    assert clocks.step == 1200
    assert len(caplog.messages) == 1


def restart(world: World, clocks: Clocks, *, step: int = 0) -> tuple[World, Clocks]:
    """A broker over the committed log; the system clock is set by `step` while it is down."""
    world.broker.check_clock()
    world.broker.end_turn()
    world.run()
    log, recovery = world.held_log.recovery(False)
    after = Clocks(clocks.wall_ms + step)
    return World(log=log, recovery=recovery, clock=after), after


def ready(world: World) -> int:
    world.broker.end_turn()
    world.run()
    return world.vhost.queues["q"].ready_count


@pytest.mark.parametrize("seconds", [-7_200, 7_200])
def test_a_ttl_stays_right_over_a_step_and_two_restarts(seconds: int) -> None:
    clocks = Clocks()
    world = World(clock=clocks)
    world.queue(durable=True)
    world.push(world.vhost.queues["q"], "before", persistent=True, ttl=10_000)
    clocks.set(seconds * 1000)
    world.push(world.vhost.queues["q"], "after", persistent=True, ttl=20_000)
    for _ in range(2):
        world, clocks = restart(world, clocks)
        assert clocks.step == seconds * 1000
        assert clocks.unix() == clocks.wall_ms
    clocks.advance(9_999)
    assert ready(world) == 2
    clocks.advance(1)
    assert ready(world) == 1
    clocks.advance(10_000)
    assert ready(world) == 0


def test_time_passes_while_the_broker_is_down() -> None:
    clocks = Clocks()
    world = World(clock=clocks)
    world.push(world.queue(durable=True), "m", persistent=True, ttl=10_000)
    clocks.set(60_000)
    world, clocks = restart(world, clocks, step=9_999)
    clocks.advance(0)
    assert ready(world) == 1
    clocks.advance(1)
    assert ready(world) == 0


@pytest.mark.parametrize("wall", [1_000, START - MAX_KEPT_STEP - 2])
def test_the_step_of_a_clock_that_had_never_been_set_is_dropped(wall: int) -> None:
    """A machine without a battery-backed clock starts in 1970, or years ago."""
    clocks = Clocks(wall)
    world = World(clock=clocks)
    world.queue(durable=True)
    clocks.set(START - wall)
    world, clocks = restart(world, clocks)
    assert clocks.step == 0
    assert clocks.now() == clocks.unix() == START
    world.broker.check_clock()
    world, clocks = restart(world, clocks)
    assert clocks.step == 0


def test_a_stored_step_never_makes_the_clock_negative() -> None:
    clocks = Clocks()
    clocks.wall_ms = 1_000
    clocks.resume(2_000)
    assert clocks.step == 0
