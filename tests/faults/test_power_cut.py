"""Power cuts: only what was synced is there, and what was not is there in pieces. Confirmed means durable all the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.crash.power import File, powered, sectors
from tests.faults.crash.rounds import CrashTest, Violation
from tests.support.amqp import Closed
from tests.support.broker import leveret_only


@pytest.mark.parametrize("seed", [1, 2])
def test_rounds(tmp_path: Path, seed: int) -> None:
    leveret_only("its power is cut")
    process = powered(tmp_path, seed)
    if process is None:
        pytest.skip("no C compiler for the library that records writes")
    test = CrashTest(process, seed, tmp_path / "journal.jsonl")
    try:
        test.run(3, (0.2, 0.8), graceful=0)
        process.check_log()
        assert process.cuts >= 3
        assert test.model.totals["found"] > 100, test.summary()
    finally:
        process.kill()


def test_a_disk_that_lies_is_found_out(tmp_path: Path) -> None:
    """The check can fail: without syncs confirmed messages are lost."""
    leveret_only("its power is cut")
    process = powered(tmp_path, 1)
    if process is None:
        pytest.skip("no C compiler for the library that records writes")
    process.lying = True
    test = CrashTest(process, 1, tmp_path / "journal.jsonl")
    try:
        # A promise is found broken, a queue is missing, or the data directory is not even one any more.
        with pytest.raises((Violation, RuntimeError, Closed)):
            test.run(8, (0.2, 0.5), graceful=0, again=0)
    finally:
        process.kill()


def test_what_is_synced_stays() -> None:
    chance = random.Random(1)
    outcomes = set()
    for _ in range(200):
        file = File(b"a" * 1000)
        file.pending.append((500, b"b" * 1000))
        file.sync()
        file.pending += [(0, b"c" * 2000), (3000, b"d"), (100, None)]
        file.cut(chance)
        assert not file.pending
        outcomes.add(bytes(file.content))
    assert b"a" * 500 + b"b" * 1000 in outcomes
    assert b"c" * 100 in outcomes
    assert len(outcomes) > 10


def test_sectors() -> None:
    pieces = sectors(500, b"x" * 600)
    assert [(offset, len(data or b"")) for offset, data in pieces] == [(500, 12), (512, 512), (1024, 76)]
    assert sectors(7, None) == [(7, None)]
