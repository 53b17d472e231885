"""`leveret backup` of a running broker, and `leveret restore`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leveret import sync
from leveret.cli.app import leveret
from leveret.management.control_client import NoBroker, call
from leveret.node.backup.copies import FileCopier
from leveret.node.backup.directory import BackupDirectory, BackupFailed
from leveret.node.backup.log_copies import LogCopier
from leveret.node.backup.stored import StoredBackup
from leveret.node.backup.writing import BackupWriter
from leveret.storage import disk
from leveret.storage.data_directory import DirectoryLock
from tests.cli.runner import Commands
from tests.cli.test_upload_commands import upload
from tests.support.broker import ROOT, LeveretProcess, basic_config, leveret_only
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until

CONFIG = basic_config() + '[streams]\ngrace = "0s"\nmerge_below = "0"\n'
# In several chunks of the log.
LARGE = b"large" * 700_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker with a queue, a stream with a segment, an upload and a user."""
    leveret_only("commands talk to its control socket")
    with LeveretProcess(tmp_path_factory.mktemp("broker"), config=CONFIG).start() as process:
        commands = Commands(process.data_dir)
        commands.ok("users", "add", "ana", "--no-password")
        with sync.connect(process.url()) as connection, connection.open_channel() as channel:
            channel.declare_queue("orders", durable=True)
            channel.publish(LARGE, "orders", persistent=True)
        seal_stream(process, "events", 20)
        client = Client(process)
        client.call("message.open", "message.ok", reference="r")
        client.call("message.append", "message.ok", reference="r", bytes=b"u" * 40)
        client.call("message.checkpoint", "message.ok", reference="r", identifier="part")
        yield process
        process.check_log()


@pytest.fixture
def commands(broker: LeveretProcess) -> Commands:
    return Commands(broker.data_dir)


def seal_stream(broker: LeveretProcess, name: str, messages: int) -> Path:
    """Publish to a new stream, and seal it. Returns the path of the segment."""
    with sync.connect(broker.url()) as connection, connection.open_channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
        for number in range(messages):
            channel.publish(b"%d" % number, name, headers={"n": number})
    commands = Commands(broker.data_dir)
    commands.ok("streams", "seal", name)
    [segment] = commands.json("streams", "segments", name)
    return Path(segment["path"])


def restore(directory: Path, data: Path, *more: str) -> Result:
    return CliRunner().invoke(leveret, ["restore", str(directory), "--data-dir", str(data), *more])


def restored(directory: Path, data: Path, *more: str) -> str:
    """Restore a backup. Returns the output."""
    result = restore(directory, data, *more)
    assert result.exit_code == 0, result.output
    return result.output


def refused(directory: Path, data: Path, *more: str) -> str:
    """Return the error of a restore, which leaves nothing behind."""
    result = restore(directory, data, *more)
    assert result.exit_code == 1 and result.output.startswith("Error: "), result.output
    assert not data.exists()
    return result.output


def checked(directory: Path, code: int, *more: str) -> str:
    """Return the output of a check with this exit code."""
    result = CliRunner().invoke(leveret, ["restore", str(directory), "--check", *more])
    assert result.exit_code == code, result.output
    return result.output


def latest(directory: Path) -> Path:
    return directory / BackupDirectory(directory).names()[-1]


class Publisher(threading.Thread):
    """Publishes numbers with confirms until it is stopped."""

    def __init__(self, broker: LeveretProcess, queue: str) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._queue = queue
        self._stopped = threading.Event()
        self.confirmed = 0

    def run(self) -> None:
        with sync.connect(self._broker.url()) as connection, connection.open_channel() as channel:
            while not self._stopped.is_set():
                channel.publish(b"%d" % (self.confirmed + 1), self._queue, persistent=True)
                self.confirmed += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def drained(broker: LeveretProcess, queue: str) -> list[bytes]:
    with sync.connect(broker.url()) as connection, connection.open_channel() as channel:
        return [bytes(message.body) for message in iter(lambda: channel.get(queue), None)]


def test_everything_confirmed_before_is_restored(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    commands.ok("queues", "add", "load")
    publisher = Publisher(broker, "load")
    publisher.start()
    wait_until(lambda: publisher.confirmed > 50, "nothing was confirmed")
    before = publisher.confirmed
    said = commands.ok("backup", str(tmp_path / "backups"))
    publisher.stop()
    assert "is complete" in said and "segments: 1, of which 1 linked, 0 copied, 0 unchanged" in said
    segment = next(path for path in (tmp_path / "backups/segments").rglob("*") if path.is_file())
    assert segment.stat().st_ino == next((broker.data_dir / "streams").rglob(segment.name)).stat().st_ino

    said = restored(tmp_path / "backups", tmp_path / "new")
    assert f"restored backup {latest(tmp_path / 'backups').name}" in said
    assert "everything is intact" in CliRunner().invoke(leveret, ["check", str(tmp_path / "new")]).output
    with LeveretProcess(tmp_path / "second", config=CONFIG, data_dir=tmp_path / "new").start() as second:
        numbers = [int(body) for body in drained(second, "load")]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= before
        assert drained(second, "orders") == [LARGE]
        new = Commands(second.data_dir)
        assert "ana" in [user["name"] for user in new.json("users")]
        assert new.json("streams", "segments", "events")[0]["count"] == 20
        offset = Client(second).call("message.resume", "message.offset", reference="r", identifier="part")
        assert offset["value"] == 40
        [end, *_] = [record for record in new.json("audit") if record["kind"] == "backup"]
        assert end["action"] == "backup.start" and str(tmp_path / "backups") in end["name"]
        second.check_log()


def test_unchanged_segments_are_not_copied_again(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    first = commands.json("backup", str(backups))
    path = seal_stream(broker, "more", 5)
    kept = {found: found.stat() for found in (backups / "segments").rglob("*") if found.is_file()}
    second = commands.json("backup", str(backups), "--keep", "2")
    assert second["segments"] == {"linked": 1, "copied": 0, "unchanged": first["segments"]["linked"], "left_out": 0}
    for found, status in kept.items():
        assert (found.stat().st_ino, found.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert BackupDirectory(backups).names() == [first["name"], second["name"]]
    # Only the latest one stays, with its segments. The stream is gone.
    commands.ok("queues", "delete", "more")
    third = commands.json("backup", str(backups))
    assert BackupDirectory(backups).names() == [third["name"]]
    assert path.name not in [found.name for found in (backups / "segments").rglob("*")]
    assert f"expected one of {third['name']}" in refused(backups, tmp_path / "new", "--backup", first["name"])


def test_segments_are_copied_to_another_file_system(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link", str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)
    found = commands.json("backup", str(tmp_path / "backups"))
    assert found["segments"]["linked"] == 0 and found["segments"]["copied"] >= 1
    restored(tmp_path / "backups", tmp_path / "new")


def test_files_stay_until_the_end_of_a_backup(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    """Neither an erased segment nor a published upload is removed while a backup may copy it."""
    path = seal_stream(broker, "erased", 10)
    client = Client(broker)
    upload(client, "whole", 30, b"y" * 30)
    call(broker.data_dir, "backup.start", {"directory": str(tmp_path / "copy")})
    before = set((broker.data_dir / "staged").iterdir())
    commands.ok("streams", "erase", "erased", "--where", "selector=n = 1", "--remove")
    assert commands.json("streams", "segments", "erased")[0]["path"] != str(path)
    commands.ok("uploads", "discard", "whole")
    # Removals are due at once. A later one of the same timer would have taken these along.
    call(broker.data_dir, "backup.show", {"directory": str(tmp_path / "copy")})
    assert path.exists() and set((broker.data_dir / "staged").iterdir()) == before
    other = {"directory": str(tmp_path / "other")}
    assert "a backup to" in commands.refused("backup", str(tmp_path / "third"))
    call(broker.data_dir, "backup.end", {**other, "complete": True})
    assert path.exists()
    call(broker.data_dir, "backup.end", {"directory": str(tmp_path / "copy"), "complete": False})
    wait_until(lambda: not path.exists(), "the segment was not removed")
    assert len(set((broker.data_dir / "staged").iterdir())) == len(before) - 1


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # it may be a hard link
    path.write_bytes(content)


@pytest.mark.one_process("it damages each file of the only log")
def test_a_damaged_backup_is_refused_by_the_name_of_the_file(commands: Commands, tmp_path: Path) -> None:
    commands.ok("backup", str(tmp_path / "backups"))
    name = latest(tmp_path / "backups").name
    manifest = json.loads((tmp_path / "backups" / name / "manifest.json").read_text())["manifest"]
    [log] = manifest["logs"]
    files = [Path(name, file["path"]) for file in log["files"]] + [Path("segments", log["segments"][0]["path"])]
    assert {file.parts[1] for file in files[:3]} == {"log-0.sqlite", "staged", "audit.sqlite"}
    changes: list[tuple[Path, Callable[[Path], None]]] = [(file, damage) for file in [*files, Path(name, "manifest.json")]]
    changes += [(file, Path.unlink) for file in files]
    changes += [(files[-1], lambda path: os.truncate(path, 10))]
    for file, change in changes:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "backups", copy)
        change(copy / file)
        assert str(copy / file) in refused(copy, tmp_path / "new")
        assert str(copy / file) in checked(copy, 1)
        shutil.rmtree(copy)


def test_a_manifest_without_a_file(commands: Commands, tmp_path: Path) -> None:
    """The databases name all files that a backup needs."""
    directory = tmp_path / "backups"
    commands.ok("backup", str(directory))
    name = latest(directory).name
    assert f"backup {name} of" in checked(directory, 0)
    backups = BackupDirectory(directory)
    for kept, left in (("segments", "files"), ("files", "segments")):
        manifest = backups.read(name)
        lost = getattr(manifest.logs[0], left).pop(1 if left == "files" else 0)
        shutil.copytree(directory, tmp_path / kept)
        copy = BackupDirectory(tmp_path / kept)
        (copy.path / name).rename(copy.path / f"{name}.incomplete")
        copy.complete(name, manifest)
        for said in (refused(copy.path, tmp_path / "new"), checked(copy.path, 1)):
            assert "manifest.json is damaged: it lacks the file" in said and Path(lost.path).name in said


def test_the_progress_of_a_check(commands: Commands, tmp_path: Path) -> None:
    """It advances inside of a file, as a database may have nearly all of the data."""
    commands.ok("backup", str(tmp_path / "backups"))
    shown: list[str] = []
    stored = StoredBackup(BackupDirectory(tmp_path / "backups"), latest(tmp_path / "backups").name, shown.append)
    stored.check()
    size = stored.bytes >> 20
    assert size > 2 and set(shown[1:]) == {f"{done} of {size} MiB" for done in range(size + 1)} - {f"0 of {size} MiB"}


def test_a_damaged_log_is_not_backed_up(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not replace an intact backup."""
    backups = BackupDirectory(tmp_path / "backups")
    commands.ok("backup", str(backups.path))
    names = backups.names()
    wait = BackupWriter._wait

    def damaging(self: BackupWriter, path: Path) -> Any:
        found = wait(self, path)
        with contextlib.closing(sqlite3.connect(path / "log-0.sqlite")) as connection, connection:
            connection.execute("UPDATE log SET data = zeroblob(length(data)) WHERE id = (SELECT min(id) FROM log)")
        return found

    monkeypatch.setattr(BackupWriter, "_wait", damaging)
    said = commands.refused("backup", str(backups.path))
    assert "is damaged: row 1 of the log is damaged" in said and "keep the earlier backups" in said
    assert backups.names() == names and backups.interrupted() == []


def test_a_backup_that_lacks_something_replaces_none(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    backups = BackupDirectory(tmp_path / "backups")
    commands.ok("backup", str(backups.path))
    path = seal_stream(broker, "lost", 5)
    path.unlink()
    (broker.data_dir / "staged" / "gone").touch()
    result = commands.run("backup", str(backups.path))
    assert result.exit_code == 1 and f"MISSING   the segment {path} is missing" in result.output
    first, second = backups.names()
    said = checked(backups.path, 1)
    assert f"backup {second} of" in said and f"missing in the backup: the segment {path} is missing" in said
    assert "is intact" in checked(backups.path, 0, "--backup", first)
    assert "missing in the backup" in restored(backups.path, tmp_path / "new")
    commands.ok("queues", "delete", "lost")
    commands.ok("backup", str(backups.path))
    assert len(backups.names()) == 1


def test_the_broker_must_keep_files_to_the_end(
    broker: LeveretProcess, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was suspended finds that files may have been removed meanwhile."""
    copy_audit = LogCopier._copy_audit

    def suspended(self: LogCopier) -> None:
        call(broker.data_dir, "backup.end", {"directory": self._part.directory, "complete": False})
        copy_audit(self)

    monkeypatch.setattr(LogCopier, "_copy_audit", suspended)
    assert "no backup to" in commands.refused("backup", str(tmp_path / "backups"))
    assert os.listdir(tmp_path / "backups") == ["leveret-backups"] or BackupDirectory(tmp_path / "backups").names() == []


def test_segments_of_a_failed_backup_are_synced(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a power cut could remove them although a later backup is complete."""
    with monkeypatch.context() as patch:
        patch.setattr(FileCopier, "sync", failing)
        commands.refused("backup", str(tmp_path / "backups"))
    kept = next((tmp_path / "backups/segments").rglob("*.parquet")).parent
    synced = []
    sync_directory = disk.sync_directory

    def noted(path: str | Path) -> None:
        synced.append(Path(path))
        sync_directory(path)

    monkeypatch.setattr(disk, "sync_directory", noted)
    commands.ok("backup", str(tmp_path / "backups"))
    assert {kept, tmp_path / "backups/segments", tmp_path / "backups"} <= set(synced)
    synced.clear()
    commands.ok("backup", str(tmp_path / "backups"))
    assert kept not in synced


def failing(*_: object) -> Any:
    raise BackupFailed("it failed")


def test_copies_leave_the_broker_its_space(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=1000))
    said = commands.refused("backup", str(tmp_path / "backups"))
    assert "1000 bytes are free on the disk of the broker, which needs" in said and "limits.disk_free" in said
    assert BackupDirectory(tmp_path / "backups").names() == []


def test_a_restore_needs_space_and_its_directory(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = tmp_path / "backups"
    commands.ok("backup", str(backups))
    assert "is in the directory of backups" in refused(backups, backups / "segments/new")
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage
        patch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=1000))
        assert "1000 are free on the disk of" in refused(backups, tmp_path / "new")
    # Another restore to the same directory begins at the same time.
    check_databases = StoredBackup.check_databases
    locks = []

    def overtaken(self: StoredBackup) -> None:
        check_databases(self)
        locks.append(DirectoryLock(tmp_path / "new", "log-0.lock"))

    monkeypatch.setattr(StoredBackup, "check_databases", overtaken)
    result = restore(backups, tmp_path / "new")
    assert result.exit_code == 1 and "is in use by process" in result.output
    assert os.listdir(tmp_path / "new") == ["log-0.lock"]
    locks[0].release()


def test_modes_of_restored_files(commands: Commands, tmp_path: Path) -> None:
    """A backup may have been made readable, or read-only, on its way."""
    backups = tmp_path / "backups"
    commands.ok("backup", str(backups))
    for path in backups.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            path.unlink()  # it may be a hard link
            path.write_bytes(content)
            path.chmod(0o444)
    restored(backups, tmp_path / "new")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_file()}
    segments = {name: mode for name, mode in modes.items() if name.endswith(".parquet")}
    assert set(segments.values()) == {0o640} and {mode for name, mode in modes.items() if name not in segments} == {0o600}


def test_root_becomes_the_user_of_the_broker(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        data = Path(name, "data")
        data.mkdir()
        os.chown(data, 65534, 65534)
        command = [sys.executable, "-m", "leveret", "backup", str(Path(name, "backups")), "--data-dir", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
        assert done.returncode == 3, done.stderr
        marker = Path(name, "backups", "leveret-backups").stat()
        assert (marker.st_uid, marker.st_gid) == (65534, 65534)


def test_a_data_directory_that_does_not_exist(tmp_path: Path) -> None:
    result = Commands(tmp_path / "missing").run("backup", str(tmp_path / "backups"))
    assert result.exit_code == 3 and f"{tmp_path / 'missing'} does not exist" in result.output, result.output
    assert "--data-dir" in result.output and not (tmp_path / "backups").exists()


def test_refusals(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    assert "has other contents than backups" in commands.refused("backup", str(full))
    assert "is in the directory" in commands.refused("backup", str(broker.data_dir / "backups"))
    assert "run it there, without --url" in commands.mistaken("backup", str(tmp_path / "b"), "--url", "http://localhost")
    assert "no backups of Leveret" in refused(full, tmp_path / "new")
    assert "cannot be read" in refused(tmp_path / "missing", tmp_path / "new")
    commands.ok("backup", str(tmp_path / "backups"))
    result = restore(tmp_path / "backups", full)
    assert "is not empty: it has mine" in result.output and os.listdir(full) == ["mine"]
    neither = CliRunner().invoke(leveret, ["restore", str(tmp_path / "backups")])
    assert neither.exit_code == 2 and "expected the new data directory, --data-dir, or --check" in neither.output
    assert "leave out --data-dir" in checked(tmp_path / "backups", 2, "--data-dir", str(tmp_path / "new"))
    assert "has no backup 'x'" in checked(tmp_path / "backups", 4, "--backup", "x")
    assert "no backups of Leveret" in checked(full, 4)
    with BackupDirectory(tmp_path / "backups").lock():
        assert "another `leveret backup`" in checked(tmp_path / "backups", 4)
        assert "another `leveret backup`" in refused(tmp_path / "backups", tmp_path / "new")
        assert "another `leveret backup`" in commands.refused("backup", str(tmp_path / "backups"))


def test_a_killed_command(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    """An interrupted backup is not restored, the one before it can be, and the next backup removes it."""
    backups = tmp_path / "backups"
    waiting = (
        "import time, leveret.node.backup.directory as d; from leveret.cli.app import leveret;"
        "d.BackupDirectory.complete = lambda *_: (print('made', flush=True), time.sleep(600));"
        f"leveret(['backup', {str(backups)!r}, '--data-dir', {str(broker.data_dir)!r}])"
    )

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    def kill() -> str:
        """Kill a backup before its manifest is written. Returns the name of its directory."""
        process = subprocess.Popen([broker.python, "-c", waiting], stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        process.kill()
        process.communicate()
        [name] = BackupDirectory(backups).interrupted()
        # As the broker itself does after a minute.
        call(broker.data_dir, "backup.end", {"directory": str(backups / name), "complete": False})
        return name

    name = kill()
    assert f"no complete backup: {name} was interrupted" in refused(backups, tmp_path / "new")
    assert "was interrupted, and cannot be restored" in refused(
        backups, tmp_path / "new", "--backup", name.removesuffix(".incomplete")
    )
    commands.ok("backup", str(backups))
    assert BackupDirectory(backups).interrupted() == []
    complete = latest(backups).name
    kill()
    assert f"restored backup {complete}" in restored(backups, tmp_path / "new")


def test_a_killed_broker(tmp_path: Path) -> None:
    """A backup of a broker that is killed fails and leaves nothing; the next one of the restarted broker succeeds."""
    leveret_only("commands talk to its control socket")
    backups = BackupDirectory(tmp_path / "backups")
    backups.path.mkdir()
    backups.create()
    with LeveretProcess(tmp_path / "broker").start() as broker:

        def kill_after_start(name: str, /, **arguments: Any) -> Any:
            answer = call(broker.data_dir, name, arguments)
            if name == "backup.start":
                broker.kill()
            return answer

        with backups.lock(), pytest.raises(NoBroker):
            BackupWriter(backups, kill_after_start, lambda text: None).run()
        assert sorted(os.listdir(backups.path)) == ["leveret-backups"]
        broker.start()
        Commands(broker.data_dir).ok("backup", str(backups.path))
        others = tmp_path / "others"
        others.mkdir()
        (others / "leveret-backups").write_text('{"broker": "7c7d7b9e"}')
        assert "has backups of another broker, 7c7d7b9e" in Commands(broker.data_dir).refused("backup", str(others))
        assert os.listdir(others) == ["leveret-backups"]
        broker.check_log()
    restored(backups.path, tmp_path / "new")


def test_an_interrupted_restore_does_not_start(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.ok("backup", str(tmp_path / "backups"))
    from leveret.node.backup import restoring

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        shutil.copytree(tmp_path / "new", tmp_path / "left")
        raise Killed

    monkeypatch.setattr(restoring.Restorer, "_complete", killed)
    with pytest.raises(Killed):
        restore(tmp_path / "backups", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(RuntimeError, match=r"log-0\.sqlite is missing"):
        LeveretProcess(tmp_path / "second", data_dir=tmp_path / "left").start()


def test_segments_at_a_url(tmp_path: Path) -> None:
    """They are copied, or left out on request, which a check and a restore say."""
    leveret_only("commands talk to its control socket")
    place = f"local://{tmp_path}/bucket"
    config = CONFIG.replace("[streams]", f'[streams]\ndirectory = "{place}"')
    backups = tmp_path / "backups"
    with LeveretProcess(tmp_path / "broker", config=config).start() as broker:
        commands = Commands(broker.data_dir)
        seal_stream(broker, "events", 20)
        left_out = commands.json("backup", str(tmp_path / "others"), "--without-remote-segments")
        assert left_out["segments"] == {"linked": 0, "copied": 0, "unchanged": 0, "left_out": 1}
        for unchanged in range(2):
            found = commands.json("backup", str(backups))["segments"]
            assert found == {"linked": 0, "copied": 1 - unchanged, "unchanged": unchanged, "left_out": 0}
        broker.check_log()
    note = f"not in the backup: 1 segments in {place}"
    assert note in checked(tmp_path / "others", 0) and note in restored(tmp_path / "others", tmp_path / "other")
    assert "note" not in checked(backups, 0)
    assert f"what was in {place} is in {tmp_path / 'new/streams'}; move it there" in restored(backups, tmp_path / "new")
    with LeveretProcess(tmp_path / "second", config=CONFIG, data_dir=tmp_path / "new").start() as second:
        [segment] = Commands(second.data_dir).json("streams", "segments", "events")
        assert Path(segment["path"]).is_relative_to(tmp_path / "new/streams") and segment["count"] == 20
        second.check_log()
    damage(next((backups / "segments").rglob("*.parquet")))
    assert "is damaged: the checksum of" in checked(backups, 1)


def test_several_processes(tmp_path: Path) -> None:
    leveret_only("commands talk to its control socket")
    shards = {"LEVERET_CLUSTER__SHARDS": "2"}
    with LeveretProcess(tmp_path / "broker", environment=shards).start() as broker:
        commands = Commands(broker.data_dir)
        assert "interop" in commands.json("shards")[1]["vhosts"]
        commands.ok("users", "add", "ana", "--no-password")
        for vhost in ("/", "interop"):
            with sync.connect(broker.url(vhost=vhost)) as connection, connection.open_channel() as channel:
                channel.declare_queue("orders", durable=True)
                channel.publish(vhost.encode(), "orders", persistent=True)
        commands.ok("backup", str(tmp_path / "backups"))
        actions = [record["action"] for record in commands.json("audit") if record["kind"] == "backup"]
        assert actions == ["backup.end", "backup.start"]
        broker.check_log()
    assert "'cluster.shards' must be at least 2" in restored(tmp_path / "backups", tmp_path / "new")
    with LeveretProcess(tmp_path / "second", environment=shards, data_dir=tmp_path / "new").start() as second:
        for vhost in ("/", "interop"):
            with sync.connect(second.url(vhost=vhost)) as connection, connection.open_channel() as channel:
                message = channel.get("orders")
                assert message is not None and bytes(message.body) == vhost.encode()
        assert "ana" in [user["name"] for user in Commands(second.data_dir).json("users")]
        second.check_log()
