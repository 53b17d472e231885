"""`leveret backup` of a running broker, and `leveret restore`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leveret import sync
from leveret.cli.app import leveret
from leveret.management.control_client import NoBroker, call
from leveret.node.backup.directory import BackupDirectory
from leveret.node.backup.writing import BackupWriter
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
    assert second["segments"] == {"linked": 1, "copied": 0, "unchanged": first["segments"]["linked"]}
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


def test_a_damaged_backup_is_refused_by_the_name_of_the_file(commands: Commands, tmp_path: Path) -> None:
    commands.ok("backup", str(tmp_path / "backups"))
    name = latest(tmp_path / "backups").name
    manifest = json.loads((tmp_path / "backups" / name / "manifest.json").read_text())
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
        shutil.rmtree(copy)
    for text in ('"format": 2', '"path": "../outside"'):
        shutil.copytree(tmp_path / "backups", copy)
        path = copy / name / "manifest.json"
        key = text.partition(":")[0]
        lines = [f"{text}," if line.strip().startswith(key) else line for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines))
        assert str(path) in refused(copy, tmp_path / "new")
        shutil.rmtree(copy)


def test_refusals(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    assert "has other contents than backups" in commands.refused("backup", str(full))
    assert "is in the data directory" in commands.refused("backup", str(broker.data_dir / "backups"))
    assert "run it there, without --url" in commands.mistaken("backup", str(tmp_path / "b"), "--url", "http://localhost")
    assert "no backups of Leveret" in refused(full, tmp_path / "new")
    assert "cannot be read" in refused(tmp_path / "missing", tmp_path / "new")
    commands.ok("backup", str(tmp_path / "backups"))
    result = restore(tmp_path / "backups", full)
    assert "is not empty: it has mine" in result.output and os.listdir(full) == ["mine"]
    with BackupDirectory(tmp_path / "backups").lock():
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
            BackupWriter(backups, kill_after_start, lambda text: None, (0, 0)).run()
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
