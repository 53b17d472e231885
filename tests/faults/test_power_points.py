"""Power cuts at some moments of recorded runs; `bench/power.py` tries thousands, of more workloads."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.faults.crash.disk import Rules
from tests.faults.crash.power import build_library
from tests.faults.power import forked
from tests.faults.power.all import WORKLOADS
from tests.faults.power.forked import Forks
from tests.faults.power.points import check, take, unrecorded
from tests.support.broker import leveret_only

pytestmark = pytest.mark.embedded("cuts the power of the disk with the data directory")

POINTS = 5


@pytest.fixture
def library(tmp_path: Path) -> Path:
    leveret_only("its power is cut")
    return build_library(tmp_path) or pytest.skip("no C compiler for the library that records operations on files")


@pytest.mark.parametrize("name", ["definitions", "uploads"])
def test_confirmed_changes_survive(tmp_path: Path, library: Path, name: str) -> None:
    chance = random.Random(name)
    workload = WORKLOADS[name](chance.randrange(1 << 30))
    taken = take(workload, tmp_path / "run", library, chance, 2, 0.5)
    assert not taken.wrong
    assert not unrecorded(taken)
    for rules in Rules:
        # Points with equal files and events are checked once.
        points = list(check(workload, taken, rules, 2 * POINTS, chance, tmp_path / rules))
        assert POINTS <= len(points) <= 2 * POINTS
        assert not [point for point in points if point.wrong]


def test_a_lying_disk_is_detected(tmp_path: Path, library: Path) -> None:
    """The check can fail."""
    chance = random.Random(1)
    workload = WORKLOADS["definitions"](1)
    taken = take(workload, tmp_path / "run", library, chance, 1, 0.5)
    points = check(workload, taken, Rules.POSIX, 20, chance, tmp_path / "points", lying=True)
    assert any(point.wrong for point in points)


def test_a_check_that_ends_its_process_is_wrong() -> None:
    def dies() -> list[str]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    def raises() -> list[str]:
        raise ValueError("broken")

    forks = Forks(sealing=False)
    forks.begin({0: list, 1: lambda: ["lost"], 2: raises, 3: dies, 4: list})
    found = dict(forks.results(1))
    assert found[0] == [] and found[1] == ["lost"]
    assert "ValueError: broken" in found[2][0]
    assert found[3] == ["the check ended its process with status -9 and without a result"]
    assert 4 not in found


def test_a_check_that_does_not_end_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> list[str]:
        while True:
            signal.pause()

    monkeypatch.setattr(forked, "CHECK_TIMEOUT", 0.05)
    forks = Forks(sealing=False)
    forks.begin({0: hangs})
    assert list(forks.results(1)) == [(0, ["the check has not ended within 0.05 s"])]
