"""The queues that a message would reach, over the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.management.http.client import HttpBroker, Reply


@pytest.fixture
def queue(api: HttpBroker) -> Iterator[str]:
    name = "mine-destination"
    assert api("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
    yield name
    api("DELETE", f"/queues/%2F/{name}")


def ask(api: HttpBroker, exchange: str, body: dict[str, Any], user: str = "guest") -> Reply:
    return api("POST", f"/leveret/exchanges/%2F/{exchange}/destinations", body, user=user)


def test_destinations_of_a_message(api: HttpBroker, queue: str) -> None:
    api("POST", f"/bindings/%2F/e/amq.headers/q/{queue}", {"arguments": {"x-match": "all", "size": 5}})
    found = {"queues": [queue], "total": 1}
    for user in ("guest", "viewer"):
        assert ask(api, "amq.default", {"routing_key": queue}, user).json == found
    assert ask(api, "amq.headers", {"properties": {"headers": {"size": 5}}}).json == found
    assert ask(api, "amq.headers", {"properties": {"headers": {"size": "5"}}}).json["total"] == 0
    assert ask(api, "amq.headers", {"properties": []}).json == {"queues": [], "total": 0}
    assert api.get(f"/queues/%2F/{queue}")["messages"] == 0


def test_the_user_must_be_able_to_publish(api: HttpBroker) -> None:
    assert ask(api, "amq.fanout", {}, "manager").status == 401
    api("PUT", "/exchanges/%2F/mine-internal", {"type": "fanout", "internal": True})
    reply = ask(api, "mine-internal", {})
    assert (reply.status, "internal exchange" in reply.json["reason"]) == (400, True)
    api("DELETE", "/exchanges/%2F/mine-internal")


@pytest.mark.parametrize("body", [{"routing_key": 5}, {"properties": "x"}, {"properties": {"priority": "high"}}])
def test_invalid_messages(api: HttpBroker, body: dict[str, Any]) -> None:
    assert ask(api, "amq.fanout", body).status == 400


def test_a_missing_exchange(api: HttpBroker) -> None:
    assert ask(api, "missing", {}).status == 404
