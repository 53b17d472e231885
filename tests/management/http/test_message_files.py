"""Messages that are exported to a file, and imported again."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pika
import pytest

from leveret import sync
from leveret.client import amqp10
from leveret.management.message_files import BATCH, MAX_LINE, MAX_PROBLEMS, Export, Import
from leveret.wire.amqp10.sections import split
from tests.management.http.client import HttpBroker, Reply
from tests.management.http.test_in_place import browse, publish
from tests.support.polling import wait_until

QUEUES = "/leveret/queues/%2F"
Line = dict[str, Any]


@pytest.fixture
def queue(api: HttpBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"files-{request.node.name.partition('[')[0]}"
    assert api("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
    yield name
    api("DELETE", f"/queues/%2F/{name}")


def export(api: HttpBroker, queue: str, query: str = "", user: str = "guest") -> list[Line]:
    reply = api("GET", f"{QUEUES}/{queue}/messages/export{query}", user=user)
    assert reply.status == 200, reply.content
    return lines_of(reply)


def lines_of(reply: Reply) -> list[Line]:
    return [json.loads(line) for line in reply.content.splitlines()]


def send(api: HttpBroker, path: str, content: bytes, user: str = "guest") -> Reply:
    return api("POST", f"/leveret/{path}", raw=content, user=user)


def to_queue(api: HttpBroker, queue: str, *lines: Line) -> Line:
    reply = send(api, f"queues/%2F/{queue}/messages/import", content_of(*lines))
    assert reply.status == 200, reply.content
    result: Line = reply.json
    return result


def content_of(*lines: Line) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def purge(api: HttpBroker, queue: str) -> None:
    assert api("DELETE", f"/queues/%2F/{queue}/contents").status == 204


def encoded(api: HttpBroker, queue: str) -> list[str]:
    return [item["encoded"] for item in browse(api, queue, "?encoded=true")["messages"]]


# Round trips


def test_messages_of_a_0_9_1_client_come_back_as_they_were(api: HttpBroker, queue: str) -> None:
    everything = {
        "bool": True,
        "int": -7,
        "long": 1 << 40,
        "decimal": Decimal("19.99"),
        "time": datetime(2026, 11, 25, 12, tzinfo=UTC).replace(tzinfo=None),
        "bytes": b"\x00\xff",
        "none": None,
        "text": "Zoë",
        "$int": 3,
        "list": [1, "two", {"three": None}],
        "table": {"$only": 1},
    }
    sent = [
        (
            pika.BasicProperties(
                "text/plain",
                "identity",
                everything,
                2,
                9,
                "correlation",
                "reply",
                "3600000",
                "id-1",
                1764072000,
                "type",
                "guest",
                "app",
                "cluster",
            ),
            "Zoë".encode(),
        ),
        (pika.BasicProperties(headers={}, delivery_mode=1), b"\xff\x00binary"),
        (pika.BasicProperties(), b""),
    ]
    parameters = pika.URLParameters(api.process.url())
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_bind(queue, "amq.topic", "orders.#")
        channel.confirm_delivery()
        for properties, body in sent:
            channel.basic_publish("amq.topic", "orders.new", body, properties)
        expected = [channel.basic_get(queue) for _ in sent]
        channel.basic_recover(requeue=True)
        before = encoded(api, queue)
        found = export(api, queue)
        assert [(line["protocol"], line["redelivered"]) for line in found] == [("0-9-1", True)] * 3
        purge(api, queue)
        # Routed as published, and into the queue.
        for path in ("vhosts/%2F/messages/import", f"queues/%2F/{queue}/messages/import"):
            assert send(api, path, content_of(*found)).json["imported"] == 3
            for _, properties, body in expected:
                method, received, content = channel.basic_get(queue, auto_ack=True)
                assert (method.exchange, method.routing_key, content) == ("amq.topic", "orders.new", body)
                assert vars(received) == vars(properties)
        assert to_queue(api, queue, *found)["imported"] == 3
        assert encoded(api, queue) == before


def test_every_type_of_a_field_table_is_kept(api: HttpBroker, queue: str) -> None:
    headers = {
        "byte": {"$byte": -5},
        "ubyte": {"$ubyte": 250},
        "short": {"$short": -300},
        "ushort": {"$ushort": 60000},
        "int": -70000,
        "uint": {"$uint": 4000000000},
        "small long": {"$long": 5},
        "long": 1 << 62,
        "float": {"$float": 0.5},
        "nan": {"$double": "nan"},
        "double": 1e300,
        "decimal": {"$decimal": "-1.25"},
        "text": "x",
        "not UTF-8": {"$string": base64.b64encode(b"\xff").decode()},
        "time": {"$timestamp": "2026-11-25T12:00:00Z"},
        "late": {"$timestamp": 253402300800000},
        "bytes": {"$binary": "AP8="},
        "void": None,
        "flag": False,
        "array": [{"$byte": 1}, []],
        "table": {"deep": {"$ushort": 1}},
    }
    line = {"routing_key": queue, "payload": "x", "properties": {"headers": headers, "correlation_id": {"$string": "/w=="}}}
    assert to_queue(api, queue, line)["imported"] == 1
    (found,) = export(api, queue)
    assert found["properties"] == line["properties"]


def test_messages_of_a_1_0_client_come_back_as_they_were(api: HttpBroker, queue: str) -> None:
    application: dict[str, Any] = {
        "bool": True,
        "ubyte": amqp10.UByte(1),
        "ushort": amqp10.UShort(2),
        "uint": amqp10.UInt(3),
        "ulong": amqp10.ULong(1 << 63),
        "byte": amqp10.Byte(-1),
        "short": amqp10.Short(-2),
        "int": amqp10.Int(-3),
        "long": -4,
        "float": amqp10.Float(0.5),
        "double": 0.1,
        "decimal32": amqp10.Decimal32.of("1.5"),
        "decimal64": amqp10.Decimal64.of("2.5"),
        "decimal128": amqp10.Decimal128.of("3.5"),
        "char": amqp10.Char("ß"),
        "timestamp": amqp10.Timestamp(1764072000123),
        "uuid": UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "binary": b"\x00\xff",
        "string": "Zoë",
        "symbol": amqp10.Symbol("sym"),
        "null": None,
    }
    sent = [
        amqp10.Message(
            body=b"\xff\x00binary",
            durable=True,
            priority=7,
            ttl=3_600_000,
            annotations={"x-opt-kind": amqp10.Symbol("a"), "x-opt-list": [1, amqp10.UInt(2)]},
            message_id=UUID("00112233-4455-6677-8899-aabbccddeeff"),
            correlation_id=77,
            to="/somewhere",
            subject="new",
            reply_to="/queues/answers",
            content_type="text/plain",
            content_encoding="identity",
            absolute_expiry_time=4_102_444_800_000,
            creation_time=1764072000123,
            group_id="g",
            group_sequence=3,
            reply_to_group_id="h",
            application_properties=application,
            footer={"x-opt-end": 1},
        ),
        amqp10.Message(body="Zoë", message_id=b"\x01"),
        amqp10.Message(body=amqp10.Value("a text"), message_id="text"),
        amqp10.Message(body=amqp10.Value({"list": [1, None, amqp10.ULong(2)]}), application_properties={}),
        amqp10.Message(body=[amqp10.Sequence([1, "two"]), amqp10.Sequence([])]),
        amqp10.Message(body=b""),
    ]
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        sender = session.sender(queue)
        for message in sent:
            sender.send(message)
    before = received(api, queue, len(sent))
    wait_until(lambda: api.get(f"/queues/%2F/{queue}")["messages_ready"] == len(sent))
    found = export(api, queue)
    assert [line["protocol"] for line in found] == ["1.0"] * len(sent)
    assert [line["amqp10"]["body"] for line in found] == ["data", "data", "string", "sections", "sections", "data"]
    purge(api, queue)
    assert to_queue(api, queue, *found)["imported"] == len(sent)
    assert received(api, queue, len(sent)) == before


def received(api: HttpBroker, queue: str, count: int) -> list[tuple[bool, int, bool, bytes]]:
    """Return what a consumer sees of messages but their deliveries: the header, and the other sections as bytes.

    The messages go back to their queue.
    """
    found = []
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        receiver = session.receiver(queue)
        for _ in range(count):
            payload = receiver.next(10).payload
            sections = split(payload)
            found.append((sections.durable, sections.priority, sections.ttl >= 0, payload[sections.rest :]))
    return found


def test_a_dead_letter_keeps_its_history(api: HttpBroker, queue: str) -> None:
    source = f"{queue}-source"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    assert api("PUT", f"/queues/%2F/{source}", {"durable": True, "arguments": arguments}).status == 201
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        session.sender(source).send(b"over 1.0", application_properties={"kind": amqp10.UInt(3)})
    publish(api, source, "over 0-9-1", headers={"kind": 3})
    for _ in range(2):
        get = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
        assert len(api("POST", f"/queues/%2F/{source}/get", get).json) == 1
    api("DELETE", f"/queues/%2F/{source}")
    wait_until(lambda: len(browse(api, queue)["messages"]) == 2)
    before = [item["properties"]["headers"]["x-death"] for item in browse(api, queue)["messages"]]
    assert [death[0]["queue"] for death in before] == [source] * 2
    found = export(api, queue)
    assert found[0]["amqp10"]["application_properties"] == {"kind": {"$uint": 3}}
    purge(api, queue)
    assert to_queue(api, queue, *found)["imported"] == 2
    assert [item["properties"]["headers"]["x-death"] for item in browse(api, queue)["messages"]] == before
    assert [item["routing_key"] for item in browse(api, queue)["messages"]] == [queue] * 2


# Export


def test_an_export_selects_messages_as_a_search_does(api: HttpBroker, queue: str) -> None:
    for number in range(5):
        publish(api, queue, json.dumps({"n": number}), headers={"odd": number % 2}, timestamp=1764072000 + number)

    def numbers(query: str) -> list[int]:
        return [json.loads(line["payload"])["n"] for line in export(api, queue, query)]

    where = quote('[{"field":"body.n","match":"greater","value":1}]')
    assert numbers("") == [0, 1, 2, 3, 4]
    assert numbers(f"?where={where}&selector=odd%3D0") == [2, 4]
    assert numbers("?since=1764072003000") == [3, 4]
    assert numbers("?offset=1&count=2") == [1, 2]
    ids = [item["id"] for item in browse(api, queue)["messages"]]
    assert numbers(f"?ids={ids[3]},{ids[0]},999999") == [3, 0]
    reply = api("POST", f"{QUEUES}/{queue}/messages/export", {"ids": ids[1:2], "format": "array"})
    assert [json.loads(line["payload"])["n"] for line in reply.json] == [1]
    none = api("POST", f"{QUEUES}/{queue}/messages/export", {"ids": [], "format": "array"})
    assert (none.status, none.json) == (200, [])
    assert api.get(f"/queues/%2F/{queue}")["messages_ready"] == 5
    assert [item["redelivered"] for item in browse(api, queue)["messages"]] == [False] * 5


def test_an_export_is_a_download(api: HttpBroker, queue: str) -> None:
    reply = api("GET", f"{QUEUES}/{queue}/messages/export")
    assert reply.headers["content-type"] == "application/jsonl"
    assert reply.headers["content-disposition"] == f'attachment; filename="{queue}.jsonl"'
    assert (reply.headers["x-content-type-options"], reply.content) == ("nosniff", b"")
    empty = api("GET", f"{QUEUES}/{queue}/messages/export?format=array")
    assert (empty.headers["content-type"], empty.json) == ("application/json", [])


def test_unacked_messages_and_those_of_streams_are_exported(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "one", "two")
    with sync.connect(api.process.url()) as connection, connection.channel().consume(queue, prefetch=1) as consumer:
        assert bytes(consumer.next(10).body) == b"one"
        (unacked,) = export(api, queue, "?state=unacked")
        assert (unacked["payload"], unacked["deliveries"], "time" in unacked) == ("one", 1, False)
        assert export(api, queue, f"?ids={unacked['id']}")[0]["payload"] == "one"
        assert [line["payload"] for line in export(api, queue)] == ["two"]
    stream = f"{queue}-stream"
    assert api("PUT", f"/queues/%2F/{stream}", {"durable": True, "arguments": {"x-queue-type": "stream"}}).status == 201
    publish(api, stream, "a", "b", "c", type="t")
    assert [(line["id"], line["payload"]) for line in export(api, stream, "?offset=1")] == [(1, "b"), (2, "c")]
    found = export(api, stream)
    assert found[0]["properties"] == {"delivery_mode": 2, "type": "t"}
    assert all(abs(line["time"] / 1000 - time.time()) < 600 for line in found)
    assert to_queue(api, stream, *found)["imported"] == 3
    assert [line["payload"] for line in export(api, stream)] == ["a", "b", "c"] * 2
    api("DELETE", f"/queues/%2F/{stream}")


@pytest.mark.parametrize("form", ["lines", "array"])
def test_large_payloads_are_complete(api: HttpBroker, queue: str, form: str) -> None:
    payloads = [b"small", b"\xff" * 2_500_001, "ß".encode() * 100_000, b"y" * 3_000_000]
    with sync.connect(api.process.url()) as connection, connection.channel().publisher(routing_key=queue) as publisher:
        for payload in payloads:
            publisher.publish(payload)
    reply = api("GET", f"{QUEUES}/{queue}/messages/export?format={form}")
    found = reply.json if form == "array" else lines_of(reply)
    texts = [line["payload"] for line in found if line["payload_encoding"] == "string"]
    assert texts == ["small", "ß" * 100_000]
    assert [base64.b64decode(line["payload"]) for line in found if line["payload_encoding"] == "base64"] == payloads[1::2]
    assert [line["payload_bytes"] for line in found] == [len(payload) for payload in payloads]


def test_a_download_has_no_end_if_a_message_leaves_meanwhile(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url()) as connection, connection.channel().publisher(routing_key=queue) as publisher:
        publisher.publish(b"\xff" * 20_000_000)
    before = len(api.process.log())
    token = base64.b64encode(b"guest:guest").decode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", api.port))
        head = f"GET /api{QUEUES}/{queue}/messages/export HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Basic {token}\r\n\r\n"
        client.sendall(head.encode())
        content = client.recv(4096)
        purge(api, queue)
        while data := client.recv(1 << 20):
            content += data
    assert content.startswith(b"HTTP/1.1 200") and not content.endswith(b"0\r\n\r\n")
    assert len(content) < 25_000_000
    wait_until(lambda: "was cut off: message 1 left the queue" in api.process.log()[before:])


def test_a_message_that_has_left_before_its_payload_is_read_is_left_out() -> None:
    found = Export({"vhost": "/", "queue": "q"})
    steps = found.steps()
    assert steps.send(None).call.name == "messages.export"
    message = {"id": 1, "payload_bytes": 9_000_000, "payload_encoding": "base64", "payload": ""}
    page = {"queue_id": 7, "messages": [message], "cursor": None, "examined": 1, "skipped": 0, "missing": 0}
    assert steps.send(page).call.arguments["queue_id"] == 7
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert (end.value.value, found.missing, found.messages) == (b"", 1, 0)


def test_an_export_of_many_messages_has_each_once(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url()) as connection, connection.channel().publisher(routing_key=queue) as publisher:
        for number in range(350):
            publisher.publish(str(number).encode())
    for query in ("", "?format=array"):
        reply = api("GET", f"{QUEUES}/{queue}/messages/export{query}")
        found = reply.json if query else lines_of(reply)
        assert [line["payload"] for line in found] == [str(number) for number in range(350)]
    assert len(export(api, queue, "?count=150&offset=300")) == 50


@pytest.mark.parametrize(
    ("query", "status", "expected"),
    [
        ("?format=xml", 400, "unknown format 'xml'; expected one of lines, array"),
        ("?where=x", 400, "invalid value of 'where' or 'ids'"),
        ("?ids=1,x", 400, "invalid value of 'where' or 'ids'"),
        ("?selector=(", 400, "invalid selector"),
        ("?count=x", 400, "invalid value of 'count'"),
        ("?state=all", 400, "state"),
        ("?queue_id=1", 400, "was deleted and declared again"),
    ],
)
def test_invalid_exports_are_refused(api: HttpBroker, queue: str, query: str, status: int, expected: str) -> None:
    reply = api("GET", f"{QUEUES}/{queue}/messages/export{query}")
    assert (reply.status, expected in reply.json["reason"]) == (status, True), reply.content


def test_a_user_without_the_right_exports_nothing(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "secret")
    for user in ("operator", "manager"):  # the tag no-payloads; permissions for other names
        for method in ("GET", "POST"):
            reply = api(method, f"{QUEUES}/{queue}/messages/export", user=user)
            assert (reply.status, b"secret" in reply.content) == (401, False)
    assert export(api, queue, user="viewer")[0]["payload"] == "secret"  # the tag read-only
    assert api("GET", f"{QUEUES}/missing/messages/export").status == 404


# Import


def test_lines_are_counted_with_their_problems(api: HttpBroker, queue: str) -> None:
    content = b"\n".join(
        [
            b"\xef\xbb\xbf" + json.dumps({"routing_key": queue, "payload": "a"}).encode(),
            b"",
            b"not JSON",
            b'{"routing_key": "nowhere"}',
            json.dumps({"routing_key": queue, "payload": "?", "payload_encoding": "base64"}).encode(),
            b'{"unknown": 1}',
            b"[1]",
            b'{"exchange": "missing"}',
            json.dumps({"routing_key": queue, "masked": True}).encode(),
            json.dumps({"routing_key": queue, "properties": {"headers": {"n": {"$byte": 500}}}}).encode(),
            json.dumps({"routing_key": queue, "properties": {"priority": "high"}}).encode(),
            json.dumps({"routing_key": queue, "payload": "b"}).encode(),
        ]
    )
    reply = send(api, "vhosts/%2F/messages/import", content)
    assert reply.status == 200
    result = reply.json
    assert {key: result[key] for key in ("lines", "imported", "unroutable", "refused", "stopped", "uncertain")} == {
        "lines": 12,
        "imported": 2,
        "unroutable": 1,
        "refused": 8,
        "stopped": "",
        "uncertain": None,
    }
    reasons = {problem["line"]: problem["reason"] for problem in result["problems"]}
    assert reasons[4] == "no queue would get the message"
    assert "invalid JSON" in reasons[3] and "base64" in reasons[5] and "unknown field `unknown`" in reasons[6]
    assert "expected one message per line" in reasons[7] and "'missing'" in reasons[8] and "management.mask" in reasons[9]
    assert "$byte" in reasons[10] and "priority" in reasons[11]
    assert [item["payload"] for item in browse(api, queue)["messages"]] == ["a", "b"]


def test_the_list_of_problems_is_bounded(api: HttpBroker, queue: str) -> None:
    result = to_queue(api, queue, *[{"x": number} for number in range(MAX_PROBLEMS + 250)])
    assert (result["refused"], len(result["problems"])) == (MAX_PROBLEMS + 250, MAX_PROBLEMS)
    assert [problem["line"] for problem in result["problems"]] == list(range(1, MAX_PROBLEMS + 1))


def test_messages_go_to_one_exchange(api: HttpBroker, queue: str) -> None:
    assert api("POST", f"/bindings/%2F/e/amq.direct/q/{queue}", {"routing_key": "there"}).status == 201
    lines = content_of({"exchange": "elsewhere", "routing_key": "there", "payload": "a"}, {"payload": "b"})
    path = "exchanges/%2F/amq.direct/messages/import"
    assert send(api, path, lines).json["unroutable"] == 1
    assert send(api, f"{path}?routing_key=there", lines).json["imported"] == 2
    found = export(api, queue)
    assert [(line["exchange"], line["routing_key"]) for line in found] == [("amq.direct", "there")] * 3
    assert send(api, "exchanges/%2F/missing/messages/import", lines).status == 404
    assert send(api, "queues/%2F/missing/messages/import", lines).status == 404


def test_an_array_with_a_message_per_line_is_imported(api: HttpBroker, queue: str) -> None:
    publish(api, queue, "a", "b")
    array = api("GET", f"{QUEUES}/{queue}/messages/export?format=array").content
    purge(api, queue)
    assert send(api, f"queues/%2F/{queue}/messages/import", array).json["imported"] == 2
    assert [line["payload"] for line in export(api, queue)] == ["a", "b"]


def test_an_import_needs_write_permission(api: HttpBroker, queue: str) -> None:
    line = {"exchange": "amq.direct", "routing_key": queue}
    mine = "mine-files"
    assert api("PUT", f"/queues/%2F/{mine}", {"durable": True}).status == 201
    path = "vhosts/%2F/messages/import"
    refused = send(api, path, content_of(line), user="manager").json
    assert (refused["refused"], "write access to 'amq.direct'" in refused["problems"][0]["reason"]) == (1, True)
    assert send(api, "exchanges/%2F/amq.direct/messages/import", content_of(line), user="manager").status == 401
    assert send(api, f"queues/%2F/{queue}/messages/import", content_of(line), user="manager").status == 401
    # A message in a queue names the exchange it was published to.
    forged = send(api, f"queues/%2F/{mine}/messages/import", content_of(line), user="manager").json
    assert (forged["imported"], forged["refused"]) == (0, 1)
    assert send(api, path, content_of(line), user="viewer").status == 401
    api("DELETE", f"/queues/%2F/{mine}")


def test_user_ids_of_others_are_left_out(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url()) as connection, connection.channel().publisher(routing_key=queue) as publisher:
        publisher.publish(b"x", user_id="guest")
    (line,) = export(api, queue)
    assert line["properties"]["user_id"] == "guest"
    other = {**line, "properties": {"user_id": "other"}}
    amqp10_line = {"payload": "y", "amqp10": {"properties": {"user_id": {"$binary": "eA=="}, "subject": "s"}}}
    assert to_queue(api, queue, line, other, amqp10_line)["imported"] == 3
    found = export(api, queue)[1:]
    assert found[0]["properties"]["user_id"] == "guest" and "user_id" not in found[1]["properties"]
    assert found[2]["amqp10"]["properties"] == {"subject": "s"}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"body": "text"}, "invalid value of 'body'; expected one of none, data, string, sections"),
        ({"body": "sections"}, "invalid sections"),
        ({"other": {}}, "unknown section 'other'"),
        ({"header": {"priority": 300}}, "expected an integer from 0 to 255"),
        ({"header": {"durable": 1}}, "expected true or false"),
        ({"message_annotations": {"kind": 1}}, "invalid sections"),
        ({"message_annotations": 1}, "expected an object"),
        ({"properties": {"subject": 1}}, "subject"),
        ({"properties": {"message_id": {"$uuid": "x"}}}, "message_id"),
        ({"application_properties": {"$map": [[1, 2]]}}, "expected a string as key"),
        ({"application_properties": {"list": [1] * 9000}}, "more than 8192 values"),
    ],
)
def test_invalid_sections_are_refused(api: HttpBroker, queue: str, sections: Line, expected: str) -> None:
    result = to_queue(api, queue, {"payload": "x", "amqp10": sections}, {"payload": "good"})
    assert (result["imported"], result["refused"]) == (1, 1), result
    assert expected in result["problems"][0]["reason"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"unknown": 1}, "unknown property 'unknown'"),
        ({"headers": []}, "expected a JSON object"),
        ({"headers": {"x": {"$what": 1}}}, "unknown AMQP type"),
        ({"headers": {"x" * 300: 1}}, "expected at most 255"),
        ({"expiration": "soon"}, "invalid expiration"),
        ({"content_type": 1}, "invalid value of 'content_type'"),
        ({"headers": {"CC": 1}}, "expected a list of strings"),
    ],
)
def test_invalid_properties_are_refused(api: HttpBroker, queue: str, properties: Line, expected: str) -> None:
    line = {"routing_key": queue, "properties": properties}
    result = send(api, "vhosts/%2F/messages/import", content_of(line)).json
    assert (result["imported"], result["refused"]) == (0, 1), result
    assert expected in result["problems"][0]["reason"]


@pytest.mark.parametrize("depth", [150, 300, 900, 5000])
def test_deep_values_are_refused_without_the_other_lines(api: HttpBroker, queue: str, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    lines = (
        b'{"properties":{"headers":{"a":%s}}}\n{"amqp10":{"application_properties":{"a":%s}}}\n' % (deep, deep)
        + b'{"exchange":%s}\n{"payload":"good"}\n' % deep
    )
    result = send(api, f"queues/%2F/{queue}/messages/import", lines).json
    assert (result["lines"], result["refused"], result["stopped"]) == (4, 3, ""), result
    assert [item["payload"] for item in browse(api, queue)["messages"]] == ["good"]


def test_a_full_queue_refuses_lines(api: HttpBroker, queue: str) -> None:
    full = f"{queue}-full"
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    assert api("PUT", f"/queues/%2F/{full}", {"arguments": arguments}).status == 201
    result = to_queue(api, full, {"payload": "a"}, {"payload": "b"})
    assert (result["imported"], result["refused"]) == (1, 1)
    assert "full" in result["problems"][0]["reason"]
    api("DELETE", f"/queues/%2F/{full}")


def test_a_body_over_the_limit_is_refused_or_reported(api: HttpBroker, queue: str) -> None:
    lines = content_of(*[{"payload": "x"} for _ in range(BATCH)])
    reply = send(api, f"queues/%2F/{queue}/messages/import", b" " * 100_001)
    assert (reply.status, "management.max_body_size" in reply.json["reason"]) == (400, True)
    with upload(api, queue, "Transfer-Encoding: chunked") as connection:
        connection.sendall(b"%x\r\n%s\r\n" % (len(lines), lines))
        wait_until(lambda: api.get(f"/queues/%2F/{queue}")["messages"] == BATCH)
        with suppress(OSError):
            connection.sendall(b"%x\r\n" % 200_000 + b" " * 200_000)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        result = json.loads(answer.read())
    assert answer.status == 400
    assert (result["imported"], result["lines"], result["uncertain"]) == (BATCH, BATCH, None)
    assert "management.max_body_size" in result["stopped"] and f"{BATCH} messages imported" in result["reason"]
    assert api.get(f"/queues/%2F/{queue}")["messages"] == BATCH


@contextmanager
def upload(api: HttpBroker, queue: str, length: str) -> Iterator[socket.socket]:
    """Begin a request with a body of some length."""
    token = base64.b64encode(b"guest:guest").decode()
    path = f"/api/leveret/queues/%2F/{queue}/messages/import"
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Basic {token}\r\n{length}\r\n\r\n"
        connection.sendall(head.encode())
        yield connection


def test_an_upload_that_is_broken_off_publishes_complete_batches(api: HttpBroker, queue: str) -> None:
    content = content_of(*[{"payload": str(number)} for number in range(BATCH + 50)])
    before = len(api.process.log())
    with upload(api, queue, f"Content-Length: {len(content) + 1}") as connection:
        connection.sendall(content)
        wait_until(lambda: api.get(f"/queues/%2F/{queue}")["messages"] == BATCH)
    expected = f"{BATCH} messages imported, 0 unroutable, 0 lines refused; {BATCH} lines processed"
    wait_until(lambda: expected in api.process.log()[before:])
    assert api.get(f"/queues/%2F/{queue}")["messages"] == BATCH


def test_a_line_that_is_too_long_is_refused_without_the_others(api: HttpBroker, queue: str) -> None:
    found = Import()
    batches = []
    for content in (b'{"payload":"a"}\n{"payload":"', *[b"x" * 65536] * (MAX_LINE // 65536), b'"}\n{"payload":"b"}'):
        batches += list(found.feed(content))
    batches += list(found.finish())
    (batch,) = batches
    assert [message["payload"] for message in batch.messages] == ["a", "b"]
    assert [(problem.line, "publish the message with a client" in problem.reason) for problem in batch.problems] == [
        (2, True)
    ]


def test_batches_fit_requests_to_the_broker() -> None:
    sizes = [400_000, 100_000, 100_000, 900_000, 10]
    lines = content_of(*[{"payload": "x" * size} for size in sizes])
    found = Import()
    batches = [*found.feed(lines), *found.finish()]
    assert [[len(message["payload"]) for message in batch.messages] for batch in batches] == [
        [400_000, 100_000],
        [100_000],
        [900_000],
        [10],
    ]
    assert [(batch.lines, batch.last) for batch in batches] == [([1, 2], 2), ([3], 3), ([4], 4), ([5], 5)]
    assert [*Import().feed(content_of({"payload": "x" * 990_000}))] == []


def test_an_import_is_in_the_audit_log_without_payloads(api: HttpBroker, queue: str) -> None:
    to_queue(api, queue, {"payload": "secret-payload"})
    (record,) = api.get(f"/leveret/audit?object={queue}&kind=messages")["items"]
    assert (record["action"], record["user"], record["after"]["result"]["imported"]) == ("messages.import", "guest", 1)
    assert "secret-payload" not in json.dumps(record)


def test_delayed_messages_are_exported(api: HttpBroker, queue: str) -> None:
    with sync.connect(api.process.url(), protocol="1.0") as connection, connection.session() as session:
        later = amqp10.Message(body=b"later", annotations={"x-opt-delivery-delay": 3_600_000})
        session.sender(queue).send(later)
    (line,) = export(api, queue, "?state=delayed")
    assert (line["payload"], line["amqp10"]["message_annotations"]) == ("later", {"x-opt-delivery-delay": 3_600_000})
    assert export(api, queue, f"?ids={line['id']}")[0]["payload"] == "later"
    assert export(api, queue) == []
