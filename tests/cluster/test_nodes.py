"""Nodes: brokers of several processes whose logs are in PostgreSQL, and which share their vhosts and users."""

from __future__ import annotations

import json
import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.management.control_client import call
from leveret.management.socket_path import CONTROL_SOCKET, short_path
from tests.cluster.sharded import Sharded, config, running
from tests.support.broker import CONNECT_TIMEOUT
from tests.support.peers import amqp09
from tests.support.polling import wait_until
from tests.support.postgres import execute, postgres_settings, require_postgres, shared_server


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


class Refused(Exception):
    """A node has refused an operation."""


class Node(Sharded):
    """A node over a database."""

    def __init__(self, directory: Path, dsn: str, *vhosts: str, shards: int = 4, **settings: str) -> None:
        super().__init__(directory, shards, *vhosts, **(postgres_settings(dsn) | settings))
        self.environment["LEVERET_CLUSTER__NAME"] = directory.name
        self.environment.setdefault("LEVERET_CLUSTER__BALANCE", "manual")
        # The user may use vhosts of other nodes, too.
        self.config = config("a", "b", "c")
        for vhost in {"a", "b", "c"}.difference(vhosts):
            self.config = self.config.replace(f'[vhosts."{vhost}"]\n', "")

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Execute an operation at the front."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(CONNECT_TIMEOUT)
            with short_path(self.data_dir / CONTROL_SOCKET) as path:
                control.connect(path)
            control.sendall(json.dumps({"v": 1, "call": operation, "arguments": arguments}).encode() + b"\n")
            answer = json.loads(control.makefile().readline())
        if "error" in answer:
            raise Refused(answer["error"]["text"])
        return answer["result"]

    def users(self) -> set[str]:
        return {user["name"] for user in self.ask("users.list")}

    def placed(self) -> dict[str, int]:
        """Return the shard of each vhost."""
        return {vhost: shard["number"] for shard in self.ask("shards.list") for vhost in shard["vhosts"]}

    def open(self, vhost: str, user: str = "", password: str = "") -> pika.BlockingConnection:
        """Open a connection to a vhost, as soon as its shard serves."""
        connections: list[pika.BlockingConnection] = []

        def is_open() -> bool:
            try:
                connections.append(super(Node, self).open(vhost, user or self.user, password or self.password))
            except pika.exceptions.ProbableAccessDeniedError as refused:
                assert "(320)" in str(refused), refused
            return bool(connections)

        wait_until(is_open, self.log)
        return connections[0]

    def nodes(self) -> dict[str, tuple[str, int]]:
        """Return the state and the number of shards of each node."""
        return {node["name"]: (node["state"], len(node["shards"])) for node in self.ask("nodes.list")}


def owners(dsn: str) -> dict[int, str | None]:
    """Return the names of the owners of the shards."""
    return dict(execute(dsn, "SELECT shard, node FROM leveret.owner"))


def wait_for_looks(dsn: str, node: str) -> None:
    """Wait until a node has begun two looks at the database, so that it has acted on one that began after the call."""

    def last() -> object:
        return execute(dsn, f"SELECT seen FROM leveret.node WHERE name = '{node}'")

    def differs(before: object) -> bool:
        return last() != before

    for _ in range(2):
        wait_until(partial(differs, last()), "a look")


@pytest.mark.slow
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
        wait_until(lambda: "b" in first.placed(), second.log)
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


def test_a_batch_with_new_vhosts(tmp_path: Path, dsn: str) -> None:
    """Each new vhost gets a shard without vhosts, as long as there is one, and its objects are created there."""
    with running(Node(tmp_path / "first", dsn)) as node:
        names = ["one", "two", "three", "four"]
        changes = [{"call": "vhosts.add", "arguments": {"name": name}} for name in names]
        changes += [{"call": "queues.add", "arguments": {"name": "q", "vhost": name}} for name in [*names, "missing"]]
        refused = node.ask("definitions.apply", changes=changes)["refused"]
        assert [(one["index"], one["text"]) for one in refused] == [(8, "vhost 'missing' does not exist")]
        places = node.placed()
        assert set(names) <= places.keys() and set(places.values()) == {0, 1, 2, 3}
        assert {queue["vhost"] for queue in call(node.data_dir, "queues.list", {})} == set(names)


def test_a_node_ends_the_hung_process_of_a_shard_that_another_node_has_claimed(tmp_path: Path, dsn: str) -> None:
    first, second = Node(tmp_path / "first", dsn), Node(tmp_path / "second", dsn)
    with running(first), running(second):
        first.publish("/", b"kept")
        pid = first.shard_pid(0)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: owners(dsn)[0] == "second", lambda: f"{owners(dsn)} {second.log()}")
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), first.log)
        assert "node 'second' has taken over shard 0, whose process here is to end" in first.log()
        assert first.bodies("/") == [b"kept"]


def test_a_shard_that_dies_again_is_left_to_another_node_without_waiting_for_the_lease(tmp_path: Path, dsn: str) -> None:
    first, second = (Node(tmp_path / name, dsn, LEVERET_CLUSTER__LEASE="60") for name in ("first", "second"))
    with running(first), running(second):
        first.publish("/", b"kept")
        first.shard_pid(0, other_than=first.kill_shard(0))
        assert owners(dsn)[0] == "first"
        first.kill_shard(0)
        wait_until(lambda: owners(dsn)[0] == "second", lambda: f"{owners(dsn)} {second.log()}")
        assert first.bodies("/") == [b"kept"]
        assert second.ask("shards.list")[0]["takeovers"] == 2


def check_announcements(first: Node, second: Node) -> None:
    """Check that clients of the first node learn the addresses of both, and are redirected to the second one."""
    addresses = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"

    def answers(vhost: str, expected: tuple[str, str]) -> bool:
        with amqp09.Peer("127.0.0.1", first.port) as peer:
            peer.reach_open("guest", "guest")
            peer.send_method(0, "connection.open", virtual_host=vhost)
            method = peer.expect_method(0, "connection.open-ok", "connection.redirect")
            return (method.name, method.known_hosts) == expected

    for vhost in ("/", "a", "b"):
        is_here = owners_of(first)[vhost] == "first"
        is_expected = partial(answers, vhost, ("connection.open-ok" if is_here else "connection.redirect", addresses))
        wait_until(is_expected, first.log)


def owners_of(node: Node) -> dict[str, str]:
    """Return the node of each vhost."""
    return {vhost: shard["node"] for shard in node.ask("shards.list") for vhost in shard["vhosts"]}


def test_limits_of_a_user_in_all_nodes(tmp_path: Path, dsn: str) -> None:
    """Connections and channels in all shards count, about a second later, and no more when they end."""
    first = Node(tmp_path / "first", dsn, "a", LEVERET_AMQP09__REDIRECT="owner", LEVERET_CLUSTER__REDIRECT="true")
    second = Node(tmp_path / "second", dsn, "a", "b")
    with running(first), running(second):
        # The first node may learn of the vhost before the look that finds the owner of its shard.
        wait_until(lambda: owners_of(first).get("b"), second.log)
        first.ask("nodes.move", shard=first.placed()["b"], node="second")
        check_announcements(first, second)
        places, owner = first.placed(), owners(dsn)
        assert owner[places["/"]] == "first" and owner[places["b"]] == "second"
        here, there = "/", "b"
        first.ask("users.add", name="limited", password="secret", max_connections=2, max_channels=3)
        for vhost in ("/", "a", "b"):
            first.ask("permissions.set", user="limited", vhost=vhost, configure=".*", write=".*", read=".*")
        login = ("limited", "secret")
        connection = first.open(here, *login)
        channels = [connection.channel() for _ in range(3)]

        def refusal(vhost: str) -> str:
            """Return why a channel or a connection is refused; "" if it is not."""
            try:
                other = super(Node, first).open(vhost, *login)
            except pika.exceptions.AMQPConnectionError as refused:
                return str(refused)
            try:
                other.channel()
            except pika.exceptions.AMQPError as refused:
                return str(refused)
            other.close()
            return ""

        text = "user 'limited' has 3 channels, the maximum; the setting is users.limited.limits.max_channels"
        wait_until(lambda: text in refusal(there), lambda: f"{first.log()}\n{second.log()}")
        for channel in channels:
            channel.close()
        wait_until(lambda: not refusal(there), lambda: f"{first.log()}\n{second.log()}")
        text = "user 'limited' has 2 connections, the maximum"
        others: list[pika.BlockingConnection] = []

        def has_opened() -> bool:
            """Open a connection, which also counts those of the other node that have just ended."""
            try:
                others.append(super(Node, first).open(here, *login))
            except pika.exceptions.AMQPConnectionError as refused:
                assert text in str(refused), refused
            return bool(others)

        wait_until(has_opened, lambda: f"{first.log()}\n{second.log()}")
        wait_until(lambda: text in refusal(there), lambda: f"{first.log()}\n{second.log()}")
        for one in (connection, *others):
            one.close()
        wait_until(lambda: not refusal(there), lambda: f"{first.log()}\n{second.log()}")


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


@pytest.mark.slow
def test_shards_move_between_nodes(tmp_path: Path, dsn: str) -> None:
    first = Node(tmp_path / "first", dsn, "a", "b", LEVERET_CLUSTER__BALANCE="auto")
    second = Node(tmp_path / "second", dsn)
    with running(first), running(second):
        wait_until(lambda: first.nodes() == {"first": ("live", 2), "second": ("live", 1)}, lambda: f"{first.nodes()}")
        first.publish("/", b"before")
        client = second.open("/")
        target = "first" if owners(dsn)[0] == "second" else "second"
        first.ask("nodes.move", shard=0, node=target)
        assert owners(dsn)[0] == target
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            client.process_data_events(time_limit=CONNECT_TIMEOUT)
        assert closed.value.reply_text == "CONNECTION_FORCED - shard 0 moves to another node"
        assert second.bodies("/") == [b"before"]
        second.ask("nodes.drain", name="first")
        assert set(owners(dsn).values()) == {"second"}
        # The node itself knows the new owners by its next look.
        wait_until(lambda: first.nodes()["first"] == ("draining", 0), lambda: f"{first.nodes()}")
        for operation, arguments, reason in (
            ("nodes.move", {"shard": 0, "node": "first"}, "node 'first' is draining; expected one that takes shards"),
            ("nodes.move", {"shard": 4, "node": "second"}, "shard 4 does not exist; expected 0 to 3"),
            ("nodes.move", {"shard": 3, "node": "second"}, "shard 3 has no owner"),
            ("nodes.drain", {"name": "second"}, "no other node than 'second' takes shards"),
            ("nodes.forget", {"name": "first"}, "node 'first' is alive"),
            ("nodes.forget", {"name": "third"}, "node 'third' does not exist"),
        ):
            with pytest.raises(Refused, match=reason):
                second.ask(operation, **arguments)
        second.publish("b", b"in b")
        assert second.bodies("b") == [b"in b"]
        first.kill()
        wait_until(lambda: second.nodes()["first"] == ("gone", 0), lambda: f"{second.nodes()}")
        second.ask("nodes.forget", name="first")
        assert second.nodes() == {"second": ("live", 3)}


def test_a_shard_moves_to_a_node_that_has_just_started(tmp_path: Path, dsn: str) -> None:
    """Also before the other nodes have looked for it."""
    first, second = Node(tmp_path / "first", dsn), Node(tmp_path / "second", dsn)
    with running(first), running(second):
        first.ask("nodes.move", shard=0, node="second")
        assert owners(dsn)[0] == "second"


def test_a_name_belongs_to_one_live_node(tmp_path: Path, dsn: str) -> None:
    with running(Node(tmp_path / "first", dsn)):
        other = Node(tmp_path / "second", dsn)
        other.environment["LEVERET_CLUSTER__NAME"] = "first"
        with pytest.raises(RuntimeError, match=r"'cluster.name' is 'first', which is the name of another live node"):
            other.start()
