"""`leveret cluster import`: what a data directory has is in the database afterwards."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leveret import sync
from leveret.broker import metadata
from leveret.broker.message import make_address
from leveret.storage.checksums import definition_sum
from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp10.messaging import Accepted, Target
from leveret.wire.amqp10.transport import Disposition, Transfer
from leveret.wire.amqp10.values import Symbol, UInt
from tests.cli.runner import Commands
from tests.cluster.sharded import Sharded, config, running
from tests.support.broker import ROOT, LeveretProcess
from tests.support.peers.amqp10 import Peer, Session, message, section
from tests.support.peers.engine_amqp09 import Client
from tests.support.postgres import execute, postgres_settings, require_postgres, shared_server

pytestmark = pytest.mark.embedded("the broker is moved out of its data directory")

STREAM = {"x-queue-type": "stream"}
KEPT: dict[str, Any] = {"durable": 2, "expiry_policy": "never"}
# A body of several chunks.
LARGE = b"large" * 600_000
COUNT = 3000


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


def over(directory: Path, dsn: str) -> LeveretProcess:
    return LeveretProcess(directory, environment=postgres_settings(dsn))


def run_import(data: Path, dsn: str, *options: str, script: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command, after the statements of a script, which may change plain files only."""
    code = f"{script}\nfrom leveret.cli.app import leveret; leveret()"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | ({"LEVERET_PURE": "1"} if script else {})
    return subprocess.run(
        [sys.executable, "-c", code, "cluster", "import", str(data), "--store", dsn, *options],
        env=environment | postgres_settings(dsn),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def session_of(broker: LeveretProcess) -> Session:
    peer = Peer(broker.host, broker.port)
    peer.login()
    peer.output.max_frame_size = peer.open("client").max_frame_size
    return peer.begin()


def fill(broker: LeveretProcess) -> None:
    """Store messages, a stream, a delayed message, a branch in doubt, and a link with unsettled state."""
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        for queue in ("from", "to", "later", "linked"):
            channel.declare_queue(queue, durable=True)
        channel.declare_queue("stream", durable=True, arguments=STREAM)
        with channel.publisher("", "from") as publisher:
            publisher.publish(LARGE, persistent=True)
            for number in range(COUNT):
                publisher.publish(b"%d:" % number + b"x" * (number % 2000), persistent=True)
        with channel.publisher("", "stream") as publisher:
            for number in range(10):
                publisher.publish(b"%d" % number, persistent=True)
    client = Client(broker)
    client.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
    client.call("dtx-demarcation.start", "dtx-demarcation.start-ok", xid="doubtful")
    client.send("basic.get", queue="from")
    taken = client.expect("basic.get-ok")
    assert isinstance(taken, ContentMethod)
    client.engine.send_publish(1, make_address("", "to"), 0, encode_header(60, 5, {"delivery_mode": 2}), b"moved", 5)
    client.engine.send_ack(1, taken.arguments["delivery_tag"], False)
    client.call("dtx-demarcation.end", "dtx-demarcation.end-ok", xid="doubtful")
    client.call("dtx-coordination.prepare", "dtx-coordination.prepare-ok", xid="doubtful")
    session = session_of(broker)
    delayed = message(b"delayed", durable=True, before=section(0x72, {Symbol("x-opt-delivery-delay"): UInt(3_600_000)}))
    session.sender("/queue/later").send(delayed)
    session.take(Disposition)
    link = session.sender(name="sending", target=Target("/queue/linked", **KEPT), rcv_settle_mode=1)
    link.send(message(b"unsettled", durable=True), delivery_tag=b"tag")
    assert isinstance(session.take(Disposition).state, Accepted)
    client.close()


def check(broker: LeveretProcess) -> None:
    """Check that everything is there, once."""
    control = Commands(broker.data_dir)
    queues = {queue["name"]: queue for queue in control.json("queues", "list")}
    assert queues["from"]["ready"] == COUNT, "one of the messages is in the branch"
    session = session_of(broker)
    link = session.sender(
        name="sending", target=Target("/queue/linked", **KEPT), rcv_settle_mode=1, unsettled={b"tag": None}
    )
    assert set(link.attached.unsettled or {}) == {b"tag"}
    session.receiver("/queue/linked", snd_settle_mode=1, credit=10)
    assert session.take(Transfer).payload.endswith(b"unsettled")
    client = Client(broker)
    client.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
    found = client.call("dtx-coordination.recover", "dtx-coordination.recover-ok")["xids"]
    assert found["xids"] == "\x08doubtful"
    # The delayed message is there, and not ready.
    client.call("basic.get", "basic.get-empty", queue="later")
    assert {queue["name"]: queue["delayed"] for queue in control.json("queues")}["later"] == 1
    client.call("dtx-coordination.rollback", "dtx-coordination.rollback-ok", xid="doubtful")
    client.close()
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        with channel.consume("from", no_ack=True) as consumer:
            bodies = [consumer.next(60).body for _ in range(COUNT + 1)]
        assert bodies[0] == LARGE
        assert [int(body.partition(b":")[0]) for body in bodies[1:]] == list(range(COUNT))
        channel.qos(prefetch_count=10)
        with channel.consume("stream", arguments={"x-stream-offset": "first"}) as consumer:
            assert [int(consumer.next(60).body) for _ in range(10)] == list(range(10))


def test_everything_is_moved(tmp_path: Path, dsn: str) -> None:
    embedded = LeveretProcess(tmp_path / "embedded")
    with embedded.start():
        fill(embedded)
        running = run_import(embedded.data_dir, dsn)
        assert "in use by process" in running.stderr
        embedded.kill()  # a copy need not be one of a clean stop
    before = {
        path.name: path.read_bytes() for path in embedded.data_dir.glob("log-0.sqlite*") if path.suffix != ".sqlite-shm"
    }
    for point in ("_begin", "_copy", "_compare"):
        patch = f"import os, leveret.storage.postgres_import as p; p.BATCH_BYTES = 100_000; done = p.Import.{point}\n"
        killed = run_import(
            embedded.data_dir, dsn, script=f"{patch}p.Import.{point} = lambda *a: (done(*a), os.kill(os.getpid(), 9))"
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(RuntimeError, match=r"import of .*embedded/data into the database is not complete"):
        over(tmp_path / "early", dsn).start()
    done = run_import(embedded.data_dir, dsn)
    assert not done.returncode, done.stderr
    assert "removing what the interrupted import" in done.stdout
    assert "copied and compared" in done.stdout
    after = {
        path.name: path.read_bytes() for path in embedded.data_dir.glob("log-0.sqlite*") if path.suffix != ".sqlite-shm"
    }
    assert before == after
    again = run_import(embedded.data_dir, dsn)
    assert (again.returncode, "expected an empty database" in again.stderr) == (4, True)
    moved = over(tmp_path / "moved", dsn)
    with moved.start():
        check(moved)
    moved.check_log()
    # The data directory is not one for PostgreSQL.
    mistaken = LeveretProcess(tmp_path / "mistaken", environment=postgres_settings(dsn), data_dir=embedded.data_dir)
    with pytest.raises(RuntimeError, match="leveret cluster import"):
        mistaken.start()


def test_shards_users_and_vhosts_are_moved(tmp_path: Path, dsn: str) -> None:
    embedded = Sharded(tmp_path / "embedded", 3, "a", "b")
    with running(embedded):
        placed = {vhost: shard for shard in range(3) for vhost in embedded.vhosts(shard)}
        for vhost in placed:
            embedded.publish(vhost, f"for {vhost}".encode())
        commands = Commands(embedded.data_dir)
        commands.ok("users", "add", "kept", "--password-file", "-", input="secret\n")
    few = run_import(embedded.data_dir, dsn, "--set", "cluster.shards=2")
    assert (few.returncode, "shard 2 has" in few.stderr) == (4, True), few.stderr
    one = run_import(embedded.data_dir, dsn)
    assert (one.returncode, "have vhosts" in one.stderr) == (4, True), one.stderr
    assert execute(dsn, "SELECT to_regclass('leveret.cluster')") == [(None,)], "refused before anything is copied"
    done = run_import(embedded.data_dir, dsn, "--set", "cluster.shards=4")
    assert not done.returncode, done.stderr
    node = Sharded(tmp_path / "node", 4, **postgres_settings(dsn))
    node.config = config("a", "b")
    with running(node):
        assert {vhost: shard for shard in range(3) for vhost in node.vhosts(shard)} == placed
        assert "kept" in Commands(node.data_dir).ok("users")
        for vhost in placed:
            assert node.bodies(vhost) == [f"for {vhost}".encode()]


def test_damage_and_what_cannot_be_moved_are_refused(tmp_path: Path, dsn: str) -> None:
    embedded = LeveretProcess(tmp_path / "embedded")
    with embedded.start(), sync.connect(embedded.url()) as connection, connection.channel() as channel:
        channel.declare_queue("q", durable=True)
        with channel.publisher("", "q") as publisher:
            publisher.publish(b"body", persistent=True)
    embedded.stop()
    database = sqlite3.connect(embedded.data_dir / "log-0.sqlite")
    (queue,) = database.execute("SELECT value FROM metadata WHERE kind = ?", (metadata.QUEUE,)).fetchone()
    segment = metadata.STREAM_SEGMENT, metadata.make_key(str(metadata.unpack(queue)["id"]), "0").encode(), b""
    database.execute("INSERT INTO metadata VALUES (?, ?, ?, ?)", (*segment, definition_sum(*segment)))
    database.commit()
    sealed = run_import(embedded.data_dir, dsn)
    assert (sealed.returncode, "sealed segments, whose files cannot be moved" in sealed.stderr) == (4, True), sealed.stderr
    assert "'q' in vhost '/'" in sealed.stderr
    assert execute(dsn, "SELECT to_regclass('leveret.cluster')") == [(None,)], "refused before anything is copied"
    database.execute("DELETE FROM metadata WHERE kind = ?", segment[:1])
    for change, expected in (
        ("UPDATE log SET data = CAST('other' AS BLOB) WHERE length(data)", "row . is damaged"),
        ("PRAGMA user_version = 2", "format version 2; expected 3"),
        ("PRAGMA user_version = 9", "format version 9"),
    ):
        database.execute(change)
        database.commit()
        refused = run_import(embedded.data_dir, dsn)
        assert refused.returncode == 4 and expected.partition(" .")[0] in refused.stderr, refused.stderr
    database.close()
    missing = run_import(tmp_path / "none", dsn)
    assert (missing.returncode, "none is not a directory; expected" in missing.stderr) == (4, True), missing.stderr
