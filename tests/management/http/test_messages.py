"""Publishing and getting messages over the HTTP API."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from leveret import sync
from tests.management.http.client import HttpBroker, Reply

GET = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
PUBLISH = {"properties": {}, "routing_key": "messages", "payload": "body", "payload_encoding": "string"}


@pytest.fixture
def queue(api: HttpBroker) -> Iterator[str]:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    assert api("PUT", "/queues/%2F/messages", {"durable": True, "arguments": arguments}).status == 201
    yield "messages"
    assert api("DELETE", "/queues/%2F/messages").status == 204


def publish(api: HttpBroker, exchange: str = "amq.default", **changes: Any) -> Reply:
    return api("POST", f"/exchanges/%2F/{exchange}/publish", PUBLISH | changes)


def get(api: HttpBroker, **changes: Any) -> list[dict[str, Any]]:
    reply = api("POST", "/queues/%2F/messages/get", GET | changes)
    assert reply.status == 200, reply.content
    found: list[dict[str, Any]] = reply.json
    return found


def test_a_message(api: HttpBroker, queue: str) -> None:
    properties = {
        "content_type": "text/plain",
        "headers": {"a": 1, "b": [True, "x", None], "c": {"d": 1.5}},
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1700000000,
        "type": "t",
        "user_id": "guest",
        "app_id": "app",
    }
    assert publish(api, properties=properties | {"unknown": 1}).json == {"routed": True}
    assert get(api) == [
        {
            "payload": "body",
            "payload_bytes": 4,
            "payload_encoding": "string",
            "redelivered": False,
            "exchange": "",
            "routing_key": "messages",
            "message_count": 0,
            "properties": properties,
        }
    ]
    assert get(api) == []


def test_consumers_receive_what_was_published(api: HttpBroker, queue: str) -> None:
    content = bytes(range(256))
    encoded = base64.b64encode(content).decode()
    headers = {"key": "value"}
    reply = publish(api, payload=encoded, payload_encoding="base64", properties={"headers": headers})
    assert reply.json == {"routed": True}
    with sync.connect(api.process.url()) as connection:
        message = connection.channel().get("messages", no_ack=True)
        assert message is not None
        assert (bytes(message.body), message.headers) == (content, headers)


def test_encodings(api: HttpBroker, queue: str) -> None:
    publish(api, payload=base64.b64encode(b"\xff\x00").decode(), payload_encoding="base64")
    publish(api, payload="ü")
    assert [(item["payload"], item["payload_encoding"]) for item in get(api, ackmode="ack_requeue_true")] == [
        ("/wA=", "base64"),
        ("ü", "string"),
    ]
    found = get(api, encoding="base64", truncate=1)
    assert [(item["payload"], item["payload_bytes"]) for item in found] == [("/w==", 2), ("ww==", 2)]
    assert found[0]["properties"] == []


def test_modes(api: HttpBroker, queue: str) -> None:
    assert api("PUT", "/queues/%2F/dead", {}).status == 201
    for number in range(3):
        publish(api, payload=str(number))
    for mode in ("ack_requeue_true", "reject_requeue_true"):
        found = get(api, ackmode=mode, count=2)
        assert [item["payload"] for item in found] == ["0", "1"]
        assert [item["redelivered"] for item in found] == [mode == "reject_requeue_true"] * 2
        assert [item["message_count"] for item in found] == [2, 1]
        assert api.get("/queues/%2F/messages")["messages_ready"] == 3
    assert [item["payload"] for item in get(api, count=1)] == ["0"]
    assert [item["payload"] for item in get(api, ackmode="reject_requeue_false")] == ["1", "2"]
    assert api.get("/queues/%2F/messages")["messages"] == 0
    assert api.get("/queues/%2F/dead")["messages"] == 2
    assert api("DELETE", "/queues/%2F/dead").status == 204


def test_many_messages(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        for number in range(1200):
            channel.publish(b"%d" % number, routing_key="messages")
        channel.get("messages", no_ack=True)  # in order with the publishes
    found = get(api, count="5000", ackmode="ack_requeue_true")
    assert [item["payload"] for item in found] == [str(number) for number in range(1, 1001)]
    assert api.get("/queues/%2F/messages")["messages_ready"] == 1199
    assert get(api, count=1)[0]["payload"] == "1"


def test_unroutable_messages(api: HttpBroker) -> None:
    assert publish(api, routing_key="nowhere").json == {"routed": False}
    assert publish(api, "amq.topic").json == {"routed": False}
    assert publish(api, "missing").status == 404


def test_routing_by_headers(api: HttpBroker, queue: str) -> None:
    assert api("POST", "/bindings/%2F/e/amq.headers/q/messages", {"arguments": {"kind": "a"}}).status == 201
    assert publish(api, "amq.headers", properties={"headers": {"kind": "a"}}).json == {"routed": True}
    assert publish(api, "amq.headers", properties={"headers": {"kind": "b"}}).json == {"routed": False}
    assert publish(api, routing_key="nowhere", properties={"headers": {"CC": ["messages"]}}).json == {"routed": True}
    assert len(get(api)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"payload_encoding": "utf8"},
        {"payload_encoding": "base64", "payload": "%"},
        {"payload": 1},
        {"routing_key": "x" * 256},
        {"properties": 1},
        {"properties": {"priority": "high"}},
        {"properties": {"priority": 256}},
        {"properties": {"headers": "x"}},
        {"properties": {"expiration": "soon"}},
        {"properties": {"expiration": 5}},
        {"properties": {"user_id": "other"}},
        {"properties": {"timestamp": -1}},
        {"properties": {"headers": {"CC": "x"}}},
        {"payload": None},
    ],
)
def test_invalid_messages(api: HttpBroker, queue: str, changes: dict[str, Any]) -> None:
    reply = publish(api, **changes)
    assert (reply.status, reply.json["error"]) == (400, "bad_request"), reply.content
    assert get(api) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("headers", "x", "an object"),
        ("priority", "high", "an integer"),
        ("priority", True, "an integer"),
        ("type", 5, "a string"),
    ],
)
def test_properties_of_the_wrong_type(api: HttpBroker, queue: str, name: str, value: object, expected: str) -> None:
    reply = publish(api, properties={name: value})
    assert reply.json["reason"] == f"invalid value of property '{name}'; expected {expected}"


def test_empty_headers(api: HttpBroker, queue: str) -> None:
    """Answers of RabbitMQ have a list in place of an empty table, which clients send back."""
    assert publish(api, properties={"headers": []}).json == {"routed": True}
    assert get(api)[0]["properties"] in ([], {"headers": {}})


def test_internal_exchanges(api: HttpBroker) -> None:
    assert api("PUT", "/exchanges/%2F/inner", {"type": "fanout", "internal": True}).status == 201
    reply = api("POST", "/exchanges/%2F/inner/publish", PUBLISH)
    assert (reply.status, reply.json["reason"]) == (400, "cannot publish to internal exchange 'inner' in vhost '/'")
    assert api("DELETE", "/exchanges/%2F/inner").status == 204


def test_invalid_requests(api: HttpBroker, queue: str) -> None:
    path = "/queues/%2F/messages/get"
    reply = api("POST", path, {"count": 1})
    assert reply.json["reason"] == "[{key_missing,ackmode},{key_missing,encoding}]"
    for changes in ({"count": "x"}, {"count": -1}, {"ackmode": "no"}, {"encoding": "no"}, {"truncate": -1}):
        assert api("POST", path, GET | changes).status == 400, changes
    assert api("POST", "/queues/%2F/missing/get", GET).status == 404


def test_permissions(api: HttpBroker, queue: str) -> None:
    assert api("POST", "/queues/%2F/messages/get", GET, user="manager").status == 401
    assert api("POST", "/exchanges/%2F/amq.default/publish", PUBLISH, user="manager").status == 401
    assert api("POST", "/queues/interop/messages/get", GET, user="manager").status == 404


def test_delayed_messages(api: HttpBroker, queue: str) -> None:
    """The header x-delay of a message to a delayed exchange; its definition is exported and imported."""
    path = "/exchanges/%2F/later"
    definition = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "direct"}}
    assert api("PUT", path, definition).status == 201
    assert api("PUT", path, {**definition, "arguments": {}}).status == 400
    assert api("POST", f"/bindings/%2F/e/later/q/{queue}", {"routing_key": queue}).status == 201
    exported = api("GET", "/definitions/%2F").json
    assert [item["arguments"] for item in exported["exchanges"] if item["name"] == "later"] == [
        {"x-delayed-type": "direct"}
    ]
    assert api("POST", "/definitions/%2F", exported).status in (200, 204)
    assert publish(api, "later", properties={"headers": {"x-delay": 3_600_000}}).json == {"routed": True}
    assert publish(api, "later").json == {"routed": True}
    assert publish(api, "later", routing_key="none", properties={"headers": {"x-delay": 1}}).json == {"routed": False}
    assert [message["payload"] for message in get(api)] == ["body"]
    assert get(api) == []
    assert api("DELETE", path).status == 204
