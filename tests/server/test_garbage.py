"""When garbage is collected: never for long while clients wait."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from leveret.server.garbage import CHEAP, NEVER, SECOND_GENERATION, TIGHT_INTERVAL, Collector


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


class Fake:
    """A clock and a count of blocks that a test sets."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.blocks = 5_000_000
        self.collector = Collector(1234, lambda: self.time, lambda: self.blocks)


@pytest.fixture
def fake() -> Iterator[Fake]:
    before = gc.get_threshold()
    gc.unfreeze()
    fake = Fake()
    fake.collector.tune()
    fake.collector.start()
    yield fake
    fake.collector.stop()
    gc.set_threshold(*before)


class Kept:
    """An object that stays."""


def rings() -> int:
    return sum(isinstance(item, Ring) for item in gc.get_objects())


def test_only_young_generations_are_collected_automatically(fake: Fake) -> None:
    assert gc.get_threshold() == (1234, SECOND_GENERATION, NEVER)
    assert gc.get_freeze_count() > 0


def test_objects_are_examined_once(fake: Fake) -> None:
    examined: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            # Other threads of the process create objects, too.
            examined.append(sum(type(item) is Kept for generation in (0, 1) for item in gc.get_objects(generation)))

    gc.callbacks.append(note)
    try:
        kept = [Kept() for _ in range(10_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 10_000 and len(examined) >= 7
    assert max(examined) <= 1234 + 100
    # The last ones were not examined yet.
    assert len(kept) - 2 * 1234 <= sum(examined) <= len(kept)


def test_young_objects_can_be_examined_before_they_are_many(fake: Fake) -> None:
    kept = [[number] for number in range(1000)]
    assert len(gc.get_objects(0)) > 1000
    fake.collector.examine_young()
    assert len(gc.get_objects(0)) + len(gc.get_objects(1)) < 100
    assert len(kept) == 1000


def test_a_full_collection_waits_until_it_is_cheap(fake: Fake) -> None:
    Ring()
    gc.collect(1)
    Ring()
    fake.blocks += CHEAP + 1
    fake.time += 10 * TIGHT_INTERVAL
    assert not fake.collector.check(tight=False)
    assert rings() == 1
    fake.blocks -= 1
    assert fake.collector.check(tight=False)
    assert rings() == 0


def test_while_memory_is_short_it_is_due_now_and_then(fake: Fake) -> None:
    fake.blocks += CHEAP + 1
    assert not fake.collector.check(tight=True)
    fake.time += TIGHT_INTERVAL
    assert fake.collector.check(tight=True)
    assert not fake.collector.check(tight=True)
