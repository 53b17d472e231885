"""The programs that measure turns of the event loop."""

from __future__ import annotations

import random

from bench import fuzz_turns
from bench.turn_lab import running


def test_scripts_change_a_little_and_the_same_way_each_time() -> None:
    script: list[fuzz_turns.Step] = [("publish", 1)]
    first, second = (list(script) for _ in range(2))
    for changed in (first, second):
        chance = random.Random(5)
        for _ in range(200):
            before = list(changed)
            changed[:] = fuzz_turns.mutate(changed, chance)
            assert abs(len(changed) - len(before)) <= 1
            assert all(name in fuzz_turns.ACTIONS for name, _ in changed)
    assert first == second


def test_a_script_over_all_protocols_is_measured() -> None:
    with running() as lab:
        lab.reset()
        player = fuzz_turns.Player(lab)
        player.play([(name, 20) for name in fuzz_turns.ACTIONS])
        assert lab.longest() > 0
        assert lab.process.poll() is None
        assert "Traceback" not in (lab.directory / "log").read_text()
