"""Management of several processes over the control socket of the front."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.tracing import TracePoint, Tracing
from leveret.cluster.batches import SHARED
from leveret.cluster.calls import ShardCalls
from leveret.cluster.feeds import queue_id
from leveret.cluster.routing import ROUTES, here
from leveret.config import Config
from leveret.management.control_client import CallFailed
from leveret.management.http.cache import Cache
from leveret.management.http.errors import BrokerRefused
from leveret.management.http.metrics.broker import Scrape, all_metrics
from leveret.management.operations.batches import CHANGES
from leveret.management.operations.table import OPERATIONS
from leveret.management.recent_log import RecentLog
from leveret.management.telemetry.points import Point
from leveret.node.http_endpoint import HttpEndpoint
from leveret.security.oauth.account import TokenAccount
from leveret.security.oauth.scopes import Scopes
from tests.cluster.harness import Cluster, FakeShard
from tests.management.harness import Harness
from tests.support.polling import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def add_queues(cluster: Cluster, vhost: str, count: int) -> None:
    changes = [{"call": "queues.add", "arguments": {"name": f"q{number}", "vhost": vhost}} for number in range(count)]
    assert cluster.call("definitions.apply", changes=changes) == {"refused": []}


def test_every_operation_has_a_route() -> None:
    """A new operation has to be given its place. Operations in DEFINITIONS run in the shard of their vhost."""
    assert ROUTES.keys() == OPERATIONS.keys()
    for name, operation in OPERATIONS.items():
        fields = operation.request.__struct_fields__
        is_in_vhost = "vhost" in fields and not name.startswith(("permissions.", "topic_permissions.", "audit."))
        assert not (is_in_vhost and ROUTES[name] is here), name
    assert {name for name in CHANGES if ROUTES[name] is here} == SHARED


def test_objects_are_in_the_shard_of_their_vhost(cluster: Cluster) -> None:
    cluster.call("queues.add", name="first")
    cluster.call("queues.add", name="second", vhost="b")
    assert cluster.harnesses[0].broker.vhost("/").find_queue("first") is not None
    assert cluster.harnesses[1].broker.vhost("b").find_queue("second") is not None
    assert names(cluster.call("queues.list")) == ["first", "second"]
    assert names(cluster.call("queues.list", vhost="b")) == ["second"]
    assert cluster.call("queues.show", name="second", vhost="b")["vhost"] == "b"
    assert cluster.refusal("queues.add", name="q", vhost="c") == ("not-found", "vhost 'c' does not exist")
    assert cluster.refusal("queues.list", vhost="c") == ("not-found", "vhost 'c' does not exist")
    assert cluster.refusal("queues.add")[0] == "bad-call"
    assert "unknown call 'x'" in cluster.refusal("x")[1]


def test_a_long_list_of_several_shards(cluster: Cluster) -> None:
    """Lists of more than one part are concatenated, an empty one included."""
    add_queues(cluster, "/", 250)
    assert len(cluster.call("queues.list")) == 250
    add_queues(cluster, "b", 250)
    found = cluster.call("queues.list")
    assert [row["vhost"] for row in found] == ["/"] * 250 + ["b"] * 250
    assert len({(row["vhost"], row["name"]) for row in found}) == 500


def test_the_front_reads_no_more_of_a_list_than_its_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, written, blocked = tmp_path / "s.sock", 0, asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            await reader.readline()
            part = b'{"v":1,"part":["%s"]}\n' % (b"x" * 32_000)
            for _ in range(2000):
                writer.write(part)
                written += len(part)
                try:
                    async with asyncio.timeout(2):
                        await writer.drain()
                except TimeoutError:
                    break
            blocked.set()
            writer.transport.abort()

        server = await asyncio.start_unix_server(serve, path)
        lines = ShardCalls().lines(FakeShard(0, path, 1), b"{}\n")  # type: ignore[arg-type]
        await anext(lines)
        await blocked.wait()
        assert written < 2 << 20
        await lines.aclose()
        server.close()

    asyncio.run(scenario())


def test_status_and_health_are_those_of_all_processes(cluster: Cluster) -> None:
    cluster.call("queues.add", name="a")
    cluster.call("queues.add", name="b", vhost="b")
    cluster.connect(1, "guest")
    status = cluster.call("status")
    assert (status["queues"], status["vhosts"], status["connections"]) == (2, 2, 1)
    assert [(shard["number"], shard["state"], shard["vhosts"]) for shard in status["shards"]] == [
        (0, "ready", ["/"]),
        (1, "ready", ["b"]),
    ]
    assert cluster.call("health")["state"] == "ok"
    assert cluster.call("shards.list") == status["shards"]
    cluster.harnesses[1].managed.alarm = lambda: "memory is short"
    assert cluster.call("health")["alarm"] == "shard 1: memory is short"
    cluster.shards.all[1].state = "restarting"
    health = cluster.call("health")
    assert (health["state"], health["reason"]) == ("failed", "shard 1 is restarting")
    status = cluster.call("status")
    assert status["queues"] == 1
    assert [shard["state"] for shard in status["shards"]] == ["ready", "restarting"]
    assert [shard["state"] for shard in cluster.call("shards.list")] == ["ready", "restarting"]


def test_a_broker_of_one_process_is_one_shard() -> None:
    harness = Harness()
    [shard] = harness.call("shards.list")
    assert (shard["number"], shard["state"], shard["vhosts"]) == (0, "ready", ["/"])
    assert "shards" not in harness.call("status")
    with pytest.raises(PreconditionFailed, match=r"'cluster\.shards'"):
        harness.call("vhosts.add", name="c", shard=0)
    harness.close()


def test_a_shard_that_is_down_is_named(cluster: Cluster) -> None:
    cluster.call("queues.add", name="a")
    cluster.call("queues.list")
    cluster.end(1)
    unavailable = ("shard-unavailable", "shard 1 is restarting: it ended before it had answered")
    assert cluster.refusal("queues.list") == unavailable
    assert cluster.refusal("queues.add", name="q", vhost="b") == unavailable
    assert names(cluster.call("queues.list", vhost="/")) == ["a"]
    cluster.shards.all[1].state = "restarting"
    assert cluster.refusal("queues.list") == ("shard-unavailable", "shard 1 is restarting")


def test_a_shard_that_ends_in_the_middle_of_a_list(cluster: Cluster) -> None:
    add_queues(cluster, "/", 150)
    cluster.end(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"v":1,"part":[]}\n{"v":1,"pa')
        await writer.drain()
        writer.close()

    server = cluster.run(asyncio.start_unix_server(serve, cluster.shards.all[1].control))
    expected = "shard 1 is restarting: it ended before it had answered"
    assert cluster.refusal("queues.list") == ("shard-unavailable", expected)
    cluster.loop.call_soon_threadsafe(server.close)


def test_values_of_clients_stay_as_they_are(cluster: Cluster) -> None:
    """A request is forwarded as it is: numbers of 64 bits and more, and floats."""
    request = (
        b'{"v":1,"call":"queues.add","arguments":{"vhost":"b","name":"q","arguments":'
        b'{"max":9223372036854775807,"min":-9223372036854775808,"float":1.0}}}\n'
    )
    shown = json.loads(cluster.exchange(request))["result"]["arguments"]
    assert shown == {"max": 2**63 - 1, "min": -(2**63), "float": 1.0}
    huge = request.replace(b"9223372036854775807", b"9223372036854775808").replace(b'"q"', b'"r"')
    assert "expected 64 bits" in json.loads(cluster.exchange(huge))["error"]["text"]
    [listed] = cluster.call("queues.list")
    assert listed["arguments"]["max"] == 2**63 - 1


def test_changes_of_all_shards_as_those_of_one_broker(cluster: Cluster) -> None:
    def read(reader: str) -> list[list[Any]]:
        found: list[list[Any]] = cluster.call("statistics.changes", reader=reader)
        return found

    cluster.call("queues.add", name="first")
    cluster.call("queues.add", name="second", vhost="b")
    changes = read("r")
    kinds = [kind for kind, _, _ in changes]
    assert changes[0] == ["begin", None, True]
    assert (kinds.count("begin"), kinds.count("node"), kinds.count("end"), kinds[-1]) == (1, 1, 1, "end")
    queues = {value["name"]: key for kind, key, value in changes if kind == "queue"}
    assert queues["first"] != queues["second"]
    cache = Cache(None)  # type: ignore[arg-type]
    cache.apply(changes)
    assert {queue.item["name"] for queue in cache.queues.values()} == {"first", "second"}
    assert cache.process["processes"].keys() == {"front", "0", "1"}
    cluster.call("queues.delete", name="second", vhost="b")
    changes = read("r")
    assert changes[0] == ["begin", None, False]
    cache.apply(changes)
    assert {queue.item["name"] for queue in cache.queues.values()} == {"first"}
    # A shard that does not know a reader whom the others know was restarted.
    cluster.harnesses[1].managed.feeds._feeds.clear()
    assert cluster.refusal("statistics.changes", reader="r")[1] == "shard 1 was restarted; begin with a new reader"
    assert read("other")[0] == ["begin", None, True]


class _Control:
    """Calls of the HTTP process to the front."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def call(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        try:
            return self._cluster.call(name, **arguments or {})
        except CallFailed as error:
            raise BrokerRefused(error.condition, str(error)) from None

    async def topology(self) -> Any:
        return []  # the test asks for changes itself


def test_the_topology_of_all_shards(cluster: Cluster) -> None:
    before = cluster.call("statistics.topology")
    assert len(before) == 2
    cluster.call("queues.add", name="new", vhost="b")
    after = cluster.call("statistics.topology")
    assert [shard for shard in (0, 1) if before[shard] != after[shard]] == [1]


def test_lists_name_a_shard_that_is_not_ready(cluster: Cluster) -> None:
    """Metrics and the overview leave it out, and the other processes begin again when the shards change."""
    cluster.call("queues.add", name="first")
    cluster.call("queues.add", name="second", vhost="b")
    cache = Cache(_Control(cluster))  # type: ignore[arg-type]
    settings = HttpEndpoint(Config(), cluster.directory).settings()

    def known() -> set[str]:
        cache.expire()
        asyncio.run(cache.refresh())
        return {queue.item["name"] for queue in cache.queues.values()}

    def metrics() -> list[str]:
        return generate_latest(Scrape(all_metrics(cache, settings))).decode().splitlines()

    assert known() == {"first", "second"}
    asyncio.run(cache.refresh())
    assert {'leveret_shard_up{shard="0"} 1.0', 'leveret_shard_up{shard="1"} 1.0'} <= set(metrics())
    assert 'leveret_log_state{shard="front",state="ok"} 1.0' in metrics()
    cluster.shards.all[1].state = "restarting"
    assert known() == {"first"}
    assert 'leveret_shard_up{shard="1"} 0.0' in metrics()
    assert cache.missing_shards() == [1]
    for partial, found in ((True, ["first"]), (False, None)):
        line = json.dumps({"v": 1, "call": "queues.list", "arguments": {}, "partial": partial}).encode()
        reply = json.loads(cluster.exchange(line + b"\n"))
        assert (names(reply["result"]) if "result" in reply else None) == found
        if found is None:
            assert reply["error"] == {"condition": "shard-unavailable", "text": "shard 1 is restarting"}
    cluster.shards.all[1].state = "ready"
    assert known() == {"first", "second"}
    asyncio.run(cache.refresh())


def test_trace_points_of_all_shards(cluster: Cluster) -> None:
    """Their queues have other ids than those of other shards."""
    for harness in cluster.harnesses:
        tracing = harness.broker.tracing = Tracing(harness.broker, 1.0)
        tracing.dropped = 1
        tracing._points.append(TracePoint("deliver", "", "/", "q", 1, 1, b"\x00", 1, "", "", "", 0))
    points = [msgspec.convert(row, Point) for row in cluster.call("traces.take")]
    assert [(point.queue, point.dropped) for point in points] == [(0, 1), (1, 0), (0, 1), (queue_id(1, 1), 0)]
    assert cluster.call("traces.take") == []


def test_log_records_of_all_processes(cluster: Cluster) -> None:
    handlers = [RecentLog() for _ in range(3)]
    cluster.control._front.logs._own = handlers[0].records
    for harness, handler in zip(cluster.harnesses, handlers[1:], strict=True):
        harness.managed.log = handler.records
    record = logging.LogRecord("leveret.x", logging.INFO, "", 0, "text %d", None, None)
    for number, at in ((1, 0), (0, 1), (2, 2), (1, 3)):
        record.args, record.created = (at,), 1000.0 + at
        handlers[number].emit(record)
    found = cluster.call("log.read")
    assert [(entry["message"], entry.get("shard")) for entry in found["records"]] == [
        ("text 0", 0),
        ("text 1", None),
        ("text 2", 1),
        ("text 3", 0),
    ]
    assert [entry["id"] for entry in found["records"]] == [1, 2, 3, 4]
    assert cluster.call("log.read", after=found["last"])["records"] == []
    # The numbers of a new process begin again.
    cluster.shards.all[1].pid += 1
    handlers[2].emit(record)
    cluster.shards.all[0].state = "restarting"
    again = cluster.call("log.read", after=found["last"])
    assert [entry["shard"] for entry in again["records"]] == [1, 1]


def test_a_tail_is_read_in_its_shard(cluster: Cluster) -> None:
    cluster.call("queues.add", name="q", vhost="b")
    id = cluster.call("tails.open", vhost="b", queue="q")["id"]
    assert id.startswith("1.")
    cluster.call("messages.publish", vhost="b", exchange="", routing_key="q", payload="text")

    def payloads() -> list[str]:
        return [message["payload"] for message in cluster.call("tails.read", id=id)["messages"]]

    assert wait_until(payloads) == ["text"]
    cluster.call("tails.close", id=id)
    assert "no live tail" in cluster.refusal("tails.read", id=id)[1]
    assert "no live tail 'x'" in cluster.refusal("tails.read", id="x")[1]


def test_a_batch_is_made_where_its_objects_are(cluster: Cluster) -> None:
    """Order holds between shards and shared objects; refused changes have their indexes in the batch."""
    changes = [
        {"call": "users.set", "arguments": {"name": "u", "tags": []}},
        {"call": "queues.add", "arguments": {"name": "q"}},
        {"call": "vhosts.add", "arguments": {"name": "new"}},
        {"call": "vhosts.add", "arguments": {"name": "newer"}},
        {"call": "vhosts.add", "arguments": {"name": "b"}},
        {"call": "queues.add", "arguments": {"name": "q", "vhost": "new"}},
        {"call": "queues.add", "arguments": {"name": "q", "vhost": "none"}},
        {"call": "permissions.set", "arguments": {"user": "u", "vhost": "new", "configure": "", "write": "", "read": ""}},
        {"call": "permissions.set", "arguments": {"user": "u", "vhost": "none", "configure": "", "write": "", "read": ""}},
        {"call": "queues.add", "arguments": {"vhost": 1}},
        {"call": "queues.list", "arguments": {}},
        {"call": "bindings.add", "arguments": {"vhost": "b", "source": "amq.direct", "destination": "q", "kind": "queue"}},
    ]
    checked = cluster.call("definitions.check", changes=changes)["refused"]
    assert [refusal["index"] for refusal in checked] == [9, 10]
    refused = cluster.call("definitions.apply", changes=changes)["refused"]
    assert [(refusal["index"], refusal["condition"]) for refusal in refused] == [
        (4, "precondition-failed"),
        (6, "not-found"),
        (8, "not-found"),
        (9, "bad-call"),
        (10, "bad-call"),
        (11, "not-found"),
    ]
    assert names(cluster.call("queues.list")) == ["q", "q"]
    # The new vhosts are not both in the same shard.
    assert [len(shard.vhosts) for shard in cluster.shards.all] == [2, 2]
    assert cluster.call("permissions.list", vhost="new")[0]["user"] == "u"
    cluster.end(1)
    [down] = cluster.call(
        "definitions.apply", changes=[changes[1], {**changes[5], "arguments": {"name": "r", "vhost": "b"}}]
    )["refused"]
    assert (down["index"], down["condition"]) == (1, "shard-unavailable")


def test_vhosts_are_placed_on_the_least_busy_shard(cluster: Cluster) -> None:
    cluster.shards.all[0].connections = 1
    cluster.call("vhosts.add", name="c")
    cluster.call("vhosts.add", name="d")
    cluster.call("vhosts.add", name="e", shard=0, description="text")
    assert [list(shard.vhosts) for shard in cluster.shards.all] == [["/", "d", "e"], ["b", "c"]]
    assert sorted(names(cluster.call("vhosts.list"))) == ["/", "b", "c", "d", "e"]
    assert cluster.refusal("vhosts.add", name="f", shard=2)[1] == "shard 2 does not exist; expected 0 to 1"
    assert cluster.refusal("vhosts.add", name="c", shard=0)[1] == "vhost 'c' already exists"
    assert cluster.refusal("vhosts.add", name="")[0] == "precondition-failed"
    cluster.call("vhosts.change", name="c", description="changed")
    [changed] = [row for row in cluster.call("vhosts.list") if row["name"] == "c"]
    assert changed["description"] == "changed"


def test_two_clients_that_add_the_same_vhost(cluster: Cluster) -> None:
    async def add_twice() -> list[str]:
        calls = (cluster.control.call("vhosts.add", {"name": "c"}) for _ in range(2))
        return sorted(map(str, await asyncio.gather(*calls, return_exceptions=True)))

    assert cluster.run(add_twice()) == ["None", "vhost 'c' already exists"]
    assert sum("c" in shard.vhosts for shard in cluster.shards.all) == 1


def test_a_deleted_vhost_takes_its_permissions_along(cluster: Cluster) -> None:
    cluster.call("vhosts.add", name="c")
    cluster.call("users.add", name="u", password="p")
    cluster.call("permissions.set", user="u", vhost="c", configure=".*", write=".*", read=".*")
    assert cluster.refusal("permissions.set", user="u", vhost="d", configure="", write="", read="") == (
        "not-found",
        "vhost 'd' does not exist",
    )
    assert cluster.call("users.authenticate", name="u", password="p")["vhosts"] == ["c"]
    waits = cluster.shards.waits
    cluster.call("vhosts.delete", name="c")
    assert cluster.call("permissions.list") == []
    assert "c" not in names(cluster.call("vhosts.list"))
    assert cluster.shards.waits == waits + 1
    assert cluster.refusal("vhosts.delete", name="c") == ("not-found", "vhost 'c' does not exist")


def test_connections_of_a_user_are_closed_in_all_shards(cluster: Cluster) -> None:
    cluster.call("users.add", name="u", password="p")
    sessions = [cluster.connect(0, "u"), cluster.connect(1, "u"), cluster.connect(1, "other")]
    assert [row["number"] for row in cluster.call("connections.list")] == [1, 2, 4]
    cluster.call("connections.close", number=4, reason="by number")
    assert [session.closed_with for session in sessions] == [None, None, "by number"]
    assert cluster.call("connections.close_user", user="u", reason="r") == {"connections": 2}
    waits = cluster.shards.waits
    assert cluster.call("users.delete", name="u") == {"connections": 2}
    assert [session.closed_with for session in sessions[:2]] == ["user 'u' was deleted"] * 2
    assert cluster.shards.waits == waits + 1
    # The audit log has one record for each change: that of the front, and none of the shards but for the connection.
    assert [record.action for record in cluster.front.managed.audit.recent] == [
        "users.add",
        "connections.close_user",
        "users.delete",
    ]
    assert [record.action for harness in cluster.harnesses for record in harness.managed.audit.recent] == [
        "connections.close"
    ]
    assert cluster.front.managed.audit.recent[1].after == {
        "request": {"user": "u", "reason": "r"},
        "result": {"connections": 2},
    }


def test_deletion_by_a_pattern(cluster: Cluster) -> None:
    for name in ("u1", "u2", "v1"):
        cluster.call("users.add", name=name)
    session = cluster.connect(1, "u1")
    found = cluster.call("objects.delete", kind="users", pattern="u.*", dry_run=False)
    assert found["names"] == ["u1", "u2"]
    assert session.closed_with == "user 'u1' was deleted"
    cluster.call("vhosts.add", name="b2")
    cluster.call("queues.add", name="q1", vhost="b2")
    assert cluster.call("objects.delete", kind="queues", pattern="q.*", vhost="b2")["names"] == ["q1"]
    assert cluster.call("objects.delete", kind="vhosts", pattern=".*")["names"] == ["/", "b", "b2"]
    found = cluster.call("objects.delete", kind="vhosts", pattern=".*", dry_run=False)
    assert found["names"] == ["b", "b2"]
    assert found["refused"] == [{"name": "/", "reason": "vhost '/' always exists"}]
    assert names(cluster.call("vhosts.list")) == ["/"]


def test_operations_of_users_run_with_their_rights(cluster: Cluster) -> None:
    def as_user(call: str, arguments: dict[str, Any], **fields: str) -> Any:
        reply = json.loads(
            cluster.exchange(
                json.dumps({"v": 1, "call": call, "as": "u", "arguments": arguments, **fields}).encode() + b"\n"
            )
        )
        return reply["result"] if "result" in reply else reply["error"]["condition"]

    cluster.call("users.add", name="u")
    cluster.call("queues.add", name="q", vhost="b")
    read = {"vhost": "b", "queue": "q"}
    assert as_user("messages.count", read) == "access-refused"
    assert as_user("queue.declare", {"name": "mine"}, vhost="b") == "access-refused"
    cluster.call("permissions.set", user="u", vhost="b", configure="mine", write="", read="q")
    assert as_user("messages.count", read)["messages"] == 0
    assert as_user("queue.declare", {"name": "mine"}, vhost="b")["name"] == "mine"
    assert as_user("queues.list", {}) == "access-refused"
    assert as_user("connections.close_user", {"user": "u"}) == "access-refused"
    cluster.call("roles.grant", user="u", role="observer", vhosts="x")
    assert as_user("messages.count", read) == "role-required"


def test_a_token_is_checked_at_the_front(cluster: Cluster) -> None:
    """Its shard gets the scopes, which it cannot find out by itself."""

    async def authenticate(name: str, password: bytes, address: str) -> TokenAccount | None:
        return TokenAccount("u", Scopes(["read:b/q*", "configure:b/q*"], {}), 0.0) if password == b"right" else None

    cluster.front.managed._authenticate = authenticate
    cluster.call("queues.add", name="q", vhost="b")

    def ask(call: str, arguments: dict[str, Any], **fields: str) -> dict[str, Any]:
        request = {"v": 1, "call": call, "as": "u", "arguments": arguments, **fields}
        reply: dict[str, Any] = json.loads(cluster.exchange(json.dumps(request).encode() + b"\n"))
        return reply

    read = {"vhost": "b", "queue": "q"}
    assert ask("messages.count", read, token="right")["result"]["messages"] == 0
    assert ask("queue.declare", {"name": "q2"}, token="right", vhost="b")["result"]["name"] == "q2"
    assert ask("queue.declare", {"name": "r"}, token="right", vhost="b")["error"]["condition"] == "access-refused"
    assert "is not accepted any more" in ask("messages.count", read, token="wrong")["error"]["text"]
    assert ask("messages.count", read)["error"]["condition"] == "access-refused"


def test_the_audit_log_of_a_shard_names_the_client_of_the_front(cluster: Cluster) -> None:
    cluster.call("queues.add", name="q", vhost="b")
    request = {
        "v": 1,
        "call": "queues.add",
        "arguments": {"name": "r", "vhost": "b"},
        "origin": {"user": "admin", "source": "HTTP"},
    }
    cluster.exchange(json.dumps(request).encode() + b"\n")
    first, second = cluster.harnesses[1].managed.audit.recent
    assert "control socket, process" in first.source
    assert (second.user, second.source) == ("admin", "HTTP")


def test_a_restarted_shard_gets_new_connections(cluster: Cluster) -> None:
    """Idle connections to the process that has ended are not used again."""
    cluster.call("queues.list")
    cluster.end(1)
    cluster.run(cluster.controls[1].start())
    cluster.shards.all[1].pid += 1
    assert cluster.call("queues.list") == []
    # The same process has closed them, since its store was reopened.
    cluster.end(1)
    cluster.run(cluster.controls[1].start())
    assert cluster.call("queues.list") == []


def test_a_new_vhost_whose_shard_does_not_start(cluster: Cluster) -> None:
    """The answer names it, and the other vhosts of the batch are created."""
    cluster.shards.failing.add("c")
    changes = [
        *({"call": "vhosts.add", "arguments": {"name": name}} for name in ("c", "d")),
        *({"call": "queues.add", "arguments": {"name": "q", "vhost": name}} for name in ("c", "d")),
    ]
    assert cluster.call("definitions.check", changes=changes[:2]) == {"refused": []}
    assert not cluster.shards.prepared
    waits = cluster.shards.waits
    refused = cluster.call("definitions.apply", changes=changes)["refused"]
    assert [(one["index"], one["text"]) for one in refused] == [
        (0, "shard 7 does not start"),
        (2, "vhost 'c' does not exist"),
    ]
    assert cluster.shards.prepared == ["c", "d"]
    assert cluster.shards.waits > waits
    assert [queue["vhost"] for queue in cluster.call("queues.list")] == ["d"]
