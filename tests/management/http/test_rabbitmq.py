"""The HTTP API beside that of RabbitMQ: the same requests, and the keys and types of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from leveret import sync
from tests.management.http.client import HttpApi, HttpBroker, HttpRabbit, Reply, send
from tests.management.http.scrapes import Samples, metrics_port
from tests.management.http.typed_arguments import ENCODED, bind_typed
from tests.support.broker import LeveretProcess, free_port
from tests.support.peers.amqp091 import Peer
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitProcess, available

# Keys of RabbitMQ 3.10 that have no meaning in Leveret and that RabbitMQ 4 does not have either, by path.
OMITTED: dict[str, set[str]] = {
    "/queues/%2F/compared": {
        "backing_queue_status",
        "consumer_utilisation_details",
        "operator_policy",
        "slave_nodes",
        "synchronised_slave_nodes",
        "storage_version",
    },
    "/overview": {"erlang_full_version"},
}
# Metrics of RabbitMQ 3.10 that Leveret does not have, because they have no meaning in it or it does not count them.
OMITTED_METRICS = (
    r"erlang_.*|telemetry_.*|rabbitmq_(erlang|raft|io|schema_db|msg_store|queue_index|auth_attempts)_.*"
    r"|rabbitmq_.*_reductions_total|rabbitmq_.*dead_lettered_.*|rabbitmq_connection_pending_packets"
    r"|rabbitmq_queue_disk_(reads|writes)_total"
    r"|rabbitmq_channel_prefetch"
    # Only those of all queues together.
    r"|rabbitmq_queue_consumer_utilisation"
)
METRICS_PORT = free_port()
# Keys of objects that depend on clients or plugins.
OPEN = {
    "client_properties",
    "arguments",
    "socket_opts",
    "capabilities",
    "garbage_collection",
    "metadata",
    "cluster_state",
    "sample_retention_policies",
}


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RabbitProcess, HttpRabbit]]:
    if not available():
        pytest.skip("rabbitmq-server is not installed")
    port = free_port()
    settings = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\n"
    settings += f"prometheus.tcp.port = {METRICS_PORT}\nprometheus.tcp.ip = 127.0.0.1\n"
    plugins = ("rabbitmq_management", "rabbitmq_prometheus")
    process = RabbitProcess(tmp_path_factory.mktemp("rabbit"), plugins, settings)
    with process.start():
        yield process, HttpRabbit(port)


@pytest.mark.slow
def test_keys_and_types(api: HttpBroker, rabbit: tuple[RabbitProcess, HttpRabbit]) -> None:
    process, theirs = rabbit
    with sync.connect(process.url()) as first, sync.connect(api.process.url()) as second:
        for target, connection in ((theirs, first), (api, second)):
            channel = connection.channel()
            channel.declare_queue("compared")
            channel.publish(b"body", routing_key="compared")
            channel.consume("compared", prefetch=1).__enter__()
            assert target("POST", "/bindings/%2F/e/amq.topic/q/compared", {"routing_key": "a.b"}).status == 201
        # RabbitMQ omits statistics until they are first emitted.
        wait_until(lambda: "message_stats" in theirs.get("/queues/%2F/compared"), "statistics")
        wait_until(lambda: theirs.get("/connections"), "connections")
        for path in (
            "/whoami",
            "/overview",
            "/vhosts/%2F",
            "/users/guest",
            "/permissions/%2F/guest",
            "/queues/%2F/compared",
            "/exchanges/%2F/amq.topic",
            "/bindings/%2F/e/amq.topic/q/compared/a.b",
            "/connections",
            "/channels",
            "/consumers",
            "/cluster-name",
        ):
            compare(path, api.get(path), theirs.get(path), OMITTED.get(path, set()))


# The users of `test_lists_of_clients_by_role`, with their tags and the users whose clients they see.
CLIENTS = {
    "clients-monitor": ("monitoring", {"clients-monitor", "clients-maker", "clients-manager"}),
    "clients-maker": ("policymaker", {"clients-maker"}),
    "clients-manager": ("management", {"clients-manager"}),
}


def lists_clients_of(target: HttpApi, path: str, user: str, users: set[str]) -> bool:
    """Return whether a list that a user reads has the clients of these users."""
    return {row.get("user") or row["channel_details"]["user"] for row in target.get(path, user)} == users


@pytest.mark.slow
def test_lists_of_clients_by_role(api: HttpBroker, rabbit: tuple[RabbitProcess, HttpRabbit]) -> None:
    process, theirs = rabbit
    permissions = {"configure": ".*", "write": ".*", "read": ".*"}
    for target, url in ((theirs, process.url), (api, api.process.url)):
        with ExitStack() as clients:
            assert target("PUT", "/queues/%2F/shared", {"durable": True}).status == 201
            for user, (tags, _) in CLIENTS.items():
                assert target("PUT", f"/users/{user}", {"password": user, "tags": tags}).status == 201
                assert target("PUT", f"/permissions/%2F/{user}", permissions).status == 201
                connection = clients.enter_context(sync.connect(url(user=user, password=user)))
                clients.enter_context(connection.channel().consume("shared"))
            for user, (_, seen) in CLIENTS.items():
                for path in ("/connections", "/channels", "/consumers", "/consumers/%2F", "/vhosts/%2F/connections"):
                    wait_until(partial(lists_clients_of, target, path, user, seen), f"{path} of {user}")
                totals = target.get("/overview", user)["object_totals"]
                assert (totals["connections"], totals["channels"]) == (len(seen), len(seen))
            for user in CLIENTS:
                target("DELETE", f"/users/{user}")
            target("DELETE", "/queues/%2F/shared")


def compare(where: str, ours: Any, theirs: Any, omitted: set[str]) -> None:
    """Check that every key of their answer is in ours with a value of the same type."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if key in omitted:
                continue
            assert key in ours, f"{where}: {key}"
            if key not in OPEN:
                compare(f"{where}.{key}", ours[key], value, set())
    elif isinstance(theirs, list) and isinstance(ours, list):
        if ours and theirs:
            compare(f"{where}[]", ours[0], theirs[0], omitted)
    elif ours is not None and theirs not in (None, "", "undefined"):
        numbers = (int, float)
        same = isinstance(ours, type(theirs)) or (isinstance(ours, numbers) and isinstance(theirs, numbers))
        assert same, f"{where}: {ours!r} instead of {theirs!r}"


@pytest.mark.slow
def test_properties_keys_of_arguments_with_the_types_of_amqp(
    api: HttpBroker, rabbit: tuple[RabbitProcess, HttpRabbit]
) -> None:
    process, theirs = rabbit
    for target, server in ((theirs, process), (api, api.process)):
        with Peer(server.host, server.port) as peer:
            peer.handshake()
            bind_typed(peer.channel())
        found = target.get("/bindings/%2F/e/amq.headers/q/typed")
        assert {row["properties_key"] for row in found} == {f"{hashed}~{hashed}" for hashed in ENCODED}
        for row in found:
            path = f"/bindings/%2F/e/amq.headers/q/typed/{quote(row['properties_key'], safe='~')}"
            assert target.get(path)["routing_key"] == row["routing_key"]
            assert target("DELETE", path).status == 204
        assert target.get("/bindings/%2F/e/amq.headers/q/typed") == []


REQUESTS: list[tuple[str, str, Any]] = [
    ("PUT", "/queues/%2F/same", {"durable": True}),
    ("PUT", "/queues/%2F/same", {"durable": True}),
    ("PUT", "/queues/%2F/same", {"durable": False}),
    ("GET", "/queues/%2F/missing", None),
    ("GET", "/nothing", None),
    ("PUT", "/exchanges/%2F/same", {"type": "topic"}),
    ("PUT", "/exchanges/%2F/same", {"type": "direct"}),
    ("POST", "/bindings/%2F/e/same/q/same", {"routing_key": "a b/c~", "arguments": {}}),
    ("POST", "/bindings/%2F/e/same/q/same", {"routing_key": "", "arguments": {"x-match": "all", "n": 1}}),
    ("GET", "/bindings/%2F/e/same/q/same", None),
    ("POST", "/bindings/%2F/e/same/q/missing", {}),
    (
        "POST",
        "/exchanges/%2F/same/publish",
        {"properties": {}, "routing_key": "no", "payload": "", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/amq.default/publish",
        {"properties": {"headers": {"a": 1}}, "routing_key": "same", "payload": "b", "payload_encoding": "string"},
    ),
    ("POST", "/queues/%2F/same/get", {"count": 1}),
    ("POST", "/queues/%2F/same/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ("POST", "/queues/%2F/same/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "base64"}),
    ("POST", "/queues/%2F/same/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}),
    ("DELETE", "/queues/%2F/same/contents", None),
    ("DELETE", "/exchanges/%2F/same?if-unused=true", None),
    ("DELETE", "/queues/%2F/same?if-empty=true", None),
    ("DELETE", "/exchanges/%2F/same", None),
    ("DELETE", "/exchanges/%2F/same", None),
    ("PUT", "/vhosts/same", {}),
    ("PUT", "/vhosts/same", {}),
    ("PUT", "/permissions/same/guest", {"configure": ".*"}),
    ("PUT", "/vhost-limits/same/max-queues", {"value": 3}),
    ("GET", "/vhost-limits/same", None),
    ("GET", "/vhost-limits", None),
    ("PUT", "/vhost-limits/same/max-queues", {}),
    ("PUT", "/vhost-limits/same/max-queues", {"value": "3"}),
    ("DELETE", "/vhost-limits/same/max-queues", None),
    ("GET", "/vhost-limits/same", None),
    ("PUT", "/policies/same/p", {"pattern": "^x", "definition": {"max-length": 2}}),
    ("PUT", "/policies/same/p", {"pattern": "^x", "definition": {"max-length": 2}, "priority": 1}),
    ("GET", "/policies/same/p", None),
    ("GET", "/policies/same", None),
    ("PUT", "/policies/same/q", {"pattern": "^x"}),
    ("PUT", "/policies/same/q", {"pattern": "^x", "definition": {"unknown": 2}}),
    ("PUT", "/policies/same/q", {"pattern": "^x", "definition": {"max-length": "2"}}),
    ("DELETE", "/policies/same/p", None),
    ("DELETE", "/policies/same/p", None),
    ("PUT", "/operator-policies/same/p", {"pattern": "^x", "definition": {"max-length": 2}}),
    ("GET", "/operator-policies/same/p", None),
    ("PUT", "/operator-policies/same/q", {"pattern": "^x", "definition": {"dead-letter-exchange": "x"}}),
    ("GET", "/parameters/operator_policy/same", None),
    ("DELETE", "/operator-policies/same/p", None),
    ("PUT", "/parameters/unknown/same/x", {"value": 1}),
    ("GET", "/parameters/unknown", None),
    ("PUT", "/global-parameters/same", {"value": {"a": [1]}}),
    ("GET", "/global-parameters/same", None),
    ("DELETE", "/global-parameters/same", None),
    ("PUT", "/users/same", {"password": "x"}),
    ("PUT", "/users/same", {"password": "x", "tags": "management, other"}),
    ("PUT", "/permissions/same/same", {"configure": "", "write": "", "read": ".*"}),
    ("PUT", "/topic-permissions/same/same", {"exchange": "amq.topic", "write": "^a", "read": ""}),
    ("GET", "/topic-permissions/same/same", None),
    ("GET", "/topic-permissions/same/same/amq.topic", None),
    ("DELETE", "/topic-permissions/same/same/amq.topic", None),
    ("GET", "/topic-permissions/same/same", None),
    ("PUT", "/topic-permissions/same/missing", {"exchange": "amq.topic", "write": "^a", "read": ""}),
    ("PUT", "/permissions/missing/guest", {"configure": "", "write": "", "read": ""}),
    ("DELETE", "/vhosts/same", None),
    ("PUT", "/users/same", {"password_hash": "", "tags": []}),
    ("PUT", "/users/same", {"password_hash": "bad", "tags": []}),
    ("GET", "/users/same", None),
    ("PUT", "/user-limits/same/max-channels", {"value": 3}),
    ("GET", "/user-limits/same", None),
    ("GET", "/user-limits/missing", None),
    ("DELETE", "/user-limits/same/max-channels", None),
    ("GET", "/user-limits/same", None),
    ("POST", "/users/bulk-delete", {"users": ["same"]}),
    ("DELETE", "/users/same", None),
    ("GET", "/aliveness-test/%2F", None),
    ("GET", "/health/checks/alarms", None),
    ("GET", "/health/checks/port-listener/1", None),
    ("GET", "/health/checks/port-listener/x", None),
    ("GET", "/health/checks/protocol-listener/amqp", None),
    ("GET", "/health/checks/protocol-listener/amqp091", None),
    ("GET", "/health/checks/virtual-hosts", None),
    ("GET", "/health/checks/node-is-quorum-critical", None),
    ("GET", "/health/checks/node-is-mirror-sync-critical", None),
    ("GET", "/health/checks/certificate-expiration/1/weeks", None),
    ("GET", "/health/checks/certificate-expiration/x/weeks", None),
    ("GET", "/health/checks/certificate-expiration/1/eons", None),
    ("GET", "/aliveness-test/missing", None),
    ("GET", "/healthchecks/node/missing", None),
    ("DELETE", "/reset", None),
    ("DELETE", "/reset/missing", None),
]


@pytest.mark.slow
def test_answers(api: HttpBroker, rabbit: tuple[RabbitProcess, HttpRabbit]) -> None:
    _, theirs = rabbit
    for method, path, body in REQUESTS:
        ours, expected = api(method, path, body), theirs(method, path, body)
        assert shown(ours) == shown(expected), (method, path, body)


@pytest.mark.slow
def test_metrics(api: HttpBroker, rabbit: tuple[RabbitProcess, HttpRabbit]) -> None:
    """RabbitMQ's metrics have the same names and types, except those that Leveret does not have."""
    process, _ = rabbit
    with sync.connect(process.url()) as first, sync.connect(api.process.url()) as second:
        for connection in (first, second):
            channel = connection.channel()
            channel.declare_queue("compared.metrics", exclusive=True)
            channel.publish(b"body", routing_key="compared.metrics")
            assert channel.get("compared.metrics")
        for path in ("", "/per-object"):
            expected, ours = (counted(port, path) for port in (METRICS_PORT, metrics_port(api.process)))
            types = {name: family.type for name, family in ours.families.items()}
            missing = expected.names() - ours.names()
            assert [name for name in sorted(missing) if not re.fullmatch(OMITTED_METRICS, name)] == []
            for name, family in expected.families.items():
                assert types.get(name, family.type) == family.type, name
            for name in ("rabbitmq_global_messages_delivered_total", "rabbitmq_global_messages_received_total"):
                labels = expected.find(name, protocol="amqp091")
                assert all(label in ours.find(name) for label in labels)


def counted(port: int, path: str) -> Samples:
    """Return the samples of a scrape that has seen a channel with basic.get."""

    def found() -> Samples | None:
        samples = Samples(send(port, "GET", f"/metrics{path}").content.decode())
        return samples if samples.sum("rabbitmq_channel_get_ack_total") else None

    return wait_until(found, "the channel")


def shown(reply: Reply) -> tuple[int, str | None, Any]:
    """Return what two brokers must have in common: not the texts of missing objects, nor their ports."""
    body = reply.json if reply.content else None
    if isinstance(body, dict):
        body = {key: value for key, value in body.items() if key not in ("ports", "reason")}
    elif isinstance(body, list):
        body.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return reply.status, reply.headers.get("location"), body


# Keys of exported objects that RabbitMQ 3.10 does not have, by section.
NEWER: dict[str, set[str]] = {"queues": {"type"}, "vhosts": {"description", "tags", "default_queue_type"}}


@pytest.mark.slow
def test_definitions(tmp_path: Path, rabbit: tuple[RabbitProcess, HttpRabbit]) -> None:
    """Definitions of RabbitMQ, imported into Leveret and exported again, are equal, and RabbitMQ imports them."""
    _, theirs = rabbit
    document = {
        "users": [
            {"name": "defined", "password": "secret", "tags": ["monitoring", "other"]},
            {"name": "silent", "password_hash": "", "tags": ""},
        ],
        "vhosts": [{"name": "defined", "metadata": {"description": "for a test", "tags": ["a"]}}],
        **IN_A_VHOST,
    }
    assert theirs("POST", "/definitions", document).status == 204
    assert theirs("PUT", "/user-limits/defined/max-channels", {"value": 3}).status == 204
    original = theirs.get("/definitions")
    process = LeveretProcess(
        tmp_path,
        config="[management]\nport = 0\n[auth]\nrehash = false\n",  # a login would replace the hash
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        ours = HttpBroker(process)
        reply = ours("POST", "/definitions", original)
        assert reply.status == 204, reply.content
        copied = ours.get("/definitions?for=rabbitmq")
        assert shown_definitions(copied) == shown_definitions(original)
        report = ours("POST", "/definitions?dry_run=true", original).json
        assert report["added"] == report["changed"] == report["skipped"] == report["refused"] == []
        single = theirs.get("/definitions/defined")
        for item in single["parameters"] + single["policies"]:
            assert item.pop("vhost") == "defined"  # only RabbitMQ 3 has it
        assert shown_definitions(ours.get("/definitions/defined")) == shown_definitions(single)
        assert theirs("POST", "/definitions", copied).status == 204
        assert shown_definitions(theirs.get("/definitions")) == shown_definitions(original)
        # Users of RabbitMQ log in with their passwords.
        assert ours("GET", "/whoami", user="defined", password="secret").status == 200
        assert ours("GET", "/whoami", user="defined", password="wrong").status == 401
        process.check_log()


def shown_definitions(document: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the sections that two brokers must have in common."""
    found = {}
    for section, items in document.items():
        if isinstance(items, list):
            newer = NEWER.get(section, set())
            kept = [{key: value for key, value in item.items() if key not in newer} for item in items]
            if section == "vhosts":
                kept = [{"name": item["name"]} for item in kept]
            elif section == "global_parameters":
                kept = [item for item in kept if not item["name"].startswith("internal")]
            found[section] = sorted(kept, key=lambda item: json.dumps(item, sort_keys=True))
    return found


IN_A_VHOST: dict[str, list[Any]] = {
    "permissions": [
        {"user": "defined", "vhost": "defined", "configure": "^a", "write": ".*", "read": ""},
        {"user": "guest", "vhost": "defined", "configure": ".*", "write": ".*", "read": ".*"},
    ],
    "topic_permissions": [
        {"user": "defined", "vhost": "defined", "exchange": "amq.topic", "write": "^{username}", "read": ".*"}
    ],
    "parameters": [
        {"vhost": "defined", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 50}},
        {
            "vhost": "defined",
            "component": "operator_policy",
            "name": "cap",
            "value": {"pattern": "^q", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"},
        },
    ],
    "global_parameters": [{"name": "defined", "value": {"list": ["a", 1]}}],
    "policies": [
        {
            "vhost": "defined",
            "name": "p",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"max-length": 5, "dead-letter-exchange": "x"},
            "priority": 2,
        }
    ],
    "exchanges": [
        {"vhost": "defined", "name": "x", "type": "topic", "durable": True, "auto_delete": False, "arguments": {}},
        {
            "vhost": "defined",
            "name": "inner",
            "type": "fanout",
            "durable": True,
            "auto_delete": True,
            "internal": True,
            "arguments": {"alternate-exchange": "x"},
        },
    ],
    "queues": [
        {
            "vhost": "defined",
            "name": "q1",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-priority": 3, "x-message-ttl": 60000},
        },
        {
            "vhost": "defined",
            "name": "s1",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "stream"},
        },
        {"vhost": "defined", "name": "brief", "durable": False, "auto_delete": True, "arguments": {}},
    ],
    "bindings": [
        {
            "vhost": "defined",
            "source": "x",
            "destination": "q1",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {},
        },
        {
            "vhost": "defined",
            "source": "amq.headers",
            "destination": "q1",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {"x-match": "all", "n": 1},
        },
        {
            "vhost": "defined",
            "source": "x",
            "destination": "inner",
            "destination_type": "exchange",
            "routing_key": "b",
            "arguments": {},
        },
    ],
}
