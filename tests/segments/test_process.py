"""The sealer process: a real process over a real log, with the broker's calls."""

from __future__ import annotations

import os
import signal
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.log import Loaded
from leveret.broker.message import FORMAT_AMQP1, Entry, Overlay, make_address
from leveret.broker.segments import DAMAGED, FAILED, MISSING, SealTask, Segment, Written
from leveret.segments import process
from leveret.segments.process import SealerProcess
from leveret.segments.reader import open_segment
from leveret.storage.located import rebuild
from tests.storage.harness import FakeQueue, Harness, content, log_at, message
from tests.support.polling import DEADLINE
from tests.support.postgres import execute, require_postgres, shared_server

TIME = 1_700_000_000_000
# Properties of 0-9-1: a delivery mode and a priority; the sections of 1.0: a header that is durable.
PERSISTENT = b"\x00\x3c\x00\x00" + bytes(8) + b"\x18\x00\x02\x07"
SECTIONS = b"\x00Sp\xc0\x02\x01A"
BODY = b"\x00Su\xa0\x04data"


class Task(SealTask):
    """Seals entries of a queue, a fixed number per part."""

    def __init__(self, world: World, entries: list[Entry], part: int = 4) -> None:
        super().__init__("home/s-1", "s")
        self.world = world
        self.parts = [entries[at : at + part] for at in range(0, len(entries), part)]
        self.first = entries[0].seq - 1
        self.last = entries[-1].seq - 1
        self.result: Written | None = None
        self.failure: tuple[str, str] | None = None
        self.asked = 0

    def next_part(self) -> None:
        self.asked += 1
        if not self.parts:
            self.world.store.finish(self)
            return
        part = self.parts.pop(0)
        rows: array[int] = array("Q", [entry.row.id for entry in part if entry.row is not None])
        located = self.world.harness.log.locate(rows, array("I", [entry.slot for entry in part]))
        assert located is not None
        self.world.store.part(self, located, part[0].seq - 1, array("Q", (len(part), TIME + part[0].seq)))

    def written(self, result: Written) -> None:
        self.result = result

    def failed(self, kind: str, text: str) -> None:
        self.failure = (kind, text)


class World:
    """A log with a queue, and a segment store."""

    def __init__(self, path: Path, directory: str | None = None, dsn: str = "", **more: Any) -> None:
        self.path = path
        self.directory = directory or str(path / "segments")
        self.harness = Harness(lambda: log_at(dsn or path / "log"))
        self.queue = FakeQueue(1)
        address = self.harness.log.rows_address()
        assert address is not None
        self.store = SealerProcess(self.directory, address, None, path / "unfinished", **more)
        self.store.start(self.harness.loop.post)

    def close(self) -> None:
        self.store.stop()
        self.harness.log.close()

    def publish(self, *bodies: bytes) -> list[Entry]:
        entries = self.harness.publish(self.queue, *bodies)
        self.harness.commit()
        return entries

    def sealed(self, entries: list[Entry], part: int = 4) -> Segment:
        task = Task(self, entries, part)
        self.store.seal(task)
        self.wait(lambda: task.result is not None or task.failure is not None)
        assert task.result is not None, task.failure
        return task.result.segment(task.first, task.last, TIME, TIME, array("Q"), array("Q"))

    def wait(self, condition: Any) -> None:
        self.harness.loop.run_until(condition, DEADLINE)

    def read(self, segment: Segment, first: int, last: int) -> tuple[list[Loaded], str, str]:
        found: list[tuple[list[Loaded], str, str]] = []
        self.store.read(segment, first, last, lambda *result: found.append(result))
        self.wait(lambda: found)
        return found[0]

    def bodies(self, segment: Segment, first: int, last: int) -> list[bytes]:
        loaded, kind, text = self.read(segment, first, last)
        assert not kind, text
        assert [item.seq - 1 for item in loaded] == list(range(first, min(last, segment.last) + 1))
        return [content(item.message) for item in loaded]

    def find(self) -> list[str]:
        found: list[list[str]] = []
        self.store.find("home", found.append)
        self.wait(lambda: found)
        return sorted(found[0])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.mark.embedded("the sealer reads the database file")
def test_sealed_messages_are_read_back(world: World) -> None:
    bodies = [b"%d" % number for number in range(10)]
    segment = world.sealed(world.publish(*bodies))
    assert world.bodies(segment, 0, 9) == bodies
    assert world.bodies(segment, 3, 5) == bodies[3:6]
    assert world.bodies(segment, 8, 100) == bodies[8:]
    assert (segment.count, segment.body_bytes, segment.groups) == (10, 10, [10])
    file = Path(world.store.url_of(segment.path))
    assert file.stat().st_size == segment.bytes
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert world.find() == [segment.path]
    times = [item.time for item in world.read(segment, 0, 9)[0]]
    assert times == [TIME + 1] * 4 + [TIME + 5] * 4 + [TIME + 9] * 2


@pytest.mark.embedded("the sealer reads the database file")
def test_all_parts_of_a_message_are_restored(world: World) -> None:
    log, queue = world.harness.log, world.queue
    entries = []
    plain, priority = message(b"plain"), message(b"priority", header=PERSISTENT, priority=7)
    plain.persistent = False
    new = message(BODY, header=SECTIONS, format=FORMAT_AMQP1)
    expiring = message(b"expires", expires_at=TIME + 5, address=make_address("amq.topic", "a.b"))
    expiring.persistent = False
    for item in (plain, priority, new, expiring, message(b"large" * 400_000, header=PERSISTENT, priority=7)):
        for overlay in (None, Overlay(make_address("dlx", "k"), {"x-death": [{"count": 3, "queue": "q"}]}, True)):
            assert isinstance(item.body, bytes)
            copy = message(
                item.body,
                header=item.header,
                address=item.address,
                priority=item.priority,
                format=item.format,
                expires_at=item.expires_at,
            )
            copy.persistent = item.persistent
            entry = queue.entry(copy)
            entry.overlay = overlay
            log.store(entry)
            entries.append(entry)
    world.harness.commit()
    segment = world.sealed(entries)
    loaded, kind, text = world.read(segment, 0, 100)
    assert not kind, text
    for entry, back in zip(entries, loaded, strict=True):
        was, found = entry.message, back.message
        assert (found.header, content(found), found.size, found.format, found.priority, found.persistent, found.row) == (
            was.header,
            content(was),
            was.size,
            was.format,
            was.priority,
            was.persistent,
            None,
        )
        if entry.overlay is None:
            assert back.overlay is None
            assert (found.address, found.expires_at) == (was.address, was.expires_at)
        else:
            assert back.overlay is not None
            assert (back.overlay.address, back.overlay.headers, back.overlay.drop_expiration) == (
                entry.overlay.address,
                entry.overlay.headers,
                True,
            )


@pytest.mark.embedded("the sealer reads the database file")
def test_reads_span_row_groups(world: World) -> None:
    bodies = [b"%06d" % number + b"x" * 20_000 for number in range(2000)]
    segment = world.sealed(world.publish(*bodies), part=256)
    assert len(segment.groups) > 1
    edge = segment.groups[0]
    assert world.bodies(segment, edge - 2, edge + 1) == bodies[edge - 2 : edge + 2]
    assert world.bodies(segment, 0, 3) == bodies[:4]
    assert world.bodies(segment, 1990, 1999) == bodies[1990:]


def test_segments_are_written_one_at_a_time(world: World) -> None:
    entries = world.publish(*(b"%d" % number for number in range(12)))
    tasks = [Task(world, entries[:4]), Task(world, entries[4:8], 1), Task(world, entries[8:])]
    for task in tasks:
        world.store.seal(task)
    world.store.abandon(tasks[1])
    world.wait(lambda: tasks[2].result is not None)
    assert tasks[0].result is not None
    assert tasks[1].asked == 0
    assert len(world.find()) == 2


def test_an_abandoned_segment_leaves_no_file(world: World) -> None:
    entries = world.publish(*(b"%d" % number for number in range(12)))
    for asked in range(1, 8):
        task = Task(world, entries, 2)
        world.store.seal(task)
        world.wait(lambda task=task, asked=asked: task.asked >= asked)
        world.store.abandon(task)
        after = world.sealed(entries[:2])
        assert task.result is None
        assert world.find() == [after.path]
        world.store.remove([after.path])
    assert world.find() == []
    row = entries[0].row
    assert getattr(row, "readers", None) == 0


def test_small_segments_are_merged(world: World) -> None:
    bodies = [b"%d" % number for number in range(12)]
    entries = world.publish(*bodies)
    old = [world.sealed(entries[at : at + 4]) for at in (0, 4, 8)]
    done: list[Any] = []
    world.store.merge(old, "home/s-1", "s", lambda *result: done.append(result))
    world.wait(lambda: done)
    written, _, text = done[0]
    assert written is not None, text
    merged = written.segment(0, 11, TIME, TIME, array("Q"), array("Q"))
    assert world.bodies(merged, 0, 11) == bodies
    world.store.remove([segment.path for segment in old])
    assert world.find() == [merged.path]
    done.clear()
    world.store.merge(old, "home/s-1", "s", lambda *result: done.append(result))
    world.wait(lambda: done)
    assert done[0][:2] == (None, MISSING)
    assert world.find() == [merged.path]


def test_damaged_and_missing_files(world: World) -> None:
    entries = world.publish(*(b"%d" % number for number in range(12)))
    missing, cut, changed, fine = (world.sealed(entries[at : at + 3]) for at in (0, 3, 6, 9))
    Path(world.store.url_of(missing.path)).unlink()
    with open(world.store.url_of(cut.path), "r+b") as file:
        file.truncate(cut.bytes - 10)
    with open(world.store.url_of(changed.path), "r+b") as file:
        file.seek(changed.bytes // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))
    assert world.read(missing, 0, 2)[1] == MISSING
    assert world.read(cut, 3, 5)[1] == DAMAGED
    assert world.read(changed, 6, 8)[1] == DAMAGED
    assert world.bodies(fine, 9, 11) == [b"9", b"10", b"11"]
    assert world.store.starts == 1


def test_a_killed_process_is_restarted(world: World) -> None:
    entries = world.publish(*(b"%d" % number for number in range(12)))
    segment = world.sealed(entries)
    for _ in range(2):
        assert world.store.process is not None
        os.kill(world.store.process.pid, signal.SIGKILL)
        assert world.bodies(segment, 0, 11) == [b"%d" % number for number in range(12)]
    task = Task(world, entries, 1)
    world.store.seal(task)
    world.wait(lambda: task.asked >= 3)
    assert world.store.process is not None
    os.kill(world.store.process.pid, signal.SIGKILL)
    world.wait(lambda: task.failure is not None or task.result is not None)
    if task.result is None:
        assert task.failure is not None
        assert task.failure[0] == FAILED
    assert getattr(entries[0].row, "readers", None) == 0
    assert world.bodies(world.sealed(entries), 0, 11)
    assert world.store.starts >= 3


def test_a_death_that_is_noticed_late_fails_no_segment_of_the_next_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = world.publish(*(b"%d" % number for number in range(12)))
    world.sealed(entries)
    noticed = world.store._died
    deaths: list[tuple[int, int, int]] = []
    monkeypatch.setattr(world.store, "_died", lambda *death: deaths.append(death))
    assert world.store.process is not None
    os.kill(world.store.process.pid, signal.SIGKILL)
    world.wait(lambda: deaths)
    task = Task(world, entries, 1)
    world.store.seal(task)
    world.wait(lambda: task.asked >= 3)
    noticed(*deaths[0])
    world.wait(lambda: task.failure is not None or task.result is not None)
    assert task.failure is None


def test_an_idle_process_stops(world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(process, "IDLE_TIMEOUT", 0.2)
    entries = world.publish(b"a", b"b")
    segment = world.sealed(entries)
    first = world.store.process
    assert first is not None
    first.wait(DEADLINE)
    assert world.bodies(segment, 0, 1) == [b"a", b"b"]
    assert world.store.process is not first
    assert "died" not in caplog.text


def test_a_store_that_is_not_a_directory(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    options = tmp_path / "options.toml"
    options.write_text("auto_mkdir = true\n")
    world = World(tmp_path, f"local://{place}", options_file=str(options))
    try:
        bodies = [b"%d" % number for number in range(5)]
        entries = world.publish(*bodies)
        segment = world.sealed(entries)
        assert world.bodies(segment, 1, 3) == bodies[1:4]
        assert (place / segment.path).stat().st_size == segment.bytes
        assert world.find() == [segment.path]
        assert not list((tmp_path / "unfinished").iterdir())
        with open_segment(world.store.url_of(segment.path), {"auto_mkdir": True}) as reader:
            assert reader.count == 5
        world.store.remove([segment.path])
        assert world.find() == []
    finally:
        world.close()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    world = World(tmp_path, str(tmp_path / "file"))
    try:
        task = Task(world, world.publish(b"a"))
        world.store.seal(task)
        world.wait(lambda: task.failure is not None)
        assert task.failure is not None
        assert task.failure[0] == FAILED
        assert str(tmp_path / "file") in task.failure[1]
        assert world.find() == []
    finally:
        world.close()


def test_segments_are_group_readable_if_configured(tmp_path: Path) -> None:
    world = World(tmp_path, mode=0o640)
    try:
        entries = world.publish(b"1", b"2", b"3", b"4")
        file = Path(world.store.url_of(world.sealed(entries[:2]).path))
        world.sealed(entries[2:])
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file.parent.parent, tmp_path / "segments")] == [
            0o750
        ] * 3
        assert stat.S_IMODE((tmp_path / "unfinished").stat().st_mode) == 0o700
    finally:
        world.close()


def test_an_invalid_reply_restarts_the_process_and_repeats_the_request(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    segment = world.sealed(world.publish(b"a", b"b"))
    failures = [MemoryError("no room"), None]

    def failing(*arguments: Any) -> list[Loaded]:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return rebuild(*arguments)

    monkeypatch.setattr(process, "rebuild", failing)
    assert world.bodies(segment, 0, 1) == [b"a", b"b"]
    assert world.store.starts == 2
    assert "killing it" in caplog.text


def test_a_request_that_cannot_be_encoded_fails_alone(world: World) -> None:
    segment = world.sealed(world.publish(b"a", b"b"))
    found: list[tuple[bytes, str, str]] = []
    world.store.work("task", object(), lambda *result: found.append(result))  # type: ignore[arg-type]
    world.wait(lambda: found)
    assert found[0][1] == FAILED
    assert "TypeError" in found[0][2]
    assert world.bodies(segment, 0, 1) == [b"a", b"b"]
    assert world.store.starts == 1


def test_the_sealer_of_a_former_owner_changes_nothing(tmp_path: Path) -> None:
    require_postgres()
    dsn = shared_server().database()
    world = World(tmp_path, dsn=dsn)
    kept = world.sealed(world.publish(b"a", b"b"))
    removed = world.sealed(world.publish(b"c"))
    world.store.remove([removed.path])
    assert world.find() == [kept.path]
    task = Task(world, world.publish(b"d"))
    # Another broker has claimed the shard, which this one, frozen meanwhile, does not know.
    execute(dsn, "UPDATE leveret.owner SET epoch = epoch + 1")
    world.store.remove([kept.path])
    merged: list[Any] = []
    world.store.merge([kept], "home/s-1", "s", lambda *result: merged.append(result))
    world.wait(lambda: merged)
    assert merged == [(None, FAILED, "another broker owns shard 0, of which this one had epoch 1")]
    worked: list[Any] = []
    world.store.work("drop-table", b"{}", lambda *result: worked.append(result))
    world.wait(lambda: worked)
    assert worked[0][1:] == merged[0][1:]
    world.store.seal(task)
    world.wait(lambda: task.failure)
    assert task.failure == merged[0][1:]
    # Consumers may still read, and the file is there.
    assert world.bodies(kept, 0, 1) == [b"a", b"b"]
    with pytest.raises(StorageFailed, match="has taken over shard 0"):
        world.close()
