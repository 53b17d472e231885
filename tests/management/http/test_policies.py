"""Policies, operator policies, parameters and limits over the HTTP API, and their effect on clients."""

from __future__ import annotations

from typing import Any

import pytest

from leveret import sync
from tests.management.http.client import HttpBroker

POLICY = {"pattern": "^ruled", "definition": {"max-length": 2}, "priority": 3, "apply-to": "queues"}


def listed(api: HttpBroker, path: str, name: str) -> Any:
    """Return an object of a list."""
    return next(row for row in api.get(path) if row["name"] == name)


def test_policies(api: HttpBroker) -> None:
    path = "/policies/%2F/short"
    assert api("PUT", "/queues/%2F/ruled", {"durable": True}).status == 201
    assert api("PUT", path, POLICY, user="maker").status == 201
    assert api("PUT", path, POLICY).status == 204
    expected = {"vhost": "/", "name": "short", **POLICY}
    assert api.get(path, user="manager") == expected
    assert api.get("/policies") == api.get("/policies/%2F") == [expected]
    found = api.get("/queues/%2F/ruled")
    assert (found["policy"], found["operator_policy"]) == ("short", None)
    assert found["effective_policy_definition"] == {"max-length": 2}
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        for number in range(5):
            channel.publish(b"%d" % number, routing_key="ruled")
    assert api.get("/queues/%2F/ruled")["messages"] == 2
    assert api("PUT", "/operator-policies/%2F/cap", {"pattern": "ruled", "definition": {"max-length": 1}}).status == 201
    assert api.get("/operator-policies/%2F/cap") == {
        "vhost": "/",
        "name": "cap",
        "pattern": "ruled",
        "definition": {"max-length": 1},
        "priority": 0,
        "apply-to": "all",
    }
    for found in (api.get("/queues/%2F/ruled"), listed(api, "/queues", "ruled")):
        assert (found["policy"], found["operator_policy"], found["messages"]) == ("short", "cap", 1)
        assert found["effective_policy_definition"] == {"max-length": 1}
    assert api("DELETE", "/operator-policies/%2F/cap").status == 204
    assert api("DELETE", path, user="maker").status == 204
    assert api("DELETE", path).status == 404
    assert api.get("/queues/%2F/ruled")["effective_policy_definition"] == {}
    assert api("DELETE", "/queues/%2F/ruled").status == 204


def test_policies_of_exchanges(api: HttpBroker) -> None:
    body = {"pattern": "^amq.topic$", "definition": {"alternate-exchange": "amq.fanout"}, "apply-to": "exchanges"}
    assert api("PUT", "/policies/%2F/alternate", body).status == 201
    assert api.get("/exchanges/%2F/amq.topic")["policy"] == "alternate"
    assert listed(api, "/exchanges/%2F", "amq.topic")["policy"] == "alternate"
    assert api("DELETE", "/policies/%2F/alternate").status == 204
    assert api.get("/exchanges/%2F/amq.topic")["policy"] is None
    assert listed(api, "/exchanges/%2F", "amq.topic")["policy"] is None


def test_refused_policies(api: HttpBroker) -> None:
    path = "/policies/%2F/refused"
    assert api("PUT", path, {"pattern": "x"}).json["reason"] == "[{key_missing,definition}]"
    reply = api("PUT", path, POLICY | {"definition": {"max-lenght": 2}})
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert "key 'max-lenght' is unknown" in reply.json["reason"]
    for change in ({"pattern": "("}, {"priority": "high"}, {"apply-to": "everything"}, {"definition": [1]}, {"pattern": 1}):
        assert api("PUT", path, POLICY | change).status == 400, change
    assert api("PUT", "/policies/missing/refused", POLICY).status == 404
    for user in ("manager", "monitor"):
        reply = api("PUT", path, POLICY, user=user)
        assert (reply.status, reply.json["reason"]) == (401, "User not authorised to access object")
    assert api("PUT", "/policies/interop/refused", POLICY, user="maker").status == 404  # no permissions there
    assert api("PUT", "/operator-policies/%2F/refused", POLICY, user="maker").status == 401
    assert api.get("/policies") == []


def test_parameters(api: HttpBroker) -> None:
    path = "/parameters/shovel/%2F/move"
    # Names that do not exist.
    value = {"src-uri": "amqp://u:p@a.invalid", "src-queue": "a", "dest-uri": "amqp://u:p@b.invalid", "dest-queue": "b"}
    assert api("PUT", path, {"value": value}, user="maker").status == 201
    assert api("PUT", path, {"value": value}).status == 204
    # The same value leaves the user.
    expected = {"vhost": "/", "component": "shovel", "name": "move", "value": value, "user": "maker"}
    assert api.get(path) == expected
    assert api.get("/parameters") == api.get("/parameters/shovel") == api.get("/parameters/shovel/%2F") == [expected]
    assert api("GET", "/parameters", user="manager").status == 401
    assert "'ack-mode'" in api("PUT", path, {"value": value | {"ack-mode": "maybe"}}).json["reason"]
    assert api.get("/parameters/unknown") == []
    assert api("PUT", "/parameters/unknown/%2F/x", {"value": 1}).status == 400
    assert api("PUT", "/parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 1}}, user="maker").status == 401
    assert api("DELETE", path, user="maker").status == 204
    assert api("DELETE", path).status == 404


def test_global_parameters(api: HttpBroker) -> None:
    for value in ({"a": [1]}, "text", 0, False):
        assert api("PUT", "/global-parameters/any", {"value": value}).status in (201, 204)
        assert api.get("/global-parameters/any", user="maker") == {"name": "any", "value": value}
    assert {"name": "any", "value": False} in api.get("/global-parameters")
    assert api("PUT", "/global-parameters/any", {}).json["reason"] == "[{key_missing,value}]"
    assert api("DELETE", "/global-parameters/any").status == 204
    assert api("DELETE", "/global-parameters/any").status == 404


def test_limits_of_vhosts(api: HttpBroker) -> None:
    assert api("PUT", "/vhosts/limited").status == 201
    assert api("PUT", "/vhost-limits/limited/max-queues", {"value": 1}).status == 204
    expected = [{"vhost": "limited", "value": {"max-queues": 1}}]
    assert api.get("/vhost-limits") == api.get("/vhost-limits/limited") == expected
    assert api.get("/parameters/vhost-limits/limited/limits")["value"] == {"max-queues": 1}
    assert api.get("/vhost-limits/%2F") == api.get("/vhost-limits", user="manager") == []
    assert api("PUT", "/vhost-limits/limited/max-connections", {"value": 0}).status == 204
    assert api("PUT", "/users/visitor", {"password": "visitor", "tags": ""}).status == 201
    assert api("PUT", "/permissions/limited/visitor", {"configure": "", "write": "", "read": ""}).status == 201
    with pytest.raises(Exception, match="vhost 'limited' has 0 connections, the maximum"):
        sync.connect(api.process.url(user="visitor", password="visitor", vhost="limited"))
    assert api("DELETE", "/users/visitor").status == 204
    assert api("DELETE", "/vhost-limits/limited/max-connections").status == 204
    assert api("DELETE", "/vhost-limits/limited/max-connections").status == 204
    assert api("PUT", "/vhost-limits/limited/max-queues", {"value": "1"}).status == 400
    assert api("PUT", "/vhost-limits/limited/max-queues", {}).status == 400
    assert api("PUT", "/vhost-limits/limited/other", {"value": 1}).status == 400
    assert api("PUT", "/vhost-limits/missing/max-queues", {"value": 1}).status == 404
    assert api("DELETE", "/vhosts/limited").status == 204
    assert api.get("/vhost-limits") == []


def test_limits_of_users(api: HttpBroker) -> None:
    assert api("PUT", "/users/few", {"password": "few", "tags": ""}).status == 201
    assert api("PUT", "/permissions/%2F/few", {"configure": "", "write": "", "read": ""}).status == 201
    assert api("PUT", "/user-limits/few/max-connections", {"value": 0}).status == 204
    expected = [{"user": "few", "value": {"max-connections": 0}}]
    assert api.get("/user-limits") == api.get("/user-limits/few") == expected
    assert api.get("/users/few")["limits"] == {"max-connections": 0}
    with pytest.raises(Exception, match="user 'few' has 0 connections, the maximum"):
        sync.connect(api.process.url(user="few", password="few"))
    assert api("DELETE", "/user-limits/few/max-connections").status == 204
    assert api.get("/user-limits/few") == []
    sync.connect(api.process.url(user="few", password="few")).close()
    assert api("GET", "/user-limits/missing").status == 404
    assert api("PUT", "/user-limits/few/max-queues", {"value": 1}).status == 400
    assert api("DELETE", "/users/few").status == 204
