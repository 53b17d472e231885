"""Cut the power of a machine that a broker runs on, at any moment, and look whether the broker keeps its promises.

    python bench/power.py                                      each workload, 100 points under each set of rules
    python bench/power.py --workload streams --rules posix --points 1000 --seed 7

A run of clients against a broker process is recorded: every operation on files of it and of its children, and between them
what the clients sent and had confirmed. At random points of the recording the files are built as a disk might hold them
after a power cut: without what was not synced, or with arbitrary parts of it. A broker starts on them, and is checked
against what its clients knew at that point: nothing confirmed is lost, nothing is invented, order is kept.

Ends with one line of totals and code 0, or with what went wrong, the directories that show it, and code 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.faults.crash.disk import Rules  # noqa: E402
from tests.faults.crash.power import build_library  # noqa: E402
from tests.faults.power.all import WORKLOADS  # noqa: E402
from tests.faults.power.points import check, take, unrecorded  # noqa: E402

# Points of one recording; more of them want another one.
PER_RECORDING = 250
FAILURES = 20


def run(name: str, rules: Rules, points: int, seed: int, directory: Path, library: Path, seconds: float,
        until: float = float("inf")) -> tuple[int, list[str]]:
    """That many points of a workload, or as many as there is time for: how many were checked, and what was wrong."""
    done, wrong, part = 0, list[str](), 0
    while done < points and time.monotonic() < until and len(wrong) < FAILURES:
        chance = random.Random(f"{seed} {name} {rules} {part}")
        place = directory / f"{name}-{rules}-{part}"
        workload = WORKLOADS[name](chance.randrange(1 << 30))
        taken = take(workload, place, library, chance, 3, seconds)
        wrong += [f"while recording: {text}" for text in taken.wrong]
        missed = unrecorded(taken)
        wrong += [f"{path} was changed by an operation that was not recorded" for path in missed]
        failed = False
        for point in check(workload, taken, rules, min(PER_RECORDING, points - done), chance,
                           place / "points", until):
            done += 1
            if point.wrong:
                failed = True
                found = "; ".join(point.wrong[:5])
                wrong.append(f"{name}, {rules}, record {point.record}, {place}/points/point-{point.number}: {found}")
        if not failed and not missed:
            shutil.rmtree(place)
        part += 1
    return done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rules", nargs="+", choices=list(Rules), default=list(Rules), type=Rules)
    parser.add_argument("--points", type=int, default=100, help="of each workload under each set of rules")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the clients work in each phase, about")
    parser.add_argument("--directory", type=Path, help="where the data goes; kept; a temporary one by default")
    given = parser.parse_args()
    directory = given.directory or Path(tempfile.mkdtemp(prefix="leveret-power-"))
    directory.mkdir(parents=True, exist_ok=True)
    library = build_library(directory)
    if library is None:
        parser.error("a C compiler is needed")
    print(f"seed {given.seed}, data in {directory}", flush=True)
    failed = False
    for name in given.workload:
        for rules in given.rules:
            begun = time.monotonic()
            done, wrong = run(name, rules, given.points, given.seed, directory, library, given.seconds)
            failed = failed or bool(wrong)
            print(f"{name}, {rules}: {done} points, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s", flush=True)
            for text in wrong[:FAILURES]:
                print(f"  {text}")
    if given.directory is None and not failed:
        shutil.rmtree(directory)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
