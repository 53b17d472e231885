"""Recovery of deep and mixed queues, whatever the order of their records on disk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.message import Entry
from tests.storage.harness import FakeQueue, Harness, message, sqlite_log


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(lambda: sqlite_log(tmp_path / "data"))


def check(harness: Harness, entries: list[Entry]) -> None:
    """Check that a restart recovers exactly these entries, in order, with the right columns."""
    expected: dict[int, list[tuple[int, int, int]]] = {}
    for entry in sorted(entries, key=lambda entry: entry.seq):
        expected.setdefault(entry.queue.id, []).append((entry.seq, entry.message.size, entry.message.priority))
    recovery = harness.reopen()
    found = {id: list(zip(queue.seqs, queue.sizes, queue.priorities, strict=True)) for id, queue in recovery.queues.items()}
    assert found == expected
    for queue_id in recovery.queues:
        harness.load_queue(queue_id)


@pytest.mark.parametrize("queues", [1, 2, 5, 20])
@pytest.mark.parametrize("settled", [0.0, 0.3, 0.97])
def test_mixed_rows(harness: Harness, queues: int, settled: float) -> None:
    chance = random.Random(queues)
    all_queues = [FakeQueue(id) for id in range(1, queues + 1)]
    alive: list[Entry] = []
    for _ in range(12):
        for _ in range(300):
            alive += harness.publish(
                chance.choice(all_queues), bytes(chance.randrange(5)), priority=chance.choice((-1, 0, 9, 255))
            )
        harness.commit()
        for at in range(len(alive) - 1, -1, -1):
            if chance.random() < settled / 3:
                harness.log.settle(alive.pop(at))
    harness.commit()
    check(harness, alive)
    harness.log.close()


def test_entries_out_of_order_on_disk(harness: Harness) -> None:
    """Copies of old entries follow new ones, and overlap with other copies."""
    log: Any = harness.log
    log.trimmer.floor = 0
    chance = random.Random(11)
    queue, other = FakeQueue(1), FakeQueue(2)
    alive: list[Entry] = []
    for _ in range(150):
        alive += harness.publish(queue, *[bytes(chance.randrange(200)) for _ in range(20)])
        alive += harness.publish(other, b"x")
        harness.commit()
        for _ in range(14):
            log.settle(alive.pop(chance.randrange(len(alive))))
        harness.commit()
    assert log.statistics()["copied_bytes"] > 10_000
    check(harness, alive)
    harness.log.close()


def test_a_record_that_is_settled_only_on_disk_stays_settled(harness: Harness) -> None:
    """Settlements survive the copy of their row, and the copy of that copy."""
    log: Any = harness.log
    log.trimmer.floor = 0
    queue, fast = FakeQueue(1), FakeQueue(2)
    deep = harness.publish(queue, *[b"deep" * 100] * 50)
    harness.commit()
    for number in range(40):
        # The settlement of a deep entry is in a row whose other records are soon garbage.
        if number < 10:
            log.settle(deep.pop(0))
        entries = harness.publish(fast, *[b"fast" * 20] * 5)
        harness.commit()
        for entry in entries:
            log.settle(entry)
        harness.commit()
    check(harness, deep)
    harness.log.close()


def test_recovered_fan_outs_can_be_settled(harness: Harness) -> None:
    queues = [FakeQueue(id) for id in range(1, 5)]
    entries: list[Entry] = []
    for number in range(30):
        item = message(b"%d" % number * 100)
        for queue in queues[: number % 4 + 1]:
            entry = queue.entry(item)
            harness.log.store(entry)
            entries.append(entry)
        if number % 7 == 0:
            harness.commit()
    for entry in entries[::3]:
        harness.log.settle(entry)
    entries = [entry for at, entry in enumerate(entries) if at % 3]
    harness.commit()
    for _ in range(3):
        check(harness, entries)
        alive = {}
        for queue in queues:
            for loaded in harness.load_queue(queue.id):
                alive[queue.id, loaded.seq] = loaded
        for at, entry in enumerate(entries):
            back = alive[entry.queue.id, entry.seq]
            entry.row, entry.slot, entry.message = back.row, back.slot, back.message
            if at % 2:
                harness.log.settle(entry)
        entries = entries[::2]
        harness.commit()
    for entry in entries:
        harness.log.settle(entry)
    harness.commit()
    assert not harness.log.statistics()["rows"]
    harness.log.close()
