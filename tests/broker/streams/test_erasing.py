"""Erasure in streams, and tables over their files: over a store in memory."""

from __future__ import annotations

import pytest
from msgspec import to_builtins

from leveret.broker.errors import PreconditionFailed
from leveret.broker.segments import FAILED, SegmentSettings
from leveret.broker.streams.erasing import DONE, REWRITING, SEALING
from leveret.broker.streams.erasing import FAILED as ENDED
from leveret.management.operations.segments import describe_erasure
from tests.broker.streams.segment_store import MemoryStore
from tests.broker.streams.test_sealing import MINUTE, bodies, fill, manifest, restarted, sealed_world, settle, stream
from tests.broker.streams.test_streams import Reading
from tests.broker.support import World


def without(first: int, last: int, *gone: int) -> list[str]:
    return [body for number, body in enumerate(bodies(first, last), first) if number not in gone]


def test_erased_rows_are_skipped_by_readers() -> None:
    world, store = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 25)
    settle(world)
    before = [one.path for one in queue.segments]
    erasing = queue.erase(["3"], False, False)
    assert erasing.state == REWRITING
    settle(world)
    assert to_builtins(describe_erasure(erasing)) == {
        "state": DONE,
        "problem": None,
        "dry_run": False,
        "segments": 2,
        "rewritten": 2,
        "remaining": 0,
        "unsealed": 5,
        "rows": 20,
        "matched": 2,
    }
    assert [(one.first, one.last, one.count) for one in queue.segments] == [(0, 9, 9), (10, 19, 9)]
    assert [one.entry() for one in manifest(world)] == [one.entry() for one in queue.segments]
    assert (queue.ready_count, queue.ready_bytes) == (23, 230)
    reader = Reading(queue)
    world.run()
    assert reader.bodies() == without(0, 25, 3, 13)
    assert reader.offsets() == [offset for offset in range(25) if offset not in (3, 13)]
    assert store.removed == []
    world.sleep(MINUTE + 1)
    assert sorted(store.removed) == sorted(before)
    again, found = restarted(world, store)
    reader = Reading(found, 2)
    again.run()
    assert reader.bodies() == without(2, 25, 3, 13)


def test_erased_messages_in_memory_are_not_delivered() -> None:
    world, _ = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 15)
    settle(world)
    Reading(queue)
    world.run()
    queue.erase(["3"], False, False)
    settle(world)
    reader = Reading(queue)
    world.run()
    assert reader.bodies() == without(0, 15, 3)


def test_unsealed_messages_are_sealed_first_on_request() -> None:
    world, _ = sealed_world(size=1_000_000)
    queue = stream(world)
    fill(world, queue, 0, 15)
    erasing = queue.erase(["3"], False, True)
    assert erasing.state == SEALING
    settle(world)
    assert describe_erasure(erasing).unsealed == 0 and erasing.state == DONE and erasing.counts["matched"] == 2
    assert [(one.first, one.last, one.count) for one in queue.segments] == [(0, 14, 13)]
    reader = Reading(queue)
    fill(world, queue, 15, 17)
    assert reader.bodies() == without(0, 17, 3, 13)


def test_a_dry_run_does_not_change_segments() -> None:
    world, store = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 25)
    settle(world)
    before = manifest(world)
    erasing = queue.erase(["3"], True, False)
    settle(world)
    assert (erasing.state, erasing.rewritten, erasing.counts) == (DONE, 0, {"rows": 20, "matched": 2})
    assert [one.id for one in manifest(world)] == [one.id for one in before]
    assert len(store.files) == 2


def test_one_erasure_at_a_time_and_none_without_segments() -> None:
    world, store = sealed_world(held=True)
    queue = stream(world)
    fill(world, queue, 0, 5)
    queue.erase(["3"], False, True)
    with pytest.raises(PreconditionFailed, match="is in progress"):
        queue.erase(["3"], False, False)
    settle(world)
    while store.waiting:
        store.answer()
        settle(world)
    assert queue.erasing is not None and queue.erasing.state == DONE
    plain = World()
    with pytest.raises(PreconditionFailed, match="is not sealed by this broker"):
        stream(plain).erase(["3"], False, False)


def test_a_failed_erasure_can_be_repeated() -> None:
    world, store = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 25)
    settle(world)
    store.fault = (FAILED, "no space")
    erasing = queue.erase(["3"], False, False)
    settle(world)
    assert (erasing.state, erasing.problem) == (ENDED, "offsets 0 to 9: no space")
    store.fault = None
    erasing = queue.erase(["3"], False, False)
    settle(world)
    assert erasing.state == DONE and erasing.rewritten == 2
    store.fault = (FAILED, "no space")
    erasing = queue.erase(["3"], False, True)
    settle(world)
    assert erasing.state == ENDED and "not all messages could be sealed: no space" in erasing.problem


def test_retention_and_deletion_in_the_middle() -> None:
    world, store = sealed_world(held=True)
    queue = stream(world, max_length_bytes=10_000)
    fill(world, queue, 0, 25)
    while store.waiting:
        store.answer()
        settle(world)
    assert len(queue.segments) == 2
    erasing = queue.erase(["3"], False, False)
    queue.max_bytes = 160  # segments that the store is processing are removed
    queue.retain(world.clock.time)
    settle(world)
    assert len(queue.segments) == 1
    while store.waiting:
        store.answer()
        settle(world)
    assert erasing.state == DONE
    assert [(one.first, one.count) for one in queue.segments] == [(10, 13)]
    erasing = queue.erase(["4"], False, False)
    world.vhost.remove_queue(queue)
    world.run()
    while store.waiting:
        store.answer()
        settle(world)
    assert (erasing.state, erasing.problem) == (ENDED, "the stream was deleted")
    world.sleep(MINUTE + 1)
    assert store.files == {}


def test_neighbours_are_not_merged_meanwhile() -> None:
    world, store = sealed_world(merge_below=1000, held=True)
    queue = stream(world)
    fill(world, queue, 0, 15)
    while store.waiting:
        store.answer()
        settle(world)
    assert queue.sealing is not None and not queue.sealing.paused
    queue.erase(["3"], False, False)
    assert queue.sealing.paused
    while store.waiting:
        store.answer()
        settle(world)
    assert not queue.sealing.paused


def tables_world(held: bool = False) -> tuple[World, MemoryStore]:
    store = MemoryStore(held)
    settings = SegmentSettings(size=100, grace=MINUTE, merge_below=0, tables_after=5_000)
    return World(store=store, sealing=settings), store


def test_tables_follow_the_manifest() -> None:
    world, store = tables_world()
    queue = stream(world, max_length_bytes=250)
    fill(world, queue, 0, 25)
    settle(world)
    assert store.tables == {}
    world.sleep(5_000)
    settle(world)
    owner = f"{queue.uid} (s in vhost /)"
    assert store.tables == {owner: [one.path for one in queue.segments]} and len(queue.segments) == 2
    fill(world, queue, 25, 31)
    queue.erase(["19"], False, False)
    world.sleep(5_000)
    settle(world)
    assert store.tables == {owner: [one.path for one in queue.segments]}
    assert world.broker.segments is not None and world.broker.segments.tables is not None
    state = world.broker.segments.tables.state(queue)
    assert (state.name, state.pending, state.problem) == ("default.s", False, "") and state.synced > 0
    world.vhost.remove_queue(queue)
    world.sleep(5_000)
    settle(world)
    assert store.tables == {}


def test_a_failing_table_delays_nothing_and_is_updated_later() -> None:
    world, store = tables_world()
    queue = stream(world)
    fill(world, queue, 0, 15)
    settle(world)
    store.fault = (FAILED, "no catalog")
    world.sleep(5_000)
    settle(world)
    tables = world.broker.segments.tables if world.broker.segments else None
    assert tables is not None and tables.state(queue).problem == "no catalog"
    store.fault = None
    fill(world, queue, 15, 25)
    settle(world)
    assert len(queue.segments) == 2 and store.tables == {}
    world.sleep(30_000)
    settle(world)
    assert len(store.tables) == 1 and tables.state(queue).problem == ""
    tables.hurry([queue])
    before = len(store.tasks)
    settle(world)
    assert len(store.tasks) == before + 1


def test_tables_are_updated_at_the_start() -> None:
    world, store = tables_world()
    queue = stream(world)
    fill(world, queue, 0, 15)
    settle(world)
    again, found = restarted(world, store)
    again.sleep(5_000)
    settle(again)
    assert store.tables == {f"{found.uid} (s in vhost /)": [one.path for one in found.segments]}
