"""Live tails of queues and exchanges over the HTTP API, as server-sent events."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest

from leveret import sync
from tests.management.http.client import HttpBroker
from tests.management.http.test_events import Stream
from tests.management.http.test_in_place import publish
from tests.support.polling import wait_until


@pytest.fixture
def queue(api: HttpBroker) -> Iterator[str]:
    assert api("PUT", "/queues/%2F/mine-followed", {"durable": True}).status == 201
    yield "mine-followed"
    api("DELETE", "/queues/%2F/mine-followed")


@contextmanager
def follow(api: HttpBroker, path: str, user: str = "guest", **query: str) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    token = base64.b64encode(f"{user}:{user}".encode()).decode()
    target = "&".join(f"{key}={quote(value)}" for key, value in query.items())
    connection.request("GET", f"/api/leveret{path}/messages/tail?{target}", headers={"Authorization": f"Basic {token}"})
    response = connection.getresponse()
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")
    stream = Stream(response)
    try:
        assert stream.next()[0] == "hello"
        yield stream
    finally:
        response.close()
        connection.close()


def test_messages_that_arrive_in_a_queue(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "before")
    with follow(api, f"/queues/%2F/{queue}", "manager") as stream, sync.connect(api.process.url()) as connection:
        with connection.channel().consume(queue) as consumer:
            assert bytes(consumer.next(10).body) == b"before"
            publish(api, queue, '{"n": 1}', headers={"kind": "x"}, correlation_id="c")
            message = stream.until("message")
            consumer.next(10).ack()
            assert {key: message[key] for key in ("exchange", "routing_key", "payload", "protocol", "payload_bytes")} == {
                "exchange": "",
                "routing_key": queue,
                "payload": '{"n": 1}',
                "protocol": "0-9-1",
                "payload_bytes": 8,
            }
            assert message["properties"]["headers"] == {"kind": "x"}
            assert stream.until("counts") == {"examined": 1, "skipped": 0, "omitted": 0, "dropped": 0}
        with sync.connect(api.process.url(), protocol="1.0") as amqp10, amqp10.session() as session:
            session.sender(queue).send(b"over 1.0", application_properties={"kind": "y"})
        message = stream.until("message")
        assert (message["payload"], message["protocol"], message["properties"]["headers"]["kind"]) == (
            "over 1.0",
            "1.0",
            "y",
        )
        assert stream.until("counts")["examined"] == 2


def test_messages_that_are_published_to_an_exchange(api: HttpBroker, queue: str) -> None:
    api("PUT", "/exchanges/%2F/mine-news", {"type": "topic"})
    api("POST", f"/bindings/%2F/e/mine-news/q/{queue}", {"routing_key": "order.1"})
    where = json.dumps([{"field": "body.total", "match": "greater", "value": 5}])
    with (
        follow(api, "/exchanges/%2F/mine-news", where=where, selector="kind = 'order'", truncate="9") as stream,
        sync.connect(api.process.url()) as connection,
        connection.channel() as channel,
    ):
        for kind, total in (("order", 5), ("refund", 6), ("order", 7)):
            channel.publish(b'{"total":%d, "more": 1}' % total, f"{kind}.new", "mine-news", headers={"kind": kind})
        message = stream.until("message")
        assert (message["payload"], message["routing_key"], message["id"]) == ('{"total":', "order.new", None)
        while stream.until("counts")["examined"] < 3:
            pass
        channel.publish(b'{"total":8}', "order.tx", "mine-news", headers={"kind": "order"})
        assert stream.until("message")["routing_key"] == "order.tx"
        with sync.connect(api.process.url(), protocol="1.0") as amqp10, amqp10.session() as session:
            session.sender("/exchanges/mine-news/order.1").send(b'{"total":9}', application_properties={"kind": "order"})
        assert stream.until("message")["protocol"] == "1.0"
        api("DELETE", "/exchanges/%2F/mine-news")
        assert stream.until("dropped") == {"reason": "the exchange was deleted"}


def test_what_exceeds_the_rate_is_counted(api: HttpBroker, queue: str) -> None:
    with follow(api, f"/queues/%2F/{queue}", rate="1") as stream, sync.connect(api.process.url()) as connection:
        with connection.channel().publisher(routing_key=queue) as publisher:
            for number in range(100):
                publisher.publish(str(number).encode())
        assert stream.until("message")["payload"] == "0"
        while (counts := stream.until("counts"))["examined"] < 100:
            pass
        assert counts["omitted"] > 50


def open_tails(api: HttpBroker, queue: str) -> int:
    """Return how many more tails can be opened, and close them."""
    opened = []
    while True:
        reply = api("POST", "/leveret/operations/tails.open", {"queue": queue})
        if reply.status != 200:
            break
        opened.append(reply.json["result"]["id"])
    for tail in opened:
        api("POST", "/leveret/operations/tails.close", {"id": tail})
    return len(opened)


def test_a_tail_ends_when_its_client_leaves(api: HttpBroker, queue: str) -> None:
    free = open_tails(api, queue)
    with follow(api, f"/queues/%2F/{queue}"):
        assert open_tails(api, queue) == free - 1
    wait_until(lambda: open_tails(api, queue) == free, "the tail stays open")


def test_a_tail_ends_with_the_permissions_of_its_user(api: HttpBroker, queue: str) -> None:
    api("PUT", "/users/follower", {"password": "follower", "tags": "management"})
    api("PUT", "/permissions/%2F/follower", {"configure": "", "write": "", "read": ".*"})
    with follow(api, f"/queues/%2F/{queue}", "follower") as stream:
        api("PUT", "/permissions/%2F/follower", {"configure": "", "write": "", "read": ""})
        reason = stream.until("dropped")["reason"]
        assert "read access to" in reason or "have changed" in reason
    api("DELETE", "/users/follower")


def test_refused_requests(api: HttpBroker, queue: str) -> None:
    def refused(path: str, user: str = "guest") -> tuple[int, Any]:
        reply = api("GET", f"/leveret{path}", user=user)
        return reply.status, reply.json["reason"]

    tail = f"/queues/%2F/{queue}/messages/tail"
    status, reason = refused(tail, "operator")
    assert (status, "may not read payloads" in reason) == (401, True)
    assert refused("/exchanges/%2F/amq.fanout/messages/tail", "operator")[0] == 401
    assert refused("/exchanges/%2F/amq.fanout/messages/tail", "manager")[0] == 401
    assert refused("/queues/%2F/missing/messages/tail")[0] == 404
    assert refused(f"{tail}?selector=n+%3D")[1].startswith("invalid selector: position 3: expected")
    assert refused(f"{tail}?where=x") == (400, "invalid value of 'where'; expected a list of conditions as JSON")
    assert refused(f"{tail}?rate=x") == (400, "invalid value of 'rate'; expected a number")
    assert "invalid rate" in refused(f"{tail}?rate=1000")[1]
