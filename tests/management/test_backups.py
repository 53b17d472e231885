"""The broker's part in a backup: one at a time, renewed by its command, and only if there is something to copy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.log import LogCopy
from leveret.config import Config
from leveret.management.backups import TIMEOUT, Backups
from leveret.storage.upload_files import UploadFiles
from tests.broker.streams.segment_store import MemoryStore
from tests.broker.support import HeldLog, World


class FakeCopy(LogCopy):
    def __init__(self, path: str, keep_free: int) -> None:
        super().__init__()
        self.path = path
        self.keep_free = keep_free
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class CopiedLog(HeldLog):
    """A log whose copies never end."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[FakeCopy] = []

    def copy_to(self, path: str, keep_free: int) -> LogCopy:
        self.copies.append(FakeCopy(path, keep_free))
        return self.copies[-1]


def make(tmp_path: Path, **storage: str) -> tuple[World, CopiedLog, Backups]:
    data = tmp_path / "data"
    data.mkdir()
    log = CopiedLog()
    world = World(log=log, store=MemoryStore())
    world.broker.uploads.place = UploadFiles(data, 0)
    config = Config()
    config = msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, data_dir=str(data)),
        storage=msgspec.structs.replace(config.storage, **storage),
        streams=msgspec.structs.replace(config.streams, directory=str(tmp_path / "s")),
    )
    return world, log, Backups(world.broker, config)


def pins(world: World) -> tuple[bool, bool]:
    assert world.broker.segments is not None and world.broker.uploads.place is not None
    return world.broker.segments.leases.pinned_until > world.clock.time, world.broker.uploads.place.is_pinned


def test_one_at_a_time(tmp_path: Path) -> None:
    world, log, backups = make(tmp_path)
    backups.start(tmp_path / "one")
    assert pins(world) == (True, True)
    with pytest.raises(PreconditionFailed, match=r"a backup to .*/one is in progress"):
        backups.start(tmp_path / "two")
    with pytest.raises(PreconditionFailed, match=r"no backup to .*/two is in progress"):
        backups.show(tmp_path / "two")
    backups.end(tmp_path / "two")
    assert pins(world) == (True, True)
    backups.end(tmp_path / "one")
    assert pins(world) == (False, False)
    backups.start(tmp_path / "two")
    assert [copy.path for copy in log.copies] == [str(tmp_path / name / "log-0.sqlite") for name in ("one", "two")]
    assert [copy.is_cancelled for copy in log.copies] == [True, False]


def test_it_ends_without_its_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world, log, backups = make(tmp_path)
    backups.start(tmp_path / "copy")
    world.sleep(TIMEOUT - 1)
    backups.show(tmp_path / "copy")
    world.sleep(TIMEOUT - 1)
    assert pins(world) == (True, True) and not log.copies[0].is_cancelled and not caplog.messages
    world.sleep(2)
    assert caplog.messages == [f"ended the backup to {tmp_path}/copy: `leveret backup` has not renewed it for 60 seconds"]
    assert pins(world) == (False, False) and log.copies[0].is_cancelled
    with pytest.raises(PreconditionFailed, match="heard nothing from `leveret backup` for 60 seconds"):
        backups.show(tmp_path / "copy")


def test_refusals(tmp_path: Path) -> None:
    _, log, backups = make(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "file").touch()
    for name, setting in (
        ("data/copy", "server.data_dir"),
        ("link/copy", "server.data_dir"),
        ("s/copy", "streams.directory"),
    ):
        with pytest.raises(PreconditionFailed, match=rf"the backup .*/{name} is in the directory .* \('{setting}'\)"):
            backups.start(tmp_path / name)
    with pytest.raises(PreconditionFailed, match=r"use the directory .*/file/copy: Not a directory.*ReadWritePaths="):
        backups.start(tmp_path / "file/copy")
    assert not log.copies


@pytest.mark.parametrize(
    ("engine", "why"), [("postgresql", "with pg_basebackup, as docs/cluster.md"), ("memory", "stores nothing")]
)
def test_other_engines_are_refused(tmp_path: Path, engine: str, why: str) -> None:
    _, _, backups = make(tmp_path, engine=engine)
    with pytest.raises(PreconditionFailed, match=f"'storage.engine' is '{engine}'.*{why}"):
        backups.start(tmp_path / "copy")


def test_space_for_the_broker_is_left_on_its_disk(tmp_path: Path) -> None:
    _, log, backups = make(tmp_path)
    config = Config()
    backups.start(tmp_path / "copy")
    assert log.copies[0].keep_free == config.limits.disk_free + config.storage.reserve > 0
