"""Positions of a lease batch without some of its entries."""

from __future__ import annotations

import random

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.leases import leases
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.leases import Leases
from leveret.broker.queues.classic.backlog import CHUNK_ENTRIES
from tests.broker.support import World


def batch_of(count: int) -> Batch:
    batch = Batch(1, 0, 0)
    for number in range(count):
        batch.add(number // 700 % 3, number, number & 7, number + 1, 1, 0)
    return batch


@pytest.mark.parametrize("count", [1, 699, 3000, CHUNK_ENTRIES + 5])
def test_all_but_some_indices(count: int) -> None:
    batch = batch_of(count)
    assert len(batch.pieces) == len(batch.starts)
    chance = random.Random(count)
    for without in ([], [0], [count - 1], list(range(count)), sorted(chance.sample(range(count), count // 2))):
        rows, slots = batch.positions(without)
        expected = [number for number in range(count) if number not in set(without)]
        assert list(rows) == expected
        assert list(slots) == [number & 7 for number in expected]


def test_a_commit_limits_returned_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_RETURNED", 2)
    world = World()
    queue = world.queue(durable=True)
    world.push(queue, *"abcde", persistent=True)
    world.run()
    lease = queue.make_leases().acquire("l")
    Leases.of(queue, "l").lease_batch("l", lease.epoch, 0, 5, None, lambda batch, error: None)
    world.run()
    with pytest.raises(PreconditionFailed, match="3 messages of batch 1 would return to the queue; expected at most 2"):
        Leases.of(queue, "l").commit("l", lease.epoch, 1, [0, 1, 2])
    assert Leases.of(queue, "l").commit("l", lease.epoch, 1, [0, 2]) == 1
    world.run()
    assert world.contents(queue) == ["a", "c"]
