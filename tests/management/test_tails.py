"""Live tails of queues and exchanges, on a broker in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import AccessRefused, BrokerError, NotFound, ResourceError
from leveret.broker.queues.queue import Queue
from leveret.broker.tails import MAX_WAITING
from leveret.management.json_values import encode_json
from leveret.management.operations import tails
from leveret.management.operations.message_search import MAX_JSON
from leveret.management.operations.operation import User
from leveret.security.accounts import UserAccount
from tests.management.harness import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


@pytest.fixture
def queue(harness: Harness) -> Queue:
    harness.call("queues.add", name="source")
    return harness.broker.vhosts["/"].queues["source"]


def publish(harness: Harness, key: str, *payloads: str, exchange: str = "", **properties: Any) -> None:
    for payload in payloads:
        harness.call("messages.publish", exchange=exchange, routing_key=key, payload=payload, properties=properties)


def follow(harness: Harness, **request: Any) -> str:
    found: str = harness.call("tails.open", **request)["id"]
    return found


def read(harness: Harness, tail: str) -> list[str]:
    return [item["payload"] for item in harness.call("tails.read", id=tail)["messages"]]


def test_messages_that_arrive_in_a_queue(harness: Harness, queue: Queue) -> None:
    publish(harness, "source", "before")
    tail = follow(harness, queue="source")
    assert read(harness, tail) == []
    publish(harness, "source", "one", headers={"n": 1})
    harness.call("messages.get", queue="source", count=10, mode="ack_requeue_false")
    publish(harness, "source", "two")
    (one, two) = harness.call("tails.read", id=tail)["messages"]
    assert (one["payload"], one["properties"]["headers"], one["routing_key"]) == ("one", {"n": 1}, "source")
    browsed = harness.call("messages.browse", queue="source")["messages"]
    assert [item["id"] for item in browsed] == [two["id"]] == [one["id"] + 1]
    assert read(harness, tail) == []
    assert harness.call("queues.show", name="source")["unacked"] == 0


def test_messages_that_are_published_to_an_exchange(harness: Harness, queue: Queue) -> None:
    harness.call("exchanges.add", name="news", type="direct")
    harness.call("bindings.add", source="news", destination="source", routing_key="routed")
    publish(harness, "routed", "before", exchange="news")
    tail = follow(harness, exchange="news")
    default = follow(harness, exchange="")
    publish(harness, "routed", "routed", exchange="news")
    publish(harness, "other", "unroutable", exchange="news")
    publish(harness, "source", "elsewhere")
    assert read(harness, tail) == ["routed", "unroutable"]
    assert read(harness, default) == ["elsewhere"]


def test_a_search_selects_messages(harness: Harness, queue: Queue) -> None:
    by_selector = follow(harness, queue="source", selector="n > 1")
    where = [{"field": "body.n", "match": "less", "value": 3}]
    by_value = follow(harness, queue="source", where=where, truncate=7)
    for number in (1, 2, 3):
        publish(harness, "source", json.dumps({"n": number}), headers={"n": number})
    publish(harness, "source", json.dumps({"n": 1, "more": "x" * MAX_JSON}))
    assert read(harness, by_selector) == ['{"n": 2}', '{"n": 3}']
    found = harness.call("tails.read", id=by_value)
    assert [item["payload"] for item in found["messages"]] == ['{"n": 1', '{"n": 2']
    assert (found["examined"], found["skipped"], found["omitted"], found["dropped"]) == (4, 1, 0, 0)


def test_messages_beyond_the_rate_are_counted(harness: Harness, queue: Queue) -> None:
    tail = follow(harness, queue="source", rate=2)
    publish(harness, "source", *map(str, range(5)))
    found = harness.call("tails.read", id=tail)
    assert ([item["payload"] for item in found["messages"]], found["omitted"]) == (["0", "1"], 3)


def test_bytes_beyond_the_rate_are_counted(harness: Harness, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MAX_BYTE_RATE", 100)
    tail = follow(harness, queue="source")
    publish(harness, "source", *("x" * 60 for _ in range(4)))
    found = harness.call("tails.read", id=tail)
    assert (len(found["messages"]), found["omitted"]) == (2, 2)


def test_messages_that_the_reader_does_not_take_are_dropped(harness: Harness, queue: Queue) -> None:
    tail = follow(harness, queue="source", selector="n IS NOT NULL")
    publish(harness, "source", *("x" for _ in range(MAX_WAITING + 5)))
    found = harness.call("tails.read", id=tail)
    assert found["examined"] + found["dropped"] == MAX_WAITING + 5
    assert found["dropped"] >= 5
    publish(harness, "source", "next", headers={"n": 1})
    assert read(harness, tail) == ["next"]


def test_large_messages_do_not_wait(harness: Harness, queue: Queue) -> None:
    tail = follow(harness, queue="source", truncate=1)
    publish(harness, "source", *("x" * (5 << 20) for _ in range(3)))
    found = harness.call("tails.read", id=tail)
    assert (len(found["messages"]), found["dropped"]) == (1, 2)


def test_a_queue_without_tails_has_no_watch(harness: Harness, queue: Queue) -> None:
    vhost = harness.broker.vhosts["/"]
    opened = [follow(harness, queue="source"), follow(harness, queue="source"), follow(harness, exchange="amq.fanout")]
    publish(harness, "source", "one")
    assert [read(harness, tail) for tail in opened] == [["one"], ["one"], []]
    harness.call("tails.close", id=opened[0])
    publish(harness, "source", "two")
    assert read(harness, opened[1]) == ["two"]
    for tail in opened:
        harness.call("tails.close", id=tail)
    assert (queue.watch, vhost.tails) == (None, {})
    assert vhost.route(b"\x0aamq.fanout\x00").watch is None
    with pytest.raises(NotFound, match="no live tail"):
        harness.call("tails.read", id=opened[0])


def test_a_tail_stays_beside_the_firehose(harness: Harness, queue: Queue) -> None:
    tail = follow(harness, queue="source")
    firehose = harness.broker.vhosts["/"].firehose
    for on in (True, False):
        firehose.switch(on)
        harness.broker.end_turn()
        publish(harness, "source", str(on))
        assert read(harness, tail) == [str(on)]


def test_a_tail_of_a_deleted_queue_or_exchange_ends(harness: Harness, queue: Queue) -> None:
    harness.call("exchanges.add", name="news", type="topic")
    opened = [follow(harness, queue="source"), follow(harness, exchange="news")]
    harness.call("queues.delete", name="source")
    harness.call("exchanges.delete", name="news")
    ended = [harness.call("tails.read", id=tail)["ended"] for tail in opened]
    assert ended == ["the queue was deleted", "the exchange was deleted"]
    for tail in opened:
        with pytest.raises(NotFound, match="no live tail"):
            read(harness, tail)


def test_a_tail_that_is_not_read_is_closed(harness: Harness, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "TIMEOUT", 0.01)
    tail = follow(harness, queue="source")
    harness.loop.run_until_complete(asyncio.sleep(0.03))
    with pytest.raises(NotFound, match="not read for"):
        read(harness, tail)
    assert queue.watch is None


def test_a_stream(harness: Harness) -> None:
    harness.call("queues.add", name="log", arguments={"x-queue-type": "stream"})
    tail = follow(harness, queue="log")
    publish(harness, "log", "a", "b")
    assert [(item["id"], item["payload"]) for item in harness.call("tails.read", id=tail)["messages"]] == [
        (0, "a"),
        (1, "b"),
    ]


def test_the_number_of_tails_is_limited(harness: Harness, queue: Queue) -> None:
    for _ in range(tails.MAX_TAILS):
        follow(harness, queue="source")
    with pytest.raises(ResourceError, match="32 live tails are open"):
        follow(harness, queue="source")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "no single source"),
        ({"queue": "source", "exchange": ""}, "no single source"),
        ({"queue": "missing"}, "no queue 'missing'"),
        ({"exchange": "missing"}, "no exchange 'missing'"),
        ({"queue": "source", "rate": 0}, "invalid rate or truncate"),
        ({"queue": "source", "truncate": 1 << 20}, "invalid rate or truncate"),
        ({"queue": "source", "selector": "n ="}, "invalid selector: position 3"),
        ({"queue": "source", "where": [{"field": "x"}]}, "unknown field 'x'"),
    ],
)
def test_invalid_requests(harness: Harness, queue: Queue, request_: dict[str, Any], words: str) -> None:
    with pytest.raises(BrokerError, match=words):
        follow(harness, **request_)
    assert queue.watch is None


def call_as(harness: Harness, user: str, name: str, **arguments: Any) -> Any:
    principal = User(UserAccount(user, harness.users))
    result = harness.loop.run_until_complete(harness.admin.call(name, arguments, principal))
    return json.loads(encode_json(result))


def test_permissions_apply_to_each_read(harness: Harness, queue: Queue) -> None:
    harness.call("users.add", name="reader", password="x")
    for request in ({"queue": "source"}, {"exchange": "amq.topic"}):
        with pytest.raises(AccessRefused, match="read access to"):
            call_as(harness, "reader", "tails.open", **request)
    harness.call("permissions.set", user="reader", vhost="/", configure="", write="", read=".*")
    tail = call_as(harness, "reader", "tails.open", queue="source")["id"]
    publish(harness, "source", "one")
    assert len(call_as(harness, "reader", "tails.read", id=tail)["messages"]) == 1
    harness.call("permissions.set", user="reader", vhost="/", configure="", write="", read="")
    with pytest.raises(AccessRefused, match="read access to 'source'"):
        call_as(harness, "reader", "tails.read", id=tail)


def test_topic_permissions_hide_messages(harness: Harness) -> None:
    harness.call("users.add", name="reader", password="x")
    harness.call("permissions.set", user="reader", vhost="/", configure="", write="", read=".*")
    harness.call("topic_permissions.set", user="reader", vhost="/", exchange="amq.topic", write="", read="^open")
    tail = call_as(harness, "reader", "tails.open", exchange="amq.topic")["id"]
    publish(harness, "open.a", "seen", exchange="amq.topic")
    publish(harness, "secret.a", "hidden", exchange="amq.topic")
    found = call_as(harness, "reader", "tails.read", id=tail)
    assert ([item["payload"] for item in found["messages"]], found["examined"]) == (["seen"], 1)
