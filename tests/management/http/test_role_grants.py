"""Roles of users for the queues and exchanges whose names match."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner

from leveret.cli.app import leveret
from leveret.security.roles import Grant, Grants
from tests.management.http.client import HttpBroker, Reply
from tests.management.http.test_events import Ended
from tests.management.http.test_tails import follow
from tests.support.polling import wait_until

ROLES = ("observer", "viewer", "operator", "policymaker", "administrator")
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
POLICY = {"pattern": "^no-queue$", "definition": {"max-length": 10}}


@pytest.fixture
def user(api: HttpBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a user without tags and permissions, who has the same password."""
    name = f"role-{request.node.name.partition('[')[0][5:40]}"
    assert api("PUT", f"/users/{name}", {"password": name, "tags": ""}).status == 201
    yield name
    api("DELETE", f"/users/{name}")


@pytest.fixture(scope="module")
def queues(http_process: HttpBroker) -> Iterator[None]:
    """The queues orders.a, orders.b and invoices, with one message each."""
    names = ("orders.a", "orders.b", "invoices")
    for name in names:
        assert http_process("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
        publish(http_process, name, "amq.default", name)
    yield
    for name in names:
        http_process("DELETE", f"/queues/%2F/{name}")


def publish(api: HttpBroker, user: str, exchange: str, key: str) -> Reply:
    body = {"routing_key": key, "payload": "secret", "payload_encoding": "string", "properties": {}}
    return api("POST", f"/exchanges/%2F/{exchange}/publish", body, user="guest" if exchange == "amq.default" else user)


def grant(api: HttpBroker, user: str, *grants: dict[str, str]) -> None:
    reply = api("PUT", f"/leveret/roles/{user}", {"grants": list(grants)})
    assert reply.status == 204, reply.content


def messages(api: HttpBroker, user: str, queue: str) -> Any:
    reply = api("GET", f"/leveret/queues/%2F/{queue}/messages", user=user)
    assert reply.status == 200, reply.content
    return reply.json["messages"]


# The lowest role that may do each of these.
ACTIONS: list[tuple[str, str, str, Any]] = [
    ("observer", "GET", "/leveret/queues/%2F/orders.a/messages", None),
    ("observer", "POST", "/leveret/queues/%2F/orders.a/messages/dead-letters", {}),
    ("viewer", "POST", "/leveret/queues/%2F/orders.a/messages/search", {"where": [{"field": "body", "value": "x"}]}),
    ("viewer", "GET", "/leveret/queues/%2F/orders.a/messages/export", None),
    ("operator", "POST", "/queues/%2F/orders.a/get", GET),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/messages/import", {"payload": "imported"}),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/messages/preview", {"to_queue": "orders.b"}),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/messages/copy", {"to_queue": "orders.b"}),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/messages/move", {"to_queue": "orders.b", "ids": [999]}),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/messages/delete", {"ids": [999]}),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/pause", {}),
    ("operator", "POST", "/leveret/queues/%2F/orders.a/resume", {}),
    ("operator", "DELETE", "/queues/%2F/orders.b/contents", None),
    ("policymaker", "PUT", "/policies/%2F/role-grants", POLICY),
    ("policymaker", "GET", "/parameters/shovel/%2F", None),
    ("administrator", "PUT", "/queues/%2F/orders.new", {"durable": True}),
    ("administrator", "DELETE", "/queues/%2F/orders.old", None),
]


@pytest.mark.parametrize("role", ROLES)
def test_each_role_allows_its_actions_and_those_of_the_roles_before_it(
    api: HttpBroker, queues: None, user: str, role: str
) -> None:
    assert api("PUT", "/queues/%2F/orders.old", {"durable": True}).status in (201, 204)
    grant(api, user, {"role": role, "vhosts": "^/$", "names": ".*"})
    for needed, method, path, body in ACTIONS:
        reply = api(method, path, body, user=user)
        allowed = ROLES.index(role) >= ROLES.index(needed)
        assert (200 <= reply.status < 300) == allowed, (role, method, path, reply.content)
        assert allowed or reply.status == 401
    api("DELETE", "/policies/%2F/role-grants")
    api("DELETE", "/queues/%2F/orders.new")


def test_a_user_operates_queues_that_match_and_views_others(api: HttpBroker, queues: None, user: str) -> None:
    grant(api, user, {"role": "operator", "vhosts": "^/$", "names": r"^orders\."}, {"role": "viewer"})
    assert messages(api, user, "invoices")[0]["payload"] == "secret"
    assert api("POST", "/leveret/queues/%2F/orders.a/pause", user=user).status == 204
    assert api("POST", "/leveret/queues/%2F/orders.a/resume", user=user).status == 204
    for method, path in (("POST", "/leveret/queues/%2F/invoices/pause"), ("DELETE", "/queues/%2F/invoices/contents")):
        reply = api(method, path, user=user)
        assert reply.status == 401
        assert "does not have the role 'operator' for 'invoices' in vhost '/'" in reply.json["reason"]
    move = {"to_queue": "invoices", "ids": [1]}
    assert api("POST", "/leveret/queues/%2F/orders.a/messages/move", move, user=user).status == 401
    assert api.get("/leveret/role/%2F/orders.a", user=user) == {"restricted": True, "role": "operator", "permissions": []}
    assert api.get("/leveret/role/%2F/invoices", user=user) == {"restricted": True, "role": "viewer", "permissions": []}
    assert api.get("/leveret/role/%2F/invoices") == {
        "restricted": False,
        "role": None,
        "permissions": ["configure", "write", "read"],
    }
    assert api.get("/leveret/role/%2F/mine", user="manager")["permissions"] == ["configure", "write", "read"]
    assert api.get("/leveret/role/%2F/yours", user="manager")["permissions"] == []


def test_own_rights_for_many_names(api: HttpBroker, queues: None, user: str) -> None:
    grant(api, user, {"role": "operator", "vhosts": "^/$", "names": r"^orders\."}, {"role": "viewer"})
    names = ["orders.a", "invoices"] * 250
    found = api("POST", "/leveret/role/%2F", {"names": names}, user=user).json
    assert [row["role"] for row in found] == ["operator", "viewer"] * 250
    found = api("POST", "/leveret/role/%2F", {"names": ["mine", "yours"]}, user="manager").json
    assert [row["permissions"] for row in found] == [["configure", "write", "read"], []]
    for wrong in (["x"] * 501, "x", [1]):
        reply = api("POST", "/leveret/role/%2F", {"names": wrong})
        assert (reply.status, "at most 500 strings" in reply.json["reason"]) == (400, True)


def test_changes_by_pattern_leave_out_queues_without_the_role(api: HttpBroker, queues: None, user: str) -> None:
    grant(api, user, {"role": "operator", "names": "^orders\\.a$"}, {"role": "viewer"})
    change = {"action": "pause", "pattern": "^(orders|invoices)", "dry_run": True}
    found = api("POST", "/leveret/change-queues", change, user=user).json["queues"]
    assert [queue["name"] for queue in found] == ["orders.a"]
    delete = {"kind": "queues", "pattern": "^orders", "dry_run": True}
    assert api("POST", "/leveret/delete", delete, user=user).json["names"] == []


def test_an_observer_sees_messages_without_payloads(api: HttpBroker, queues: None, user: str) -> None:
    grant(api, user, {"role": "observer"})
    (message,) = messages(api, user, "invoices")
    assert (message["payload"], message["payload_bytes"]) == ("", 6)
    reply = api("GET", f"/leveret/queues/%2F/invoices/messages/{message['id']}/payload", user=user)
    assert (reply.status, "'viewer'" in reply.json["reason"]) == (401, True)


def test_a_viewer_follows_messages_live(api: HttpBroker, queues: None, user: str) -> None:
    grant(api, user, {"role": "viewer", "names": "^orders"}, {"role": "observer"})

    def followed() -> object:
        with suppress(Ended), follow(api, "/queues/%2F/orders.a", user) as stream:  # the grants may end the first one
            publish(api, user, "amq.default", "orders.a")
            return stream.until("message")["payload"]
        return None

    assert wait_until(followed, "a message") == "secret"
    assert api("GET", "/leveret/queues/%2F/invoices/messages/tail", user=user).status == 401


def test_roles_have_the_place_of_permissions(api: HttpBroker, queues: None, user: str) -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api("PUT", f"/permissions/%2F/{user}", everything).status == 201
    assert api("GET", "/whoami", user=user).status == 401
    grant(api, user, {"role": "viewer", "names": "^orders"})
    assert api.get("/whoami", user=user) == {"name": user, "tags": []}
    assert api("DELETE", "/queues/%2F/orders.b", user=user).status == 401
    assert api("GET", "/leveret/queues/%2F/invoices/messages", user=user).status == 401
    assert api("DELETE", f"/leveret/roles/{user}").status == 204
    assert api("GET", "/whoami", user=user).status == 401


def test_roles_do_not_take_tags_away_or_give_their_rights(api: HttpBroker, user: str) -> None:
    grant(api, user, {"role": "administrator"})
    for path in ("/users", "/permissions", "/leveret/audit", "/nodes", "/leveret/roles"):
        assert api("GET", path, user=user).status == 401
    assert api("PUT", "/leveret/alert-rules/x", {}, user=user).status == 401
    assert api("PUT", f"/users/{user}", {"password": user, "tags": "monitoring,read-only"}).status == 204
    assert api("GET", "/nodes", user=user).status == 200
    reply = api("PUT", "/queues/%2F/orders.new", {}, user=user)
    assert (reply.status, "'read-only'" in reply.json["reason"]) == (401, True)


def test_a_role_in_one_vhost_shows_no_other(api: HttpBroker, user: str) -> None:
    assert api("PUT", "/vhosts/role-vhost", {}).status == 201
    grant(api, user, {"role": "policymaker", "vhosts": "^role-vhost$"})
    assert [vhost["name"] for vhost in api.get("/vhosts", user=user)] == ["role-vhost"]
    assert api("GET", "/queues/%2F", user=user).status == 404
    assert api("PUT", "/policies/role-vhost/p", POLICY, user=user).status == 201
    assert api("PUT", "/policies/%2F/p", POLICY, user=user).status == 401
    assert api("PUT", "/operator-policies/role-vhost/p", POLICY, user=user).status == 401
    assert api("DELETE", "/vhosts/role-vhost").status == 204


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"role": "root"}, "unknown role 'root'; expected one of observer, viewer"),
        ({"role": "viewer", "names": "(?=x)"}, "'names' of role 'viewer': '(?=x)' uses a lookahead"),
        ({"role": "viewer", "vhosts": ""}, "'vhosts' of role 'viewer' is empty"),
        ({"role": "policymaker", "names": "^orders"}, "expected '.*': a policy may apply to any name"),
        ({"role": "viewer", "queues": "x"}, "unknown field `queues`"),
    ],
)
def test_an_invalid_role_is_refused_by_name(api: HttpBroker, value: dict[str, str], reason: str) -> None:
    reply = api("PUT", "/leveret/roles/invalid", {"grants": [value]})
    assert (reply.status, reason in reply.json["reason"]) == (400, True), reply.json
    reply = api("PUT", "/global-parameters/leveret_roles", {"value": {"invalid": [value]}})
    assert (reply.status, reason in reply.json["reason"]) == (400, True), reply.json


def test_the_number_of_roles_is_limited(api: HttpBroker) -> None:
    grants = [{"role": "viewer", "names": f"^{number}$"} for number in range(51)]
    reply = api("PUT", "/leveret/roles/many", {"grants": grants})
    assert (reply.status, reply.json["reason"]) == (400, "51 roles of user 'many'; expected at most 50")


def test_a_role_of_a_later_version_allows_nothing() -> None:
    grants = Grants([Grant("root"), Grant("viewer", names="^orders")])
    assert (grants.role_for("/", "orders"), grants.role_for("/", "invoices")) == ("viewer", None)


def test_definitions_carry_roles(api: HttpBroker, user: str) -> None:
    grant(api, user, {"role": "viewer", "names": "^orders"})
    (exported,) = [one for one in api.get("/definitions")["global_parameters"] if one["name"] == "leveret_roles"]
    assert exported["value"][user] == [{"role": "viewer", "vhosts": ".*", "names": "^orders"}]
    api("DELETE", f"/leveret/roles/{user}")
    assert api("POST", "/definitions", {"global_parameters": [exported]}).status in (200, 204)
    assert api.get(f"/leveret/roles/{user}")[0]["names"] == "^orders"


def test_only_administrators_change_roles(api: HttpBroker, user: str) -> None:
    for method, path, body in (
        ("PUT", "/global-parameters/leveret_roles", {"value": {}}),
        ("DELETE", "/global-parameters/leveret_roles", None),
        ("PUT", "/leveret/roles/maker", {"grants": [{"role": "administrator"}]}),
    ):
        assert api(method, path, body, user="maker").status == 401


def test_roles_end_with_the_user_and_are_audited(api: HttpBroker, user: str) -> None:
    grant(api, user, {"role": "viewer"})
    assert api("DELETE", f"/users/{user}").status == 204
    assert api.get(f"/leveret/roles/{user}") == []
    (record,) = api.get(f"/leveret/audit?kind=role&object={user}")["items"]
    assert (record["user"], record["before"], record["after"][0]["role"]) == ("guest", None, "viewer")


def test_the_command_line_grants_and_revokes(api: HttpBroker, user: str) -> None:
    def run(*arguments: str) -> str:
        return CliRunner().invoke(leveret, ["roles", *arguments, "--data-dir", str(api.process.data_dir)]).output

    granted = run("grant", user, "operator", "--vhosts", "^/$", "--names", "^orders")
    assert granted == f"granted role 'operator' to user '{user}'\n"
    assert run("list", "--user", user).splitlines()[-1].split() == [user, "operator", "^/$", "^orders"]
    assert run("revoke", user, "--role", "operator") == f"revoked role 'operator' of user '{user}' ('^/$', '^orders')\n"
    assert f"user '{user}' has no such role" in run("revoke", user)
