"""Every path that answers GET, by role: it answers the right users, and names nothing that a user may not see.

The answers for lists of clients are those of RabbitMQ: see `test_rabbitmq`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from leveret import sync
from leveret.management.http.table import ROUTES
from tests.management.http.client import HttpBroker
from tests.management.http.test_events import subscribe
from tests.support.polling import wait_until
from tests.support.requests import ask

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
# The users by role, with their tags. Each has all permissions in the vhost `seen`, and `admin-r` and `stranger` also in
# `hidden`.
USERS = {
    "admin-r": "administrator",
    "monitor-r": "monitoring",
    "maker-r": "policymaker",
    "manager-r": "management",
    "viewer-r": "management,read-only",
    "no-tag-r": "",
    "stranger": "management",
}
ADMIN = {"admin-r"}
MONITOR = {"admin-r", "monitor-r"}
POLICY = {"admin-r", "maker-r"}
EVERY = {"admin-r", "monitor-r", "maker-r", "manager-r", "viewer-r"}
ROLES = sorted(EVERY | {"no-tag-r"})
# Users who may not see the vhost `hidden`, nor the clients of `stranger`.
LIMITED = sorted(EVERY - MONITOR)
# The users who may read a path. Every user of management may read the others.
ACCESS = {
    **dict.fromkeys(
        (
            "/leveret/all-sessions",
            "/leveret/audit",
            "/leveret/log",
            "/leveret/roles",
            "/leveret/roles/{user}",
            "/definitions",
            "/definitions/{vhost}",
            "/all-configuration",
            "/vhosts/{vhost}/permissions",
            "/vhosts/{vhost}/topic-permissions",
            "/users",
            "/users/without-permissions",
            "/users/{user}",
            "/users/{user}/permissions",
            "/users/{user}/topic-permissions",
            "/users/{user}/queues",
            "/permissions",
            "/permissions/{vhost}/{user}",
            "/topic-permissions",
            "/topic-permissions/{vhost}/{user}",
            "/topic-permissions/{vhost}/{user}/{exchange}",
            "/user-limits",
            "/user-limits/{user}",
            "/feature-flags",
            "/auth/hash_password/{password}",
            "/traces",
            "/traces/{vhost}",
            "/trace-files",
        ),
        ADMIN,
    ),
    **dict.fromkeys(
        (
            "/nodes",
            "/nodes/{node}",
            "/nodes/{node}/memory",
            "/nodes/{node}/memory/relative",
            "/leveret/shards",
            "/leveret/cluster",
            "/leveret/cluster/nodes",
            "/leveret/performance",
            "/leveret/history",
            "/leveret/streams/{vhost}/{name}",
            "/queues/quorum/{vhost}/{name}/status",
            "/auth/attempts/{node}",
            "/auth/attempts/{node}/source",
            "/shovels",
            "/shovels/{vhost}",
            "/shovels/vhost/{vhost}/{name}",
            "/federation-links",
            "/federation-links/{vhost}",
            "/federation-links/state/down",
            "/federation-links/{vhost}/state/down",
            "/top/{node}",
            "/top/ets/{node}",
        ),
        MONITOR,
    ),
    **dict.fromkeys(
        (
            "/leveret/alert-webhooks",
            "/leveret/alert-addresses",
            "/leveret/alert-deliveries",
            "/parameters",
            "/parameters/{component}",
            "/parameters/{component}/{vhost}",
            "/parameters/{component}/{vhost}/{name}",
            "/global-parameters",
            "/global-parameters/{name}",
        ),
        POLICY,
    ),
}
# Paths for which a user needs permissions in the vhost, also one who sees all vhosts.
WITH_PERMISSIONS = {
    "/aliveness-test/{vhost}",
    "/leveret/queues/{vhost}/{name}/messages",
    "/leveret/queues/{vhost}/{name}/messages/export",
    "/leveret/queues/{vhost}/{name}/messages/tail",
    "/leveret/queues/{vhost}/{name}/messages/{id}/payload",
    "/leveret/exchanges/{vhost}/{name}/messages/tail",
}
PUBLIC = {path for path, methods in ROUTES.items() if "GET" in methods and methods["GET"].public}
# Changes for administrators, and for administrators and policymakers. Every user of management may request the others, for
# which the broker checks the permissions.
CHANGES = {
    **dict.fromkeys(
        (
            "DELETE /leveret/all-sessions/{id}",
            "PUT /leveret/roles/{user}",
            "DELETE /leveret/roles/{user}",
            "PUT /cluster-name",
            "POST /definitions",
            "POST /definitions/{vhost}",
            "POST /all-configuration",
            "POST /leveret/shards/{shard}/move",
            "DELETE /leveret/cluster/nodes/{node}",
            "POST /leveret/cluster/nodes/{node}/drain",
            "DELETE /leveret/queues/{vhost}/{name}/consumers/{tag}",
            "POST /leveret/operations/{name}",
            "PUT /vhosts/{vhost}",
            "DELETE /vhosts/{vhost}",
            "POST /vhosts/{vhost}/deletion/protection",
            "DELETE /vhosts/{vhost}/deletion/protection",
            "POST /users/bulk-delete",
            "PUT /users/{user}",
            "DELETE /users/{user}",
            "PUT /permissions/{vhost}/{user}",
            "DELETE /permissions/{vhost}/{user}",
            "PUT /topic-permissions/{vhost}/{user}",
            "DELETE /topic-permissions/{vhost}/{user}",
            "PUT /topic-permissions/{vhost}/{user}/{exchange}",
            "DELETE /topic-permissions/{vhost}/{user}/{exchange}",
            "PUT /vhost-limits/{vhost}/{name}",
            "DELETE /vhost-limits/{vhost}/{name}",
            "PUT /user-limits/{user}/{name}",
            "DELETE /user-limits/{user}/{name}",
            "PUT /operator-policies/{vhost}/{name}",
            "DELETE /operator-policies/{vhost}/{name}",
            "POST /queues/{vhost}/{name}/actions",
            "POST /queues/quorum/{vhost}/{name}/replicas/add",
            "DELETE /queues/quorum/{vhost}/{name}/replicas/delete",
            "POST /queues/quorum/replicas/on/{node}/grow",
            "DELETE /queues/quorum/replicas/on/{node}/shrink",
            "DELETE /reset",
            "DELETE /reset/{node}",
            "PUT /feature-flags/{name}/enable",
            "POST /auth/hash_password",
            "DELETE /auth/attempts/{node}",
            "DELETE /auth/attempts/{node}/source",
            "POST /rebalance/queues",
        ),
        ADMIN,
    ),
    **dict.fromkeys(
        (
            "PUT /leveret/alert-rules/{name}",
            "DELETE /leveret/alert-rules/{name}",
            "PUT /leveret/marks/{name}",
            "DELETE /leveret/marks/{name}",
            "PUT /leveret/payload-schemas/{name}",
            "DELETE /leveret/payload-schemas/{name}",
            "PUT /policies/{vhost}/{name}",
            "DELETE /policies/{vhost}/{name}",
            "PUT /parameters/{component}/{vhost}/{name}",
            "DELETE /parameters/{component}/{vhost}/{name}",
            "PUT /global-parameters/{name}",
            "DELETE /global-parameters/{name}",
            "DELETE /shovels/vhost/{vhost}/{name}",
            "DELETE /shovels/vhost/{vhost}/{name}/restart",
        ),
        POLICY,
    ),
}
CHANGING = sorted(
    f"{method} {path}"
    for path, methods in ROUTES.items()
    for method, route in methods.items()
    if method != "GET" and not route.public and not route.reads
)
READABLE = sorted(path for path, methods in ROUTES.items() if "GET" in methods and path not in PUBLIC)


class Things:
    """A vhost `seen` and a vhost `hidden`, with an object of each kind named `VHOST-thing`, and clients of two users."""

    def __init__(self, api: HttpBroker, open_clients: ExitStack) -> None:
        self.api = api
        for vhost in ("seen", "hidden"):
            self._put(f"/vhosts/{vhost}", {"tracing": False})
        for user, tags in USERS.items():
            self._put(f"/users/{user}", {"password": user, "tags": tags})
            self._put(f"/permissions/seen/{user}", ALL)
        for user in ("stranger", "admin-r"):
            self._put(f"/permissions/hidden/{user}", ALL)
        self._put("/leveret/roles/unassigned", {"grants": [{"role": "viewer", "names": "^hidden-"}]})
        for vhost in ("seen", "hidden"):
            self._declare(vhost)
        for user, vhost in (("manager-r", "seen"), ("stranger", "seen"), ("stranger", "hidden")):
            self._connect(open_clients, user, vhost)
        for path, number in (("/connections", 6), ("/consumers", 6), ("/leveret/transactions", 3), ("/leveret/links", 3)):
            wait_until(partial(self._has_rows, path, number), path)
        wait_until(lambda: {row["vhost"] for row in api.get("/leveret/alerts")} == {"seen", "hidden"}, "the alerts")
        rows = api.get("/connections")
        # The connections of `manager-r` by protocol, and those of `stranger`.
        self.own = {row["protocol"]: row["name"] for row in rows if row["user"] == "manager-r"}
        self.others = [row["name"] for row in rows if row["user"] == "stranger"]
        ports = [name.partition(" ")[0].rpartition(":")[2] for name in self.others]
        # Names and ports that only users who see all vhosts and clients may read.
        self.secrets = re.compile(rf"hidden|stranger|\b({'|'.join(ports)})\b")
        self.values = {
            "node": api.get("/overview")["node"],
            "user": "manager-r",
            "component": "operator_policy",
            "exchange": "amq.topic",
            "source": "seen-thing",
            "kind": "q",
            "destination": "seen-thing",
            "key": "seen-thing",
            "id": "1",
            "password": "x",
            "pattern": ".*",
            "shard": "0",
            "tag": "missing",
            "within": "1",
            "unit": "days",
            "port": str(api.process.port),
            "protocol": "amqp",
        }

    def path(self, template: str, vhost: str = "seen", name: str = "") -> str:
        """Return a path to the object of a vhost, or to the client of `manager-r`; or to what has a name."""
        values = self.values | {"vhost": vhost, "name": name or f"{vhost}-thing"}
        if name:
            values |= dict.fromkeys(("user", "destination", "key"), name)
        elif template.startswith("/global-parameters"):
            values["name"] = "alert.seen-thing"
        elif template.startswith(("/connections/", "/leveret/connections/")):
            values["name"] = self.own["AMQP 1-0" if template.endswith("/sessions") else "AMQP 0-9-1"]
        elif template.startswith("/channels/"):
            values["name"] = f"{self.own['AMQP 0-9-1']} (1)"
        elif template.startswith("/leveret/streams/"):
            values["name"] += "-stream"
        return re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), template)

    def _has_rows(self, path: str, number: int) -> bool:
        return len(self.api.get(path)) >= number

    def _put(self, path: str, body: Any, user: str = "guest") -> None:
        reply = self.api("PUT", path, body, user=user)
        assert reply.status in (201, 204), (path, reply.content)

    def _declare(self, vhost: str) -> None:
        thing = f"{vhost}-thing"
        stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
        self._put(f"/queues/{vhost}/{thing}", {"durable": True}, "admin-r")
        self._put(f"/queues/{vhost}/{thing}-stream", stream, "admin-r")
        self._put(f"/exchanges/{vhost}/{thing}", {"type": "topic"}, "admin-r")
        self.api("POST", f"/bindings/{vhost}/e/{thing}/q/{thing}", {"routing_key": thing}, user="admin-r")
        self._put(f"/policies/{vhost}/{thing}", {"pattern": thing, "definition": {"max-length": 1000}})
        self._put(f"/operator-policies/{vhost}/{thing}", {"pattern": thing, "definition": {"max-length": 1000}})
        self._put(f"/vhost-limits/{vhost}/max-queues", {"value": 100})
        self._put(f"/topic-permissions/{vhost}/stranger", {"exchange": thing, "write": ".*", "read": ".*"})
        self._put(f"/leveret/alert-rules/{thing}", {"kind": "depth", "vhost": vhost})
        self._put(f"/leveret/payload-schemas/{thing}", {"format": "avro", "schema": '"int"', "vhost": vhost})
        message = {"routing_key": thing, "payload": thing, "payload_encoding": "string", "properties": {}}
        for _ in range(3):
            assert self.api("POST", f"/exchanges/{vhost}/amq.default/publish", message, user="admin-r").status == 200

    def _connect(self, open_clients: ExitStack, user: str, vhost: str) -> None:
        """Open clients with a consumer, an unacked message, transactions, a lease, a position in a stream, and a link."""
        url = self.api.process.url(user=user, password=user, vhost=vhost)
        thing = f"{vhost}-thing"
        connection = open_clients.enter_context(sync.connect(url, name=f"{user}-client"))
        channel = connection.channel()
        next(open_clients.enter_context(channel.consume(thing, prefetch=1)))
        channel.declare_queue(f"{vhost}-{user[0]}", exclusive=True)
        ask(channel, "stage.open", stage=str(uuid4()), app=f"{user}-app", exchanges=[])
        ask(channel, "lease.acquire", queue=thing, lease=f"{vhost}-lease-{user[0]}")
        ask(channel, "stream.start", stream=f"{thing}-stream", consumer=f"{vhost}-reader-{user[0]}", offset=0)
        connection.channel(transactional=True).publish(b"x", routing_key=thing)
        other = open_clients.enter_context(sync.connect(url, protocol="1.0", name=f"{user}-client"))
        session = open_clients.enter_context(other.session())
        open_clients.enter_context(session.consume(thing, prefetch=1))


@pytest.fixture(scope="module")
def things(http_process: HttpBroker) -> Iterator[Things]:
    with ExitStack() as open_clients:
        yield Things(http_process, open_clients)
    for user in USERS:
        http_process("DELETE", f"/users/{user}")
    for vhost in ("seen", "hidden"):
        http_process("DELETE", f"/leveret/alert-rules/{vhost}-thing")
        http_process("DELETE", f"/leveret/payload-schemas/{vhost}-thing")
        http_process("DELETE", f"/vhosts/{vhost}")
    http_process("DELETE", "/leveret/roles/unassigned")


@pytest.mark.parametrize("path", READABLE)
def test_a_path_is_for_its_roles(api: HttpBroker, things: Things, path: str) -> None:
    # HEAD ends streams, which GET does not.
    expected = api("HEAD", things.path(path), user="admin-r").status
    assert expected in (200, 404) or path == "/queues/quorum/{vhost}/{name}/status"
    for user in ROLES:
        status = api("HEAD", things.path(path), user=user).status
        if "/connections/{name}" in path or path.startswith("/channels/"):
            allowed = MONITOR | {"manager-r"}
        else:
            allowed = ACCESS.get(path, EVERY)
        assert status == (expected if user in allowed else 401), user


@pytest.mark.parametrize("path", [path for path in READABLE if "{vhost}" in path])
def test_a_vhost_that_a_user_does_not_see_does_not_exist(api: HttpBroker, things: Things, path: str) -> None:
    expected = api("HEAD", things.path(path, "hidden"), user="admin-r").status
    for user in ROLES:
        status = api("HEAD", things.path(path, "hidden"), user=user).status
        if user not in ACCESS.get(path, EVERY):
            assert status == 401, user
        else:
            is_seen = user == "admin-r" or (user in MONITOR and path not in WITH_PERMISSIONS)
            assert status == (expected if is_seen else 404), user


@pytest.mark.parametrize("change", CHANGING)
def test_a_change_is_for_its_roles(api: HttpBroker, things: Things, change: str) -> None:
    method, _, path = change.partition(" ")
    for vhost in ("seen", "hidden") if "{vhost}" in path else ("seen",):
        target = things.path(path, vhost, "missing")
        for user in sorted(set(ROLES) - ADMIN):
            reply = api(method, target, {"invalid": True}, user=user)
            if vhost == "hidden" and user in CHANGES.get(change, EVERY):
                assert reply.status == 404, user
            elif user not in CHANGES.get(change, EVERY) or user == "viewer-r" or path == "/connections/username/{user}":
                assert reply.status == 401, user
            else:
                assert reply.status != 401 or "tag" not in reply.json["reason"], (user, reply.content)
    api("DELETE", "/leveret/marks/missing")


@pytest.mark.parametrize("user", LIMITED)
def test_no_answer_names_what_a_user_may_not_see(api: HttpBroker, things: Things, user: str) -> None:
    for path in READABLE:
        if not path.endswith(("/tail", "/events")):
            content = api("GET", things.path(path), user=user).content.decode()
            found = things.secrets.search(content)
            assert found is None, (path, content[max(found.start() - 200, 0) : found.end() + 200])


@pytest.mark.parametrize("user", sorted(MONITOR))
def test_monitoring_sees_the_objects_and_clients_of_all(api: HttpBroker, things: Things, user: str) -> None:
    for path in (
        *("/queues", "/exchanges", "/bindings", "/vhosts", "/policies", "/operator-policies", "/vhost-limits"),
        *("/connections", "/channels", "/consumers", "/leveret/alerts", "/leveret/alert-rules", "/leveret/payload-schemas"),
        *("/leveret/leases", "/leveret/stream-consumers", "/leveret/links", "/leveret/transactions"),
        *("/leveret/ready/queues", "/leveret/unacked/queues", "/leveret/unacked/channels"),
    ):
        assert "hidden" in str(api.get(path, user)), path
    for path in (
        *(
            "/connections",
            "/channels",
            "/consumers",
            "/leveret/links",
            "/leveret/transactions",
            "/leveret/unacked/channels",
        ),
        *("/leveret/sink-transactions", "/queues/seen/seen-thing", "/leveret/queues/seen/seen-thing/consumers"),
    ):
        assert "stranger" in str(api.get(path, user)), path


def test_a_user_sees_the_own_clients(api: HttpBroker, things: Things) -> None:
    for path in ("/connections", "/channels", "/consumers", "/leveret/links", "/leveret/transactions"):
        rows = api.get(path, "manager-r")
        owners = {row.get("user") or row["channel_details"]["user"] for row in rows}
        assert owners == {"manager-r"}, path
    for path in ("/queues/seen/seen-thing", "/leveret/queues/seen/seen-thing/consumers"):
        found = api.get(path, "manager-r")
        consumers = found if isinstance(found, list) else found["consumer_details"]
        # The consumers of others are there, without their clients.
        assert sorted(row["channel_details"].get("user", "") for row in consumers) == ["", "", "manager-r", "manager-r"]
    totals = {user: api.get("/overview", user)["object_totals"] for user in ("admin-r", "manager-r", "viewer-r")}
    assert {user: found["connections"] for user, found in totals.items()} == {"admin-r": 6, "manager-r": 2, "viewer-r": 0}
    channels = [row["name"] for row in api.get("/channels") if row["user"] == "stranger"]
    paths = [f"/channels/{quote(name)}" for name in channels]
    paths += [f"/connections/{quote(name)}{part}" for name in things.others for part in ("", "/channels")]
    for path in paths:
        assert (api("GET", path, user="manager-r").status, api("GET", path, user="monitor-r").status) == (401, 200), path


@pytest.mark.parametrize("user", LIMITED)
def test_events_name_nothing_that_a_user_may_not_see(api: HttpBroker, things: Things, user: str) -> None:
    url = api.process.url(user="stranger", password="stranger", vhost="hidden")
    with subscribe(api, user=user) as stream:
        with sync.connect(url) as connection:
            connection.channel().declare_queue("hidden-event", exclusive=True)
        assert api("PUT", "/policies/hidden/hidden-event", {"pattern": "x", "definition": {"max-length": 1}}).status == 201
        assert api("DELETE", "/policies/hidden/hidden-event").status == 204
        assert api("PUT", "/global-parameters/hidden-event", {"value": 1}).status == 201
        assert api("DELETE", "/global-parameters/hidden-event").status == 204
        assert api("PUT", "/queues/seen/seen-event", {}, user="admin-r").status == 201
        while True:
            name, data = stream.next()
            assert things.secrets.search(str(data)) is None, (name, data)
            if name == "queue.created" and data["name"] == "seen-event":
                break
    assert api("DELETE", "/queues/seen/seen-event", user="admin-r").status == 204
