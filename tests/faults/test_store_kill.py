"""SIGKILL of a process that writes through a log, and torn writes: the log has the confirmed records and nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.message import Entry
from leveret.storage.sqlite import SqliteLog
from tests.faults.store_writer import body_of
from tests.storage.harness import FakeQueue, Harness, content, log_at, sqlite_log
from tests.support.broker import Broker
from tests.support.postgres import require_postgres, shared_server
from tests.support.proxy import Proxy

Key = tuple[int, int]
ROUNDS = int(os.environ.get("LEVERET_STORE_KILLS", "6"))


class State:
    """The required content of the log: key to (key of the body, acquired count)."""

    def __init__(self) -> None:
        self.entries: dict[Key, tuple[Key, int]] = {}

    def apply(self, batch: list[list[list[int]]]) -> None:
        stored, settled, updated = batch
        for queue, seq, body_queue, body_seq in stored:
            assert (queue, seq) not in self.entries
            self.entries[queue, seq] = ((body_queue, body_seq), 0)
        for queue, seq, count in updated:
            # An entry may be updated and settled in one batch.
            if (queue, seq) in self.entries:
                self.entries[queue, seq] = (self.entries[queue, seq][0], count)
        for queue, seq in settled:
            del self.entries[queue, seq]

    def copy(self) -> State:
        other = State()
        other.entries = dict(self.entries)
        return other


def found_in(harness: Harness) -> dict[Key, tuple[bytes, int]]:
    found: dict[Key, tuple[bytes, int]] = {}
    for queue_id in harness.recovery.queues:
        loaded = harness.load_queue(queue_id)
        seqs = [item.seq for item in loaded]
        assert seqs == sorted(seqs)
        for item in loaded:
            found[queue_id, item.seq] = (content(item.message), item.acquired_count)
    return found


def expected_of(state: State) -> dict[Key, tuple[bytes, int]]:
    return {key: (body_of(*body), count) for key, (body, count) in state.entries.items()}


def run_and_kill(
    place: Path | str, seed: int, lines: int, progress: Callable[[], None] = lambda: None
) -> tuple[list[tuple[int, Any]], int]:
    """Run a writer and kill it after this many lines. Returns the attempted batches, and the last confirmed number.

    `progress` is called for each line.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.store_writer", str(place), str(seed)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "src"},
    )
    output = process.stdout
    assert output is not None
    tried: list[tuple[int, Any]] = []
    confirmed = 0
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        assert output.readline() == b"ready\n"
        number = 0
        while line := output.readline():
            if not line.endswith(b"\n"):
                break
            word, batch, *rest = line.split(b" ", 2)
            if word == b"try":
                tried.append((int(batch), json.loads(rest[0])))
            else:
                confirmed = int(batch)
            number += 1
            progress()
            if number == lines:
                # Output until the end of the process is still read, and counts.
                process.kill()
        process.wait()
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        output.close()
    assert number >= lines, "the writer ended by itself"
    return tried, confirmed


def check(place: Path | str, before: State, tried: list[tuple[int, Any]], confirmed: int) -> State:
    """Open the writer's log. Its state must be that after the last confirmed batch, or after a later attempted one.

    Batches may share a commit, so several attempted ones may have reached the disk.
    """
    harness = Harness(lambda: log_at(place))
    found = found_in(harness)
    harness.log.close()
    state = before.copy()
    for batch, content_of_batch in tried:
        if batch > confirmed:
            break
        state.apply(content_of_batch)
    candidates = [state]
    for _, content_of_batch in [item for item in tried if item[0] > confirmed]:
        state = state.copy()
        state.apply(content_of_batch)
        candidates.append(state)
    for candidate in candidates:
        if expected_of(candidate) == found:
            return candidate
    expected = expected_of(candidates[0])
    missing = sorted(expected.keys() - found.keys())[:5]
    extra = sorted(found.keys() - expected.keys())[:5]
    pytest.fail(f"the log has none of the {len(candidates)} possible states; missing {missing}, extra {extra}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("LEVERET_STORE_SEED", random.randrange(1 << 30)))
    print("LEVERET_STORE_SEED =", seed)
    chance = random.Random(seed)
    state = State()
    path = tmp_path / "data"
    for _ in range(ROUNDS):
        tried, confirmed = run_and_kill(path, chance.randrange(1 << 30), chance.randrange(1, 600))
        state = check(path, state, tried, confirmed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cuts", [False, True], ids=["", "cuts"])
def test_kill_9_over_postgresql(cuts: bool) -> None:
    """The same over PostgreSQL, also while connections are cut before and after commits."""
    require_postgres()
    seed = int(os.environ.get("LEVERET_STORE_SEED", random.randrange(1 << 30)))
    print("LEVERET_STORE_SEED =", seed)
    chance = random.Random(seed)
    server = shared_server()
    dsn = server.database()
    proxy = Proxy(Broker(server.host, server.port))

    def cut() -> None:
        """Cut the connection before or after a commit, now and then."""
        if cuts and chance.random() < 0.04:
            if chance.random() < 0.5:
                proxy.cut_answers = 1
            else:
                proxy.cut()

    state = State()
    try:
        for _ in range(ROUNDS):
            place = server.dsn(dsn.rpartition("/")[2], proxy.port)
            tried, confirmed = run_and_kill(place, chance.randrange(1 << 30), chance.randrange(1, 600), cut)
            proxy.cut_answers = 0
            state = check(dsn, state, tried, confirmed)
    finally:
        proxy.stop()
    # Each writer has two connections at its start.
    assert (proxy.accepted > 2 * ROUNDS) == cuts


class Torn:
    """A log whose files are copied after every commit; `states` are the required contents of the copies."""

    def __init__(self, path: Path) -> None:
        self.harness = Harness(lambda: sqlite_log(path))
        assert isinstance(self.harness.log, SqliteLog)
        self.log = self.harness.log
        # No checkpoint moves pages while files are copied or measured.
        store = self.log._store
        assert store is not None
        store.maintain = lambda: False  # type: ignore[method-assign]
        store.tidy = lambda: None  # type: ignore[method-assign]
        self.wal = Path(f"{self.log.file}-wal")
        self.states: list[tuple[int, dict[Key, tuple[bytes, int]]]] = []
        queues = [FakeQueue(1), FakeQueue(2)]
        chance = random.Random(3)
        alive: list[Entry] = []
        for number in range(25):
            for _ in range(chance.randrange(1, 6)):
                alive += self.harness.publish(chance.choice(queues), b"%d." % number * chance.choice((1, 50, 5000)))
            while len(alive) > 12:
                self.log.settle(alive.pop(chance.randrange(len(alive))))
            self.harness.commit()
            self.states.append(
                (self.wal.stat().st_size, {(entry.queue.id, entry.seq): (content(entry.message), 0) for entry in alive})
            )

    def state_at(self, size: int) -> dict[Key, tuple[bytes, int]]:
        """Return the required state if the write-ahead log is intact up to an offset."""
        state: dict[Key, tuple[bytes, int]] = {}
        for end, later in self.states:
            if end > size:
                break
            state = later
        return state


@pytest.mark.parametrize("how", ["truncated", "zeroed", "flipped", "garbage"])
def test_torn_writes(tmp_path: Path, how: str) -> None:
    torn = Torn(tmp_path / "data")
    sizes = [size for size, _ in torn.states]
    assert sizes == sorted(sizes), "the write-ahead log must not restart"
    assert len(set(sizes)) > 20
    chance = random.Random(how)
    first = torn.states[0][0]
    for number in range(25):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "data", copy)
        wal = copy / torn.wal.name
        data = bytearray(wal.read_bytes()[: sizes[-1]])
        at = chance.randrange(first, len(data))
        if how == "truncated":
            del data[at:]
        elif how == "zeroed":
            data[at:] = bytes(len(data) - at)
        elif how == "flipped":
            data[at] ^= 1 << chance.randrange(8)
        else:
            data[at:] = chance.randbytes(len(data) - at)
        wal.write_bytes(data)
        harness = Harness(lambda: sqlite_log(copy))  # noqa: B023
        assert found_in(harness) == torn.state_at(at)
        # The log can be written again.
        queue = FakeQueue(1)
        queue.seq = harness.recovery.last_seq[1]
        harness.publish(queue, b"more")
        harness.commit()
        assert harness.reopen().clean
        assert harness.bodies(1)[-1] == b"more"
        harness.log.close()
        shutil.rmtree(copy)
    torn.log.close()
