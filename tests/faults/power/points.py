"""Recordings of runs, and the brokers that start at points of them."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from leveret import Broker as Embedded
from leveret.management.control_client import call
from leveret.management.json_values import plain
from leveret.node.errors import StartFailed
from tests.faults.crash.disk import MARK, Machine, Record, Recording, Rules, build
from tests.faults.crash.power import between_records, recorded
from tests.faults.power.forked import Check, Forks
from tests.faults.power.workload import Event, Journal, Survivor, Workload
from tests.support.broker import LeveretProcess

# A slow sync leaves more data unsynced.
SYNC_US = 2000
# One in this many points is checked with a separate broker process.
PROCESS_EVERY = 50
# Points that are checked concurrently: a check partly waits for its clients and its disk.
CHILDREN = (os.cpu_count() or 1) + 1
# Points per child.
PER_CHILD = 4
# The ways in which a phase of a recording ends.
ENDS = ("kill", "kill", "stop")


class Taken(NamedTuple):
    """A recording: the log, its directory, and what went wrong while it was made."""

    log: Path
    disk: Path
    wrong: list[str]


def take(
    workload: Workload,
    directory: Path,
    library: Path,
    chance: random.Random,
    phases: int,
    seconds: float,
    faults: dict[str, str] | None = None,
    ends: tuple[str, ...] = ENDS,
) -> Taken:
    """Run the workload in a directory that is initially empty, in phases that end with SIGKILL or SIGTERM.

    faults  failing calls, for the library; otherwise syncs are slow
    ends    how phases may end: "kill" or "stop"
    """
    disk, log = directory / "disk", directory / "recording.log"
    disk.mkdir(parents=True)
    environment = recorded(library, disk, log) | (
        faults or {"FAULT_AT": "1", "FAULT_COUNT": str(1 << 60), "FAULT_CALLS": "s", "FAULT_SLEEP_US": str(SYNC_US)}
    )
    process = LeveretProcess(directory, config=workload.config, environment=environment, data_dir=disk / "data")
    journal = Journal(log)
    wrong: list[str] = []

    def kill() -> None:
        with between_records(log):
            process.kill()

    try:
        for _ in range(phases):
            process.start()
            end = process.stop if chance.choice(ends) == "stop" else kill

            def finish(end: Callable[[], None] = end) -> None:
                journal.ending = True
                end()

            journal.ending = False
            timer = threading.Timer(chance.uniform(0.5, 1.5) * seconds, finish)
            wrong += workload.run(process, journal, timer.start)
            timer.join()
        process.check_log()
    finally:
        process.kill()
        journal.close()
    return Taken(log, disk, wrong)


def unrecorded(taken: Taken) -> list[str]:
    """Return files that differ from what the recording produces: the recorder has missed an operation."""
    machine = Machine(taken.disk)
    for record in Recording(taken.log):
        machine.do(record)
    found: dict[str, bytes | None] = {}
    for base, names, files in os.walk(machine.root):
        found.update(dict.fromkeys((os.path.join(base, name) for name in names), None))
        found.update({path: Path(path).read_bytes() for name in files if os.path.isfile(path := os.path.join(base, name))})
    made = machine.visible()
    return sorted(
        path
        for path in found.keys() | made.keys()
        if found.get(path, b"") != made.get(path, b"") and not path.endswith("-shm")
    )


def moments(records: list[Record], count: int, chance: random.Random) -> list[int]:
    """Choose the numbers of records before which the power is cut, in order of time.

    Half of them are anywhere, the others next to syncs and directory operations.
    """
    anywhere = [number for number, record in enumerate(records) if record.operation != MARK]
    beside = [
        number + after for number, record in enumerate(records) if record.operation in b"SDYKURLT" for after in (0, 1, 2)
    ]
    return sorted(chance.choice(beside if chance.random() < 0.5 else anywhere) for _ in range(count))


class Point(NamedTuple):
    """One power cut: the record before which it happens, and what is wrong with the broker that starts then."""

    number: int
    record: int
    wrong: list[str]


def check(
    workload: Workload,
    taken: Taken,
    rules: Rules,
    count: int,
    chance: random.Random,
    scratch: Path,
    until: float = float("inf"),
    lying: bool = False,
) -> Iterator[Point]:
    """Cut the power at points of a recording, and start a broker on each, until a time of the monotonic clock.

    A point with the same files and events as an earlier one is skipped. The others are checked in children of this process,
    several at a time.

    lying: syncs did nothing, as on a disk that lies about them.
    """
    records = list(Recording(taken.log))
    machine = Machine(taken.disk, lying)
    events: list[Event] = []
    done = 0
    begun: dict[int, int] = {}
    batch: dict[int, Check] = {}
    seen: set[bytes] = set()
    forks = Forks(workload.sealing)
    try:
        for number, moment in enumerate(moments(records, count, chance)):
            if time.monotonic() > until:
                break
            for record in records[done:moment]:
                machine.do(record)
                if record.operation == MARK:
                    events.append(json.loads(record.data))
            done = max(done, moment)
            left = machine.left(rules, chance)
            digest = _digest(left, len(events))
            if digest in seen:
                continue
            first = not seen
            seen.add(digest)
            one = partial(
                _check_point,
                workload,
                scratch / f"point-{number}",
                left,
                events,
                len(events),
                number % PROCESS_EVERY == PROCESS_EVERY - 1,
            )
            if first:
                yield Point(number, moment, one())
                # Children share the existing objects: a collection must not touch, and thereby copy, all of them.
                gc.collect()
                gc.freeze()
                continue
            begun[number] = moment
            batch[number] = one
            if len(batch) == PER_CHILD:
                for ended, wrong in forks.results(CHILDREN):
                    yield Point(ended, begun.pop(ended), wrong)
                forks.begin(batch)
                batch = {}
        if batch:
            forks.begin(batch)
        for ended, wrong in forks.results(1):
            yield Point(ended, begun.pop(ended), wrong)
    finally:
        forks.close()
        gc.unfreeze()


def _digest(left: dict[str, bytes | None], events: int) -> bytes:
    """Return what distinguishes two points of a recording: the remaining files, and the events that the clients know."""
    found = hashlib.blake2b(b"%d" % events, digest_size=16)
    for name, content in left.items():
        found.update(f"\0{name}\0{-1 if content is None else len(content)}\0".encode())
        found.update(content or b"")
    return found.digest()


def _check_point(
    workload: Workload, target: Path, left: dict[str, bytes | None], events: list[Event], count: int, process: bool
) -> list[str]:
    """Check one point, at which the clients knew this many events. Keep its files if something is wrong."""
    events = events[:count]
    target.mkdir(parents=True)
    build(target, left)
    wrong = start(workload, target, list(events), process)
    if wrong:
        (target / "events.json").write_text(json.dumps(events))
    else:
        shutil.rmtree(target)
    return wrong


class _Errors(logging.Handler):
    """Collects what the broker reports as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"logged: {record.getMessage()}")


def start(workload: Workload, directory: Path, events: list[Event], process: bool) -> list[str]:
    """Start a broker on the remaining files of a directory, and check it. `process`: in a separate process."""
    if process:
        return _in_process(workload, directory, events)
    config = directory / "leveret.toml"
    config.write_text(workload.config, encoding="utf-8")
    errors = _Errors()
    log = logging.getLogger("leveret")
    log.addHandler(errors)
    try:
        with Embedded(data_dir=directory / "data", config=config) as running:

            def ask(name: str, /, **arguments: Any) -> Any:
                reply = running._thread.run(running._node.call(name, **arguments))
                return plain([*reply] if isinstance(reply, Iterator) else reply)

            wrong = _checked(workload, Survivor(running.host, running.port, ask), events)
    except StartFailed as error:
        wrong = [f"the broker does not start: {error}"]
    finally:
        log.removeHandler(errors)
    return wrong + errors.texts


def _in_process(workload: Workload, directory: Path, events: list[Event]) -> list[str]:
    broker = LeveretProcess(directory, config=workload.config)
    try:
        broker.start()
    except RuntimeError as error:
        return [f"the broker does not start: {error}"]
    try:

        def ask(name: str, /, **arguments: Any) -> Any:
            return call(broker.data_dir, name, arguments)

        wrong = _checked(workload, Survivor(broker.host, broker.port, ask), events)
        broker.stop()
        broker.check_log()
    except AssertionError as error:
        wrong = [str(error)]
    finally:
        broker.kill()
    return wrong


def _checked(workload: Workload, broker: Survivor, events: list[Event]) -> list[str]:
    try:
        return workload.check(broker, events)
    except Exception as error:
        # A missing queue, a closed connection, or a missing reply.
        return [f"{type(error).__name__}: {error}"]
