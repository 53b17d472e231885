"""Nodes: brokers of several processes whose logs are in PostgreSQL, and which share their vhosts and users."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.sharded import Sharded, config, running
from tests.support.broker import CONNECT_TIMEOUT
from tests.support.polling import wait_until
from tests.support.postgres import execute, postgres_settings, require_postgres, shared_server


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


class Node(Sharded):
    """A node over a database."""

    def __init__(self, directory: Path, dsn: str, *vhosts: str, shards: int = 4, **settings: str) -> None:
        super().__init__(directory, shards, *vhosts, **(postgres_settings(dsn) | settings))
        self.environment["LEVERET_CLUSTER__NAME"] = directory.name
        # The user may use vhosts of other nodes, too.
        self.config = config("a", "b", "c")
        for vhost in {"a", "b", "c"}.difference(vhosts):
            self.config = self.config.replace(f'[vhosts."{vhost}"]\n', "")

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Execute an operation at the front."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(CONNECT_TIMEOUT)
            control.connect(str(self.data_dir / "control.sock"))
            control.sendall(json.dumps({"v": 1, "call": operation, "arguments": arguments}).encode() + b"\n")
            answer = json.loads(control.makefile().readline())
        assert "error" not in answer, answer
        return answer["result"]

    def users(self) -> set[str]:
        return {user["name"] for user in self.ask("users.list")}

    def placed(self) -> dict[str, int]:
        """Return the shard of each vhost."""
        return {vhost: shard["number"] for shard in self.ask("shards.list") for vhost in shard["vhosts"]}


def owners(dsn: str) -> dict[int, str | None]:
    """Return the names of the owners of the shards."""
    return dict(execute(dsn, "SELECT shard, node FROM leveret.owner"))


def test_vhosts_messages_and_users_are_in_the_database(tmp_path: Path, dsn: str) -> None:
    with running(Node(tmp_path / "first", dsn, "a")) as first:
        assert first.placed() == {"/": 0, "a": 1}
        for vhost in ("/", "a"):
            first.publish(vhost, f"for {vhost}".encode())
        for name in ("kept", "deleted"):
            first.ask("users.add", name=name, password="secret")
        first.ask("users.delete", name="deleted")
        assert "PostgreSQL" in first.ask("status")["store"]
        first.shard_pid(1, other_than=first.kill_shard(1))
        assert first.bodies("a") == [b"for a"]
        first.publish("a", b"again")
        # Shards without vhosts have no process.
        assert owners(dsn) == {0: "first", 1: "first"}
        first.stop()
        assert owners(dsn) == {0: None, 1: None}
    # A broker on another machine finds everything.
    with running(Node(tmp_path / "second", dsn)) as second:
        assert second.bodies("/") == [b"for /"]
        assert second.bodies("a") == [b"again"]
        assert second.users() == {"guest", "kept"}
        second.kill()
        # One that was killed starts again at once, though its shards may still stop.
        second.start()
        assert second.users() == {"guest", "kept"}
        assert second.placed() == {"/": 0, "a": 1}


def test_a_second_node_joins_and_takes_over(tmp_path: Path, dsn: str) -> None:
    first = Node(tmp_path / "first", dsn, "a")
    second = Node(tmp_path / "second", dsn, "a", "b")
    with running(first), running(second):
        first.publish("/", b"through the first")
        second.publish("/", b"through the second")
        first.publish("b", b"through the first")
        assert second.placed() == first.placed() == {"/": 0, "a": 1, "b": 2}
        # Changes are in effect everywhere when they are answered.
        first.ask("users.add", name="added", password="secret")
        assert second.users() == {"guest", "added"}
        second.ask("vhosts.add", name="c")
        assert first.placed() == {"/": 0, "a": 1, "b": 2, "c": 3}
        first.ask("permissions.set", user="added", vhost="c", configure=".*", write=".*", read=".*")
        second.user, second.password = "added", "secret"
        second.publish("c", b"in c")
        second.user, second.password = "guest", "guest"
        assert set(owners(dsn).values()) == {"first", "second"}
        first.kill()
        wait_until(lambda: set(owners(dsn).values()) == {"second"}, lambda: f"{owners(dsn)} {second.log()}")
        wait_until(lambda: {shard["state"] for shard in second.ask("shards.list")} == {"ready"}, second.log)
        assert second.bodies("/") == [b"through the first", b"through the second"]
        assert second.bodies("b") == [b"through the first"]
        first.start()
        assert first.placed() == {"/": 0, "a": 1, "b": 2, "c": 3}
        first.publish("b", b"in b")
        assert second.bodies("b") == [b"in b"]


def test_a_database_of_one_process_becomes_shard_0_and_its_number_of_shards_stays(tmp_path: Path, dsn: str) -> None:
    broker = Node(tmp_path, dsn, shards=1)
    with broker.start():
        broker.publish("/", b"kept")
        broker.ask("users.add", name="added", password="secret")
    broker.count = 3
    with broker.start():
        assert broker.bodies("/") == [b"kept"]
        assert broker.users() == {"guest", "added"}
    for count in (1, 2):
        broker.count = count
        with pytest.raises(RuntimeError, match=f"'cluster.shards' is {count}, but the database has 3 shards.*expected 3"):
            broker.start()
