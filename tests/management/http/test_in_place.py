"""Messages in their places, paused queues, cancelled consumers and changes by pattern over the HTTP API."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from leveret import sync
from leveret.broker.consumer import UNACKED_PIECE
from leveret.client.errors import ConsumerCancelled, Error
from leveret.management.operations.payloads import MAX_RANGE
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp10.descriptors import DATA
from leveret.wire.amqp10.sections import split
from tests.management.http.client import HttpBroker, Reply
from tests.management.http.test_process import make
from tests.support.polling import wait_until

QUEUES = "/leveret/queues/%2F"


@pytest.fixture
def channel(api: HttpBroker) -> Iterator[sync.Channel]:
    with sync.connect(api.process.url()) as connection:
        yield connection.channel()


@pytest.fixture
def queue(api: HttpBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue with three messages."""
    name = f"in-place-{request.node.name.partition('[')[0]}"
    assert api("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
    publish(api, name, "one", "two", "three")
    yield name
    api("DELETE", f"/queues/%2F/{name}")


def publish(api: HttpBroker, queue: str, *payloads: str, **properties: Any) -> None:
    for payload in payloads:
        body = {
            "routing_key": queue,
            "payload": payload,
            "payload_encoding": "string",
            "properties": {"delivery_mode": 2, **properties},
        }
        assert api("POST", "/exchanges/%2F/amq.default/publish", body).json == {"routed": True}


def browse(api: HttpBroker, queue: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{QUEUES}/{queue}/messages{query}")
    return found


def payloads(api: HttpBroker, queue: str) -> list[str]:
    return [item["payload"] for item in browse(api, queue)["messages"]]


def test_ready_messages(api: HttpBroker, queue: str) -> None:
    found = browse(api, queue, "?offset=1&count=1&truncate=2&encoding=base64")
    (item,) = found["messages"]
    assert {key: item[key] for key in ("payload", "payload_bytes", "payload_encoding", "routing_key", "holder")} == {
        "payload": "dHc=",
        "payload_bytes": 3,
        "payload_encoding": "base64",
        "routing_key": queue,
        "holder": None,
    }
    assert (item["redelivered"], item["protocol"], item["persistent"]) == (False, "0-9-1", True)
    assert api.get(f"/queues/%2F/{queue}")["messages_ready"] == 3


def test_unacked_messages_and_their_holder(api: HttpBroker, queue: str, channel: sync.Channel) -> None:
    with channel.consume(queue, prefetch=2) as consumer:
        assert [bytes(consumer.next(10).body) for _ in range(2)] == [b"one", b"two"]
        found = browse(api, queue, "?state=unacked&count=1")
        (first,) = found["messages"]
        assert (first["payload"], first["redelivered"], first["deliveries"]) == ("one", False, 1)
        assert first["holder"]["consumer_tag"] == consumer.tag
        assert first["holder"]["channel"] == 1
        rest = browse(api, queue, f"?state=unacked&cursor={found['cursor']}")
        assert [item["payload"] for item in rest["messages"]] == ["two"]
        assert payloads(api, queue) == ["three"]


@pytest.mark.parametrize("protocol", ["0-9", "0-9-1", "1.0"])
def test_many_unacked_messages_are_listed_in_their_order(api: HttpBroker, queue: str, protocol: str) -> None:
    count = 2 * UNACKED_PIECE + 100
    assert api("DELETE", f"/queues/%2F/{queue}/contents").status == 204
    with sync.connect(api.process.url()) as connection, connection.channel().publisher(routing_key=queue) as publisher:
        for number in range(count):
            publisher.publish(str(number).encode())
    with ExitStack() as stack:
        consumer: sync.Consumer
        if protocol == "1.0":
            amqp10 = stack.enter_context(sync.connect(api.process.url(), protocol="1.0"))
            consumer = stack.enter_context(amqp10.session().receiver(queue, prefetch=0))
        elif protocol == "0-9":
            amqp09 = stack.enter_context(sync.connect(api.process.url(), protocol="0-9"))
            consumer = stack.enter_context(amqp09.channel().consume(queue, prefetch=0))
        else:
            amqp091 = stack.enter_context(sync.connect(api.process.url()))
            consumer = stack.enter_context(amqp091.channel().consume(queue, prefetch=0))
        held = [consumer.next(30) for _ in range(count)]
        for number in (0, 1, UNACKED_PIECE, count - 1):
            held[number].ack()
        expected = [str(number) for number in range(count) if number not in (0, 1, UNACKED_PIECE, count - 1)]
        wait_until(lambda: api.get(f"/queues/%2F/{queue}")["messages_unacknowledged"] == len(expected), "acks")
        found: list[str] = []
        cursor = ""
        while cursor is not None:
            page = browse(api, queue, f"?state=unacked&count=1000&cursor={cursor}")
            found += [item["payload"] for item in page["messages"]]
            cursor = page["cursor"]
        assert found == expected


@pytest.fixture
def delayed(api: HttpBroker, queue: str) -> list[int]:
    """When the messages `later-3`, `later-1` and `later-2` of the queue become ready, in this order."""
    now = int(time.time() * 1000)
    dues = [now + hours * 3_600_000 for hours in (3, 1, 2)]
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session().sender(queue) as sender:
        for due, number in zip(dues, (3, 1, 2), strict=True):
            sender.send(f"later-{number}", durable=True, annotations={"x-opt-delivery-time": due})
    return dues


def test_delayed_messages_and_when_they_become_ready(api: HttpBroker, queue: str, delayed: list[int]) -> None:
    found = browse(api, queue, "?state=delayed&count=2")
    assert [(item["payload"], item["ready_at"]) for item in found["messages"]] == [
        ("later-1", delayed[1]),
        ("later-2", delayed[2]),
    ]
    rest = browse(api, queue, f"?state=delayed&cursor={found['cursor']}")
    assert [(item["payload"], item["ready_at"]) for item in rest["messages"]] == [("later-3", delayed[0])]
    assert rest["cursor"] is None
    assert [item["payload"] for item in browse(api, queue, "?state=delayed&offset=2")["messages"]] == ["later-3"]
    assert [item["ready_at"] for item in browse(api, queue)["messages"]] == [None] * 3
    assert payloads(api, queue) == ["one", "two", "three"]
    search = {"state": "delayed", "where": [{"field": "body", "match": "contains", "value": "2"}]}
    matching = api("POST", f"{QUEUES}/{queue}/messages/search", search).json
    assert [item["payload"] for item in matching["messages"]] == ["later-2"] and matching["examined"] == 3
    counted = api("POST", f"{QUEUES}/{queue}/messages/count", search).json
    assert (counted["messages"], counted["examined"]) == (1, 3)
    number = matching["messages"][0]["id"]
    part = api.get(f"{QUEUES}/{queue}/messages/{number}/payload?first=6")
    assert (base64.b64decode(part["payload"]), part["payload_bytes"]) == (b"2", 7)
    numbers = {"ready": 3, "delayed": 3, "leased": 0}
    wait_until(lambda: api.get(f"{QUEUES}/{queue}/ready").items() >= numbers.items(), "the numbers")


@pytest.mark.parametrize("action", ["move", "copy", "delete", "preview"])
def test_actions_on_messages_that_are_not_ready_are_refused(
    api: HttpBroker, queue: str, delayed: list[int], action: str
) -> None:
    target = {} if action == "delete" else {"to_queue": queue}
    for state, reason in (("delayed", "once they are due"), ("unacked", "once their consumers have requeued them")):
        reply = api("POST", f"{QUEUES}/{queue}/messages/{action}", {"state": state, **target})
        assert reply.status == 400 and f"{state} messages of queue '{queue}'" in reply.json["reason"]
        assert "expected the state 'ready'" in reply.json["reason"] and reason in reply.json["reason"]
    assert payloads(api, queue) == ["one", "two", "three"]
    assert len(browse(api, queue, "?state=delayed")["messages"]) == 3


def test_a_range_of_a_payload(api: HttpBroker, queue: str, channel: sync.Channel) -> None:
    whole = bytes(range(256)) * 12_000
    channel.publish(whole, queue)
    found = browse(api, queue, "?offset=3")
    (item,) = found["messages"]
    path = f"{QUEUES}/{queue}/messages/{item['id']}/payload"

    def read(first: int, length: int) -> bytes:
        answer = api.get(f"{path}?first={first}&length={length}&queue_id={found['queue_id']}")
        assert (answer["first"], answer["payload_bytes"]) == (first, len(whole))
        return base64.b64decode(answer["payload"])

    assert [read(at, MAX_RANGE) for at in range(0, len(whole), MAX_RANGE)] == [
        whole[at : at + MAX_RANGE] for at in range(0, len(whole), MAX_RANGE)
    ]
    assert read(len(whole) - 2, 100) == b"\xfe\xff"
    assert read(len(whole), 1) == b""
    assert api.get(f"/queues/%2F/{queue}")["message_stats"].get("get", 0) == 0
    with channel.consume(queue, prefetch=4) as consumer:
        assert bytes([consumer.next(10) for _ in range(4)][3].body) == whole
        assert read(255, 3) == b"\xff\x00\x01"
    assert api("GET", f"{path}?queue_id=0").status == 400
    assert api("GET", f"{QUEUES}/{queue}/messages/0/payload").status == 404


def test_a_search(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "four", headers={"kind": "x"})
    where = [{"field": "headers.kind", "value": "x"}]
    reply = api("POST", f"{QUEUES}/{queue}/messages/search", {"where": where})
    assert [item["payload"] for item in reply.json["messages"]] == ["four"]
    assert reply.json["examined"] == 4


def test_a_search_by_a_selector(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "four", headers={"weight": 7, "color": "red"}, priority=6)
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        session.sender(queue).send(b"over 1.0", application_properties={"weight": 8, "color": "blue"})
    path = f"{QUEUES}/{queue}/messages"

    def found(selector: str, **more: Any) -> list[str]:
        reply = api("POST", f"{path}/search", {"selector": selector, **more}, user="operator")
        assert reply.json["examined"] == 5
        return [item["routing_key"] for item in reply.json["messages"]]

    assert found("color IN ('red', 'blue') AND weight BETWEEN 7 AND 8") == [queue] * 2
    assert found("JMSPriority > 4 AND weight = 7") == [queue]
    assert found("weight > 0", where=[{"field": "headers.color", "value": "blue"}]) == [queue]
    assert found("weight > 8") == []
    refused = api("POST", f"{path}/delete", {"selector": "color = 'red' AND"})
    assert refused.status == 400
    assert refused.json["reason"].startswith("invalid selector: position 17: expected ")
    assert api("POST", f"{path}/delete", {"selector": "color IS NOT NULL"}).json["messages"] == 2
    assert payloads(api, queue) == ["one", "two", "three"]


def test_a_search_by_values_of_json_bodies(api: HttpBroker, queue: str) -> None:
    for number in range(3):
        publish(api, queue, f'{{"items": [{{"sku": "A-{number}", "count": {number}}}], "a.b": true}}')
    path = f"{QUEUES}/{queue}/messages"

    def found(field: str, match: str, value: Any = None) -> int:
        where = [{"field": field, "match": match, "value": value}]
        reply = api("POST", f"{path}/search", {"where": where})
        assert (reply.json["examined"], reply.json["skipped"]) == (6, 0)
        return len(reply.json["messages"])

    assert found("body.items[0].count", "greater_or_equal", 1) == 2
    assert found("body.items[0].sku", "less", "A-1") == 1
    assert found('body["a.b"]', "equals", True) == 3
    refused = api("POST", f"{path}/search", {"where": [{"field": "body.items[*]", "match": "exists"}]})
    assert refused.status == 400
    assert "invalid path 'body.items[*]': position 10: expected .NAME, [INDEX]" in refused.json["reason"]


def test_a_count(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "twenty", headers={"n": 20})
    path = f"{QUEUES}/{queue}/messages/count"
    where = [{"field": "body", "match": "prefix", "value": "tw"}]
    counted = api("POST", path, {"where": where}, user="viewer").json
    assert [counted[key] for key in ("messages", "bytes", "examined", "skipped", "cursor")] == [2, 9, 4, 0, None]
    assert api("POST", path, {"where": where, "selector": "n > 7"}).json["messages"] == 1
    assert api("POST", path, {"selector": "n >"}).status == 400
    assert api("POST", f"{QUEUES}/not-there/messages/count", {}).status == 404


@pytest.mark.parametrize("field", ["body", "body.n", "body[0]", 'body["n"]'])
def test_a_user_without_payloads_may_not_search_bodies(api: HttpBroker, queue: str, field: str) -> None:
    where = [{"field": field, "match": "exists"}]
    for action in ("search", "count", "preview", "dead-letters", "delete"):
        refused = api("POST", f"{QUEUES}/{queue}/messages/{action}", {"where": where}, user="operator")
        assert (refused.status, "may not read payloads" in refused.json["reason"]) == (401, True)


def test_a_message_over_1_0(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        sender = session.sender(queue)
        sender.send(b"over 1.0", application_properties={"kind": "y"})
    where = [{"field": "headers.kind", "value": "y"}]
    (item,) = api("POST", f"{QUEUES}/{queue}/messages/search", {"where": where}).json["messages"]
    assert (item["payload"], item["protocol"]) == ("over 1.0", "1.0")


def test_messages_as_their_publishers_have_encoded_them(api: HttpBroker, queue: str) -> None:
    assert all(item["encoded"] is None for item in browse(api, queue)["messages"])
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        session.sender(queue).send(b"over 1.0" * 4, application_properties={"kind": "y"})
    found = browse(api, queue, "?encoded=true&truncate=8")["messages"]
    header, sections = (base64.b64decode(found[at]["encoded"]) for at in (0, 3))
    assert decode_header(header)[2]["delivery_mode"] == 2
    assert b"kind" in sections and sections.endswith(b"ove")
    whole = base64.b64decode(browse(api, queue, "?encoded=true")["messages"][3]["encoded"])
    assert split(whole).body_kind == DATA and whole.endswith(b"over 1.0" * 4)
    hidden = api.get(f"{QUEUES}/{queue}/messages?encoded=true", "operator")["messages"][3]
    assert (hidden["payload"], b"over" in base64.b64decode(hidden["encoded"])) == ("", False)
    assert b"kind" in base64.b64decode(hidden["encoded"])


def test_messages_move_are_copied_and_deleted(api: HttpBroker, queue: str) -> None:
    assert api("PUT", "/queues/%2F/in-place-target", {"durable": True}).status == 201
    chosen = [item["id"] for item in browse(api, queue)["messages"]]
    moved = api("POST", f"{QUEUES}/{queue}/messages/move", {"ids": [chosen[1]], "to_queue": "in-place-target"})
    assert moved.json["messages"] == 1
    copied = api("POST", f"{QUEUES}/{queue}/messages/copy", {"ids": [chosen[0]], "to_queue": "in-place-target"})
    assert copied.json["messages"] == 1
    deleted = api("POST", f"{QUEUES}/{queue}/messages/delete", {"ids": [chosen[2], chosen[1]]})
    assert (deleted.json["messages"], deleted.json["missing"]) == (1, 1)
    assert (payloads(api, queue), payloads(api, "in-place-target")) == (["one"], ["two", "one"])
    assert api("DELETE", "/queues/%2F/in-place-target").status == 204


def test_the_latest_value_of_a_key_moves(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/in-place-latest", {"arguments": {"x-queue-type": "last-value"}}).status == 201
    for key in ("a", "b", "a"):
        publish(api, "in-place-latest", key, headers={"qpid.LVQ_key": key})
    assert payloads(api, "in-place-latest") == ["b", "a"]
    where = [{"field": "body", "value": "a"}]
    api("POST", f"{QUEUES}/in-place-latest/messages/delete", {"where": where})
    publish(api, "in-place-latest", "a", headers={"qpid.LVQ_key": "a"})
    assert payloads(api, "in-place-latest") == ["b", "a"]
    api("DELETE", "/queues/%2F/in-place-latest")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/messages", None),
        ("GET", "/messages/1/payload", None),
        ("POST", "/messages/search", {}),
        ("GET", "/messages/export", None),
        ("POST", "/messages/import", {"payload": "x"}),
        ("POST", "/messages/dead-letters", {}),
        ("POST", "/messages/preview", {"to_queue": "mine"}),
        ("POST", "/messages/move", {"to_queue": "mine"}),
        ("POST", "/messages/copy", {"to_queue": "mine"}),
        ("POST", "/messages/delete", {}),
        ("POST", "/messages/resend", {"id": 1}),
        ("POST", "/pause", {}),
        ("POST", "/resume", {}),
    ],
)
def test_permissions_for_the_queue(api: HttpBroker, queue: str, method: str, path: str, body: Any) -> None:
    reply = api(method, f"{QUEUES}/{queue}{path}", body, user="manager")
    assert (reply.status, reply.json["error"]) == (401, "not_authorised")
    assert api.get(f"/queues/%2F/{queue}")["state"] == "running"


def test_dead_letters_and_previews_change_nothing(api: HttpBroker, queue: str) -> None:
    where = [{"field": "body", "value": "two"}]
    found = api("POST", f"{QUEUES}/{queue}/messages/dead-letters", {"where": where}, user="viewer").json
    assert [(group["reason"], group["messages"]) for group in found["groups"]] == [(None, 1)]
    preview = api("POST", f"{QUEUES}/{queue}/messages/preview", {"to_queue": queue}, user="viewer").json
    assert (preview["messages"], preview["cursor"]) == (3, None)
    assert payloads(api, queue) == ["one", "two", "three"]
    for path in ("dead-letters", "preview"):
        body = {"where": where, "to_queue": queue}
        assert api("POST", f"{QUEUES}/{queue}/messages/{path}", body, user="operator").status == 401


@pytest.mark.parametrize("target", [{"to_queue": "theirs"}, {"to_exchange": "amq.fanout"}])
def test_permissions_for_the_target(api: HttpBroker, target: dict[str, str]) -> None:
    for name in ("mine", "theirs"):
        assert api("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
    publish(api, "mine", "one")
    assert api("POST", f"{QUEUES}/mine/messages/move", target, user="manager").status == 401
    assert payloads(api, "mine") == ["one"]
    for name in ("mine", "theirs"):
        api("DELETE", f"/queues/%2F/{name}")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/messages?offset=x", None),
        ("GET", "/messages?count=0", None),
        ("GET", "/messages?state=lost", None),
        ("GET", "/messages/x/payload", None),
        ("GET", "/messages/1/payload?first=-1", None),
        ("GET", f"/messages/1/payload?length={MAX_RANGE + 1}", None),
        ("POST", "/messages/search", {"where": [{"field": "size"}]}),
        ("POST", "/messages/search", {"where": 1}),
        ("POST", "/messages/search", {"seconds": 0}),
        ("POST", "/messages/dead-letters", {"header": 5}),
        ("POST", "/messages/preview", {}),
        ("POST", "/messages/move", {}),
        ("POST", "/messages/move", {"ids": ["x"], "to_queue": "y"}),
        ("POST", "/messages/delete", {"ids": [1], "where": [{"field": "body", "value": "x"}]}),
        ("POST", "/messages/resend", {}),
    ],
)
def test_invalid_requests(api: HttpBroker, queue: str, method: str, path: str, body: Any) -> None:
    reply = api(method, f"{QUEUES}/{queue}{path}", body)
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert api.get(f"/queues/%2F/{queue}")["messages"] == 3


def test_a_missing_queue(api: HttpBroker) -> None:
    assert api("GET", f"{QUEUES}/nowhere/messages").status == 404
    assert api("POST", f"{QUEUES}/nowhere/pause").status == 404
    assert api("DELETE", f"{QUEUES}/nowhere/consumers/x").status == 404


# Pause


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(api: HttpBroker, queue: str, channel: sync.Channel) -> None:
    assert api("POST", f"{QUEUES}/{queue}/pause").status == 204
    assert api.get(f"/queues/%2F/{queue}")["state"] == "paused"
    (listed,) = [item for item in api.get("/queues/%2F") if item["name"] == queue]
    assert listed["state"] == "paused"
    with channel.consume(queue) as consumer:
        publish(api, queue, "four")
        assert channel.get(queue) is None
        assert api.get(f"/queues/%2F/{queue}")["messages_ready"] == 4
        assert payloads(api, queue) == ["one", "two", "three", "four"]
        assert api("POST", f"{QUEUES}/{queue}/resume").status == 204
        assert [bytes(consumer.next(10).body) for _ in range(4)] == [b"one", b"two", b"three", b"four"]
    assert api.get(f"/queues/%2F/{queue}")["state"] == "running"


def test_a_paused_stream_delivers_nothing_until_it_is_resumed(api: HttpBroker, channel: sync.Channel) -> None:
    name = "in-place-stream"
    assert api("PUT", f"/queues/%2F/{name}", {"arguments": {"x-queue-type": "stream"}, "durable": True}).status == 201
    publish(api, name, "one")
    api("POST", f"{QUEUES}/{name}/pause")
    with channel.consume(name, arguments={"x-stream-offset": "first"}) as consumer:
        assert payloads(api, name) == ["one"]
        assert api.get(f"/queues/%2F/{name}")["message_stats"]["deliver_get"] == 0
        api("POST", f"{QUEUES}/{name}/resume")
        assert bytes(consumer.next(10).body) == b"one"
    api("DELETE", f"/queues/%2F/{name}")


def test_limits_hold_in_a_paused_queue(api: HttpBroker) -> None:
    arguments = {"x-max-length": 2, "x-message-ttl": 60_000}
    assert api("PUT", "/queues/%2F/in-place-limited", {"durable": True, "arguments": arguments}).status == 201
    api("POST", f"{QUEUES}/in-place-limited/pause")
    publish(api, "in-place-limited", "one", "two", "three")
    assert payloads(api, "in-place-limited") == ["two", "three"]
    publish(api, "in-place-limited", "short", expiration="1")
    wait_until(lambda: payloads(api, "in-place-limited") == ["three"], "the message has expired")
    api("DELETE", "/queues/%2F/in-place-limited")


def test_a_queue_stays_paused_after_a_restart(tmp_path: Path) -> None:
    process = make(tmp_path)
    with process.start():
        api = HttpBroker(process)
        api("PUT", "/queues/%2F/paused", {"durable": True})
        api("POST", f"{QUEUES}/paused/pause")
        process.kill()
        process.start()
        assert api.get("/queues/%2F/paused")["state"] == "paused"
        api("POST", f"{QUEUES}/paused/resume")
        process.kill()
        process.start()
        assert api.get("/queues/%2F/paused")["state"] == "running"


# Consumers


def cancel(api: HttpBroker, queue: str, tag: str, query: str = "", user: str = "guest") -> Reply:
    return api("DELETE", f"{QUEUES}/{queue}/consumers/{tag}{query}", user=user)


def test_a_cancelled_consumer_is_notified_and_keeps_its_messages(
    api: HttpBroker, queue: str, channel: sync.Channel
) -> None:
    with channel.consume(queue, prefetch=1) as consumer:
        first = consumer.next(10)
        assert cancel(api, queue, consumer.tag).status == 204
        with pytest.raises(ConsumerCancelled):
            consumer.next(10)
        assert api.get(f"/queues/%2F/{queue}")["consumers"] == 0
        assert api.get(f"/queues/%2F/{queue}")["messages_unacknowledged"] == 1
        first.ack()
        wait_until(lambda: api.get(f"/queues/%2F/{queue}")["messages"] == 2, "the message is acknowledged")


def test_a_cancelled_link_is_detached_with_an_error(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        receiver = session.receiver(queue, name="link-of-a-receiver")
        (consumer,) = [item for item in api.get("/consumers/%2F") if item["queue"]["name"] == queue]
        assert cancel(api, queue, consumer["consumer_tag"]).status == 204
        with pytest.raises(Error, match="was cancelled by an operator"):
            for _ in range(4):
                receiver.next(10)
    wait_until(lambda: api.get(f"/queues/%2F/{queue}")["messages_ready"] == 3, "unsettled messages return")


def test_only_the_consumers_of_one_channel_are_cancelled(api: HttpBroker, queue: str, channel: sync.Channel) -> None:
    other = channel.connection.channel()
    with channel.consume(queue, consumer_tag="same"), other.consume(queue, consumer_tag="same"):
        assert cancel(api, queue, "same", "?channel=7").status == 404
        assert cancel(api, queue, "same", "?connection=unknown").status == 404
        assert cancel(api, queue, "same", "?channel=2").status == 204
        (left,) = [item for item in api.get("/consumers/%2F") if item["queue"]["name"] == queue]
        assert left["channel_details"]["number"] == 1


def test_administrators_alone_cancel_consumers(api: HttpBroker, queue: str, channel: sync.Channel) -> None:
    with channel.consume(queue) as consumer:
        reply = cancel(api, queue, consumer.tag, user="monitor")
        assert (reply.status, reply.json["reason"]) == (401, "Not administrator user")


# Deletion by pattern


def delete(api: HttpBroker, kind: str, pattern: str, user: str = "guest", **more: Any) -> Reply:
    return api("POST", "/leveret/delete", {"kind": kind, "pattern": pattern, **more}, user=user)


def test_a_dry_run_deletes_nothing(api: HttpBroker) -> None:
    for number in range(3):
        api("PUT", f"/queues/%2F/bulk-{number}", {"durable": True})
    names = ["bulk-0", "bulk-1", "bulk-2"]
    assert delete(api, "queues", "^bulk-").json == {"names": names, "refused": [], "more": False}
    assert [item["name"] for item in api.get("/queues/%2F?name=bulk-&page=1")["items"]] == names
    assert delete(api, "queues", "^bulk-[01]$", dry_run=False).json["names"] == names[:2]
    assert [item["name"] for item in api.get("/queues/%2F?name=bulk-&page=1")["items"]] == names[2:]
    delete(api, "queues", "^bulk-", dry_run=False)


def test_refusals_are_returned_by_name(api: HttpBroker) -> None:
    for name in ("bulk-empty", "bulk-full"):
        api("PUT", f"/queues/%2F/{name}", {"durable": True})
    publish(api, "bulk-full", "one")
    reply = delete(api, "queues", "^bulk-", dry_run=False, if_empty=True).json
    assert reply["names"] == ["bulk-empty"]
    assert [item["name"] for item in reply["refused"]] == ["bulk-full"]
    assert "is not empty" in reply["refused"][0]["reason"]
    assert delete(api, "queues", "^bulk-", dry_run=False).json["names"] == ["bulk-full"]


def test_exchanges_policies_users_and_vhosts(api: HttpBroker) -> None:
    api("PUT", "/exchanges/%2F/bulk-exchange", {"type": "direct"})
    api("PUT", "/policies/%2F/bulk-policy", {"pattern": "x", "definition": {"max-length": 1}})
    api("PUT", "/operator-policies/%2F/bulk-policy", {"pattern": "x", "definition": {"max-length": 1}})
    api("PUT", "/vhosts/bulk-vhost", {})
    api("PUT", "/users/bulk-user", {"password": "x", "tags": ""})
    kinds = ("exchanges", "policies", "operator_policies", "vhosts", "users")
    assert [len(delete(api, kind, "^bulk-", dry_run=False).json["names"]) for kind in kinds] == [1] * 5
    assert [len(delete(api, kind, "^bulk-").json["names"]) for kind in kinds] == [0] * 5
    assert delete(api, "exchanges", "^amq").json["names"] == []


def test_users_delete_what_their_permissions_allow(api: HttpBroker) -> None:
    for name in ("mine-1", "theirs-1"):
        api("PUT", f"/queues/%2F/{name}", {"durable": True})
    assert delete(api, "queues", "-1$", "manager", dry_run=False).json["names"] == ["mine-1"]
    for kind in ("policies", "operator_policies", "users", "vhosts"):
        assert delete(api, kind, "x", "manager").status == 401
    api("DELETE", "/queues/%2F/theirs-1")


@pytest.mark.parametrize(
    "body", [{"kind": "queues"}, {"kind": "rings", "pattern": "x"}, {"kind": "queues", "pattern": "("}]
)
def test_invalid_deletions(api: HttpBroker, body: dict[str, str]) -> None:
    assert api("POST", "/leveret/delete", body).status == 400


# Changes of queues by pattern


def change(api: HttpBroker, action: str, pattern: str, user: str = "guest", **more: Any) -> Reply:
    return api("POST", "/leveret/change-queues", {"action": action, "pattern": pattern, **more}, user=user)


def test_queues_are_purged_paused_and_resumed_by_pattern(api: HttpBroker, queue: str) -> None:
    found = {"queues": [{"name": queue, "messages": 3}], "refused": [], "after": None}
    for action, path, value in (("pause", "state", "paused"), ("resume", "state", "running"), ("purge", "messages", 0)):
        assert change(api, action, f"^{queue}$").json == found
        assert api.get(f"/queues/%2F/{queue}")[path] != value
        assert change(api, action, f"^{queue}$", dry_run=False).json == found
        assert api.get(f"/queues/%2F/{queue}")[path] == value
        assert change(api, action, f"^{queue}$").json["queues"] == []


def test_users_change_queues_that_their_permissions_allow(api: HttpBroker) -> None:
    for name in ("mine-1", "theirs-1"):
        api("PUT", f"/queues/%2F/{name}", {"durable": True})
        publish(api, name, "one")
    for action in ("purge", "pause", "resume"):
        names = [item["name"] for item in change(api, action, "-1$", "manager", dry_run=False).json["queues"]]
        assert names == ["mine-1"]
    assert change(api, "purge", "-1$", "viewer").status == 401
    for name in ("mine-1", "theirs-1"):
        api("DELETE", f"/queues/%2F/{name}")


@pytest.mark.parametrize(
    "body",
    [
        {"action": "purge"},
        {"action": "burn", "pattern": "x"},
        {"action": "pause", "pattern": "("},
        {"action": "pause", "pattern": "x", "vhost": "nowhere"},
    ],
)
def test_invalid_changes_of_queues(api: HttpBroker, body: dict[str, str]) -> None:
    assert api("POST", "/leveret/change-queues", body, user="manager").status == 400


# Crash


def test_a_crash_during_moves_neither_loses_nor_duplicates_messages(tmp_path: Path) -> None:
    process = make(tmp_path)
    count = 3000
    with process.start():
        api = HttpBroker(process)
        for name in ("from", "to"):
            api("PUT", f"/queues/%2F/{name}", {"durable": True})
        with sync.connect(process.url()) as connection:
            channel = connection.channel()
            with channel.publisher("", "from", delivery_mode=2) as publisher:
                for number in range(count):
                    publisher.publish(str(number).encode())
        api("POST", f"{QUEUES}/from/messages/move", {"to_queue": "to", "examine": 500})
        kills_while_moving(process, api)
        process.start()
        found = [*everything(api, "from"), *everything(api, "to")]
        assert len(found) == count
        assert sorted(map(int, found)) == list(range(count))


def kills_while_moving(process: Any, api: HttpBroker) -> None:
    """Kill the broker during a move."""

    def move() -> None:
        try:
            api("POST", f"{QUEUES}/from/messages/move", {"to_queue": "to"})
        except OSError:
            pass  # the broker was killed

    mover = threading.Thread(target=move)
    mover.start()
    wait_until(lambda: api.get("/queues/%2F/to")["messages"] > 700, "messages move")
    process.kill()
    mover.join()


def everything(api: HttpBroker, queue: str) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = browse(api, queue, f"?count=1000&cursor={cursor}")
        found += [item["payload"] for item in page["messages"]]
        cursor = page["cursor"]
    return found


def test_messages_since_a_time(api: HttpBroker, queue: str) -> None:
    now = int(time.time())
    publish(api, queue, "old", timestamp=now - 7200)
    publish(api, queue, "recent", timestamp=now - 60)
    publish(api, queue, "new", timestamp=now)

    def since(text: str, state: str = "ready") -> list[str]:
        found = browse(api, queue, f"?since={quote(text)}&state={state}")
        return [item["payload"] for item in found["messages"]]

    assert since("") == ["one", "two", "three", "old", "recent", "new"]
    assert since("3h") == ["old", "recent", "new"]
    assert since("1h") == ["recent", "new"]
    assert since(str(1000 * now + 999)) == ["new"]
    assert since(datetime.fromtimestamp(now, UTC).isoformat()) == ["new"]
    body = {"where": [{"field": "timestamp", "match": "exists"}], "since": "1h", "count": 1}
    page = api("POST", f"{QUEUES}/{queue}/messages/search", body).json
    assert [item["payload"] for item in page["messages"]] == ["recent"]
    page = api("POST", f"{QUEUES}/{queue}/messages/search", body | {"cursor": page["cursor"]}).json
    assert [item["payload"] for item in page["messages"]] == ["new"]
    assert api("POST", f"{QUEUES}/{queue}/messages/delete", {"since": "1h"}).json["messages"] == 2
    assert payloads(api, queue) == ["one", "two", "three", "old"]
    reply = api("GET", f"{QUEUES}/{queue}/messages?since=yesterday")
    assert reply.status == 400 and "invalid since 'yesterday'; expected ISO 8601" in reply.json["reason"]
    assert "or an interval such as 15m" in reply.json["reason"]


def test_unacked_messages_since_a_time(api: HttpBroker, queue: str, channel: sync.Channel) -> None:
    publish(api, queue, "new", timestamp=int(time.time()))
    for _ in range(4):
        assert channel.get(queue) is not None
    found = browse(api, queue, "?since=1h&state=unacked")
    assert [item["payload"] for item in found["messages"]] == ["new"]


def test_messages_of_a_stream_begin_at_the_chunk_with_a_time(api: HttpBroker, channel: sync.Channel) -> None:
    name = "since-stream"
    assert api("PUT", f"/queues/%2F/{name}", {"durable": True, "arguments": {"x-queue-type": "stream"}}).status == 201
    with channel.publisher(routing_key=name) as publisher:
        for _ in range(2):
            publisher.publish(bytes(600 << 10))  # they fill a chunk
    began = int(time.time() * 1000)
    wait_until(lambda: time.time() * 1000 > began + 1, "the next millisecond")
    then = int(time.time() * 1000)
    with channel.publisher(routing_key=name) as publisher:
        for _ in range(2):
            publisher.publish(b"later")

    def since(text: object, query: str = "") -> list[int]:
        found = browse(api, name, f"?since={text}&truncate=5{query}")
        return [item["id"] for item in found["messages"]]

    assert since("") == since("1h") == since(began - 60_000) == [0, 1, 2, 3]
    assert since(then) == [2, 3]
    assert since(then, "&offset=3") == [3]
    assert since("1h", "&offset=1") == [1, 2, 3]
    assert since(then + 3_600_000) == []
    first = browse(api, name, f"?since={then}&count=1")
    rest = browse(api, name, f"?since={then}&cursor={first['cursor']}")
    assert [item["id"] for item in first["messages"] + rest["messages"]] == [2, 3]
    api("DELETE", f"/queues/%2F/{name}")
