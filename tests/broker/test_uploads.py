"""Upload contents: uploads that survive their sender's connection, in memory and in files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from leveret.broker.bodies import StoredBody, whole
from leveret.broker.errors import (
    BrokerError,
    ContentTooLarge,
    PreconditionFailed,
    ResourceError,
    ResourceLocked,
    StorageFailed,
)
from leveret.broker.log import CommitWaiter, Recovery
from leveret.broker.metadata import SALVAGED, STAGED, VHOST, make_key, pack
from leveret.broker.uploads import IN_MEMORY, MAX_CHECKPOINTS, SYNC_BYTES, SyncCallback, Upload, UploadSettings
from leveret.storage.memory import MemoryLog
from leveret.storage.upload_files import DIRECTORY, UploadFiles
from tests.broker.support import World

ALICE = object()
BOB = object()


@pytest.fixture(params=["memory", "files"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[World]:
    world = World()
    if request.param == "files":
        world.broker.uploads.place = UploadFiles(tmp_path, 0)
    yield world


def begin(
    world: World, size: int | None = 6, *, identifier: str = "one", user: str = "alice", owner: object = ALICE
) -> Upload:
    return world.broker.uploads.open("/", user, "file", identifier, size, owner)


def test_an_interrupted_upload_is_resumed(world: World) -> None:
    staged = begin(world)
    staged.append(b"abc")
    staged.detach()
    again = begin(world, owner=BOB)
    assert again is staged and again.size == 3 and not again.complete
    again.append(b"def")
    again.describe(b"header")
    assert again.complete and whole_of(again) == b"abcdef"


def whole_of(staged: Upload) -> bytes:
    return whole(staged.finish())


def test_uploads_of_others_are_other_uploads(world: World) -> None:
    begin(world).append(b"abc")
    assert begin(world, user="bob").size == 0
    assert world.broker.uploads.open("/", "alice", "message", "one", 6, ALICE).size == 0
    assert world.broker.uploads.open("other", "alice", "file", "one", 6, ALICE).size == 0


@pytest.mark.parametrize("owner", [ALICE, BOB], ids=["alice", "bob"])
def test_an_upload_has_one_sender(world: World, owner: object) -> None:
    begin(world)
    with pytest.raises(ResourceLocked, match="'one' is already open"):
        begin(world, owner=owner)


def test_another_sender_may_take_it_over(world: World) -> None:
    staged = begin(world)
    turn = staged.turn
    uploads = world.broker.uploads
    with pytest.raises(ResourceLocked):
        uploads.open("/", "alice", "file", "one", 6, ALICE, take_over=True)
    assert uploads.open("/", "alice", "file", "one", 6, BOB, take_over=True) is staged
    assert staged.turn != turn
    staged.taken = True
    with pytest.raises(ResourceLocked):
        uploads.open("/", "alice", "file", "one", 6, ALICE, take_over=True)


def test_another_size_is_another_content(world: World) -> None:
    staged = begin(world)
    staged.append(b"abc")
    staged.detach()
    assert begin(world, 7).size == 0
    assert len(world.broker.uploads.by_key) == 1


def test_an_upload_cannot_exceed_its_announced_size(world: World) -> None:
    staged = begin(world, 3)
    staged.append(b"abc")
    with pytest.raises(ContentTooLarge, match="expected 3 bytes, got 4"):
        staged.append(b"d")
    assert staged.size == 3


def test_the_limits(world: World) -> None:
    world.broker.uploads.settings = UploadSettings(max_per_user=1, max_bytes=5)
    with pytest.raises(ContentTooLarge, match=r"uploads\.max_bytes"):
        begin(world, 6)
    staged = begin(world, None)
    staged.append(b"abcde")
    with pytest.raises(ContentTooLarge, match=r"uploads\.max_bytes"):
        staged.append(b"f")
    with pytest.raises(ResourceError, match=r"uploads\.max_per_user"):
        begin(world, 1, identifier="two")
    begin(world, 1, identifier="two", user="bob")
    staged.published()
    begin(world, 1, identifier="two")


def test_an_upload_that_is_not_resumed_is_discarded(world: World) -> None:
    world.broker.uploads.settings = UploadSettings(timeout=1000)
    begin(world, identifier="kept")
    begin(world, identifier="left").detach()
    world.sleep(500)
    world.sleep(2000)
    assert [key[3] for key in world.broker.uploads.by_key] == ["kept"]


def test_uploads_are_removed_with_their_vhost(world: World) -> None:
    begin(world)
    world.broker.remove_vhost("/")
    assert not world.broker.uploads.by_key


def test_only_small_bodies_are_in_memory(tmp_path: Path) -> None:
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    small, large = begin(world, None, identifier="small"), begin(world, None, identifier="large")
    small.append(b"s" * IN_MEMORY)
    large.append(b"l" * IN_MEMORY)
    large.append(b"!")
    assert small.finish() == b"s" * IN_MEMORY
    body = large.finish()
    assert isinstance(body, StoredBody) and body.read(IN_MEMORY - 1, 10) == b"l!"


def test_a_file_is_removed_with_its_body(tmp_path: Path) -> None:
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    staged = begin(world, None)
    staged.append(b"x" * (IN_MEMORY + 1))
    body = staged.finish()
    staged.published()
    del staged
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1
    assert whole(body)[-1:] == b"x"
    world.run()
    del body
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_a_file_stays_until_its_publish_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    waiting: list[CommitWaiter] = []
    monkeypatch.setattr(MemoryLog, "has_pending", lambda log: True)
    monkeypatch.setattr(MemoryLog, "wait", lambda log, waiter: waiting.append(waiter))
    for identifier in ("one", "two"):
        staged = begin(world, identifier=identifier)
        staged.append(b"abcdef")
        staged.describe(b"header")
        assert whole_of(staged) == b"abcdef"
        staged.published()
        del staged
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 2
    waiting.pop().committed(1)
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1
    # The process ends, and it is unknown whether the other commit has reached the disk.
    world.broker.uploads.close()
    del world, waiting[:]
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1


def test_an_upload_in_progress_is_synced_one_sync_at_a_time(world: World) -> None:
    syncing: list[SyncCallback] = []
    world.broker.uploads.sync = lambda body, synced: syncing.append(synced)  # type: ignore[method-assign]
    piece = b"x" * (SYNC_BYTES // 2)
    staged = begin(world, 10 * len(piece))
    synced = []
    for _ in range(5):
        staged.append(piece)
        staged.release()
        synced.append(len(syncing))
    assert synced == [0, 1, 1, 1, 1]
    syncing.pop()(None)
    world.run()
    assert staged.synced == SYNC_BYTES
    staged.release()
    assert len(syncing) == 1
    syncing.pop()(None)
    world.run()
    assert staged.synced == 5 * len(piece)
    # A sync that fails does not prevent the next one.
    staged.append(piece * 2)
    staged.release()
    syncing.pop()(StorageFailed("cannot sync the upload: Input/output error"))
    staged.release()
    assert len(syncing) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_crash_only_synced_bytes_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool) -> None:
    """After a power cut, the rest may be anything, for example zeros."""
    world = World()
    known: dict[tuple[str, str], bytes | None] = {(VHOST, make_key("/")): b""}
    monkeypatch.setattr(world.log, "put", lambda kind, key, value: known.update({(kind, key): value}))
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    staged = begin(world)
    staged.append(b"abc")
    errors: list[BrokerError | None] = []
    staged.confirm(errors.append)
    world.run()
    assert errors == [None] and staged.synced == 3
    staged.append(b"de")
    world.broker.uploads.close()

    after = World()
    after.broker.uploads.place = UploadFiles(tmp_path, 0)
    recovery = Recovery()
    recovery.clean = clean
    recovery.metadata.update({key: value for key, value in known.items() if value is not None})
    after.broker.recover(recovery)
    assert begin(after).size == (5 if clean else 3)


def test_another_broker_takes_over_uploads_in_a_shared_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    world = World()
    known: dict[tuple[str, str], bytes | None] = {(VHOST, make_key("/")): b""}
    monkeypatch.setattr(world.log, "put", lambda kind, key, value: known.update({(kind, key): value}))
    world.broker.uploads.place = UploadFiles(tmp_path / "first", 0, shared)
    world.broker.recover(Recovery())
    staged = begin(world)
    staged.append(b"abc")
    staged.checkpoint("here", lambda error: None)
    unsent = begin(world, identifier="unsent")
    world.run()
    monkeypatch.setattr(world.log, "is_silent", lambda: True)

    def take_over() -> World:
        after = World()
        after.broker.uploads.place = UploadFiles(tmp_path / "second", 0, shared)
        recovery = Recovery()
        recovery.metadata.update({key: value for key, value in known.items() if value is not None})
        after.broker.recover(recovery)
        return after

    after = take_over()
    there = begin(after)
    assert there.size == 3 and begin(after, identifier="unsent").size == 0
    # The former broker, which does not know yet that it was taken over, leaves the files alone.
    with pytest.raises(StorageFailed, match=r"cluster\.lease.*resume"):
        staged.append(b"old")
    with pytest.raises(StorageFailed, match="'new' is interrupted"):
        begin(world, identifier="new")
    with pytest.raises(StorageFailed, match="'here' is interrupted"):
        world.broker.uploads.resume("/", "alice", "file", "here", BOB)
    staged.discard()
    world.broker.uploads.sweep(world.broker.timers.now() + (1 << 40))
    del staged, unsent
    there.append(b"def")
    there.describe(b"header")
    assert whole_of(there) == b"abcdef"
    # Another log does not remove what is not its own.
    other = World()
    other.broker.uploads.place = UploadFiles(tmp_path / "third", 0, shared)
    other.broker.recover(Recovery())
    assert len([path for path in shared.rglob("*") if path.is_file()]) == 2


def test_uploads_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    metadata = {(VHOST, make_key("/")): b""}

    def put(kind: str, key: str, value: bytes | None) -> None:
        if value is None:
            del metadata[kind, key]
        else:
            metadata[kind, key] = value

    monkeypatch.setattr(world.log, "put", put)
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    staged = begin(world)
    staged.append(b"abc")
    errors: list[BrokerError | None] = []
    staged.checkpoint("here", errors.append)
    staged.describe(b"header")
    begin(world, identifier="published").published()
    world.run()
    assert errors == [None]
    (tmp_path / DIRECTORY / "orphan").write_bytes(b"?")
    world.broker.uploads.close()
    del staged

    after = World()
    after.broker.uploads.place = UploadFiles(tmp_path, 0)
    recovery = Recovery()
    recovery.metadata.update(metadata)
    after.broker.recover(recovery)
    assert [key[3] for key in after.broker.uploads.by_key] == ["one"]
    found = begin(after)
    assert (found.size, found.header, found.checkpoints) == (3, b"header", {"here": 3})
    found.append(b"def")
    assert whole_of(found) == b"abcdef"
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1


def restarted(place: Path, stored: dict[tuple[str, str], bytes]) -> None:
    """Recover a broker from these definitions, and change them as it does."""
    world = World()
    world.broker.uploads.place = UploadFiles(place, 0)
    recovery = Recovery()
    recovery.metadata.update(stored)
    put: dict[tuple[str, str], bytes | None] = {}
    world.broker.log.put = lambda kind, key, value: put.update({(kind, key): value})  # type: ignore[method-assign]
    world.broker.recover(recovery)
    for key, value in put.items():
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value


def test_files_stay_after_parts_of_the_log_were_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At every later start, too; leftovers of failures after that are removed as usual."""
    directory = tmp_path / DIRECTORY
    directory.mkdir()
    (directory / "unknown").write_bytes(b"abc")
    (directory / "of a lost vhost").write_bytes(b"def")
    stored = {
        (SALVAGED, "staged"): pack({}),
        (STAGED, make_key("lost", "alice", "file", "one")): pack(
            {"file": "of a lost vhost", "size": 3, "header": b"", "checkpoints": {}}
        ),
    }
    restarted(tmp_path, stored)
    assert sorted(os.listdir(directory)) == ["of a lost vhost", "unknown"]
    assert "2 files of staged have no definition and are kept" in caplog.text
    (directory / "later").write_bytes(b"ghi")
    restarted(tmp_path, stored)
    assert sorted(os.listdir(directory)) == ["of a lost vhost", "unknown"]
    (directory / "unknown").unlink()
    restarted(tmp_path, stored)
    (directory / "unknown").write_bytes(b"another one")
    restarted(tmp_path, stored)
    assert os.listdir(directory) == ["of a lost vhost"]


def test_a_checkpoint_is_confirmed_once_it_is_on_disk(tmp_path: Path) -> None:
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    calls: list[object] = []
    world.broker.uploads.start(calls.append)
    staged = begin(world)
    staged.append(b"abc")
    kept: list[BrokerError | None] = []
    staged.checkpoint("here", kept.append)
    world.broker.uploads.close()  # ends the thread once it has synced
    assert not kept and not staged.checkpoints
    for call in calls:
        assert callable(call)
        call()
    world.run()
    assert kept == [None] and staged.checkpoints == {"here": 3}


def test_an_upload_without_room_is_refused_at_once(tmp_path: Path) -> None:
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 1 << 60)
    with pytest.raises(ContentTooLarge, match=r"limits\.disk_free"):
        begin(world)
    assert not world.broker.uploads.by_key and not list((tmp_path / DIRECTORY).iterdir())


def test_announced_sizes_reserve_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 10)
    first = begin(world, 20, identifier="a")
    with pytest.raises(ContentTooLarge):
        begin(world, 20, identifier="b")
    first.discard()
    del first
    begin(world, 20, identifier="b")


# Checkpoints


def refer(world: World, owner: object = ALICE) -> Upload:
    return world.broker.uploads.begin("/", "alice", "message", owner)


def check(world: World, staged: Upload, name: str = "c") -> None:
    kept: list[BrokerError | None] = []
    staged.checkpoint(name, kept.append)
    world.run()
    assert kept == [None]


def resume(world: World, name: str = "c", owner: object = ALICE, user: str = "alice") -> Upload | None:
    return world.broker.uploads.resume("/", user, "message", name, owner)


def test_it_is_resumed_at_its_checkpoint(world: World) -> None:
    staged = refer(world)
    staged.append(b"abc")
    check(world, staged)
    staged.append(b"lost")
    staged.detach()
    assert resume(world) is staged and staged.size == 3
    staged.append(b"def")
    assert whole_of(staged) == b"abcdef"
    staged.published()
    assert resume(world, owner=BOB) is None


def test_bytes_that_a_backup_copies_are_not_truncated(world: World, tmp_path: Path) -> None:
    place = world.broker.uploads.place = UploadFiles(tmp_path, 0)
    staged = refer(world)
    staged.append(b"abc")
    staged.checkpoints = {"early": 1, "late": 3}
    world.broker.uploads.checkpoints.update({("/", "alice", "message", name): staged for name in ("early", "late")})
    staged.detach()
    place.pin()
    with pytest.raises(ResourceLocked, match="a later checkpoint than 'early'"):
        resume(world, "early")
    assert resume(world, "late") is staged and staged.size == 3
    staged.detach()
    place.unpin()
    assert resume(world, "early") is staged and staged.size == 1


def test_a_checkpoint_is_of_its_user_and_kind(world: World) -> None:
    staged = refer(world)
    check(world, staged)
    assert resume(world, user="bob") is None
    assert world.broker.uploads.resume("/", "alice", "file", "c", BOB) is None


def test_it_is_resumed_by_one_sender_at_a_time(world: World) -> None:
    staged = refer(world)
    check(world, staged)
    turn = staged.turn
    with pytest.raises(ResourceLocked, match="'c' is already open"):
        resume(world)
    assert resume(world, owner=BOB) is staged and staged.turn == turn + 1
    staged.taken = True
    with pytest.raises(ResourceLocked):
        resume(world)


def test_the_last_checkpoint_names_it(world: World) -> None:
    staged = refer(world)
    for name in ("a", "b", "a"):
        staged.append(b"x")
        check(world, staged, name)
    assert staged.identifier == "a" and staged.checkpoints == {"b": 2, "a": 3}
    staged.detach()
    assert resume(world, "b") is staged and staged.size == 2
    assert staged.identifier == "b" and resume(world, "a", BOB) is None


def test_a_checkpoint_belongs_to_the_newest_content(world: World) -> None:
    first, second = refer(world), refer(world)
    first.append(b"first")
    check(world, first)
    check(world, first, "also")
    second.append(b"second")
    check(world, second)
    first.detach()
    second.detach()
    assert resume(world) is second and resume(world, "also") is first
    first.detach()
    third = refer(world)
    check(world, third, "also")
    assert first not in world.broker.uploads.by_key.values()


def test_a_superseded_checkpoint_is_invalid(world: World) -> None:
    calls: list[object] = []
    staged = refer(world)
    staged.append(b"abc")
    check(world, staged)
    staged.append(b"def")
    kept: list[BrokerError | None] = []
    world.broker.uploads.sync = lambda body, synced: calls.append(synced)  # type: ignore[method-assign]
    staged.checkpoint("c", kept.append)
    assert resume(world, owner=BOB) is staged
    for call in calls:
        call(None)  # type: ignore[operator]
    (error,) = kept
    assert isinstance(error, ResourceLocked) and staged.checkpoints == {"c": 3}


def test_the_number_of_checkpoints_is_limited(world: World) -> None:
    staged = refer(world)
    for number in range(MAX_CHECKPOINTS):
        check(world, staged, str(number))
    with pytest.raises(PreconditionFailed, match="64 checkpoints"):
        staged.checkpoint("another", lambda error: None)


def test_uploads_without_a_name_count(world: World) -> None:
    world.broker.uploads.settings = UploadSettings(max_per_user=1)
    staged = refer(world)
    with pytest.raises(ResourceError):
        refer(world)
    staged.discard()
    refer(world)


def test_checkpoints_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    metadata = {(VHOST, make_key("/")): b""}

    def put(kind: str, key: str, value: bytes | None) -> None:
        if value is None:
            del metadata[kind, key]
        else:
            metadata[kind, key] = value

    monkeypatch.setattr(world.log, "put", put)
    world.broker.uploads.place = UploadFiles(tmp_path, 0)
    staged, short, none = refer(world), refer(world), refer(world)
    for upload in (staged, short, none):
        upload.append(b"abc")
    check(world, staged)
    check(world, short, "short")
    discarded = refer(world)
    check(world, discarded, "discarded")
    discarded.discard()
    staged.append(b"def")
    world.broker.uploads.close()
    (tmp_path / DIRECTORY / short.name).write_bytes(b"ab")
    assert len(metadata) == 3

    after = World()
    after.broker.uploads.place = UploadFiles(tmp_path, 0)
    recovery = Recovery()
    recovery.metadata.update(metadata)
    after.broker.recover(recovery)
    assert resume(after, "short") is None and resume(after, "discarded") is None
    found = resume(after)
    assert found is not None and found.size == 3
    found.append(b"DEF")
    assert whole_of(found) == b"abcDEF"
    assert [path.name for path in (tmp_path / DIRECTORY).iterdir()] == [found.name]


def test_a_content_of_unknown_size_needs_room_for_its_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    world = World()
    world.broker.uploads.place = UploadFiles(tmp_path, 10)
    staged = refer(world)
    staged.append(b"x" * 45)
    with pytest.raises(ContentTooLarge, match=r"limits\.disk_free"):
        staged.append(b"x")
    assert staged.size == 45
