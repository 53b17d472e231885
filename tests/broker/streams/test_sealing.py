"""Sealed segments of streams, over a store in memory: sealing, reading, retention and recovery."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Overlay
from leveret.broker.segments import FAILED, Segment, SegmentSettings
from leveret.broker.streams.queue import StreamQueue
from tests.broker.streams.segment_store import MemoryStore
from tests.broker.streams.test_streams import Reading, append
from tests.broker.support import HeldLog, World

MINUTE = 60_000


def sealed_world(
    *,
    size: int = 100,
    age: int = 10 * MINUTE,
    merge_below: int = 0,
    held: bool = False,
    log: HeldLog | None = None,
    **more: Any,
) -> tuple[World, MemoryStore]:
    store = MemoryStore(held)
    settings = SegmentSettings(size=size, age=age, grace=MINUTE, merge_below=merge_below)
    return World(store=store, sealing=settings, log=log, **more), store


def stream(world: World, **arguments: Any) -> StreamQueue:
    queue = world.declare("s", durable=True, queue_type="stream", **arguments)
    assert isinstance(queue, StreamQueue)
    return queue


def fill(world: World, queue: StreamQueue, first: int, last: int) -> None:
    """Publish messages of ten bytes, one per turn."""
    for number in range(first, last):
        append(world, queue, f"{number:010d}")
        world.run()


def bodies(first: int, last: int) -> list[str]:
    return [f"{number:010d}" for number in range(first, last)]


def restarted(world: World, store: MemoryStore, time: int | None = None) -> tuple[World, StreamQueue]:
    log, recovery = world.held_log.recovery()
    assert world.broker.segments is not None
    again = World(
        log=log, recovery=recovery, time=time or world.clock.time, store=store, sealing=world.broker.segments.settings
    )
    again.run()
    found = again.vhost.queues["s"]
    assert isinstance(found, StreamQueue)
    return again, found


def manifest(world: World) -> list[Segment]:
    found = [Segment.unpack(value) for (kind, _), value in world.held_log.metadata.items() if kind == "stream-segment"]
    return sorted(found, key=lambda segment: segment.first)


def settle(world: World) -> None:
    """Run posted callbacks and due timers."""
    for _ in range(5):
        world.sleep(1)


def test_a_large_enough_part_is_sealed_and_removed_from_the_log() -> None:
    world, store = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 25)
    settle(world)
    assert [(one.first, one.last, one.count, one.body_bytes) for one in queue.segments] == [
        (0, 9, 10, 100),
        (10, 19, 10, 100),
    ]
    assert [one.entry() for one in manifest(world)] == [one.entry() for one in queue.segments]
    assert sorted(store.files) == sorted(one.path for one in queue.segments)
    assert sorted(seq for _, seq in world.held_log.kept) == list(range(21, 26))
    assert (queue.ready_count, queue.ready_bytes, queue.first_offset, queue.visible_until) == (25, 250, 0, 26)
    assert all(located.released for located in store.located)
    assert len([key for key in world.held_log.metadata if key[0] == "stream-chunk"]) == len(queue.chunks)


def test_an_old_enough_part_is_sealed() -> None:
    world, _ = sealed_world(size=1_000_000)
    queue = stream(world)
    fill(world, queue, 0, 3)
    world.sleep(9 * MINUTE)
    fill(world, queue, 3, 5)
    assert queue.segments == []
    world.sleep(MINUTE)
    settle(world)
    assert [(one.first, one.last) for one in queue.segments] == [(0, 4)]
    assert world.held_log.kept == {}
    fill(world, queue, 5, 6)
    reader = Reading(queue)
    world.run()
    assert reader.bodies() == bodies(0, 6)


@pytest.mark.parametrize("start", ["first", 0, 3, 9, 10, 17, 22, "next"], ids=str)
def test_readers_see_no_seam(start: object) -> None:
    world, _ = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 22)
    settle(world)
    assert len(queue.segments) == 2
    reader = Reading(queue, start)
    world.run()
    fill(world, queue, 22, 41)
    settle(world)
    first = {"first": 0, "next": 22}.get(str(start), start)
    assert isinstance(first, int)
    assert reader.bodies() == bodies(first, 41)
    assert reader.offsets() == list(range(first, 41))


def test_a_slow_reader_is_overtaken_by_the_sealing() -> None:
    world, _ = sealed_world(held=True)
    store = world.broker.segments.store if world.broker.segments else None
    assert isinstance(store, MemoryStore)
    queue = stream(world)
    slow = Reading(queue, credit=3)
    fill(world, queue, 0, 15)
    while store.waiting:
        slow.give(1)
        world.run()
        store.answer(1)
        world.run()
    settle(world)
    assert queue.segments
    slow.give(-1)
    for _ in range(10):
        world.run()
        store.answer()
    world.run()
    assert slow.bodies() == bodies(0, 15)


def test_times_lead_to_sealed_chunks() -> None:
    world, _ = sealed_world(size=40)
    queue = stream(world)
    for hour in range(4):
        append(world, queue, f"{hour}a" + "-" * 18, f"{hour}b" + "-" * 18)
        world.run()
        settle(world)
        world.clock.time += 60 * MINUTE - 5
    assert len(queue.segments) == 4
    since, last = Reading(queue, "150m"), Reading(queue, "last")
    world.run()
    assert [body[:2] for body in since.bodies()] == ["2a", "2b", "3a", "3b"]
    assert [body[:2] for body in last.bodies()] == ["3a", "3b"]


def test_changes_of_the_broker_are_restored() -> None:
    world, _ = sealed_world(size=4)
    queue = stream(world)
    queue.insert_new(queue.prepare(world.message("dead"), Overlay(None, {"x-death": ["why"]})))
    world.run()
    settle(world)
    assert queue.segments
    reader = Reading(queue)
    world.run()
    overlay = reader.taken[0].overlay
    assert overlay is not None
    assert overlay.headers["x-death"] == ["why"]
    assert reader.offsets() == [0]


class TestRetention:
    def test_retention_by_size_removes_complete_segments(self) -> None:
        world, store = sealed_world(size=100)
        queue = stream(world, max_length_bytes=250, stream_max_segment_size_bytes=100)
        lost = Reading(queue, credit=2)
        fill(world, queue, 0, 38)
        settle(world)
        assert queue.ready_bytes <= 250
        assert queue.first_offset % 10 == 0 < queue.first_offset
        lost.give(-1)
        world.run()
        assert lost.bodies() == bodies(0, 2) + bodies(queue.first_offset, 38)
        assert len(store.files) > len(queue.segments)  # until the grace time is over
        world.sleep(MINUTE)
        settle(world)
        assert sorted(store.files) == sorted(one.path for one in queue.segments)

    def test_retention_by_age_removes_complete_segments(self) -> None:
        world, store = sealed_world()
        queue = stream(world, max_age="1h")
        fill(world, queue, 0, 10)
        settle(world)
        world.sleep(30 * MINUTE)
        fill(world, queue, 10, 20)
        settle(world)
        world.sleep(30 * MINUTE)
        settle(world)
        assert queue.first_offset == 10
        world.sleep(31 * MINUTE)
        settle(world)
        assert (queue.ready_count, queue.segments, queue.first_offset) == (0, [], 20)
        world.sleep(MINUTE)
        assert store.files == {}

    def test_the_number_of_segments_is_limited(self) -> None:
        world, _ = sealed_world()
        queue = stream(world, stream_max_segments=2)
        fill(world, queue, 0, 45)
        settle(world)
        assert [one.first for one in queue.segments] == [20, 30]
        assert queue.ready_count == 25

    def test_other_queue_types_refuse_it(self) -> None:
        with pytest.raises(PreconditionFailed, match="x-stream-max-segments"):
            World().queue("q", stream_max_segments=2)

    def test_a_segment_leaves_the_manifest_before_its_file_is_removed(self) -> None:
        world, store = sealed_world(log=HeldLog(held=True))
        world.held_log.release_all()
        queue = stream(world, stream_max_segments=1)
        fill(world, queue, 0, 10)
        for _ in range(5):
            world.held_log.release_all()
            world.run()
        assert len(queue.segments) == 1
        first = queue.segments[0].path
        append(world, queue, *bodies(10, 20))
        while queue.segments[0].path == first:
            world.held_log.release()
            world.run()
        world.sleep(2 * MINUTE)
        assert first in store.files, "the manifest on disk still names it"
        world.held_log.release_all()
        world.sleep(2 * MINUTE)
        assert first not in store.files


class TestLeases:
    def test_pinned_files_are_not_removed(self) -> None:
        world, store = sealed_world()
        queue = stream(world, stream_max_segments=3)
        fill(world, queue, 0, 30)
        settle(world)
        held = queue.hold("spark", 5, 12, world.clock.time + 10 * MINUTE)
        assert [one.first for one in held] == [0, 10]
        fill(world, queue, 30, 60)
        settle(world)
        world.sleep(2 * MINUTE)
        assert sorted(store.files)[:2] == [one.path for one in held]
        assert len(store.files) == 5
        queue.hold("spark", 5, 12, world.clock.time + 20 * MINUTE)  # its segments are removed, but not its files
        world.sleep(15 * MINUTE)
        assert len(store.files) == 5
        world.sleep(6 * MINUTE)
        assert len(store.files) == 3

    def test_a_backup_pins_all_files(self) -> None:
        world, store = sealed_world()
        queue = stream(world, stream_max_segments=1)
        fill(world, queue, 0, 10)
        settle(world)
        assert world.broker.segments is not None
        leases = world.broker.segments.leases
        leases.pin_all(world.clock.time + 10 * MINUTE)
        fill(world, queue, 10, 30)
        settle(world)
        world.sleep(5 * MINUTE)
        assert len(queue.segments) == 1 and len(store.files) == 3
        leases.pin_all(world.clock.time + 10 * MINUTE)
        world.sleep(9 * MINUTE)
        assert len(store.files) == 3
        leases.pin_all(0)
        world.sleep(1)
        assert len(store.files) == 1

    def test_release(self) -> None:
        world, store = sealed_world()
        queue = stream(world, stream_max_segments=1)
        fill(world, queue, 0, 10)
        settle(world)
        for holder in ("a", "b"):
            queue.hold(holder, 0, 100, world.clock.time + 1000 * MINUTE)
        fill(world, queue, 10, 20)
        settle(world)
        world.sleep(2 * MINUTE)
        queue.release("a")
        world.sleep(MINUTE)
        assert len(store.files) == 2
        queue.release("b")
        world.sleep(1)
        assert len(store.files) == 1

    def test_a_deleted_stream_leaves_pinned_files(self) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 25)
        settle(world)
        uid = queue.uid
        held = queue.hold("spark", 0, 5, world.clock.time + 10 * MINUTE)
        assert world.vhost.delete_queue("s", None) == 25
        world.run()
        assert world.held_log.kept == {}
        assert manifest(world) == []
        again = stream(world)
        assert again.uid != uid
        fill(world, again, 0, 10)
        settle(world)
        world.sleep(2 * MINUTE)
        assert sorted(store.files) == sorted([held[0].path, again.segments[0].path])
        world.sleep(10 * MINUTE)
        assert list(store.files) == [again.segments[0].path]


class TestMerging:
    def test_small_neighbours_are_merged(self) -> None:
        world, store = sealed_world(size=200, age=MINUTE, merge_below=60)
        queue = stream(world)
        reader = Reading(queue, credit=1)
        for number in range(4):
            fill(world, queue, 2 * number, 2 * number + 2)
            world.sleep(MINUTE)
            settle(world)
        assert [(one.first, one.last) for one in queue.segments] == [(0, 5), (6, 7)]
        assert [one.entry() for one in manifest(world)] == [one.entry() for one in queue.segments]
        assert list(queue.segments[0].starts) == [0, 2, 4]
        assert (queue.ready_count, queue.ready_bytes) == (8, 80)
        reader.give(-1)
        world.run()
        assert reader.bodies() == bodies(0, 8)
        world.sleep(2 * MINUTE)
        assert sorted(store.files) == sorted(one.path for one in queue.segments)

    def test_many_are_merged_although_they_are_small_together(self) -> None:
        world, _ = sealed_world(size=100_000, age=MINUTE, merge_below=25_000)
        queue = stream(world)
        for number in range(8):
            fill(world, queue, number, number + 1)
            world.sleep(MINUTE)
            settle(world)
        assert [(one.first, one.last) for one in queue.segments] == [(0, 7)]

    def test_retention_may_be_quicker(self) -> None:
        world, store = sealed_world(size=200, age=MINUTE, merge_below=60, held=True)
        queue = stream(world, max_age="1h")

        def work() -> None:
            for _ in range(10):
                store.answer()
                settle(world)

        for number in range(2):
            fill(world, queue, 2 * number, 2 * number + 2)
            world.sleep(MINUTE)
            work()
        fill(world, queue, 4, 6)
        world.sleep(MINUTE)
        while store.number != 4:  # the merge is written, but not reported yet
            store.answer(1)
            settle(world)
        world.sleep(60 * MINUTE)
        assert queue.segments == []
        work()
        world.sleep(2 * MINUTE)
        work()
        assert (queue.segments, manifest(world), store.files) == ([], [], {})

    def test_a_failed_merge_changes_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        world, store = sealed_world(size=200, age=MINUTE, merge_below=60, held=True)
        queue = stream(world)
        for number in range(3):
            fill(world, queue, 2 * number, 2 * number + 2)
            world.sleep(MINUTE)
            while store.waiting:
                store.fault = (FAILED, "no space is left") if len(queue.segments) == 2 and store.number == 3 else None
                store.answer(1)
                world.run()
        assert "cannot be merged: no space is left" in caplog.text
        assert [(one.first, one.last) for one in queue.segments] == [(0, 1), (2, 3), (4, 5)]
        store.fault = None
        store.held = False
        world.sleep(1000)
        settle(world)
        assert [(one.first, one.last) for one in queue.segments] == [(0, 5)]


def test_rewritten_segments_take_the_place_of_others() -> None:
    world, store = sealed_world()
    queue = stream(world)
    fill(world, queue, 0, 25)
    settle(world)
    old = queue.segments[0]
    kept = [row for row in store.files[old.path] if row[0] % 2]
    written = store._write("elsewhere", kept)
    new = written.segment(old.first, old.last, old.first_time, old.last_time, old.starts, old.times)
    assert queue.swap([old], [new])
    assert not queue.swap([old], [new])
    world.run()
    reader = Reading(queue)
    world.run()
    assert reader.offsets() == [1, 3, 5, 7, 9, *range(10, 25)]
    assert queue.ready_count == 20
    world.sleep(2 * MINUTE)
    assert old.path in store.removed


class TestFailures:
    def test_the_stream_continues_and_is_sealed_later(self, caplog: pytest.LogCaptureFixture) -> None:
        world, store = sealed_world()
        queue = stream(world, max_length_bytes=100_000)
        store.fault = (FAILED, "no space is left")
        fill(world, queue, 0, 30)
        assert queue.segments == []
        assert "no space is left" in caplog.text
        assert caplog.text.count("remain unsealed") == 1
        reader = Reading(queue)
        world.run()
        assert reader.bodies() == bodies(0, 30)
        store.fault = None
        world.sleep(1000)
        settle(world)
        assert [(one.first, one.last) for one in queue.segments] == [(0, 9), (10, 29)]
        assert all(located.released for located in store.located)

    def test_a_file_that_cannot_be_read_concerns_its_readers(self, caplog: pytest.LogCaptureFixture) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 25)
        settle(world)
        store.files.pop(queue.segments[1].path)
        told: list[str] = []

        class Told(Reading):
            def failed(self, text: str) -> None:
                told.append(text)

        first, late = Told(queue), Told(queue, 21)
        other = Reading(queue, "next")
        world.run()
        assert first.bodies() == bodies(0, 10)
        assert late.bodies() == bodies(21, 25)
        assert len(told) == 1
        assert "offsets 10 to 19" in told[0]
        assert caplog.text.count("cannot be read") == 1
        assert first not in queue.consumers
        fill(world, queue, 25, 26)
        assert late.bodies() == bodies(21, 26)
        assert other.bodies() == bodies(25, 26)

    def test_without_a_store_sealed_messages_are_refused(self) -> None:
        world, _ = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 12)
        settle(world)
        log, recovery = world.held_log.recovery()
        again = World(log=log, recovery=recovery, time=world.clock.time)
        found = again.vhost.queues["s"]
        assert isinstance(found, StreamQueue)
        told: list[str] = []

        class Told(Reading):
            def failed(self, text: str) -> None:
                told.append(text)

        Told(found)
        tail = Reading(found, 10)
        again.run()
        assert len(told) == 1
        assert tail.bodies() == bodies(10, 12)


class TestStarts:
    def test_all_messages_are_restored(self) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 25)
        settle(world)
        again, found = restarted(world, store)
        assert found.uid == queue.uid
        assert (found.ready_count, found.ready_bytes, found.first_offset) == (25, 250, 0)
        assert [one.pack() for one in found.segments] == [one.pack() for one in queue.segments]
        reader = Reading(found)
        again.run()
        fill(again, found, 25, 32)
        settle(again)
        assert reader.bodies() == bodies(0, 32)
        assert reader.offsets() == list(range(32))

    def test_offsets_continue_if_everything_is_sealed(self) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 10)
        settle(world)
        assert world.held_log.kept == {}
        again, found = restarted(world, store)
        fill(again, found, 10, 12)
        reader = Reading(found)
        again.run()
        assert reader.offsets() == list(range(12))

    @pytest.mark.parametrize("commits", range(12))
    def test_a_crash_between_any_two_commits(self, commits: int) -> None:
        world, store = sealed_world(log=HeldLog(held=True))
        world.held_log.release_all()
        queue = stream(world, max_age="10h")
        world.held_log.release_all()
        appended = 0
        while appended < 25:
            append(world, queue, f"{appended:010d}")
            appended += 1
            world.held_log.release_all()
        for _ in range(commits):
            world.run()
            world.broker.end_turn()
            world.sleep(1)
            if world.held_log.flying is not None:
                world.held_log.release()
        again, found = restarted(world, store)
        reader = Reading(found)
        again.run()
        settle(again)
        assert reader.bodies() == bodies(0, 25)
        assert reader.offsets() == list(range(25))
        assert found.ready_count == 25
        again.sleep(2 * MINUTE)
        assert sorted(store.files) == sorted(one.path for one in found.segments)
        sealed = found.segments[-1].last + 1 if found.segments else 0
        assert sorted(seq for _, seq in again.held_log.kept) == list(range(sealed + 1, 26))

    def test_a_crash_before_the_time_of_a_chunk_was_written(self) -> None:
        """The first messages of a stream are on disk, but not their times: retention must not consider them very old."""
        world, store = sealed_world()
        queue = stream(world, max_age="1h")
        fill(world, queue, 0, 3)
        for key in [key for key in world.held_log.metadata if key[0] == "stream-chunk"]:
            del world.held_log.metadata[key]
        again, found = restarted(world, store, world.clock.time + 5000)
        assert found.ready_count == 3
        assert found.chunks[0].time == again.clock.time
        again.sleep(61 * MINUTE)
        assert found.ready_count == 0

    def test_times_do_not_decrease_with_the_clock(self) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 12)
        settle(world)
        world.clock.time -= 5 * MINUTE
        fill(world, queue, 12, 25)
        settle(world)
        again, found = restarted(world, store)
        fill(again, found, 25, 31)
        settle(again)
        times = [time for path in sorted(store.files) for _, time, _, _ in store.files[path]]
        assert len(times) == 30
        assert times == sorted(times)

    def test_unknown_files_are_removed(self) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 12)
        settle(world)
        directory = queue.segments[0].path.rpartition("/")[0]
        store.files[f"{directory}/orphan"] = []
        store.files["another broker's"] = []
        again, found = restarted(world, store)
        assert f"{directory}/orphan" in store.files
        again.sleep(2 * MINUTE)
        assert sorted(store.files) == sorted(["another broker's", found.segments[0].path])

    def test_files_stay_after_parts_of_the_log_were_lost(self, caplog: pytest.LogCaptureFixture) -> None:
        """At every later start, too; leftovers of failures after that are removed as usual."""
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 25)
        settle(world)
        lost, left = (segment.path for segment in queue.segments)
        # As `Repair` does for a damaged manifest entry.
        key = next(
            key
            for key, value in world.held_log.metadata.items()
            if key[0] == metadata.STREAM_SEGMENT and Segment.unpack(value).path == lost
        )
        del world.held_log.metadata[key]
        world.held_log.metadata[metadata.SALVAGED, "segments"] = metadata.pack({})
        for start in range(3):
            world, queue = restarted(world, store)
            settle(world)
            world.sleep(2 * MINUTE)
            assert sorted(store.files) == sorted([lost, left])
            assert "1 files of segments have no definition and are kept" in caplog.text
            caplog.clear()
            store.files[f"{queue.segments[0].path.rpartition('/')[0]}/orphan-{start}"] = []
        del store.files[lost]
        world, queue = restarted(world, store)
        world.sleep(2 * MINUTE)
        assert sorted(store.files) == [left]
        assert not [key for key in world.held_log.metadata if key[0] in (metadata.SALVAGED, metadata.KEPT_FILE)]
        assert "are kept" not in caplog.text

    def test_files_that_could_not_be_listed_stay(self) -> None:
        world, store = sealed_world()
        queue = stream(world)
        fill(world, queue, 0, 12)
        settle(world)
        unknown = f"{queue.segments[0].path.rpartition('/')[0]}/unknown"
        store.files[unknown] = []
        world.held_log.metadata[metadata.SALVAGED, "segments"] = metadata.pack({})
        find = store.find
        store.find = lambda directory, done: None  # type: ignore[method-assign]
        world, queue = restarted(world, store)
        settle(world)
        store.find = find  # type: ignore[method-assign]
        world, queue = restarted(world, store)
        world.sleep(2 * MINUTE)
        assert unknown in store.files

    def test_sealing_can_be_turned_off(self) -> None:
        store = MemoryStore()
        world = World(store=store, sealing=SegmentSettings(sealing=False, size=10))
        queue = stream(world)
        fill(world, queue, 0, 25)
        world.sleep(100 * MINUTE)
        assert (queue.segments, store.files) == ([], {})
        assert queue.ready_count == 25


def test_deletion_while_it_is_sealed() -> None:
    for answers in range(6):
        world, store = sealed_world(held=True)
        queue = stream(world)
        fill(world, queue, 0, 25)
        store.answer(answers)
        world.run()
        world.vhost.delete_queue("s", None)
        world.run()
        store.answer()
        world.run()
        world.sleep(2 * MINUTE)
        store.answer()
        world.run()
        assert world.held_log.kept == {}
        assert manifest(world) == []
        assert [key for key in world.held_log.metadata if key[0] == "stream-chunk"] == []


def unread(queue: StreamQueue, offset: int) -> tuple[int, int, int]:
    found = queue.unread(offset)
    return found.count, found.bytes, found.since


def test_what_a_reader_has_not_read_is_known_without_reading() -> None:
    world, store = sealed_world()
    queue = stream(world)
    times = []
    for number in range(25):
        times.append(world.broker.timers.unix())
        append(world, queue, f"{number:010d}")
        world.sleep(1000)
    settle(world)
    assert [(one.first, one.last) for one in queue.segments] == [(0, 9), (10, 19)]
    assert [unread(queue, offset)[:2] for offset in (0, 4, 10, 19, 20, 24, 25, 99)] == [
        (25, 250),
        (21, 210),
        (15, 150),
        (6, 60),
        (5, 50),
        (1, 10),
        (0, 0),
        (0, 0),
    ]
    # A segment has the times of its chunks, the log those of its messages.
    assert [unread(queue, offset)[2] for offset in (0, 10, 21, 24, 25)] == [times[0], times[10], times[21], times[24], -1]
    assert times[10] <= unread(queue, 19)[2] <= times[19]
    # The same after a restart, and after a merge.
    again, restored = restarted(world, store)
    assert [unread(restored, offset)[:2] for offset in (4, 22)] == [(21, 210), (3, 30)]
    append(again, restored, "x" * 7)
    again.run()
    assert unread(restored, 22)[:2] == (4, 37)


def test_retention_and_erasure_reduce_what_is_unread() -> None:
    world, _ = sealed_world()
    queue = stream(world, max_length_bytes=150)
    fill(world, queue, 0, 25)
    settle(world)
    assert queue.first_offset > 0
    assert unread(queue, 0)[:2] == (queue.ready_count, queue.ready_bytes)
    first = queue.segments[0]
    smaller = Segment.unpack(first.pack())
    smaller.id, smaller.count, smaller.body_bytes = "smaller", first.count - 5, first.body_bytes - 50
    before = unread(queue, 0)
    assert queue.swap([first], [smaller])
    settle(world)
    # Erased offsets still count, but not their bytes.
    assert unread(queue, 0)[:2] == (before[0], before[1] - 50)
    assert queue.swap([smaller], [])
    settle(world)
    assert unread(queue, first.first)[1] == before[1] - 100


def test_the_age_of_unread_messages_inside_a_chunk() -> None:
    world = World()
    queue = stream(world)
    began = world.broker.timers.unix()
    for number in range(11):
        append(world, queue, str(number))
        world.sleep(1000)
    assert len(queue.chunks) == 1
    assert [queue.unread(offset).since - began for offset in (0, 5, 10)] == [0, 5000, 10000]
    now = world.broker.timers.unix()
    assert queue.unread(10).age(now) == 1000
    assert queue.unread(11).age(now) == 0
