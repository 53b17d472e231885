"""Brokers of several processes whose logs are in PostgreSQL."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.sharded import Sharded, running
from tests.support.broker import CONNECT_TIMEOUT, LeveretProcess
from tests.support.polling import wait_until
from tests.support.postgres import execute, postgres_settings, require_postgres, shared_server


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


def node(directory: Path, dsn: str, *vhosts: str, shards: int = 2) -> Sharded:
    """Return a broker of several processes over a database."""
    return Sharded(directory, shards, *vhosts, **postgres_settings(dsn))


def call(broker: LeveretProcess, operation: str, **arguments: Any) -> Any:
    """Execute an operation at the front."""
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(CONNECT_TIMEOUT)
        control.connect(str(broker.data_dir / "control.sock"))
        control.sendall(json.dumps({"v": 1, "call": operation, "arguments": arguments}).encode() + b"\n")
        answer = json.loads(control.makefile().readline())
    assert "error" not in answer, answer
    return answer["result"]


def stored_users(dsn: str) -> set[str]:
    rows = execute(dsn, "SELECT convert_from(key, 'UTF8') FROM leveret.shared WHERE kind = 'user' AND value IS NOT NULL")
    return {name for (name,) in rows}


def test_vhosts_messages_and_users_are_in_the_database(tmp_path: Path, dsn: str) -> None:
    with running(node(tmp_path / "first", dsn, "a")) as broker:
        assert [broker.vhosts(shard) for shard in (0, 1)] == [["/"], ["a"]]
        for vhost in ("/", "a"):
            broker.publish(vhost, f"for {vhost}".encode())
        for name in ("kept", "deleted"):
            call(broker, "users.add", name=name, password="secret")
        call(broker, "users.delete", name="deleted")
        wait_until(lambda: stored_users(dsn) == {"kept"}, lambda: f"{stored_users(dsn)}")
        assert "PostgreSQL" in call(broker, "status")["store"]
        broker.shard_pid(1, other_than=broker.kill_shard(1))
        assert broker.bodies("a") == [b"for a"]
        broker.publish("a", b"again")
        broker.stop()
        # A broker on another machine finds everything.
        with running(node(tmp_path / "second", dsn)) as other:
            assert other.bodies("/") == [b"for /"]
            assert other.vhosts(1) == ["a"]
            assert {user["name"] for user in call(other, "users.list")} == {"guest", "kept"}
            other.kill()
            # One that was killed starts again at once, though its shards may still stop.
            other.start()
            assert {user["name"] for user in call(other, "users.list")} == {"guest", "kept"}


def test_a_database_of_one_process_becomes_shard_0_and_its_number_of_shards_stays(tmp_path: Path, dsn: str) -> None:
    broker = node(tmp_path, dsn, shards=1)
    with broker.start():
        broker.publish("/", b"kept")
        call(broker, "users.add", name="added", password="secret")
    broker.count = 3
    with broker.start():
        assert broker.bodies("/") == [b"kept"]
        assert {user["name"] for user in call(broker, "users.list")} == {"guest", "added"}
    for count in (1, 2):
        broker.count = count
        with pytest.raises(RuntimeError, match=f"'cluster.shards' is {count}, but the database has 3 shards.*expected 3"):
            broker.start()
