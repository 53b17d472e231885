"""A large transaction in progress when the broker ends: it survives a stop, but not a crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from leveret.broker.transactions.transaction import ACCEPT, LARGE, Transaction
from tests.broker.queues.test_queues_on_disk import DiskWorld

MANY = 3 * LARGE


def begun(path: Path) -> tuple[DiskWorld, list[Callable[[], None]]]:
    """A world that has written a part of a transaction, and the pending callbacks of its event loop."""
    world = DiskWorld(path)
    source, target = world.queue("from", durable=True), world.queue("to", durable=True)
    for number in range(MANY):
        world.push(source, str(number), persistent=True)
    world.run()
    posted: list[Callable[[], None]] = []
    world.broker.jobs.call_soon = posted.append
    transaction = Transaction(world.log)
    for number in range(MANY):
        transaction.publish(world.message(str(number), key="to", persistent=True), [target])
        entry = source.get(False)
        assert entry is not None
        transaction.settle(entry, ACCEPT)

    def pieces() -> Iterator[int]:
        transaction.begin(world.broker.jobs)
        try:
            yield from transaction.writing()
        finally:
            transaction.end()

    world.broker.jobs.commits.add(pieces(), lambda: transaction.finish(lambda: None, None), lambda: None)
    for _ in range(2):
        posted.pop(0)()
        world.broker.end_turn()
    assert world.log.completion is not None and 0 < len(transaction.prepared) < MANY
    return world, posted


def test_an_undone_commit_leaves_everything_unchanged(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    source, target = world.queue("from", durable=True), world.queue("to", durable=True)
    for number in range(LARGE):
        world.push(source, str(number), persistent=True)
    world.run()
    transaction = Transaction(world.log)
    for number in range(LARGE):
        transaction.publish(world.message(str(number), key="to", persistent=True), [target])
        entry = source.get(False)
        assert entry is not None
        transaction.settle(entry, ACCEPT)
    for pieces in (transaction.writing(), transaction.undoing(), transaction.requeuing()):
        for _ in pieces:
            pass
    assert (source.ready_count, source.unacked, target.hidden.bytes) == (LARGE, 0, 0)
    world.run()
    world.close()
    assert ready(tmp_path) == (LARGE, 0)


def ready(path: Path) -> tuple[int, int]:
    world = DiskWorld(path)
    found = world.vhost.queues["from"].ready_count, world.vhost.queues["to"].ready_count
    world.close()
    return found


def test_a_stop_and_a_crash_amid_a_large_commit(tmp_path: Path) -> None:
    world, _ = begun(tmp_path / "stopped")
    shutil.copytree(tmp_path / "stopped", tmp_path / "crashed")
    world.disk.close()
    world.paging.close()
    assert ready(tmp_path / "crashed") == (MANY, 0)
    assert ready(tmp_path / "stopped") == (0, MANY)
