"""Make each system call of the store fail, with each fault, and check that nothing confirmed is lost.

    python bench/syscalls.py                                   five minutes of calls and faults of one run of the store
    python bench/syscalls.py --minutes 90                      each call, each fault
    python bench/syscalls.py --seed 7 --every 50               every fiftieth call
    python bench/syscalls.py --broker 50                       50 calls of whole brokers under load

The program counts the calls of a run of the store (batches with messages, settlements, updates, large bodies, copies of
rows, checkpoints), then repeats the run with the n-th call failing, for each n: EIO once and permanently, ENOSPC and EDQUOT
for a while, a short write or a slow sync, and EIO of a read. Then it reopens the store, which must have everything that was
confirmed, and nothing else except whole batches that were in flight. The store may continue, or stop with a message; it
must not confirm a batch before it is stored, hang, or end in any other way. All calls take an hour; their order is random,
so that a part of them is a fair sample.

With `--broker`, the clients of `bench/power.py` use a broker process while one of its calls, or of its sealer's, fails.
Then the broker is killed, and another one starts on its files, and on the files that a power cut would have left.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import queue as queues
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from leveret.broker.errors import StorageFailed  # noqa: E402
from leveret.broker.log import FAILED  # noqa: E402
from leveret.storage import checkpointer, sqlite_store  # noqa: E402
from tests.faults.crash.disk import MARK, Machine, Recording, Rules  # noqa: E402
from tests.faults.crash.power import build_library  # noqa: E402
from tests.faults.power.all import WORKLOADS  # noqa: E402
from tests.faults.power.points import start, take  # noqa: E402
from tests.faults.store_writer import Writer  # noqa: E402
from tests.faults.test_store_kill import State, check  # noqa: E402
from tests.support.peers.async_amqp091 import Closed  # noqa: E402

BATCHES = 40
WRITES = "owtsurk"


class Fault(NamedTuple):
    """A fault of calls: the error (0: short writes, slow syncs), the number of calls, and their kinds."""

    name: str
    number: int
    times: int
    letters: str


FAULTS = (
    Fault("EIO", errno.EIO, 1, WRITES),
    Fault("EIO for good", errno.EIO, 1 << 40, WRITES),
    Fault("ENOSPC", errno.ENOSPC, 6, WRITES),
    Fault("EDQUOT", errno.EDQUOT, 6, WRITES),
    Fault("short write, slow sync", 0, 1, WRITES),
    Fault("EIO of a read", errno.EIO, 1, "p"),
)


class Faulty:
    """The preloaded library."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.fault_calls.restype = ctypes.c_long
        self.library.fault_last.restype = ctypes.c_char_p
        self.library.fault_arm.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_long, ctypes.c_char_p)

    def watch(self, directory: Path) -> None:
        self.library.fault_directory(str(directory).encode())

    def arm(self, at: int, fault: Fault) -> None:
        self.library.fault_arm(at, fault.times, fault.number, 20_000, fault.letters.encode())

    def disarm(self) -> None:
        self.library.fault_arm(0, 1, 0, 0, WRITES.encode())

    @property
    def calls(self) -> int:
        return int(self.library.fault_calls())

    @property
    def hit(self) -> str:
        """The name of the call that failed."""
        return str(self.library.fault_last().decode())


def write(path: Path, seed: int, said: list[str]) -> str:
    """Write batches until all are written or the store fails. Returns the reason of the failure, "" if there is none."""
    try:
        writer = Writer(path, seed, said.append)
    except StorageFailed as error:
        return str(error)
    log = writer.log
    try:
        for _ in range(BATCHES):
            writer.batch()
            writer.harness.loop.run_until(lambda: not log.is_committing() or log.state == FAILED)
            if log.state == FAILED:
                break
        reason = str(log.reason) if log.state == FAILED else ""
    finally:
        try:
            log.close()
        except StorageFailed as error:
            reason = str(error)
    return reason


def attempt(faulty: Faulty, path: Path, seed: int, at: int, fault: Fault) -> tuple[str, str]:
    """Run once with a fault. Returns how the run ended, and the error ("" if there is none)."""
    said: list[str] = []
    path.mkdir(parents=True)
    faulty.watch(path)
    faulty.arm(at, fault)
    try:
        reason = write(path / "data", seed, said)
    except queues.Empty:
        return "hung", "it neither continued nor failed within a minute"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "ended otherwise", f"{type(error).__name__}: {error} in {Path(where.filename).name}, {where.name}"
    finally:
        hit = faulty.hit
        faulty.disarm()
    ended = "continued" if not reason else "stopped with a message"
    tried: list[tuple[int, list[list[list[int]]]]] = []
    confirmed = 0
    for word, batch, *rest in (line.split(" ", 2) for line in said):
        if word == "try":
            tried.append((int(batch), json.loads(rest[0])))
        else:
            confirmed = int(batch)
    try:
        check(path / "data", State(), tried, confirmed)
    except BaseException as error:  # `pytest.fail` raises no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return ended, f"after {hit}: {type(error).__name__}: {error}"
    return ended, ""


def checkpoint_often() -> None:
    """Make a short run have checkpoints, both concurrent with commits and blocking them."""
    sqlite_store.CHECKPOINT_PAGES = 48  # type: ignore[misc]
    sqlite_store.MAX_WAL_PAGES = 192  # type: ignore[misc]
    checkpointer.FEW_PAGES = 8  # type: ignore[misc]


def sweep(library: str, seed: int, every: int, until: float) -> Iterator[tuple[str, int, str, str]]:
    """Yield fault, call, end of the run and error, for each call and each fault in random order."""
    faulty = Faulty(library)
    checkpoint_often()
    with tempfile.TemporaryDirectory(prefix="leveret-syscalls-") as place:
        directory = Path(place)
        jobs: list[tuple[Fault, int]] = []
        for letters in {fault.letters for fault in FAULTS}:
            faulty.watch(directory)
            faulty.arm(0, Fault("", 0, 1, letters))
            write(directory / "count" / letters, seed, [])
            jobs += [
                (fault, at) for fault in FAULTS if fault.letters == letters for at in range(1, faulty.calls + 1, every)
            ]
        random.Random(seed).shuffle(jobs)
        print(f"{len(jobs):,} runs in random order, up to the time limit", file=sys.stderr, flush=True)
        for number, (fault, at) in enumerate(jobs):
            if time.monotonic() > until:
                return
            path = directory / f"run-{number}"
            ended, wrong = attempt(faulty, path, seed, at, fault)
            shutil.rmtree(path)
            yield fault.name, at, ended, wrong


def run(seed: int, every: int, library: Path, minutes: float) -> tuple[Counter[str], list[str]]:
    """Run a sweep in a separate process with the library preloaded. Returns counts and errors."""
    command = [
        sys.executable,
        __file__,
        "--worker",
        str(library),
        "--seed",
        str(seed),
        "--every",
        str(every),
        "--minutes",
        str(minutes),
    ]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(library)}, stdout=subprocess.PIPE, text=True)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for line in done.stdout.splitlines():
        fault, at, ended, problem = json.loads(line)
        counts["calls failed"] += 1
        counts[f"{fault}: {ended}"] += 1
        if problem:
            wrong.append(f"{fault} at call {at}: {ended}, {problem}")
    if done.returncode:
        wrong.append(f"the sweep ended with code {done.returncode}")
    return counts, wrong


def fail_in_broker(name: str, seed: int, library: Path, directory: Path) -> tuple[str, list[str]]:
    """Run a broker with a fault. Returns how it ended, and the errors."""
    chance = random.Random(seed)
    fault = chance.choice([fault for fault in FAULTS if fault.letters == WRITES])
    at = int(10 ** chance.uniform(0, 3.5))
    workload = WORKLOADS[name](seed)
    directory.mkdir(parents=True)
    journal_of = directory / "recording.log"
    ended = "continued"
    wrong: list[str] = []
    try:
        # Clients may be refused; only what is stored afterwards counts.
        take(
            workload,
            directory,
            library,
            chance,
            1,
            0.8,
            {
                "FAULT_AT": str(at),
                "FAULT_COUNT": str(fault.times),
                "FAULT_ERRNO": str(fault.number),
                "FAULT_CALLS": WRITES,
                "FAULT_SLEEP_US": "20000",
                "FAULT_SAYS": "1",
            },
            ends=("kill",),
        )
    except RuntimeError:
        ended = "did not start, with a message"
    except (Closed, ConnectionError):
        ended = "stopped with a message"
    except AssertionError as error:
        wrong.append(str(error)[:1500])
    text = (directory / "broker.log").read_text(errors="replace")
    if "fault: call" not in text:
        ended = "not reached"
    elif ended == "stopped with a message" and "the store has failed" not in text:
        wrong.append(f"it closed its connections without a reason in {directory}/broker.log")
    elif "Traceback" in text and not wrong:
        wrong.append(f"an exception in {directory}/broker.log")
    events = [json.loads(record.data) for record in Recording(journal_of) if record.operation == MARK]
    machine = Machine(directory / "disk")
    for record in Recording(journal_of):
        machine.do(record)
    cut = directory / "cut"
    cut.mkdir()
    machine.cut(cut, Rules.POSIX, chance)
    for what, place in (("after a kill", directory / "disk"), ("after a power cut", cut)):
        wrong += [f"{what}: {text}" for text in start(workload, place, list(events), process=False)]
    return f"{fault.name}: {ended}", [f"{name}, seed {seed}, {fault.name} at call {at}: {text}" for text in wrong]


def fail_in_brokers(
    count: int, seed: int, library: Path, directory: Path, until: float = float("inf")
) -> tuple[Counter[str], list[str]]:
    """Run `count` brokers with a fault, with all workloads in turn."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        if time.monotonic() > until:
            break
        name = list(WORKLOADS)[number % len(WORKLOADS)]
        place = directory / f"broker-{number}"
        ended, found = fail_in_broker(name, seed + number, library, place)
        counts[f"in brokers, {ended}"] += 1
        wrong += found
        if not found:
            shutil.rmtree(place)
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="fail only every N-th call")
    parser.add_argument("--minutes", type=float, default=5, help="time limit (default 5)")
    parser.add_argument("--broker", type=int, default=0, metavar="RUNS", help="run whole brokers this many times instead")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        for found in sweep(given.worker, given.seed, given.every, time.monotonic() + given.minutes * 60):
            print(json.dumps(found), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="leveret-preload-") as place:
        library = build_library(Path(place)) or parser.error("no C compiler found")
        if given.broker:
            runs = Path(tempfile.mkdtemp(prefix="leveret-syscalls-"))
            counts, wrong = fail_in_brokers(given.broker, given.seed, library, runs)
        else:
            counts, wrong = run(given.seed, given.every, library, given.minutes)
    print(f"seed {given.seed}:", ", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    for text in wrong[:20]:
        print(f"  {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
