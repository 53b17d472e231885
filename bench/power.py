"""Simulate power cuts at random moments, and check that the broker keeps its guarantees.

    python bench/power.py                                      each workload, 100 points under each set of rules
    python bench/power.py --workload streams --rules posix --points 1000 --seed 7

A run of clients against a broker process is recorded: every file operation of the broker and its children, interleaved with
the messages and confirms of the clients. For random points of the recording, the files are rebuilt as they might be on disk
after a power cut: without unsynced data, or with arbitrary parts of it. A broker starts on these files and is compared with
the clients' knowledge at that point: nothing confirmed is lost, nothing is invented, and order is kept.

Points are checked in forked processes, several at a time. A point with the same files and the same events as an earlier one
of its recording is skipped and does not count.

Prints totals for each workload and exits with 0; or prints the errors and the directories of the files, and exits with 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.faults.crash.disk import Rules  # noqa: E402
from tests.faults.crash.power import build_library  # noqa: E402
from tests.faults.power.all import WORKLOADS  # noqa: E402
from tests.faults.power.points import check, take, unrecorded  # noqa: E402

# Maximum number of points per recording.
PER_RECORDING = 250
# Duration of each phase of a recording in seconds. More messages make the check of a point slower.
SECONDS = 0.4
FAILURES = 20
# Minimum time for checking the points of a recording.
MIN_SECONDS = 4.0


def run(
    name: str,
    wanted: list[Rules],
    points: int,
    seed: int,
    directory: Path,
    library: Path,
    seconds: float = SECONDS,
    until: float = float("inf"),
) -> tuple[Counter[Rules], list[str]]:
    """Check `points` points of a workload under each set of rules, or fewer if the time runs out.

    Returns:
        The number of points that were checked under each set of rules, and the errors.
    """
    done: Counter[Rules] = Counter()
    wrong: list[str] = []
    part = 0
    while any(done[rules] < points for rules in wanted) and time.monotonic() < until and len(wrong) < FAILURES:
        chance = random.Random(f"{seed} {name} {part}")
        place = directory / f"{name}-{part}"
        workload = WORKLOADS[name](chance.randrange(1 << 30))
        taken = take(workload, place, library, chance, 3, seconds)
        wrong += [f"while recording: {text}" for text in taken.wrong]
        missed = unrecorded(taken)
        wrong += [f"{path} was changed by an operation that was not recorded" for path in missed]
        failed = bool(missed)
        # Check some points even if the recording took all of the time.
        end = max(until, time.monotonic() + MIN_SECONDS)
        for number, rules in enumerate(wanted):
            # The sets of rules share the remaining time.
            share = time.monotonic() + (end - time.monotonic()) / (len(wanted) - number)
            for point in check(
                workload, taken, rules, min(PER_RECORDING, points - done[rules]), chance, place / f"points-{rules}", share
            ):
                done[rules] += 1
                if point.wrong:
                    failed = True
                    found = "; ".join(point.wrong[:5])
                    wrong.append(
                        f"{name}, {rules}, record {point.record}, {place}/points-{rules}/point-{point.number}: {found}"
                    )
        if not failed:
            shutil.rmtree(place)
        part += 1
    return done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rules", nargs="+", choices=list(Rules), default=list(Rules), type=Rules)
    parser.add_argument("--points", type=int, default=100, help="points per workload and set of rules")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="approximate duration of each phase of a recording")
    parser.add_argument("--directory", type=Path, help="directory for the data, which is kept; a temporary one by default")
    given = parser.parse_args()
    directory = given.directory or Path(tempfile.mkdtemp(prefix="leveret-power-"))
    directory.mkdir(parents=True, exist_ok=True)
    library = build_library(directory)
    if library is None:
        parser.error("no C compiler found")
    print(f"seed {given.seed}, data in {directory}", flush=True)
    failed = False
    for name in given.workload:
        begun = time.monotonic()
        done, wrong = run(name, given.rules, given.points, given.seed, directory, library, given.seconds)
        failed = failed or bool(wrong)
        took = time.monotonic() - begun
        counts = ", ".join(f"{done[rules]} points under {rules}" for rules in given.rules)
        print(
            f"{name}: {counts}, {len(wrong)} errors, {took:.0f} s, {done.total() / took * 60:.0f} points per minute",
            flush=True,
        )
        for text in wrong[:FAILURES]:
            print(f"  {text}")
    if given.directory is None and not failed:
        shutil.rmtree(directory)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
