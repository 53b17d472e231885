"""Formats of the database: newer ones are refused, and raised when all nodes know them. Databases from a backup."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from leveret._build import __version__
from leveret.cli.app import leveret
from leveret.cluster.directory import Directory
from leveret.cluster.watch import Announcement
from leveret.storage import postgres_formats
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_formats import KNOWN, RESTORED_EPOCHS, Formats
from tests.cluster.sharded import Sharded, config, running
from tests.cluster.test_nodes import Node as FullNode
from tests.support.broker import ROOT, STOP_TIMEOUT
from tests.support.polling import wait_until
from tests.support.postgres import PostgresServer, execute, postgres_settings, require_postgres, shared_server

NEWER = Formats(KNOWN.schema, KNOWN.row + 1, KNOWN.link)


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


class Node(Sharded):
    """A node with two shards."""

    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory, 2, **postgres_settings(dsn))
        self.environment["LEVERET_CLUSTER__NAME"] = directory.name
        self.config = config("a")


def command(name: str, dsn: str) -> tuple[int, str]:
    """Run a command of `leveret cluster` in this process. Return its exit code and output."""
    done = CliRunner().invoke(leveret, ["cluster", name, "--store", dsn, "--set", "cluster.unreplicated=true"])
    return done.exit_code, done.output


def test_a_format_is_raised_when_all_nodes_know_it(tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = command("upgrade", dsn)
    assert (code, "no schema 'leveret'" in text) == (4, True), text
    node = Node(tmp_path / "old", dsn)
    with node.start():
        assert command("upgrade", dsn) == (
            0,
            f"nothing to raise: schema format {KNOWN.schema}, row format {KNOWN.row}, link format {KNOWN.link}\n",
        )
        # The command is the one of a newer version.
        monkeypatch.setattr(postgres_formats, "KNOWN", NEWER)
        code, text = command("upgrade", dsn)
        assert (code, "live nodes do not know it: 'old'" in text) == (4, True), text
        node.publish("a", b"kept")
    raised = f"raised the row format from {KNOWN.row} to {NEWER.row}\n"
    assert command("upgrade", dsn) == (0, raised)
    assert command("upgrade", dsn)[1].startswith("nothing to raise")
    for shards in ("1", "2"):
        refused = subprocess.run(
            [sys.executable, "-m", "leveret", "serve", "--port", "0", "--data-dir", str(tmp_path / shards)],
            env=os.environ | postgres_settings(dsn) | {"LEVERET_CLUSTER__SHARDS": shards, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=STOP_TIMEOUT,
            check=False,
        )
        assert refused.returncode == 1
        assert f"uses row format {NEWER.row}, and this version of Leveret knows up to {KNOWN.row}" in refused.stderr


def test_a_database_of_an_earlier_version_gets_the_columns_that_it_lacks(dsn: str) -> None:
    settings = ClusterSettings(dsn, "one", 0.6, True, shards=2)

    async def announced() -> list[str]:
        directory = Directory(settings)
        try:
            await directory.join()
            await directory.enter("127.0.0.1:1")
            await directory.begin([])
            await directory.announce(Announcement("one"), ["other"])
            view = await directory.look(0)
            await directory.leave()
            return view.nodes[0].unreachable
        finally:
            directory.close()

    assert asyncio.run(announced()) == ["other"]
    execute(dsn, "ALTER TABLE leveret.node DROP COLUMN unreachable")
    assert asyncio.run(announced()) == ["other"]


def newer_version(directory: Path) -> Path:
    """Return the path of a version of Leveret that knows newer formats: this one with other numbers."""
    shutil.copytree(ROOT / "src" / "leveret", directory / "leveret", copy_function=os.symlink)
    for name, line in (
        ("_build.py", '__version__ = "{}'),
        ("storage/cluster.py", "LINK_FORMAT: Final = {}"),
        ("storage/postgres_schema.py", "FORMAT_VERSION: Final = {}"),
    ):
        path = directory / "leveret" / name
        text = path.read_text("utf-8")
        before, after = ("", "9") if name == "_build.py" else ("1", "2")
        assert line.format(before) in text
        path.unlink()
        path.write_text(text.replace(line.format(before), line.format(after)), "utf-8")
    return directory


@pytest.mark.slow
def test_nodes_of_two_versions_in_one_cluster(tmp_path: Path, dsn: str) -> None:
    """The new version speaks to the old one in the formats in use, until they are raised."""
    path = str(newer_version(tmp_path / "newer"))
    old, new, third = (FullNode(tmp_path / name, dsn, "a") for name in ("old", "new", "third"))
    for node in (new, third):
        node.environment["PYTHONPATH"] = path

    def upgrade() -> tuple[int, str]:
        """Run the command of the new version."""
        done = subprocess.run(
            [sys.executable, "-m", "leveret", "cluster", "upgrade"],
            env=os.environ | postgres_settings(dsn) | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=STOP_TIMEOUT,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    with running(old), running(new):
        versions = {"old": __version__, "new": f"9{__version__}"}
        # A node knows another one by its next look after the start of that.
        wait_until(lambda: {node["name"]: node["version"] for node in old.ask("nodes.list")} == versions, old.log)
        old.ask("nodes.move", shard=1, node="new")
        # Each passes on clients to the other one.
        for node in (old, new):
            for vhost in ("/", "a"):
                node.publish(vhost, node.directory.name.encode())
        new.ask("users.add", name="added", password="secret")
        assert "added" in old.users()
        code, text = upgrade()
        assert (code, "live nodes do not know it: 'old'" in text) == (4, True), text
        new.ask("nodes.drain", name="old")
        old.stop()
        assert upgrade() == (0, "raised the schema format from 1 to 2\nraised the link format from 1 to 2\n")
        with pytest.raises(RuntimeError, match="uses schema format 2, and this version of Leveret knows up to 1; install"):
            old.start()
        with running(third):
            assert third.bodies("/") == third.bodies("a") == [b"old", b"new"]
            third.ask("nodes.move", shard=1, node="third")
            new.publish("a", b"upgraded")
            assert new.bodies("a") == [b"upgraded"]
    assert not [line for node in (new, third) for line in node.log().splitlines() if "cannot connect to node" in line]


def test_a_node_continues_after_what_it_does_not_understand(tmp_path: Path, dsn: str) -> None:
    """Such as an announcement of a version that says something else."""
    with FullNode(tmp_path / "one", dsn).start() as node:
        assert isinstance(node, FullNode)
        execute(
            dsn,
            "INSERT INTO leveret.node(name, incarnation, address, leveret, seen, applied, draining, clients, usage)"
            " VALUES ('other', gen_random_uuid(), '127.0.0.1:1', '', now() + interval '1 hour', 0, false, '{}', '{}')",
        )
        node.wait_for_log("the owners of the shards are unknown")
        execute(dsn, "DELETE FROM leveret.node WHERE name = 'other'")
        node.wait_for_log("the owners of the shards are known again")
        node.shard_pid(0, other_than=node.kill_shard(0))


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server that archives its write-ahead log, and one for its backup."""
    require_postgres()
    server, backup = PostgresServer(), PostgresServer()
    archive = server.directory / "archive"
    archive.mkdir()
    if server.user is not None:
        shutil.chown(archive, server.user)
    server.settings |= {"archive_mode": "on", "archive_command": f"cp %p {archive}/part && mv {archive}/part {archive}/%f"}
    backup.settings["restore_command"] = f"cp {archive}/%f %p"
    yield server.create().start(), backup
    for one in (server, backup):
        one.remove()


def restore(backup: PostgresServer) -> None:
    """Start a server over a base backup, which reads the archive to its end."""
    (backup.data / "standby.signal").rename(backup.data / "recovery.signal")
    del backup.settings["primary_conninfo"]
    backup.start()
    wait_until(lambda: backup.execute("SELECT pg_is_in_recovery()") == [(False,)], backup.log)


def test_a_backup_of_a_running_cluster(tmp_path: Path, servers: tuple[PostgresServer, PostgresServer]) -> None:
    """A base backup and the write-ahead log restore a cluster, and the nodes of before cannot write to it."""
    server, backup = servers
    dsn = server.database()
    old = Node(tmp_path / "old", dsn)
    old.start()
    old.publish("a", b"before the backup")
    backup.clone(server, "backup")
    old.publish("a", b"after the backup")
    code, text = command("restored", dsn)
    assert (code, "nodes are using the database: 'old'" in text) == (4, True), text
    last = server.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")[0][0]
    server.execute("SELECT pg_switch_wal()")
    wait_until((server.directory / "archive" / last).exists, server.log)
    server.crash()
    # No node of before reaches the restored server until the command has run.
    restore(backup)
    restored = backup.dsn(dsn.rpartition("/")[2])
    epochs = dict(execute(restored, "SELECT shard, epoch FROM leveret.owner"))
    wait_until(lambda: command("restored", restored)[0] == 0)
    assert dict(execute(restored, "SELECT shard, epoch FROM leveret.owner")) == {
        shard: epoch + RESTORED_EPOCHS for shard, epoch in epochs.items()
    }
    backup.stop()
    backup.port = server.port
    backup.start()
    assert old.process is not None
    assert old.process.wait(STOP_TIMEOUT) != 0
    assert "the database was restored from a backup" in old.log()
    old.process = None
    new = Node(tmp_path / "new", dsn)
    with new.start():
        assert new.bodies("a") == [b"before the backup", b"after the backup"]
        # A node that starts again on the data directory of before is one of the new cluster.
        with old.start():
            assert set(dict(execute(dsn, "SELECT name, address FROM leveret.node"))) == {"old", "new"}
