"""Files and directories are synced in the required order, and have the required modes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.message import make_address
from leveret.segments.columns import Rows
from leveret.segments.tasks import SegmentLocation
from leveret.segments.writer import SegmentWriter
from leveret.storage import disk
from leveret.storage.data_directory import Reserve
from leveret.storage.upload_files import UploadFiles
from leveret.wire.amqp0.properties import encode_header
from tests.storage.harness import FakeQueue, Harness, sqlite_log


class Calls:
    """Records syncs and renames in order: (name, path)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, Path]] = []
        fsync, rename = os.fsync, os.rename

        def synced(descriptor: int) -> None:
            self.made.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
            fsync(descriptor)

        def renamed(source: Any, target: Any) -> None:
            self.made.append(("rename", Path(target)))
            rename(source, target)

        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "rename", renamed)

    def synced_after(self, name: str) -> list[Path]:
        """Return the paths synced after the last call of this name."""
        last = max(at for at, (called, _) in enumerate(self.made) if called == name)
        return [path for _, path in self.made[last + 1 :]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture(params=[0o000, 0o077, 0o177], ids=["umask 000", "umask 077", "umask 177"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    mask = os.umask(request.param)
    yield request.param
    os.umask(mask)


def rows(count: int) -> Rows:
    return Rows(
        list(range(count)),
        [1000] * count,
        [0] * count,
        [make_address("e", "k")] * count,
        [encode_header(60, 1, {})] * count,
        [b"x"] * count,
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_parent_of_a_segment_is_synced_after_its_rename(tmp_path: Path, calls: Calls) -> None:
    root = tmp_path / "streams"
    directory = root / "home" / "events-1"
    writer = SegmentWriter(str(directory), "events", root=str(root))
    writer.append(rows(3))
    segment = writer.finish()
    file = directory / segment.path
    assert [path.suffix for name, path in calls.made[: calls.made.index(("rename", file))] if name == "sync"] == [
        ".unfinished"
    ]
    assert calls.synced_after("rename") == [directory, root / "home", root]


def test_an_upload_is_synced_up_to_the_data_directory(tmp_path: Path, calls: Calls) -> None:
    body = UploadFiles(tmp_path, 0).create("name", 3)
    body.append(b"abc")
    body.sync()
    assert [path for _, path in calls.made] == [tmp_path / "staged" / "name", tmp_path / "staged", tmp_path]


def test_only_directories_below_the_limit_are_synced(tmp_path: Path, calls: Calls) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    disk.sync_directories(tmp_path / "a" / "b", tmp_path / "a")
    disk.sync_directories(tmp_path / "c", tmp_path / "a")
    assert [path for _, path in calls.made] == [tmp_path / "a" / "b", tmp_path / "a", tmp_path / "c"]


@pytest.mark.embedded("is about the files of the log")
def test_files_of_the_log_are_private(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "data"
    harness = Harness(lambda: sqlite_log(path, reserve_bytes=1 << 20))
    harness.publish(FakeQueue(1), b"body")
    harness.commit()
    names = sorted(file.name for file in path.iterdir())
    assert {"log-0.lock", "log-0.reserve", "log-0.sqlite", "log-0.sqlite-shm", "log-0.sqlite-wal"} <= set(names)
    assert {name: mode(path / name) for name in names} == dict.fromkeys(names, 0o600)
    assert mode(path) == 0o700
    harness.log.close()


def test_the_overflow_file_is_private(tmp_path: Path, umask: int) -> None:
    log = sqlite_log(tmp_path, durable=False)
    log.open()
    assert mode(log.file) == 0o600
    log.close()


def test_an_upload_is_private(tmp_path: Path, umask: int) -> None:
    body = UploadFiles(tmp_path, 0).create("name", 3)
    body.append(b"abc")
    assert mode(tmp_path / "staged") == 0o700
    assert mode(tmp_path / "staged" / "name") == 0o600


def test_a_reserve_is_private(tmp_path: Path, umask: int) -> None:
    assert Reserve(tmp_path / "reserve", 1 << 20).allocate()
    assert mode(tmp_path / "reserve") == 0o600


@pytest.mark.parametrize(("file", "directory"), [(0o600, 0o700), (0o640, 0o750)])
def test_segments_have_the_configured_mode(tmp_path: Path, umask: int, file: int, directory: int) -> None:
    place = tmp_path / "streams" / "home" / "events-1"
    writer = SegmentWriter(str(place), "events", root=str(tmp_path / "streams"), mode=file)
    writer.append(rows(1))
    segment = writer.finish()
    assert mode(place / segment.path) == file
    assert [mode(path) for path in (place, place.parent, place.parent.parent)] == [directory] * 3


def test_existing_directories_become_accessible_to_the_group(tmp_path: Path) -> None:
    place = tmp_path / "streams" / "home"
    make: Callable[[int], SegmentWriter] = lambda mode: SegmentWriter(
        str(place), "events", root=str(tmp_path / "streams"), mode=mode
    )
    make(0o600).abort()
    assert mode(place) == 0o700
    make(0o640).abort()
    assert [mode(path) for path in (place, place.parent)] == [0o750, 0o750]


@pytest.mark.parametrize(("mask", "parents"), [(0o000, 0o777), (0o022, 0o755), (0o077, 0o700), (0o377, 0o700)])
def test_only_the_data_directory_itself_is_private(tmp_path: Path, mask: int, parents: int) -> None:
    """Missing parents have the permissions that `mkdir -p` sets."""
    before = os.umask(mask)
    try:
        disk.make_directories(tmp_path / "srv" / "broker" / "data")
    finally:
        os.umask(before)
    assert [mode(tmp_path / place) for place in ("srv", "srv/broker", "srv/broker/data")] == [parents, parents, 0o700]


def test_parents_of_the_directory_of_segments_are_not_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        root = tmp_path / "srv" / "streams"
        assert SegmentLocation(str(root)).local_root() == str(root)
        SegmentWriter(str(root / "home" / "events-1"), "events", root=str(root)).abort()
        other = tmp_path / "other" / "streams"
        SegmentWriter(str(other / "home" / "events-1"), "events", root=str(other)).abort()
    finally:
        os.umask(before)
    for place in (root, other):
        assert mode(place.parent) == 0o755
        assert [mode(path) for path in (place, place / "home", place / "home" / "events-1")] == [0o700] * 3


def test_a_file_in_the_place_of_a_parent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        disk.make_directories(tmp_path / "file" / "data")


@pytest.mark.parametrize(("code", "matters"), [(errno.EINVAL, False), (errno.EROFS, False), (errno.EIO, True)])
def test_directories_that_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, matters: bool
) -> None:
    def refused(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refused)
    if matters:
        with pytest.raises(OSError, match="Input/output error"):
            disk.sync_to_root(tmp_path)
    else:
        disk.sync_to_root(tmp_path)


def test_a_removed_file_keeps_the_content_of_its_other_names(tmp_path: Path) -> None:
    content = os.urandom(2 * disk.FREED_PIECE + 1)
    (tmp_path / "file").write_bytes(content)
    os.link(tmp_path / "file", tmp_path / "link")
    os.symlink("link", tmp_path / "symlink")
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "symlink", "pipe"):
        disk.remove_file(tmp_path / name)
    assert os.listdir(tmp_path) == ["link"]
    assert (tmp_path / "link").read_bytes() == content


def test_a_file_that_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.remove_file(tmp_path / "missing")
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        disk.remove_file(tmp_path / "directory")


def test_a_removed_directory_keeps_what_its_links_lead_to(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    (removed / "below").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").write_bytes(b"content")
    (removed / "below" / "file").write_bytes(b"")
    os.symlink(kept, removed / "directory")
    os.symlink(kept / "file", removed / "below" / "link")
    disk.remove_tree(removed)
    assert os.listdir(tmp_path) == ["kept"]
    assert (kept / "file").read_bytes() == b"content"
