"""Tags that restrict users: without changes, and without payloads."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from leveret.management.http.table import ROUTES
from tests.management.http.client import HttpBroker

# Values of the variables in paths.
VALUES = {"vhost": "/", "name": "roles", "user": "plain", "kind": "q", "source": "amq.topic", "destination": "roles"}


def path_of(template: str) -> str:
    parts = template.split("/")
    return "/".join(quote(VALUES.get(part.strip("{}"), "x"), safe="") if "{" in part else part for part in parts)


CHANGES = [
    (method, path)
    for path, methods in ROUTES.items()
    for method, route in methods.items()
    if method != "GET" and not route.public and not route.reads
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_read_only_user_changes_nothing(api: HttpBroker, method: str, path: str) -> None:
    reply = api(method, path_of(path), {}, user="viewer")
    assert (reply.status, "'read-only'" in reply.json["reason"]) == (401, True)


def test_a_read_only_user_compares_definitions(api: HttpBroker) -> None:
    document = {"vhosts": [{"name": "read-only-dry-run"}]}
    for path in ("/definitions", "/all-configuration"):
        reply = api("POST", f"{path}?dry_run=true", document, user="viewer")
        assert (reply.status, len(reply.json["added"])) == (200, 1)
        for value in ("false", "", "True", "true&dry_run=0"):
            assert api("POST", f"{path}?dry_run={value}", document, user="viewer").status == 401
    assert api("POST", "/users/bulk-delete?dry_run=true", {"users": []}, user="viewer").status == 401
    assert api("POST", "/definitions?dry_run=true", document, user="monitor").status == 401
    assert api("GET", "/vhosts/read-only-dry-run").status == 404


def test_a_read_only_user_sees_what_the_other_tags_allow(api: HttpBroker) -> None:
    assert api.get("/whoami", user="viewer")["tags"] == ["administrator", "read-only"]
    assert {user["name"] for user in api.get("/users", user="viewer")} >= {"viewer", "guest"}
    assert api("HEAD", "/nodes", user="viewer").status == 200


def test_a_user_without_payloads_may_do_everything_else(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/roles", {"durable": True}, user="operator").status == 201
    body = {"routing_key": "roles", "payload": "secret", "payload_encoding": "string", "properties": {}}
    assert api("POST", "/exchanges/%2F/amq.default/publish", body, user="operator").json == {"routed": True}
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    reply = api("POST", "/queues/%2F/roles/get", get, user="operator")
    assert (reply.status, "'no-payloads'" in reply.json["reason"], b"secret" in reply.content) == (401, True, False)
    assert api("POST", "/queues/%2F/roles/get", get).json[0]["payload"] == "secret"
    assert api.get("/queues/%2F/roles", user="operator")["messages"] == 1
    assert api("DELETE", "/queues/%2F/roles/contents", user="operator").status == 204
    assert api("DELETE", "/queues/%2F/roles", user="operator").status == 204


def test_payloads_are_marked_in_the_table() -> None:
    """A path that answers with messages must not be reachable for users without payloads."""
    marked = {path for path, methods in ROUTES.items() if any(route.payloads for route in methods.values())}
    assert marked >= {path for path in ROUTES if path.endswith(("/get", "/payload"))}


def test_messages_in_their_places_have_no_payloads_for_such_a_user(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/roles-browse", {"durable": True}).status == 201
    body = {"routing_key": "roles-browse", "payload": "secret", "payload_encoding": "string", "properties": {"type": "t"}}
    api("POST", "/exchanges/%2F/amq.default/publish", body)
    messages = "/leveret/queues/%2F/roles-browse/messages"
    for reply in (api("GET", messages, user="operator"), api("POST", f"{messages}/search", {}, user="operator")):
        (message,) = reply.json["messages"]
        assert (message["payload"], message["payload_bytes"], message["properties"]["type"]) == ("", 6, "t")
    reply = api("GET", f"{messages}/{message['id']}/payload", user="operator")
    assert (reply.status, "'no-payloads'" in reply.json["reason"]) == (401, True)
    where = [{"field": "body", "match": "contains", "value": "s"}]
    for path in ("search", "move", "copy", "delete"):
        reply = api("POST", f"{messages}/{path}", {"where": where, "to_queue": "roles-browse"}, user="operator")
        assert (reply.status, "'no-payloads'" in reply.json["reason"]) == (401, True)
    assert api("POST", f"{messages}/search", {"where": where}, user="viewer").json["messages"][0]["payload"] == "secret"
    assert api("DELETE", "/queues/%2F/roles-browse").status == 204
