"""Directories of backups, their manifests, and the sources of segments."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from leveret.node.backup.directory import BackupDamaged, BackupDirectory, BackupFailed, CopiedLog, CopiedSegment, Manifest
from leveret.node.backup.sources import find_segments
from leveret.storage import disk


@pytest.fixture
def backups(tmp_path: Path) -> BackupDirectory:
    backups = BackupDirectory(tmp_path / "backups")
    backups.path.mkdir()
    backups.create()
    return backups


def make(backups: BackupDirectory, *segments: str) -> str:
    """Make a backup that has only segments. Returns its name."""
    name = backups.begin()
    kept = []
    for path in segments:
        (backups.segments / path).parent.mkdir(parents=True, exist_ok=True)
        (backups.segments / path).write_bytes(b"segment")
        kept.append(CopiedSegment(path=path, bytes=7, crc32=0))
    log = CopiedLog(path=".", files=[], segments=kept, missing=[], left_out=0, streams="", uploads="")
    backups.complete(name, Manifest(started=1.5, ended=2.25, logs=[log], problems=[]))
    return name


def test_a_backup_is_later_than_all_others(backups: BackupDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If many are made in a second, or the clock is set back, the latest one is restored, and old ones are removed."""
    clock = [1_800_000_000]
    gmtime = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda: gmtime(clock[0]))
    names = [make(backups, f"a/{number}") for number in range(11)]
    clock[0] -= 3600
    names.append(make(backups, "a/last"))
    assert backups.names() == names
    backups.remove_old(1)
    assert backups.names() == names[-1:]
    assert [path.name for path in backups.segments.rglob("*") if path.is_file()] == ["last"]


def test_the_removal_of_a_backup_begins_with_its_manifest(
    backups: BackupDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, no complete backup lacks files."""
    synced: list[list[str]] = []
    old, _ = make(backups), make(backups)
    monkeypatch.setattr(disk, "sync_directory", lambda path: synced.append(sorted(os.listdir(path))))

    def removing(path: Path) -> None:
        assert synced and old not in synced[-1] and path.name in synced[-1]
        remove(path)

    remove = disk.remove_tree
    monkeypatch.setattr(disk, "remove_tree", removing)
    backups.remove_old(1)
    assert old not in os.listdir(backups.path) and synced


def test_the_database_of_a_removed_backup_is_freed_in_pieces(backups: BackupDirectory) -> None:
    """Otherwise, syncs of the broker's log wait until all of it is freed."""
    old, _ = make(backups), make(backups)
    database = backups.path / old / "leveret.db"
    with open(database, "wb") as file:
        file.truncate(2 * disk.FREED_PIECE + 1)
        backups.remove_old(1)
        assert not database.exists()
        assert os.fstat(file.fileno()).st_size == 1


def test_a_manifest_of_a_later_format(backups: BackupDirectory) -> None:
    name = make(backups)
    (backups.path / name / "manifest.json").write_text('{"format": 2, "leveret": "9.9", "contents": []}')
    with pytest.raises(BackupFailed, match=r"has format version 2, .* install leveret 9\.9 or later") as caught:
        backups.read(name)
    assert not isinstance(caught.value, BackupDamaged)


def test_a_damaged_manifest(backups: BackupDirectory) -> None:
    name = make(backups, "a/1")
    path = backups.path / name / "manifest.json"
    content = path.read_bytes()
    assert backups.read(name).started == json.loads(content)["manifest"]["started"] == 1.5
    changed = [content[:size] for size in (0, 1, len(content) // 2, len(content) - 3)]
    changed += [content.replace(b'"a/1"', b'"a/2"'), content.replace(b'"problems": []', b'"problems": [""]')]
    changed += [content.replace(b"1.5", b"1.6"), content.replace(b'"left_out"', b'"lost"')]
    for damaged in changed:
        assert damaged != content
        path.write_bytes(damaged)
        with pytest.raises(BackupDamaged) as caught:
            backups.read(name)
        assert str(path) in str(caught.value)


def test_files_outside_of_the_backup(backups: BackupDirectory) -> None:
    for path in ("../outside", "/outside", "a/../../outside"):
        name = make(backups)
        manifest = backups.read(name)
        manifest.logs[0].segments.append(CopiedSegment(path=path, bytes=0, crc32=0))
        (backups.path / name).rename(backups.path / f"{name}.incomplete")
        backups.complete(name, manifest)
        with pytest.raises(BackupDamaged, match="it names files outside of the backup"):
            backups.read(name)


def test_symbolic_links_are_not_linked(tmp_path: Path) -> None:
    """A link to a link would not keep the segment."""
    (tmp_path / "far").write_bytes(b"segment")
    (tmp_path / "link").symlink_to("far")
    source = find_segments(str(tmp_path), "")
    assert not source.is_remote
    assert not source.link("link", 7, tmp_path / "target")
    assert not source.link("far", 8, tmp_path / "target")
    assert source.link("far", 7, tmp_path / "target") and (tmp_path / "target").samefile(tmp_path / "far")


def test_urls(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"segment")
    assert not find_segments(f"file://{tmp_path}", "").is_remote
    source = find_segments(f"local://{tmp_path}", "")
    assert source.is_remote and not source.link("a", 7, tmp_path / "target")
    file = source.open("a")
    assert file is not None and file.read() == b"segment"
    assert source.open("missing") is None
    assert find_segments("s3://key:secret@bucket/streams", "").location("a") == "s3://***@bucket/streams/a"
    with pytest.raises(BackupFailed, match="segment unknown://bucket/a: it cannot be opened"):
        find_segments("unknown://bucket", "").open("a")
    (tmp_path / "options.json").write_text("[]")
    for options, why in (("missing.toml", "No such file"), ("options.json", "it is not a single table")):
        with pytest.raises(BackupFailed, match=rf"'streams\.storage_options_file': .*{why}"):
            find_segments("s3://bucket", str(tmp_path / options))
