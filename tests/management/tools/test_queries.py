"""The requests of tools that are not run here: KEDA, Telegraf, Datadog's agent and Terraform's provider.

The types are those that the tools decode: a value of another type ends their query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from leveret import sync
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

VHOST = "query/vhost"
SHOVEL = {"src-uri": "amqp://u:p@127.0.0.1:1", "dest-uri": "amqp://u:p@127.0.0.1:1", "reconnect-delay": 0}
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def vhost(api: HttpBroker) -> Iterator[str]:
    """Return the path of a vhost with two queues, one with messages."""
    path = quote(VHOST, safe="")
    assert api("PUT", f"/vhosts/{path}", {}).status == 201
    assert api("PUT", f"/permissions/{path}/guest", ALL).status in (201, 204)
    for name in ("orders.new", "orders.old"):
        assert api("PUT", f"/queues/{path}/{name}", {"durable": True}).status == 201
    body = {"properties": {}, "routing_key": "orders.new", "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        assert api("POST", f"/exchanges/{path}/amq.default/publish", body).json == {"routed": True}
    yield path
    assert api("DELETE", f"/vhosts/{path}").status == 204


def check(row: dict[str, Any], kinds: dict[str, type | tuple[type, ...]]) -> None:
    """Check the types of values at dotted paths. No number may be a boolean."""
    for path, kind in kinds.items():
        value: Any = row
        for key in path.split("."):
            assert key in value, path
            value = value[key]
        assert isinstance(value, kind), (path, value)
        assert kind is bool or not isinstance(value, bool), (path, value)


NUMBER = (int, float)
RATES = {
    "message_stats.publish_details.rate": NUMBER,
    "message_stats.deliver_get_details.rate": NUMBER,
    "message_stats.ack_details.rate": NUMBER,
}
QUEUE: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "vhost": str,
    "node": str,
    "durable": bool,
    "auto_delete": bool,
    "messages": int,
    "messages_ready": int,
    "messages_unacknowledged": int,
    "messages_details.rate": NUMBER,
    "consumers": int,
    "consumer_utilisation": NUMBER,
    "memory": int,
    "message_bytes": int,
    "message_bytes_ready": int,
    "message_bytes_unacknowledged": int,
    "message_bytes_ram": int,
    "message_bytes_persistent": int,
    "message_stats.publish": int,
    "message_stats.deliver": int,
    "message_stats.ack": int,
    "message_stats.redeliver": int,
    **RATES,
}


def test_keda_one_queue(api: HttpBroker, vhost: str) -> None:
    """KEDA escapes names like form fields; a queue's length and rates trigger it."""
    row = api.get(f"/queues/{quote_plus(VHOST)}/{quote_plus('orders.new')}")
    check(row, {"messages": int, "messages_unacknowledged": int, **RATES})
    assert (row["name"], row["messages"]) == ("orders.new", 3)
    assert api("GET", f"/queues/{vhost}/missing").status == 404


def test_keda_queues_of_a_pattern(api: HttpBroker, vhost: str) -> None:
    pattern = quote_plus("^orders\\..*$")
    query = f"page=1&use_regex=true&pagination=false&name={pattern}&page_size=100"
    page = api.get(f"/queues/{vhost}?{query}")
    check(page, {"page_count": int, "items": list})
    assert page["page_count"] == 1
    assert {row["name"]: row["messages"] for row in page["items"]} == {"orders.new": 3, "orders.old": 0}
    for row in page["items"]:
        check(row, {"messages": int, "messages_unacknowledged": int, **RATES})


def test_telegraf(api: HttpBroker, vhost: str) -> None:
    overview = api.get("/overview")
    names = ("ack", "deliver", "deliver_get", "publish", "redeliver", "return_unroutable")
    check(
        overview,
        {
            **{f"message_stats.{name}": int for name in names},
            **{f"message_stats.{name}_details.rate": NUMBER for name in names},
            **{f"object_totals.{name}": int for name in ("channels", "connections", "consumers", "exchanges", "queues")},
            **{f"queue_totals.{name}": int for name in ("messages", "messages_ready", "messages_unacknowledged")},
            "listeners": list,
        },
    )
    (node,) = api.get("/nodes")
    counters = ("disk_free", "disk_free_limit", "fd_total", "fd_used", "mem_limit", "mem_used", "proc_total", "proc_used")
    more = ("run_queue", "sockets_total", "sockets_used", "uptime", "gc_num", "io_read_bytes", "io_write_bytes")
    check(
        node,
        {
            **dict.fromkeys(counters + more, int),
            **{
                f"{name}_details.rate": NUMBER for name in ("gc_num", "gc_bytes_reclaimed", "io_read_avg_time", "disk_free")
            },
            "running": bool,
            "mem_alarm": bool,
            "disk_free_alarm": bool,
        },
    )
    memory = api.get(f"/nodes/{node['name']}/memory")["memory"]
    check(memory, {"connection_readers": int, "queue_procs": int, "binary": int, "total.rss": int})
    for row in api.get("/queues"):
        check(row, QUEUE)
    for row in api.get("/exchanges"):
        check(
            row,
            {
                "name": str,
                "vhost": str,
                "type": str,
                "internal": bool,
                "durable": bool,
                "auto_delete": bool,
                "message_stats.publish_in": int,
                "message_stats.publish_in_details.rate": NUMBER,
                "message_stats.publish_out": int,
            },
        )
    assert api.get("/federation-links") == []
    assert api.get("/health/checks/local-alarms") == {"status": "ok"}


def test_datadog(api: HttpBroker, vhost: str) -> None:
    with sync.connect(api.process.url(vhost=VHOST)) as connection:
        connection.channel().declare_queue("watched", auto_delete=True)
        rows = wait_until(lambda: [row for row in api.get("/connections") if row["vhost"] == VHOST], "the connection")
        assert [row["state"] for row in rows] == ["running"]
    assert VHOST in [row["name"] for row in api.get("/vhosts")]
    check(
        api.get("/overview"),
        {
            "cluster_name": str,
            "rabbitmq_version": str,
            "object_totals.queues": int,
            "queue_totals.messages_details.rate": NUMBER,
            "message_stats.confirm": int,
        },
    )
    for row in api.get(f"/queues/{vhost}"):
        check(row, QUEUE | {"active_consumers": int} if "active_consumers" in row else QUEUE)
    bindings = api.get(f"/queues/{vhost}/orders.new/bindings")
    assert [row["source"] for row in bindings] == [""]
    assert api.get(f"/aliveness-test/{vhost}") == {"status": "ok"}
    assert api("HEAD", "/overview").status == 200


def test_terraform(api: HttpBroker) -> None:
    """Each resource: create, read what was created, change, delete, and read that it is missing."""
    resources: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("/vhosts/terraform", {"description": "d", "default_queue_type": "quorum", "tracing": False}, {"description": "e"}),
        ("/users/terraform", {"password": "p", "tags": "monitoring"}, {"password": "q", "tags": "monitoring,management"}),
        ("/permissions/terraform/terraform", ALL, ALL | {"read": "^x"}),
        (
            "/topic-permissions/terraform/terraform",
            {"exchange": "amq.topic", "write": ".*", "read": ".*"},
            {"exchange": "amq.topic", "write": "^w", "read": ".*"},
        ),
        ("/exchanges/terraform/x", {"type": "fanout", "durable": True, "auto_delete": False, "arguments": {}}, {}),
        (
            "/queues/terraform/q",
            {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum", "x-message-ttl": 5000}},
            {},
        ),
        (
            "/policies/terraform/p",
            {"pattern": ".*", "priority": 0, "apply-to": "all", "definition": {"max-length": 3}},
            {"pattern": ".*", "priority": 1, "apply-to": "queues", "definition": {"max-length": 4}},
        ),
        (
            "/operator-policies/terraform/p",
            {"pattern": ".*", "priority": 0, "apply-to": "queues", "definition": {"expires": 100000}},
            {"pattern": ".*", "priority": 1, "apply-to": "queues", "definition": {"expires": 200000}},
        ),
        (
            "/parameters/shovel/terraform/u",
            {"component": "shovel", "vhost": "terraform", "name": "u", "value": {**SHOVEL, "src-queue": "a"}},
            {"component": "shovel", "vhost": "terraform", "name": "u", "value": {**SHOVEL, "src-queue": "b"}},
        ),
    ]
    for path, body, change in resources:
        assert api("GET", path).status == 404, path
        reply = api("PUT", path, body)
        assert reply.status == 201, (path, reply.status, reply.content)
        check_contents(path, api.get(path), body)
        if change:
            assert api("PUT", path, change).status == 204, path
            check_contents(path, api.get(path), change)
    reply = api("POST", "/bindings/terraform/e/x/q/q", {"routing_key": "a/b #", "arguments": {"k": "v"}})
    assert reply.status == 201
    key = reply.headers["location"].partition("/")[2]
    (found,) = [row for row in api.get("/bindings/terraform") if row["source"] == "x"]
    assert quote(found["properties_key"], safe="~") == key
    assert (found["routing_key"], found["arguments"]) == ("a/b #", {"k": "v"})
    assert api("DELETE", f"/bindings/terraform/e/x/q/q/{quote(found['properties_key'], safe='')}").status == 204
    for path, _, _ in reversed(resources):
        assert api("DELETE", path).status == 204, path
        assert api("GET", path).status == 404, path


def check_contents(path: str, found: Any, body: dict[str, Any]) -> None:
    if path.startswith("/topic-permissions"):
        (found,) = found
    for key, value in body.items():
        if key == "tags":
            assert found["tags"] == value.split(","), path
        elif key != "password":
            assert found[key] == value, (path, key)
