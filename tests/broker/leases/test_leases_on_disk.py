"""Leases over the SQLite log: leased messages of any size and kind are found after the log has moved them."""

from __future__ import annotations

from pathlib import Path

from leveret.broker.leases.leases import Leases
from leveret.broker.queues.queue import Queue
from tests.broker.leases.support import LeaseReader, ask
from tests.broker.queues.test_queues_on_disk import DiskWorld
from tests.support.queues import classic

COUNT = 3000


def read(world: DiskWorld, queue: Queue, epoch: int, batch: int, count: int) -> LeaseReader:
    reader = LeaseReader(queue, "l", epoch, batch, 0, count)
    world.broker.end_turn()
    while len(reader.bodies) < count:
        world.calls.get(timeout=30)()
        world.broker.end_turn()
    world.run()
    queue.remove_consumer(reader)
    return reader


def plan(world: DiskWorld, queue: Queue, epoch: int, after: int, most: int) -> int:
    answer = ask(queue, "l", epoch, after, most)
    world.run()
    assert answer.batch is not None
    return answer.batch.count


def body(number: int) -> str:
    if number == 1007:
        return f"{number:05}" * 240_000  # uses more than one row of the log
    return f"{number:05}" * (number % 50)


def test_batches_survive_housekeeping_and_restarts(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    world.disk.trimmer.floor = 0
    queue = world.queue(durable=True)
    noise = world.queue("noise", durable=True)
    world.broker.page_above = 200_000
    for number in range(COUNT):
        world.push(queue, body(number), persistent=number % 9 > 0, headers={"n": number} if number % 4 == 0 else None)
        world.push(noise, "x" * 1000, "y" * 1000, persistent=True)
        if number % 50 == 0:
            world.run()
            world.broker.page_down()
    world.run()
    assert queue.ready.backlog.paged > COUNT // 2
    epoch = queue.make_leases().acquire("l").epoch
    counts: list[int] = []
    while sum(counts) < COUNT - 500:
        counts.append(plan(world, queue, epoch, len(counts), 1000))
    wanted = [body(number) for number in range(COUNT)]
    # Now most of every row is garbage: the rest of them moves.
    noise.purge()
    while world.broker.jobs.removals.pending:
        world.broker.jobs.run()
    for _ in range(20):
        world.push(noise, "z" * 5000, persistent=True)
        world.run()
        noise.purge()
    assert world.disk.statistics()["copied_bytes"] > 0
    for _ in range(2):
        first = 0
        for number, count in enumerate(counts):
            reader = read(world, queue, epoch, number + 1, count)
            assert reader.bodies == wanted[first : first + count], number
            assert reader.offsets == list(range(first, first + count))
            first += count
        assert queue.leased_count == first
        world.close()
        world = DiskWorld(tmp_path)
        queue = classic(world.vhost.queues["q"])
        assert queue.leased_count == first
    assert Leases.of(queue, "l").commit("l", epoch, 1, [7]) == 1
    Leases.of(queue, "l").release("l")
    world.run()
    left = [wanted[7], *wanted[counts[0] : sum(counts)]]
    found: list[str] = []
    while len(found) < len(left):
        text = world.get(queue)
        assert text is not None
        found.append(text)
    assert found == left
    world.run()
    world.close()
