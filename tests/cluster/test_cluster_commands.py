"""A cluster of two nodes as operators see it at each of them: its state, its check, take-overs and the audit log."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leveret.cli.app import leveret
from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, Refused, owners
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import scrape
from tests.support.broker import CONNECT_TIMEOUT, Broker
from tests.support.polling import wait_until
from tests.support.postgres import require_postgres, shared_server
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """The way of the second node to the database server."""
    require_postgres()
    server = shared_server()
    proxy = Proxy(Broker(server.host, server.port))
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, proxy: Proxy) -> Iterator[tuple[Node, Node, str]]:
    """Two nodes and their database. The first one owns the shards of the vhosts / and a."""
    dsn = shared_server().database()
    directory = tmp_path_factory.mktemp("cluster")
    http = {"LEVERET_MANAGEMENT__ENABLED": "true", "LEVERET_MANAGEMENT__PORT": "0"}
    # Only the node that is killed loses its shards, which the other one notices at once.
    lease = {"LEVERET_CLUSTER__LEASE": "10"}
    first = Node(directory / "first", dsn, "a", shards=4, **lease)
    second = Node(directory / "second", through(proxy, dsn), shards=4, **lease, **http)
    with ExitStack() as stack:
        for node in (first, second):
            stack.enter_context(running(node))
        yield first, second, dsn


def through(proxy: Proxy, dsn: str) -> str:
    return dsn.replace(f":{proxy.broker.port}/", f":{proxy.port}/")


def run(node: Node, *arguments: str) -> Result:
    return CliRunner().invoke(leveret, ["cluster", *arguments, "--data-dir", str(node.data_dir)])


def shown(node: Node, *arguments: str) -> Any:
    """Return the answer of a command, as JSON."""
    return json.loads(run(node, *arguments, "--json").stdout)


def differences(found: list[dict[str, Any]]) -> list[str]:
    return [finding["check"] for finding in found if not finding["good"]]


def finds(node: Node, faults: list[str]) -> bool:
    return differences(shown(node, "check")) == faults


def knows_the_clocks(node: Node) -> bool:
    """Return whether the clocks of all nodes are known, which they measure with looks that are answered in time."""
    clocks = [row["clock"] for row in shown(node, "nodes")]
    return all(clock is not None and abs(clock) < 0.25 for clock in clocks)


def sees_both(node: Node) -> bool:
    """Return whether a node has seen both nodes, which it does with its next look after their start."""
    return bool(shown(node, "status")["nodes"]["live"] == 2)


def settled(condition: Callable[[], bool], *nodes: Node) -> None:
    wait_until(condition, lambda: "\n".join(node.log() for node in nodes))


def test_the_state_is_the_same_at_all_nodes(cluster: tuple[Node, Node, str], proxy: Proxy) -> None:
    first, second, dsn = cluster
    for node, address in ((first, dsn), (second, through(proxy, dsn))):
        settled(partial(sees_both, node), node)
        status = shown(node, "status")
        assert status["database"] == address.rpartition("@")[2]
        assert status["nodes"] == {"live": 2, "draining": 0, "gone": 0}
        assert (status["shards"], status["unowned"], status["problem"], status["synchronous"]) == (4, [], "", "")
        listed = {shard["number"]: (shard["node"], shard["vhosts"]) for shard in shown(node, "shards")}
        assert {number: listed[number] for number in (0, 1)} == {0: ("first", ["/"]), 1: ("first", ["a"])}
        assert [row["name"] for row in shown(node, "nodes")] == ["first", "second"]
        settled(partial(knows_the_clocks, node), node)
        check = run(node, "check")
        assert check.exit_code == 0, check.output
        assert "one disk: no synchronous standby, as 'cluster.unreplicated' allows" in check.output
    text = run(second, "status").output
    assert "waits for a standby    no" in text
    assert "shards                 4; without an owner: none that needs one" in text
    status = CliRunner().invoke(leveret, ["status", "--data-dir", str(second.data_dir)]).output
    assert "replication            one disk (no synchronous standby)" in status
    assert "shard 0                ready, node first, epoch " in status


def test_the_check_finds_what_must_be_changed(cluster: tuple[Node, Node, str]) -> None:
    first, second, dsn = cluster
    server = shared_server()
    database = dsn.rpartition("/")[2]
    server.execute("SELECT pg_create_physical_replication_slot('forgotten', true)", database)
    server.execute(
        "INSERT INTO leveret.node(name, incarnation, address, leveret, applied, draining)"
        " VALUES ('lost', gen_random_uuid(), 'lost:1', '0.1', 0, false)",
        database,
    )
    try:
        for node in (first, second):
            settled(partial(finds, node, ["replication slots", "nodes"]), node)
            check = run(node, "check")
            assert check.exit_code == 1
            assert "nodes: start it, or remove it from the list with `leveret cluster forget lost`" in check.output
            assert (
                "replication slots: start its standby, or drop it: SELECT pg_drop_replication_slot('forgotten')"
                in check.output
            )
    finally:
        server.execute("SELECT pg_drop_replication_slot('forgotten')", database)
    assert run(second, "forget", "lost").output == "forgot node 'lost'\n"
    settled(partial(finds, first, []), first)


def test_changes_are_audited_once(cluster: tuple[Node, Node, str]) -> None:
    _, second, dsn = cluster
    moved = run(second, "move", "1", "second")
    assert moved.output == "moved shard 1 to node 'second'\n", moved.output
    with pytest.raises(Refused, match="shard 9 does not exist"):
        second.ask("nodes.move", shard=9, node="second")
    second.ask("nodes.drain", name="second")
    second.ask("nodes.drain", name="second", on=False)
    records = [
        (record["action"], record["kind"], record["name"], record["after"])
        for record in second.ask("audit.search", page_size=100)["items"]
        if record["action"].startswith("nodes.") and record["name"] != "lost"
    ]
    assert sorted(records, key=lambda record: str(record)) == [
        ("nodes.drain", "node", "second", {"request": {"on": False}, "result": {"shards": []}}),
        ("nodes.drain", "node", "second", {"request": {"on": True}, "result": {"shards": [1]}}),
        ("nodes.move", "shard", "1", {"request": {"shard": 1, "node": "second"}, "result": {"from": "first"}}),
    ]
    assert owners(dsn)[1] == "first"


def test_backups_are_left_to_postgresql(cluster: tuple[Node, Node, str], tmp_path: Path) -> None:
    result = CliRunner().invoke(leveret, ["backup", str(tmp_path / "backups"), "--data-dir", str(cluster[0].data_dir)])
    assert result.exit_code == 1 and "pg_basebackup" in result.output, result.output


def test_wrong_orders_are_refused_with_what_is_right(cluster: tuple[Node, Node, str]) -> None:
    _, second, _ = cluster
    refusals = {
        ("move", "9", "second"): "shard 9 does not exist; expected 0 to 3",
        ("move", "3", "second"): "shard 3 has no owner, because it has no vhosts; expected one with vhosts",
        ("move", "1", "third"): "node 'third' does not exist; expected one of 'first', 'second'",
        ("drain", "third"): "node 'third' does not exist; expected one of 'first', 'second'",
        ("forget", "third"): "node 'third' does not exist; expected one of 'first', 'second'",
        ("forget", "first"): "node 'first' is alive; stop it first",
    }
    for arguments, expected in refusals.items():
        result = run(second, *arguments)
        assert (result.exit_code, result.output) == (1, f"Error: {expected}\n")
    assert run(second, "move", "one", "second").exit_code == 2
    second.ask("nodes.drain", name="second")
    refusals = {
        ("move", "1", "second"): "node 'second' is draining; expected one that takes shards: 'first'",
        ("drain", "first"): "no other node than 'first' takes shards; start one, or let one own shards again with `leveret"
        " cluster drain NODE --off`",
    }
    for arguments, expected in refusals.items():
        result = run(second, *arguments)
        assert (result.exit_code, result.output) == (1, f"Error: {expected}\n")
    # A node that drains claims no shard for a new vhost.
    with pytest.raises(Refused, match="shard 3 has no owner, and node 'second' is draining; add the vhost at another node"):
        second.ask("vhosts.add", name="new", shard=3)
    second.ask("vhosts.add", name="new")
    assert shown(second, "shards")[3]["state"] == "idle"
    second.ask("vhosts.delete", name="new")
    second.ask("nodes.drain", name="second", on=False)


def takes_clients(node: Node) -> bool:
    try:
        socket.create_connection(("127.0.0.1", node.port), CONNECT_TIMEOUT).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_node_that_drains_takes_no_clients(cluster: tuple[Node, Node, str]) -> None:
    first, second, _ = cluster
    checks = ("is-in-service", "ready-to-serve-clients")
    # The handshake of this client is not over.
    with socket.create_connection(("127.0.0.1", second.port), CONNECT_TIMEOUT) as waiting:
        waiting.sendall(b"AMQP\x00\x00\x09\x01")
        assert waiting.recv(4096)
        client = second.open("/")
        second.ask("nodes.drain", name="second")
        assert not takes_clients(second)
        while waiting.recv(4096):
            pass
    for check in checks:
        reply = HttpBroker(second)("GET", f"/health/checks/{check}")
        assert (reply.status, reply.json["reason"]) == (
            503,
            "the node is draining: it moves its shards away and takes no clients",
        )
    assert HttpBroker(second)("GET", f"/health/checks/port-listener/{second.port}").status == 503
    # Those of other nodes' shards stay.
    client.channel()
    client.close()
    first.ask("nodes.drain", name="second", on=False)
    settled(partial(takes_clients, second), second)
    for check in checks:
        assert HttpBroker(second)("GET", f"/health/checks/{check}").status == 200
    second.open("/").close()


def test_take_overs_are_counted_and_timed(cluster: tuple[Node, Node, str]) -> None:
    first, second, dsn = cluster
    before = {shard["number"]: shard for shard in shown(second, "shards")}
    assert before[0]["takeovers"] == 0
    # A move is not a take-over.
    assert before[1]["takeovers"] == 0
    # The shards are not released.
    pids = [first.pid, first.shard_pid(0), first.shard_pid(1)]
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, sent)
    first.kill()
    settled(lambda: owners(dsn)[0] == owners(dsn)[1] == "second", second)

    def served() -> bool:
        return all(shard["takeover_seconds"] is not None for shard in shown(second, "shards") if shard["number"] < 2)

    settled(served, second)
    for number, shard in enumerate(shown(second, "shards")[:2]):
        assert (shard["node"], shard["takeovers"]) == ("second", 1)
        assert shard["epoch"] == before[number]["epoch"] + 1
        assert 0 < shard["takeover_seconds"] <= shard["takeover_age"]
    status = shown(second, "status")
    assert status["takeovers"] == 2
    assert status["last_takeover"]["node"] == "second"
    assert "last take-over         shard " in run(second, "status").output
    settled(lambda: shown(second, "status")["nodes"]["gone"] == 1, second)
    assert "nodes" in differences(shown(second, "check"))
    first.start()
    assert [shard["takeovers"] for shard in shown(first, "shards")[:2]] == [1, 1]


def test_the_http_api_and_the_metrics_show_the_cluster(cluster: tuple[Node, Node, str]) -> None:
    _, second, dsn = cluster
    api = HttpBroker(second)
    settled(lambda: [node["state"] for node in api.get("/leveret/cluster/nodes")] == ["live", "live"], second)
    # The second node takes the first one for gone until its next looks.
    settled(lambda: api("POST", "/leveret/shards/1/move", {"node": "first"}).status == 204, second)
    assert owners(dsn)[1] == "first"
    assert api("POST", "/leveret/shards/a/move", {"node": "first"}).status == 400
    assert b"node 'third' does not exist" in api("POST", "/leveret/shards/1/move", {"node": "third"}).content
    assert b"'first' is alive" in api("DELETE", "/leveret/cluster/nodes/first").content
    assert api("POST", "/leveret/cluster/nodes/first/drain", {"on": 1}).status == 400
    assert api("POST", "/leveret/cluster/nodes/first/drain").status == 204
    [first, _] = api.get("/leveret/cluster/nodes")
    assert (first["name"], first["state"], first["shards"]) == ("first", "draining", [])
    assert api("POST", "/leveret/cluster/nodes/first/drain", {"on": False}).status == 204
    settled(lambda: api.get("/leveret/cluster")["last_takeover"] is not None, second)
    expected = {
        'leveret_shard_owner{node="second",shard="1"} 1.0',
        'leveret_node_state{node="first",state="live"} 1.0',
        'leveret_node_state{node="first",state="gone"} 0.0',
        'leveret_shard_takeovers_total{shard="0"} 1.0',
        'leveret_shard_hangs_total{shard="0"} 0.0',
        "leveret_standby_waits 0.0",
        "leveret_unowned_shards 0.0",
    }
    # A node knows the state of the others by its next look.
    settled(lambda: expected <= set(scrape(second).splitlines()), second)
    metrics = scrape(second).splitlines()
    [seconds] = [line.split()[1] for line in metrics if line.startswith('leveret_shard_takeover_seconds{shard="0"}')]
    assert float(seconds) > 0


def add_user(node: Node, name: str) -> None:
    """Add a user without an answer, because the node stops meanwhile."""
    with suppress(OSError, ValueError, Refused):
        node.ask("users.add", name=name, password="secret")


def test_a_database_that_does_not_answer_is_named(cluster: tuple[Node, Node, str], proxy: Proxy) -> None:
    _, second, _ = cluster
    second.ask("nodes.move", shard=0, node="second")
    proxy.stop()
    settled(lambda: shown(second, "status")["problem"] != "", second)
    for command in ([], ["nodes"], ["shards"]):
        result = run(second, *command)
        assert result.exit_code == 0
        assert "warning: the list is as it was when the database last answered: " in result.stderr
        assert "second" in result.stdout
    assert "problem                the log in PostgreSQL cannot be opened: " in run(second, "status").output
    for arguments in ("check", "move 0 first", "drain first", "drain first --off", "forget first"):
        result = run(second, *arguments.split())
        assert result.exit_code == 1, arguments
        assert result.output.startswith("Error: the log in PostgreSQL cannot be opened: "), result.output
    # The change is not stored yet when the node stops.
    threading.Thread(target=add_user, args=(second, "late"), daemon=True).start()
    settled(lambda: "late" in second.users(), second)
    second.stop()
