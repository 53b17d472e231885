"""The SQLite engine against a model: any sequence of records, commits, loads, copies, restarts and crashes."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.broker.log import Loaded, Log
from leveret.broker.message import Entry, Message, Overlay
from leveret.storage.rows import MOVED, STORED, StoredRow
from tests.storage.harness import FakeQueue, Harness, Waiter, content, entry_of, message, sqlite_log
from tests.support.examples import examples

QUEUES = 3


class Model:
    """The expected contents of the log: (queue id, seq) to the stored entry; metadata."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], dict[str, Any]] = {}
        self.metadata: dict[tuple[str, str], bytes] = {}

    def copy(self) -> Model:
        other = Model()
        other.entries = {key: dict(value) for key, value in self.entries.items()}
        other.metadata = dict(self.metadata)
        return other


def facts(entry: Entry | Loaded) -> dict[str, Any]:
    item = entry.message
    return {
        "body": content(item),
        "header": item.header,
        "address": item.address,
        "priority": item.priority,
        "expires_at": item.expires_at,
        "headers_at": item.headers_at,
        "format": item.format,
        "acquired": entry.acquired_count,
        "deliveries": entry.delivery_count,
        "overlay": None if entry.overlay is None else dict(entry.overlay.headers),
    }


class LogMachine(RuleBasedStateMachine):
    @initialize(floor=st.sampled_from([0, 0, 2000, 1 << 30]), small=st.sampled_from([0, 1, 3, 1000]))
    def begin(self, floor: int, small: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="leveret-model-"))
        self.path = self.directory / "data"
        self.floor = floor
        self.crashes = 0
        self.harness = Harness(self.make_log())
        self.small = small
        self.configure()
        self.queues = {id: FakeQueue(id) for id in range(1, QUEUES + 1)}
        self.entries: dict[tuple[int, int], Entry] = {}
        self.model = Model()
        self.committed = Model()
        self.fresh: set[tuple[int, int]] = set()

    def make_log(self) -> Callable[[], Log]:
        """Return what opens the log again after `kill`."""
        return lambda: sqlite_log(self.path)

    @property
    def log(self) -> Any:
        return self.harness.log

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.log.close()
            shutil.rmtree(self.directory)

    # Records

    def store(self, queue_id: int, item: Message, **counts: Any) -> None:
        entry = self.queues[queue_id].entry(item)
        entry.acquired_count = counts.get("acquired", 0)
        entry.overlay = counts.get("overlay")
        self.log.store(entry)
        key = (queue_id, entry.seq)
        self.entries[key] = entry
        self.model.entries[key] = facts(entry)
        self.fresh.add(key)

    def settle(self, key: tuple[int, int]) -> None:
        self.log.settle(self.entries.pop(key))
        del self.model.entries[key]
        self.fresh.discard(key)

    def choose(self, number: int) -> tuple[int, int]:
        keys = sorted(self.entries)
        return keys[number % len(keys)]

    @rule(
        queue=st.integers(1, QUEUES),
        count=st.integers(1, 8),
        size=st.sampled_from([0, 1, 100, 1000, 5000]),
        priority=st.sampled_from([-1, 0, 4, 200, 255]),
    )
    def publish(self, queue: int, count: int, size: int, priority: int) -> None:
        for number in range(count):
            self.store(queue, message(bytes([number]) * size, priority=priority))

    @rule(
        queues=st.sets(st.integers(1, QUEUES), min_size=1),
        expires_at=st.sampled_from([0, 1234567890123]),
        headers_at=st.sampled_from([-1, 14]),
        format=st.sampled_from([0, 1]),
        size=st.sampled_from([3, 700]),
        acquired=st.integers(0, 2),
        overlaid=st.booleans(),
    )
    def publish_to_several(
        self, queues: set[int], expires_at: int, headers_at: int, format: int, size: int, acquired: int, overlaid: bool
    ) -> None:
        item = message(
            [b"a" * size, b"b"], expires_at=expires_at, headers_at=headers_at, format=format, header=b"\0\1\2" * 9
        )
        for queue in sorted(queues):
            self.store(queue, item, acquired=acquired, overlay=Overlay(headers={"q": queue}) if overlaid else None)

    @rule(queues=st.sets(st.integers(1, QUEUES), min_size=1))
    def publish_large(self, queues: set[int]) -> None:
        item = message(b"0123456789abcdef" * 70000)
        for queue in sorted(queues):
            self.store(queue, item)

    @precondition(lambda self: self.entries)
    @rule(numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=10))
    def settle_some(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.entries:
                self.settle(self.choose(number))

    @precondition(lambda self: self.entries)
    @rule(share=st.integers(1, 4))
    def settle_oldest(self, share: int) -> None:
        for key in sorted(self.entries)[: max(1, len(self.entries) // share)]:
            self.settle(key)

    @precondition(lambda self: self.entries)
    @rule(number=st.integers(0, 1000), onto=st.integers(1, QUEUES), first=st.booleans())
    def dead_letter(self, number: int, onto: int, first: bool) -> None:
        key = self.choose(number)
        item = self.entries[key].message
        if first:
            self.settle(key)
        self.store(onto, item, overlay=Overlay(headers={"x-death": [{"count": 1}]}, drop_expiration=True))
        if not first:
            self.settle(key)

    @precondition(lambda self: self.entries)
    @rule(number=st.integers(0, 1000), again=st.booleans())
    def update(self, number: int, again: bool) -> None:
        key = self.choose(number)
        entry = self.entries[key]
        for _ in range(1 + again):
            entry.acquired_count += 1
            entry.delivery_count += 2
            self.log.update(entry)
        self.model.entries[key] = facts(entry)

    @precondition(lambda self: self.entries)
    @rule(
        queue=st.integers(1, QUEUES),
        bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)),
        every=st.integers(2, 9),
        keep_all=st.booleans(),
    )
    def settle_range(self, queue: int, bounds: tuple[int, int], every: int, keep_all: bool) -> None:
        first, last = min(bounds), min(max(bounds), self.queues[queue].seq)
        inside = [key for key in sorted(self.entries) if key[0] == queue and first <= key[1] <= last]
        keep = [key[1] for key in inside if key[1] % every == 0 and keep_all]
        gone = [key for key in inside if key[1] not in keep]
        rows = array("Q", [row.id for row in (self.entries[key].row for key in gone) if row is not None])
        assert len(rows) == len(gone)
        slots = array("I", [self.entries[key].slot for key in gone])
        self.log.settle_range(queue, first, last, keep, rows, slots)
        for key in gone:
            del self.entries[key]
            del self.model.entries[key]
            self.fresh.discard(key)

    @rule(key=st.sampled_from("abc"), value=st.none() | st.binary(max_size=5))
    def put(self, key: str, value: bytes | None) -> None:
        self.log.put("kind", key, value)
        if value is None:
            self.model.metadata.pop(("kind", key), None)
        else:
            self.model.metadata["kind", key] = value

    # Commits, restarts

    @rule()
    def commit(self) -> None:
        self.harness.commit()
        self.committed = self.model.copy()
        self.fresh.clear()

    @rule()
    def flush(self) -> None:
        """Begin a commit, which is in progress while the next batch is filled."""
        if not self.log.is_committing():
            self.log.flush()

    @rule()
    def seal_ahead(self) -> None:
        """Seal a batch during the commit of the one before."""
        if self.log.is_committing():
            Waiter(self.log)
            self.log.seal_ahead()

    @precondition(lambda self: len(self.entries) > len(self.fresh))
    @rule(numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=20))
    def page(self, numbers: list[int]) -> None:
        """Forget everything about entries except their positions, and read them back."""
        self.commit()
        keys = sorted({self.choose(number) for number in numbers})
        loaded = self.harness.load_entries([self.entries[key] for key in keys])
        for key, item in zip(keys, loaded, strict=True):
            assert item.seq == key[1]
            assert facts(item) == self.model.entries[key]
            self.entries[key] = entry_of(self.queues[key[0]], item)

    def check_recovered(self, expected: Model) -> None:
        recovery = self.harness.recovery
        assert recovery.metadata == expected.metadata
        assert set(recovery.queues) == {key[0] for key in expected.entries}
        self.entries = {}
        for queue_id in recovery.queues:
            loaded = self.harness.load_queue(queue_id)
            assert [item.seq for item in loaded] == sorted(key[1] for key in expected.entries if key[0] == queue_id)
            for item in loaded:
                key = (queue_id, item.seq)
                assert facts(item) == expected.entries[key]
                self.entries[key] = entry_of(self.queues[queue_id], item)
        for queue_id, queue in self.queues.items():
            highest = max((key[1] for key in expected.entries if key[0] == queue_id), default=0)
            assert recovery.last_seq.get(queue_id, 0) >= highest
            queue.seq = max(queue.seq, recovery.last_seq.get(queue_id, 0))
        self.configure()
        self.fresh.clear()

    def configure(self) -> None:
        """Copy and merge rows much earlier than usual."""
        self.log.trimmer.floor = self.floor
        self.log.trimmer.merges.limit = self.small

    def live_bytes(self) -> int:
        self.harness.commit()
        return int(self.log.trimmer.live_bytes)

    @rule()
    def restart(self) -> None:
        live = self.live_bytes()
        self.harness.reopen()
        assert self.harness.recovery.clean
        assert self.log.trimmer.live_bytes == live
        self.committed = self.model.copy()
        self.check_recovered(self.model)

    def kill(self) -> None:
        """End the log as it is on disk."""
        log = self.log
        log._worker.close()  # no checkpoint while the files are copied
        log._store.checkpointer.wait()
        self.crashes += 1
        path = self.directory / f"crash-{self.crashes}"
        shutil.copytree(self.path, path)
        log.close()
        self.path = path

    @rule()
    def crash(self) -> None:
        """Kill the process: committed changes survive, the others do not."""
        log = self.log
        if log.is_committing():
            self.harness.loop.run_until(lambda: not log.is_committing())
            # The commit in progress may have included the current batch.
            self.commit()
        self.kill()
        self.harness.begin()
        assert not self.harness.recovery.clean
        self.model = self.committed.copy()
        self.check_recovered(self.model)

    @invariant()
    def counters_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        trimmer = self.log.trimmer
        rows = [row for row in self.log.rows.values() if isinstance(row, StoredRow)]
        stored = [row for row in rows if row.state == STORED]
        assert trimmer.stored == len(stored)
        assert trimmer.stored_bytes == sum(row.size for row in stored)
        assert trimmer.live_bytes == sum(row.live_bytes for row in stored)
        for row in stored:
            if row.touched != self.log.filling:
                assert row.live == len(row.slots) - row.slots.count(0)
                assert row.live or row.pins or row.readers
        for row in rows:
            if row.state == MOVED and row.moved is not None:
                assert any(place >> 20 in self.log.rows for place in row.places or ())


LogMachine.TestCase.settings = examples(60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
test_log = LogMachine.TestCase
