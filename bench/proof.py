"""Long proofs in pieces: each piece has its own seed, and the counts of all pieces add up by commit.

    make proof ARGS="power --minutes 25"       one piece of a proof (at most 25 minutes)
    make proof ARGS=report                     the results so far, by commit
    make proof ARGS=keep                       add the results of this checkout to bench/proofs.jsonl, which is checked in
    make proof ARGS=ci                         a short piece of each proof that can be split; `.ci/run` uses it

Proofs: power (bench/power.py), syscalls (bench/syscalls.py), kill9 (bench/kill9.py), fuzz (bench/fuzz.py), soak
(bench/soak.py), spark (bench/spark_kills.py). Each piece appends a line of JSON to `build/proof/results.jsonl`. Exits
with 1 if a piece found errors; its line has the errors and the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench import fuzz, power, syscalls  # noqa: E402
from bench.soak import Soak  # noqa: E402
from tests.faults.crash.disk import Rules  # noqa: E402
from tests.faults.crash.power import build_library  # noqa: E402
from tests.faults.crash.rounds import CrashTest, Violation  # noqa: E402
from tests.faults.power.all import WORKLOADS  # noqa: E402
from tests.support.broker import LeveretProcess  # noqa: E402

RESULTS = ROOT / "build" / "proof" / "results.jsonl"
KEPT = ROOT / "bench" / "proofs.jsonl"
MAX_MINUTES = 25.0
CI_MINUTES = 0.5
# Time for a workload before the next one runs.
SECONDS_PER_WORKLOAD = 120.0
# Target counts.
TARGETS = {
    "power": dict.fromkeys((f"{name} {rules}" for name in WORKLOADS for rules in Rules), 1000),
    "syscalls": {"calls failed": 1},
    "kill9": {"rounds": 1000},
    "fuzz": dict.fromkeys((f"{protocol} {stage}" for protocol in fuzz.PROTOCOLS for stage in fuzz.STAGES), 10_000_000),
    "soak": {"seconds": 3600},
    "spark": {"seconds": 4 * 3600},
}
Found = tuple[Counter[str], list[str]]
"""Counts and errors."""


def prove_power(seed: int, until: float, directory: Path) -> Found:
    """Run each workload in turn, each recording under both sets of rules."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    library = build_library(directory)
    assert library is not None, "a C compiler is needed"
    turn = 0
    while time.monotonic() < until and not wrong:
        for number, name in enumerate(WORKLOADS):
            # A short piece must reach all workloads.
            begun = time.monotonic()
            share = min((until - begun) / (len(WORKLOADS) - number), SECONDS_PER_WORKLOAD)
            done, found = power.run(
                name, list(Rules), power.PER_RECORDING, seed + turn, directory / str(turn), library, until=begun + share
            )
            counts.update({f"{name} {rules}": points for rules, points in done.items()})
            wrong += found
        turn += 1
    return counts, wrong


def prove_syscalls(seed: int, until: float, directory: Path) -> Found:
    library = build_library(directory)
    assert library is not None, "a C compiler is needed"
    # Half of the time for the store alone, half for whole brokers.
    half = (until - time.monotonic()) / 2
    counts, wrong = syscalls.run(seed, 1, library, half / 60)
    more, found = syscalls.fail_in_brokers(1 << 30, seed, library, directory, until)
    return counts + more, wrong + found


def prove_kill9(seed: int, until: float, directory: Path) -> Found:
    counts: Counter[str] = Counter()
    broker = LeveretProcess(directory / "broker")
    test = CrashTest(broker, seed, directory / "journal.jsonl")

    class Over(Exception):
        """The time is up."""

    def progress(test: CrashTest) -> None:
        counts["rounds"] = test.rounds
        if time.monotonic() > until:
            raise Over

    wrong: list[str] = []
    try:
        test.run(1 << 30, (0.1, 1.0), progress=progress)
    except Over:
        pass
    except (Violation, AssertionError, RuntimeError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    finally:
        broker.kill()
    try:
        broker.check_log()
    except AssertionError as error:
        wrong.append(str(error))
    counts["messages found again"] = test.model.totals["found"]
    return counts, wrong


def prove_fuzz(seed: int, until: float, directory: Path) -> Found:
    """Fuzz each protocol before and after authentication, for equal shares of the time, on all processors."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    kinds = [(protocol, stage) for protocol in fuzz.PROTOCOLS for stage in fuzz.STAGES]
    processors = min(os.cpu_count() or 1, len(kinds))
    share = (until - time.monotonic()) * processors / len(kinds)
    with ProcessPoolExecutor(processors) as pool:
        for (protocol, stage), found in zip(kinds, pool.map(partial(fuzz_for, share, seed), kinds), strict=True):
            counts[f"{protocol} {stage}"] += found.frames
            counts[f"{protocol} {stage}: turns over 20 ms"] += found.slow
            wrong += found.wrong
    return counts, wrong


def fuzz_for(seconds: float, seed: int, kind: tuple[str, str]) -> fuzz.Found:
    """Fuzz one protocol in one stage."""
    return fuzz.run(*kind, seed, time.monotonic() + seconds)


def prove_soak(seed: int, until: float, directory: Path) -> Found:
    """Run mixed load and attacks; memory must not grow."""
    seconds = until - time.monotonic()
    broker = LeveretProcess(directory / "broker")
    with broker.start():
        soak = Soak(broker, seconds, 200, seed, set(), attacks=True)
        asyncio.run(soak.run())
        # Memory grows while a broker warms up: a short piece only finds fast leaks.
        flat = soak.verdict(5 if seconds >= 600 else 50)
    wrong = [*soak.problems, *([] if flat else ["memory grew, or a client was refused"])]
    try:
        broker.check_log()
    except AssertionError as error:
        wrong.append(str(error))
    return Counter({"seconds": round(seconds), **soak.counts}), wrong


def prove_spark(seed: int, until: float, directory: Path) -> Found:
    from bench import spark_kills

    begun = time.monotonic()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    chance = random.Random(seed)
    while time.monotonic() < until and not wrong:
        row = chance.choice(spark_kills.ROWS)
        if not spark_kills.run(row, 10, 5000, random.Random(f"{seed} {row}"), None):
            wrong.append(f"row {row}")
        counts[f"kills, {row}"] += 10
    counts["seconds"] = round(time.monotonic() - begun)
    return counts, wrong


PROOFS: dict[str, Callable[[int, float, Path], Found]] = {
    "power": prove_power,
    "syscalls": prove_syscalls,
    "kill9": prove_kill9,
    "fuzz": prove_fuzz,
    "soak": prove_soak,
    "spark": prove_spark,
}
# Proofs that are meaningful within a minute. They run concurrently, because most of them wait for disks and processes. A
# soak needs longer to detect growing memory, and Spark needs longer to start.
CI_PROOFS = (("power", "fuzz", "kill9", "syscalls"),)


def results() -> list[dict[str, Any]]:
    """Return the checked-in results, then those of this checkout."""
    kept = lines_of(KEPT)
    return [json.loads(line) for line in (*kept, *(line for line in lines_of(RESULTS) if line not in kept))]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def keep() -> None:
    """Add the results of this checkout to the checked-in ones, except results of uncommitted changes."""
    lines = [json.dumps(result) + "\n" for result in results() if not result["commit"].endswith("+")]
    KEPT.write_text("".join(lines), encoding="utf-8")


def commit() -> str:
    """Return the current commit, with `+` if tracked files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def prove(name: str, minutes: float, seed: int | None) -> bool:
    """Run one piece. Returns whether it found no error."""
    at = commit()
    piece = sum(1 for line in results() if line["proof"] == name and line["commit"] == at)
    if seed is None:
        seed = random.Random(f"{at} {name} {piece}").randrange(1 << 30)
    begun = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix=f"leveret-proof-{name}-"))
    counts, wrong = PROOFS[name](seed, begun + minutes * 60, directory)
    line = {
        "commit": at,
        "proof": name,
        "piece": piece,
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        "counts": counts,
        "wrong": [text[:2000] for text in wrong[:20]],
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{name}, piece {piece} of {at}, seed {seed}, {line['seconds']} s: "
        + ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    )
    for text in wrong[:20]:
        print(f"  WRONG: {text[:2000]}")
    if wrong:
        print(f"  data: {directory}")
    else:
        shutil.rmtree(directory)
    return not wrong


def prove_for_ci() -> bool:
    """Run a short piece of each proof that can be split."""
    codes: list[int] = []
    for names in CI_PROOFS:
        running = [
            subprocess.Popen([sys.executable, "-m", "bench.proof", name, "--minutes", str(CI_MINUTES)], cwd=ROOT)
            for name in names
        ]
        codes += [process.wait() for process in running]
    return not any(codes)


def report() -> None:
    """Print the results by commit."""
    totals: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    wrong: Counter[tuple[str, str]] = Counter()
    for line in results():
        key = line["commit"], line["proof"]
        totals[key].update(line["counts"])
        wrong[key] += len(line["wrong"])
    for (at, name), counts in totals.items():
        for what, number in sorted(counts.items()):
            target = TARGETS[name].get(what)
            print(f"{at:12} {name:9} {number:>12,} {what}" + (f" of {target:,}" if target else ""))
        print(f"{at:12} {name:9} {wrong[at, name]:>12,} wrong")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proof", choices=[*PROOFS, "report", "keep", "ci"])
    parser.add_argument("--minutes", type=float, default=MAX_MINUTES)
    parser.add_argument("--seed", type=int, help="repeat a piece, if timing allows")
    given = parser.parse_args()
    if not 0 < given.minutes <= MAX_MINUTES:
        parser.error(f"a piece takes at most {MAX_MINUTES:g} minutes; run several")
    if given.proof == "report":
        report()
        return 0
    if given.proof == "keep":
        keep()
        return 0
    if given.proof == "ci":
        return 0 if prove_for_ci() else 1
    return 0 if prove(given.proof, given.minutes, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
