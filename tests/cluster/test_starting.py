"""A start waits for PostgreSQL and for a standby, says so, and ends at once when it is stopped."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.broker.errors import StorageFailed
from leveret.storage.cluster import ClusterSettings, ServerAway
from tests.cluster.test_nodes import Node
from tests.support.broker import free_port
from tests.support.polling import wait_until
from tests.support.postgres import PostgresServer, execute, require_postgres, shared_server

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
NO_STANDBY = "has not confirmed a commit: no standby of 'second' (synchronous_standby_names) has answered; start one whose"
PROCESSES = pytest.mark.parametrize("shards", [1, 2], ids=["broker", "node"])


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    require_postgres()
    server = PostgresServer().create()
    try:
        yield server
    finally:
        server.remove()


@PROCESSES
def test_a_start_waits_for_the_server_and_for_a_standby(tmp_path: Path, server: PostgresServer, shards: int) -> None:
    node = Node(tmp_path, server.dsn("messages"), shards=shards, LEVERET_CLUSTER__UNREPLICATED="false")
    node.begin()
    away = node.wait_for_log("the start waits: ")
    assert "Connection refused" in away and "; start the server, or correct its address ('storage.dsn')" in away, away
    node.stop()
    server.start()
    server.execute("CREATE DATABASE messages")
    server.reload(synchronous_standby_names="second")
    wait_until(lambda: server.execute("SHOW synchronous_standby_names") == [("second",)])
    node.begin()
    node.wait_for_log(NO_STANDBY)
    node.stop()
    # A stopped start leaves no transaction behind that waits.
    assert server.execute(WAITING) == [(0,)]
    before = len(node.log())
    node.begin()
    node.wait_for_log(NO_STANDBY, before)
    standby = PostgresServer()
    try:
        standby.clone(server, "second").start()
        node.wait(120.0)
        node.publish("/", b"kept")
        node.stop()
        node.check_log()
    finally:
        node.kill()
        standby.remove()


@PROCESSES
def test_a_start_takes_no_longer_than_its_setting(tmp_path: Path, shards: int) -> None:
    require_postgres()
    dsn = f"postgresql://leveret@127.0.0.1:{free_port()}/messages"
    node = Node(tmp_path, dsn, shards=shards, LEVERET_CLUSTER__START_TIMEOUT="0.1")
    node.begin()
    assert node.process is not None
    assert node.process.wait(120) == 1
    text = r"Error: not started within 0\.1 seconds \('cluster\.start_timeout'\)(: the log .* cannot be opened: .*)?$"
    assert re.search(text, node.log()), node.log()


@PROCESSES
def test_a_server_that_does_not_answer_is_tried_again(tmp_path: Path, shards: int) -> None:
    require_postgres()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://leveret@127.0.0.1:{silent.getsockname()[1]}/messages?connect_timeout=1"
        node = Node(tmp_path, dsn, shards=shards)
        node.begin()
        line = node.wait_for_log("connection timeout expired")
        assert "if the server is slow, add connect_timeout to its address; start the server" in line, line
        accepted = [silent.accept()[0] for _ in range(3)]
        node.stop()
        for connection in accepted:
            connection.close()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("/missing", 'database "missing" does not exist'),
        ("user=unknown dbname=postgres", 'role "unknown" does not exist'),
        ("/postgres?port=x", "for connection option"),
        ("nonsense=//", "'storage.dsn' is not an address of PostgreSQL"),
    ],
)
@PROCESSES
def test_a_start_ends_if_waiting_does_not_help(tmp_path: Path, shards: int, address: str, reason: str) -> None:
    require_postgres()
    server = shared_server()
    place = f"host={server.host} port={server.port} "
    dsn = server.dsn("")[:-1] + address if address.startswith("/") else address if "//" in address else place + address
    node = Node(tmp_path, dsn, shards=shards)
    with pytest.raises(RuntimeError, match=re.escape(reason)) as caught:
        node.start()
    assert "exit code 1" in str(caught.value) and "the start waits" not in node.log()


def test_a_shard_whose_server_is_away_during_the_start_waits(tmp_path: Path, server: PostgresServer) -> None:
    """Not only the front: the server stops accepting connections when the front has joined."""
    server.start()
    dsn = server.database()
    node = Node(tmp_path, dsn, shards=2)
    with node.start():
        pass
    # A connection for the front, but none for the shard.
    limit = "ALTER ROLE {} CONNECTION LIMIT {}"
    server.execute("CREATE ROLE node LOGIN")
    execute(dsn, "GRANT ALL ON SCHEMA leveret, leveret_s0 TO node")
    execute(dsn, "GRANT ALL ON ALL TABLES IN SCHEMA leveret, leveret_s0 TO node")
    server.execute(limit.format("node", 1))
    node.environment["LEVERET_STORAGE__DSN"] = dsn.replace("leveret@", "node@")
    before = len(node.log())
    node.begin()
    node.wait_for_log("shard 0: the start waits: ", before)
    server.execute(limit.format("node", -1))
    node.wait(120.0)
    node.stop()


def test_a_wait_is_reported_when_its_reason_changes_and_then_once_a_second() -> None:
    require_postgres()
    from leveret.cluster.starting import Start

    now = 0.0
    reported: list[tuple[float, str]] = []
    start = Start(ClusterSettings("", "one", 0.6, False), lambda reason: reported.append((now, reason[:1])), lambda: now)
    while now < 6:
        start.note_away(ServerAway("a" if now < 2.5 else "b"))
        now += 0.5
    assert reported == [(0, "a"), (1, "a"), (2, "a"), (2.5, "b"), (3.5, "b"), (4.5, "b"), (5.5, "b")]


def test_a_closed_thread_refuses_work() -> None:
    require_postgres()
    from leveret.cluster.database_thread import DatabaseThread

    settings = ClusterSettings("", "one", 0.6, False)
    thread = DatabaseThread("test", settings, lambda: pytest.fail("it connects"), lambda session: True)
    thread.close()
    with pytest.raises(StorageFailed, match="stops"):
        asyncio.run(asyncio.wait_for(thread.run(lambda session: None), 10))
