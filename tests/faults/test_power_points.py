"""Power cuts at some moments of recorded runs; `bench/power.py` tries thousands, of more workloads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.crash.disk import Rules
from tests.faults.crash.power import build_library
from tests.faults.power.all import WORKLOADS
from tests.faults.power.points import check, take, unrecorded
from tests.support.broker import leveret_only

POINTS = 5


@pytest.fixture
def library(tmp_path: Path) -> Path:
    leveret_only("its power is cut")
    return build_library(tmp_path) or pytest.skip("no C compiler for the library that records operations on files")


@pytest.mark.parametrize("name", ["definitions", "uploads"])
def test_what_was_confirmed_is_there(tmp_path: Path, library: Path, name: str) -> None:
    chance = random.Random(name)
    workload = WORKLOADS[name](chance.randrange(1 << 30))
    taken = take(workload, tmp_path / "run", library, chance, 2, 0.5)
    assert not taken.wrong
    assert not unrecorded(taken)
    for rules in Rules:
        points = list(check(workload, taken, rules, POINTS, chance, tmp_path / rules))
        assert len(points) == POINTS
        assert not [point for point in points if point.wrong]


def test_a_disk_that_lies_is_found_out(tmp_path: Path, library: Path) -> None:
    """The check can fail."""
    chance = random.Random(1)
    workload = WORKLOADS["definitions"](1)
    taken = take(workload, tmp_path / "run", library, chance, 1, 0.5)
    points = check(workload, taken, Rules.POSIX, 20, chance, tmp_path / "points", lying=True)
    assert any(point.wrong for point in points)
