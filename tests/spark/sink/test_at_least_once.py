"""The sink with confirms, for any broker: outcomes for all kinds of rows. Tasks run without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret import sync
from leveret.client import amqp10
from leveret.segments import typed_json
from leveret.segments.schema import AMQP10
from leveret.spark.errors import OptionError
from leveret.spark.sink import amqp091_publisher
from leveret.spark.sink.amqp091_publisher import Rate
from leveret.spark.sink.task import PublishError
from leveret.wire.amqp0.properties import FLAGS_AT, decode_header
from leveret.wire.amqp10.message import encode_body_value, encode_sequence
from tests.spark.sinks import batch_of, bodies, drain, write
from tests.support.broker import CONNECT_TIMEOUT, Broker, LeveretProcess

PROTOCOLS = ["0-9-1", "1.0"]


@pytest.fixture(params=["leveret", "rabbitmq"])
def any_broker(request: pytest.FixtureRequest, shared_broker: LeveretProcess) -> Broker:
    found: Broker = shared_broker if request.param == "leveret" else request.getfixturevalue("rabbit")
    return found


@pytest.fixture
def channel(any_broker: Broker) -> Iterator[sync.Channel]:
    with sync.connect(any_broker.url(), connect_timeout=CONNECT_TIMEOUT) as connection, connection.channel() as opened:
        yield opened


def test_rows_become_messages_in_order(any_broker: Broker, channel: sync.Channel, name: str) -> None:
    channel.declare_queue(name, durable=True)
    numbers = [f"{number}".encode() for number in range(3000)]
    written = write(
        any_broker.url(),
        batch_of(body=numbers[:1000]),
        batch_of(body=numbers[1000:]),
        exchange="",
        routingKey=name,
        maxInFlight=100,
    )
    assert bodies(drain(channel.connection, name)) == numbers
    assert (written.guarantee, written.counts.published, written.counts.body_bytes) == (
        "at-least-once",
        3000,
        sum(map(len, numbers)),
    )
    assert written.counts.lost == 0


def test_every_property_of_0_9_1_is_written(any_broker: Broker, channel: sync.Channel, name: str) -> None:
    channel.declare_queue(name)
    moment = datetime(2026, 5, 1, 12, 30, 5, tzinfo=UTC)
    write(
        any_broker.url(),
        batch_of(
            exchange=["", ""],
            routing_key=[name, name],
            body=[b"\x00\xff", b"second"],
            content_type=["text/plain", None],
            content_encoding=["gzip", None],
            durable=[False, None],
            priority=[5, None],
            correlation_id=["c", None],
            reply_to=["answers", None],
            ttl_ms=[60_000_000, None],
            message_id=["m", None],
            timestamp=[moment, None],
            type=["kind", None],
            user_id=["guest", None],
            app_id=["app", None],
            headers=[[("a", "text")], None],
        ),
    )
    first, second = drain(channel.connection, name)
    properties = first.properties
    assert first.body == b"\x00\xff"
    assert (properties.content_type, properties.content_encoding, properties.delivery_mode, properties.priority) == (
        "text/plain",
        "gzip",
        1,
        5,
    )
    assert (properties.correlation_id, properties.reply_to, properties.message_id) == ("c", "answers", "m")
    assert (properties.expiration, properties.timestamp, properties.type) == (60_000_000, moment, "kind")
    assert (properties.user_id, properties.app_id, properties.headers) == ("guest", "app", {"a": "text"})
    assert second.properties.delivery_mode == 2
    assert second._command.header[FLAGS_AT:] == b"\x10\x00\x02"


TYPED: dict[str, Any] = {
    "int": 5,
    "byte": {"$byte": -5},
    "ubyte": {"$ubyte": 250},
    "short": {"$short": -300},
    "ushort": {"$ushort": 65000},
    "uint": {"$uint": 4000000000},
    "long": {"$long": 7},
    "far": 1 << 40,
    "float": {"$float": 1.5},
    "double": 0.1,
    "decimal": {"$decimal": "12.50"},
    "text": "naïve",
    "octets": {"$binary": "AP8="},
    "not text": {"$string": "/w=="},
    "true": True,
    "null": None,
    "time": {"$timestamp": "2026-05-01T12:00:00Z"},
    "list": [1, "two", [None]],
    "table": {"x": {"y": 1}},
}


def test_every_type_of_a_header_is_written(any_broker: Broker, channel: sync.Channel, name: str) -> None:
    channel.declare_queue(name)
    write(
        any_broker.url(),
        batch_of(body=[b""], headers_json=[typed_json.dumps(TYPED)], headers=[[("ignored", "x")]]),
        routingKey=name,
    )
    [message] = drain(channel.connection, name)
    header = message._command.header
    assert decode_header(header)[2]["delivery_mode"] == 2
    # The table follows the flags; its length is the first four bytes.
    table = header[FLAGS_AT + 2 :]
    length = int.from_bytes(table[:4], "big")
    assert typed_json.from_table(table, 4, 4 + length) == TYPED


def test_every_kind_of_body_of_1_0_is_written(
    shared_broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name)
    nothing = dict.fromkeys(field.name for field in AMQP10)
    kinds: list[tuple[str, bytes]] = [
        ("data", b"\x00\xff"),
        ("string", "naïve".encode()),
        ("binary", b"text"),
        ("value", "naïve".encode()),
        ("value", b"\xff\xfe"),
        ("value", encode_body_value({"a": amqp10.UInt(1)})),
        ("sequence", encode_sequence([1, "two"])),
    ]
    write(
        shared_broker.url(),
        batch_of(body=[body for _, body in kinds], amqp10=[{**nothing, "body_type": kind} for kind, _ in kinds]),
        routingKey=name,
        protocol="1.0",
    )
    with sync.connect(shared_broker.url(), protocol="1.0") as opened, opened.receiver(f"/queues/{name}") as receiver:
        received = [receiver.next(30).content for _ in kinds]
    assert received == [
        b"\x00\xff",
        amqp10.Value("naïve"),
        amqp10.Value(b"text"),
        amqp10.Value("naïve"),
        amqp10.Value(b"\xff\xfe"),
        amqp10.Value({"a": amqp10.UInt(1)}),
        amqp10.Sequence([1, "two"]),
    ]


def test_a_row_goes_to_its_own_exchange(any_broker: Broker, channel: sync.Channel, name: str) -> None:
    for suffix in ("-a", "-b"):
        channel.declare_exchange(name + suffix, "topic", durable=False, auto_delete=True)
        channel.declare_queue(name + suffix)
        channel.bind_queue(name + suffix, name + suffix, "orders.#")
    write(
        any_broker.url(),
        batch_of(
            exchange=[name + "-a", name + "-b", name + "-a"],
            routing_key=["orders.1", "orders.2", "orders.3"],
            body=[b"1", b"2", b"3"],
        ),
    )
    assert bodies(drain(channel.connection, name + "-a")) == [b"1", b"3"]
    assert bodies(drain(channel.connection, name + "-b")) == [b"2"]


def test_a_body_of_many_frames(any_broker: Broker, channel: sync.Channel, name: str) -> None:
    channel.declare_queue(name)
    large = bytes(range(256)) * 2000
    write(any_broker.url(), batch_of(body=[large, b"", b"small"], message_id=["1", "2", None]), routingKey=name)
    assert bodies(drain(channel.connection, name)) == [large, b"", b"small"]


# Rows that cannot be published

BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"routing_key": "k" * 256}, "routing_key: 256 bytes; expected at most 255"),
    "key of two-byte characters": ({"routing_key": "é" * 128}, "routing_key: 256 bytes"),
    "exchange": ({"exchange": None}, "exchange: null"),
    "property": ({"message_id": "m" * 256}, "message_id: a short string has 256 bytes, expected at most 255"),
    "priority": ({"priority": 256}, "priority: 256; expected an integer from 0 to 255"),
    "ttl": ({"ttl_ms": -1}, "ttl_ms: -1; expected milliseconds, 0 or more"),
    "time": ({"timestamp": datetime(1969, 1, 1, tzinfo=UTC)}, "timestamp: a time before 1970"),
    "headers": ({"headers": [("h" * 256, "x")]}, "headers: a short string has 256 bytes, expected at most 255"),
    "headers_json": ({"headers_json": "{"}, "headers_json: "),
    "no object": ({"headers_json": "[1]"}, "headers_json: expected a JSON object"),
    "type": ({"headers_json": '{"a":{"$byte":300}}'}, "headers_json: a: $byte: 300; expected an integer from -128 to 127"),
    "headers too large": ({"headers": [("a", "x" * 140000)]}, "the properties take 140"),
    "body": ({"body": b"x" * 2000}, "body: 2000 bytes; expected at most 1000 (option maxMessageBytes)"),
}


# Valid in AMQP 1.0.
TAKEN_BY_1_0 = ("property", "time", "headers", "headers too large")


def _rows(name: str, bad: dict[str, Any]) -> Any:
    good = {
        "exchange": "",
        "routing_key": name,
        "body": b"good",
        "message_id": None,
        "priority": None,
        "ttl_ms": None,
        "timestamp": None,
        "headers": None,
        "headers_json": None,
    }
    rows = [good, {**good, "body": b"bad", **bad}, good]
    return batch_of(**{column: [row[column] for row in rows] for column in good})


@pytest.mark.parametrize("case", list(BAD_ROWS))
def test_a_row_that_cannot_be_published_fails_the_write_by_default(
    shared_broker: LeveretProcess, name: str, connection: sync.Connection, case: str
) -> None:
    bad, words = BAD_ROWS[case]
    with connection.channel() as channel:
        channel.declare_queue(name)
    with pytest.raises(PublishError, match=r"row 4 of partition 0 cannot be published") as raised:
        write(shared_broker.url(), _rows(name, {}), _rows(name, bad), maxMessageBytes=1000)
    assert words in str(raised.value)


@pytest.mark.parametrize("case", list(BAD_ROWS))
def test_a_row_that_cannot_be_published_is_dropped_and_counted(
    shared_broker: LeveretProcess, name: str, connection: sync.Connection, case: str
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name)
    written = write(shared_broker.url(), _rows(name, BAD_ROWS[case][0]), maxMessageBytes=1000, onError="drop")
    assert (written.counts.published, written.counts.failed_dropped, written.counts.lost) == (2, 1, 1)
    assert bodies(drain(connection, name)) == [b"good", b"good"]


@pytest.mark.parametrize(
    ("protocol", "case"),
    [
        (protocol, case)
        for protocol in PROTOCOLS
        for case in BAD_ROWS
        if case != "body" and not (protocol == "1.0" and case in TAKEN_BY_1_0)
    ],
)
def test_a_row_that_cannot_be_published_is_dead_lettered(
    shared_broker: LeveretProcess, name: str, protocol: str, connection: sync.Connection, case: str
) -> None:
    bad, words = BAD_ROWS[case]
    with connection.channel() as channel:
        channel.declare_queue(name)
        channel.declare_queue(f"{name}-dead")
    written = write(
        shared_broker.url(),
        _rows(name, bad),
        protocol=protocol,
        onError="dead-letter",
        deadLetterExchange="",
        deadLetterRoutingKey=f"{name}-dead",
    )
    assert (written.counts.published, written.counts.failed_dead_lettered) == (2, 1)
    assert bodies(drain(connection, name)) == [b"good", b"good"]
    [dead] = drain(connection, f"{name}-dead")
    assert dead.body == b"bad"
    reason = dead.headers["x-exception-message"]
    assert reason.startswith(words.split(":")[0])


def test_a_body_too_large_to_be_dead_lettered_fails_the_write(shared_broker: LeveretProcess, name: str) -> None:
    with pytest.raises(PublishError, match="nor dead-lettered: body: 2000 bytes"):
        write(
            shared_broker.url(),
            _rows(name, {"body": b"x" * 2000}),
            maxMessageBytes=1000,
            onError="dead-letter",
            deadLetterExchange="",
            deadLetterRoutingKey=f"{name}-dead",
        )


def test_a_null_body_names_its_row(shared_broker: LeveretProcess, name: str) -> None:
    import pyarrow as pa

    batch = pa.record_batch([pa.array([b"x", None], pa.binary())], names=["body"])
    with pytest.raises(PublishError, match="row 1 of partition 0 cannot be published: body: null"):
        write(shared_broker.url(), batch, routingKey=name)


def test_the_error_for_a_body_that_the_broker_rejects_names_the_option(tmp_path: Path, name: str) -> None:
    with LeveretProcess(
        tmp_path,
        config='[amqp]\nmax_message_size = 1000\n[users.guest]\npassword = "guest"\n'
        'permissions."/" = { configure = ".*", write = ".*", read = ".*" }\n',
    ).start() as small:
        with sync.connect(small.url()) as connection, connection.channel() as channel:
            channel.declare_queue(name)
        with pytest.raises(PublishError, match="maxMessageBytes"):
            write(small.url(), batch_of(body=[b"x" * 2000]), routingKey=name)


# Unroutable rows


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unroutable_row_fails_the_write_by_default(shared_broker: LeveretProcess, name: str, protocol: str) -> None:
    with pytest.raises(PublishError, match="onUnroutable"):
        write(shared_broker.url(), batch_of(body=[b"x"]), exchange="amq.direct", routingKey=name, protocol=protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unroutable_rows_are_dropped_and_counted(
    shared_broker: LeveretProcess, name: str, protocol: str, connection: sync.Connection
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name)
        channel.bind_queue(name, "amq.direct", f"{name}-bound")
    written = write(
        shared_broker.url(),
        batch_of(body=[b"1", b"2", b"3"], routing_key=[f"{name}-bound", name, name]),
        exchange="amq.direct",
        protocol=protocol,
        onUnroutable="drop",
    )
    assert (written.counts.published, written.counts.unroutable_dropped) == (1, 2)
    assert bodies(drain(connection, name)) == [b"1"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unroutable_rows_are_dead_lettered_unchanged(
    shared_broker: LeveretProcess, name: str, protocol: str, connection: sync.Connection
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name)
    written = write(
        shared_broker.url(),
        batch_of(body=[b"1", b"2"], message_id=["a", "b"]),
        exchange="amq.direct",
        routingKey=f"{name}-nowhere",
        protocol=protocol,
        onUnroutable="dead-letter",
        deadLetterExchange="",
        deadLetterRoutingKey=name,
    )
    assert written.counts.unroutable_dead_lettered == 2
    assert [(message.body, message.properties.message_id) for message in drain(connection, name)] == [
        (b"1", "a"),
        (b"2", "b"),
    ]


def test_an_unroutable_dead_letter_fails_the_write(shared_broker: LeveretProcess, name: str) -> None:
    with pytest.raises(PublishError, match="the broker rejected a dead letter"):
        write(
            shared_broker.url(),
            batch_of(body=[b"1"]),
            exchange="amq.direct",
            routingKey=name,
            onUnroutable="dead-letter",
            deadLetterExchange="",
            deadLetterRoutingKey=f"{name}-not-there",
        )


def test_on_error_applies_to_rows_that_a_full_queue_refuses(
    shared_broker: LeveretProcess, name: str, connection: sync.Connection
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    written = write(
        shared_broker.url(), batch_of(body=[b"%d" % number for number in range(10)]), routingKey=name, onError="drop"
    )
    assert (written.counts.published, written.counts.failed_dropped) == (3, 7)
    assert bodies(drain(connection, name)) == [b"0", b"1", b"2"]


def test_a_missing_exchange_fails_before_anything_is_published(any_broker: Broker, name: str) -> None:
    with pytest.raises(OptionError, match=f"option exchange: .*no exchange '{name}'"):
        write(any_broker.url(), batch_of(body=[b"1"]), exchange=name, routingKey="x")


def test_exactly_once_needs_leveret(rabbit: Broker, name: str) -> None:
    with pytest.raises(OptionError, match=r"option txnAppId: it needs Leveret, and .* is another broker"):
        write(rabbit.url(), batch_of(body=[b"1"]), routingKey=name, txnAppId="a", txnVersion=1)
    with pytest.raises(OptionError, match="option guarantee: exactly-once needs Leveret"):
        write(rabbit.url(), batch_of(body=[b"1"]), routingKey=name, txnAppId="a", txnVersion=1, guarantee="exactly-once")


def test_the_rate_is_limited(
    shared_broker: LeveretProcess, name: str, connection: sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    # Only for the publisher: threads of other tests may wait meanwhile.
    monkeypatch.setattr(amqp091_publisher, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    rate = Rate(100.0)
    assert rate.max_chunk() == 10
    for _ in range(5):
        rate.wait(10)
    assert sum(slept) == pytest.approx(0.4)
