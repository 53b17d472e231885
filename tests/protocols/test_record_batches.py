"""Record batches for publishing: their rows become the same messages as single publishes, and errors name the row."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import make_address
from leveret.protocols.record_batches import CHECK_WORK, CHUNK, MIN_FRAME_SIZE
from leveret.security.permissions import Permission
from leveret.storage.spool import FileSpool
from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp0.properties import FLAGS_AT, decode_header, encode_header
from leveret.wire.amqp10.messaging import Header, Properties, Rejected
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition
from leveret.wire.amqp10.values import Symbol, Timestamp
from leveret.wire.record_batches import ADDRESS, EXCHANGE, MAX_BYTES, MAX_ROWS, decode_ranges, encode
from tests.protocols.amqp09 import support as amqp09
from tests.protocols.amqp10 import support as amqp10
from tests.protocols.amqp10.support import make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import BASIC, Channel, Client, Site
from tests.protocols.test_write_ahead import SlowLog

Row = tuple[str, str, bytes, dict[str, Any]]

EVERY_TYPE = {
    "text": "ä",
    "bytes": b"\x00\xff",
    "int": -5,
    "large": 1 << 40,
    "float": 1.5,
    "flag": True,
    "nothing": None,
    "time": datetime(2026, 1, 2, tzinfo=UTC),
    "list": ["a", 1, {"b": [2]}],
    "table": {"c": {"d": b"e"}},
}
ROWS: list[Row] = [
    ("", "q", b"plain", {}),
    ("", "q", b"", {"delivery_mode": 2, "priority": 9}),
    (
        "amq.topic",
        "a.b",
        b"all",
        {
            "content_type": "text/plain",
            "content_encoding": "gzip",
            "headers": EVERY_TYPE,
            "delivery_mode": 1,
            "priority": 0,
            "correlation_id": "c",
            "reply_to": "r",
            # Longer than the longest remaining time to live of AMQP 1.0, which depends on the clock.
            "expiration": "5000000000",
            "message_id": "m",
            "timestamp": 1_700_000_000,
            "type": "t",
            "user_id": "user",
            "app_id": "app",
            "cluster_id": "cluster",
        },
    ),
    ("amq.headers", "", b"by header", {"headers": {"kind": "h"}}),
    ("", "other", b"copied", {"headers": {"CC": ["q"], "BCC": ["third"]}}),
    ("amq.fanout", "", b"to all", {"headers": {}}),
]


def batch_of(rows: list[Row]) -> bytes:
    return encode(
        [make_address(exchange, key) for exchange, key, _, _ in rows],
        [encode_header(BASIC, 0, properties)[FLAGS_AT:] for _, _, _, properties in rows],
        [body for _, _, body, _ in rows],
    )


def publish(channel: Channel, rows: list[Row], **options: Any) -> None:
    channel.publish("", batch_of(rows), exchange=EXCHANGE, **options)
    channel.run()


def prepared(site: Site) -> Site:
    channel = site.channel()
    for queue in ("q", "other", "third"):
        channel.declare(queue, durable=True)
    channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.topic", routing_key="a.*", arguments={})
    arguments = {"x-match": "all", "kind": "h"}
    channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.headers", routing_key="", arguments=arguments)
    channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.fanout", routing_key="", arguments={})
    return site


def stored(site: Site) -> list[list[object]]:
    """Return all that the queues hold, as consumers of each protocol receive it."""
    found: list[list[object]] = []
    for queue in ("q", "other", "third"):
        old = amqp09.connect(site).channel()
        receiver = amqp10.connect(site).begin().receiver(queue, credit=100)
        found.append([transfer.payload for transfer in receiver.deliveries()])
        receiver.client.drop()
        for channel in (site.channel(), old):
            channel.consume(queue)
            found.append([(item.address, item.header, item.body) for item in channel.deliveries()])
            channel.client.drop()
    return found


@pytest.fixture
def site() -> Site:
    return prepared(make_site())


@pytest.fixture
def channel(site: Site) -> Channel:
    channel = site.channel()
    channel.call("confirm.select", "confirm.select-ok")
    return channel


def returned(channel: Channel) -> tuple[int, str, dict[str, str]]:
    """Take the report that the broker returned."""
    taken = channel.client.take("basic.return", channel.number)
    assert isinstance(taken, ContentMethod)
    body = taken.body if isinstance(taken.body, bytes) else b"".join(taken.body)
    return taken.arguments["reply_code"], taken.arguments["reply_text"], json.loads(body)


class TestSameMessages:
    @pytest.mark.parametrize("version", ["0-9-1", "0-9"])
    def test_rows_are_stored_as_single_publishes_are(self, version: str) -> None:
        found = []
        for batched in (False, True):
            site = prepared(make_site())
            channel = site.channel() if version == "0-9-1" else amqp09.connect(site).channel()
            if batched:
                publish(channel, ROWS)
            else:
                for exchange, key, body, properties in ROWS:
                    channel.publish(key, body, exchange=exchange, **properties)
                channel.run()
            found.append(stored(site))
        assert found[0] == found[1]
        assert sum(len(entries) for entries in found[0]) == 3 * 8

    def test_rows_over_amqp10_are_stored_as_single_transfers_are(self) -> None:
        every = Properties(
            message_id="m",
            user_id=b"user",
            subject="s",
            reply_to="r",
            correlation_id=b"\x01",
            content_type=Symbol("text/plain"),
            creation_time=Timestamp(1_700_000_000_000),
            group_id="g",
            group_sequence=7,
        )
        annotations = b"\x00\x53\x72\xc1\x09\x02\xa3\x04x-ab\xa1\x00"
        messages = [
            message(b"plain"),
            message(b"durable", durable=True),
            message(b"all", header=Header(True, 7), properties=every, before=annotations),
            message(b"", after=b"\x00\x53\x78\xc1\x01\x00"),
            b"\x00\x53\x77\xa1\x05value",
        ]
        found = []
        for batched in (False, True):
            site = prepared(make_site())
            session = amqp10.connect(site).begin()
            if batched:
                sender = session.sender(ADDRESS)
                address = make_address("", "q")
                parts = [(data[:at], data[at:]) for data in messages for at in (min(3, len(data)),)]
                columns = [address] * len(parts), [part[0] for part in parts], [part[1] for part in parts]
                sender.send(message(encode(*columns)))
                assert [outcome[2:] for outcome in sender.outcomes()] == [(True, "Accepted")]
            else:
                sender = session.sender("/queues/q")
                for data in messages:
                    sender.send(data)
            found.append(stored(site))
        assert found[0] == found[1]
        assert len(found[0][0]) == len(messages)

    def test_rows_expire(self, site: Site, channel: Channel) -> None:
        publish(channel, [("", "q", b"", {"expiration": "0"}), ("", "q", b"kept", {})])
        sender = amqp10.connect(site).begin().sender(ADDRESS)
        sender.send(message(encode([GOOD[0]], [b""], [message(header=Header(ttl=0))])))
        assert channel.bodies() == [b"kept"]

    def test_the_firehose_has_each_row(self, site: Site, channel: Channel) -> None:
        channel.declare("trace")
        arguments = {"queue": "trace", "exchange": "amq.rabbitmq.trace", "routing_key": "publish.#", "arguments": {}}
        channel.call("queue.bind", "queue.bind-ok", **arguments)
        site.vhost.firehose.switch(True)
        publish(channel, [("", "q", b"a", {}), ("amq.topic", "a.b", b"b", {})])
        assert channel.bodies("trace") == [b"a", b"b"]

    def test_rows_go_into_a_sink_transaction(self, site: Site, channel: Channel) -> None:
        site.vhost.sink_transactions.open("s", "app", "user")
        publish(channel, [("leveret.stage:s:amq.topic", "a.b", b"a", {}), ("leveret.stage:s:", "q", b"b", {})])
        assert channel.confirms() == [("ack", 1, False)]
        (transaction,) = site.vhost.sink_transactions.by_uuid.values()
        assert transaction.count == 2 and site.vhost.queues["q"].ready_count == 0
        site.vhost.sink_transactions.open("t", "app", "other")
        publish(channel, [("leveret.stage:t:", "q", b"", {})])
        assert "belongs to another user" in channel.client.refusal()[1]

    def test_an_alternate_exchange_gets_rows_without_a_queue(self, site: Site, channel: Channel) -> None:
        arguments = {"alternate-exchange": "amq.fanout"}
        channel.call("exchange.declare", "exchange.declare-ok", exchange="x", type="direct", arguments=arguments)
        publish(channel, [("x", "nowhere", b"a", {})], mandatory=True)
        assert channel.client.take("basic.return", channel.number) is None and channel.bodies() == [b"a"]

    def test_direct_reply_addresses_are_filled_in(self, site: Site, channel: Channel) -> None:
        channel.consume("amq.rabbitmq.reply-to", no_ack=True)
        publish(channel, [("", "q", b"", {"reply_to": "amq.rabbitmq.reply-to"})])
        taken = channel.get()
        assert taken is not None
        assert decode_header(taken.header)[2]["reply_to"].startswith("amq.rabbitmq.reply-to.")

    def test_ordinary_messages_with_the_content_type_are_untouched(self, site: Site, channel: Channel) -> None:
        body = batch_of(ROWS)
        channel.publish("q", body, content_type="application/vnd.leveret.record-batch")
        assert channel.bodies() == [body]

    def test_statistics_count_rows(self, site: Site, channel: Channel) -> None:
        publish(channel, [("amq.topic", "a.b", b"", {})] * 3)
        site.vhost.statistics.fold(site.vhost.route(make_address("amq.topic", "a.b")))
        assert site.vhost.exchanges["amq.topic"].publish_in == 3
        assert site.vhost.queues["q"].ready_count == 3


class TestConfirms:
    def test_one_confirm_covers_all_rows(self, channel: Channel) -> None:
        publish(channel, ROWS)
        channel.publish()
        channel.run()
        assert channel.confirms() in ([("ack", 1, False), ("ack", 2, False)], [("ack", 2, True)])

    def test_unroutable_rows_are_reported_before_the_ack(self, channel: Channel) -> None:
        rows: list[Row] = [("", key, b"", {}) for key in ("q", "nowhere", "nowhere", "q", "nowhere")]
        publish(channel, rows, mandatory=True, correlation_id="batch 7")
        kinds = [type(item).__name__ for item in channel.client.received]
        assert kinds == ["ContentMethod", "Ack"]
        code, text, report = returned(channel)
        assert (code, text) == (312, "NO_ROUTE - 3 of 5 rows unroutable")
        assert decode_ranges(report["unroutable"]) == [1, 2, 4] and "refused" not in report
        assert channel.bodies() == [b"", b""]

    def test_a_report_has_the_ids_of_the_batch(self, channel: Channel) -> None:
        publish(channel, [("", "nowhere", b"", {})], mandatory=True, correlation_id="c", message_id="m")
        taken = channel.client.take("basic.return", channel.number)
        assert isinstance(taken, ContentMethod)
        properties = decode_header(taken.header)[2]
        assert (properties["correlation_id"], properties["message_id"]) == ("c", "m")

    def test_unroutable_rows_of_a_batch_that_is_not_mandatory_are_dropped(self, channel: Channel) -> None:
        publish(channel, [("", "nowhere", b"", {}), ("", "q", b"kept", {})])
        assert channel.client.take("basic.return", channel.number) is None
        assert channel.confirms() == [("ack", 1, False)] and channel.bodies() == [b"kept"]

    def test_rows_that_a_full_queue_refuses_are_reported_before_the_nack(self, channel: Channel) -> None:
        channel.declare("full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        rows: list[Row] = [("", "full", b"%d" % number, {}) for number in range(4)]
        publish(channel, [*rows, ("", "q", b"", {})])
        code, text, report = returned(channel)
        assert code == 506 and text.endswith("2 of 5 rows refused, row 2: queue 'full' in vhost '/' is full")
        assert report == {"refused": "2-3", "reason": "queue 'full' in vhost '/' is full"}
        assert channel.confirms() == [("nack", 1, False)]
        assert channel.bodies("full") == [b"0", b"1"] and channel.bodies() == [b""]

    def test_large_batches_are_published_in_steps_and_later_commands_wait(self, site: Site, channel: Channel) -> None:
        channel.publish("", batch_of([("", "q", b"", {})] * MAX_ROWS), exchange=EXCHANGE)
        channel.publish("q", b"last")
        channel.client.flush()
        assert site.vhost.queues["q"].ready_count < MAX_ROWS
        channel.run()
        assert site.vhost.queues["q"].ready_count == MAX_ROWS + 1
        assert channel.confirms() == [("ack", 2, True)]

    @pytest.mark.parametrize("closed", [True, False])
    def test_a_batch_is_published_as_a_whole_if_its_connection_ends(self, site: Site, closed: bool) -> None:
        rows: list[Row] = [("", "q", b"", {"message_id": f"{number:060}"}) for number in range(MAX_ROWS)]
        channel = site.channel()
        channel.publish("", batch_of(rows), exchange=EXCHANGE)
        channel.client.flush()
        assert site.vhost.queues["q"].ready_count == 0
        if closed:
            reason = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}
            channel.client.call(0, "connection.close", "connection.close-ok", reason)
        else:
            channel.client.drop()
        site.run()
        assert site.vhost.queues["q"].ready_count == MAX_ROWS

    def test_an_exchange_deleted_between_check_and_publish_refuses_its_rows(self, site: Site, channel: Channel) -> None:
        channel.call("exchange.declare", "exchange.declare-ok", exchange="x", type="fanout", arguments={})
        count = STEP_WORK // CHECK_WORK - CHUNK
        rows: list[Row] = [("", "q", b"", {})] * count
        channel.publish("", batch_of([*rows, ("x", "", b"", {})]), exchange=EXCHANGE)
        channel.client.flush()
        assert 0 < site.vhost.queues["q"].ready_count < count
        site.vhost.delete_exchange("x")
        channel.run()
        assert returned(channel)[2] == {"refused": str(count), "reason": "no exchange 'x' in vhost '/'"}
        assert site.vhost.queues["q"].ready_count == count

    def test_a_retry_with_publisher_and_sequence_adds_nothing_to_a_stream(self, channel: Channel) -> None:
        channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
        rows: list[Row] = [
            ("", "s", b"", {"headers": {"x-stream-publisher": "p", "x-stream-sequence": number}}) for number in range(1, 6)
        ]
        publish(channel, rows[:3])
        publish(channel, rows)
        assert channel.confirms()[-1][:2] == ("ack", 2)
        assert channel.client.site.vhost.queues["s"].ready_count == 5


class TestTransactions:
    def test_rows_become_visible_with_the_commit(self, site: Site) -> None:
        channel = site.channel()
        channel.call("tx.select", "tx.select-ok")
        publish(channel, [("", "q", b"a", {}), ("", "nowhere", b"lost", {})], mandatory=True)
        assert site.vhost.queues["q"].ready_count == 0
        channel.call("tx.commit", "tx.commit-ok")
        back = channel.client.take("basic.return", channel.number)
        assert isinstance(back, ContentMethod) and back.arguments["routing_key"] == "nowhere"
        assert channel.bodies() == [b"a"]

    def test_a_rollback_drops_rows(self, site: Site) -> None:
        channel = site.channel()
        channel.call("tx.select", "tx.select-ok")
        publish(channel, ROWS)
        channel.call("tx.rollback", "tx.rollback-ok")
        channel.call("tx.commit", "tx.commit-ok")
        assert site.vhost.queues["q"].ready_count == 0


def table(size: int) -> bytes:
    return struct.pack(">H", 0x2000) + struct.pack(">I", size) + b"\x00V" * (size // 2)


def nested(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = struct.pack(">I", len(inner) + 2) + b"\x00F" + inner if inner else struct.pack(">I", 0)
    return struct.pack(">H", 0x2000) + inner


GOOD = (make_address("", "q"), b"\x00\x00", b"")


class TestRefusals:
    @pytest.mark.parametrize(
        ("row", "code", "text"),
        [
            ((make_address("missing", "q"), b"\x00\x00", b""), 404, "no exchange 'missing' in vhost '/'"),
            ((make_address(EXCHANGE, ""), b"\x00\x00", b""), 406, "cannot contain messages to exchange 'leveret.batches'"),
            (
                (make_address("leveret.control", ""), b"\x00\x00", b""),
                406,
                "publish messages to exchange 'leveret.control'",
            ),
            ((make_address("amq.leveret.events", ""), b"\x00\x00", b""), 403, "internal exchange"),
            ((b"\x00\x05q", b"\x00\x00", b""), 406, "malformed address"),
            ((b"", b"\x00\x00", b""), 406, "malformed address"),
            ((GOOD[0], b"", b""), 406, "malformed properties"),
            ((GOOD[0], b"\x00\x02", b""), 406, "malformed properties"),
            ((GOOD[0], b"\x80\x00\x05ab", b""), 406, "malformed properties"),
            ((GOOD[0], b"\x00\x00trailing", b""), 406, "malformed properties"),
            ((GOOD[0], struct.pack(">HI", 0x2000, 0xFFFFFFFF), b""), 406, "malformed properties"),
            ((GOOD[0], nested(1000), b""), 406, "malformed properties"),
            ((GOOD[0], table(200_000), b""), 406, "expected at most 131052, as in a frame of this connection"),
            ((GOOD[0], b"\x00\x10\x04root", b""), 406, "user_id property set to 'root'"),
            ((GOOD[0], b"\x01\x00\x03abc", b""), 406, "invalid expiration 'abc'"),
        ],
    )
    def test_an_invalid_row_refuses_the_batch(
        self, site: Site, channel: Channel, row: tuple[bytes, bytes, bytes], code: int, text: str
    ) -> None:
        rows = [GOOD] * 70 + [row] + [GOOD]
        columns = [[one[column] for one in rows] for column in range(3)]
        channel.publish("", encode(*columns), exchange=EXCHANGE)
        channel.run()
        found = channel.client.refusal()
        assert found[0] == code and "row 70 of the record batch: " in found[1] and text in found[1]
        assert site.vhost.queues["q"].ready_count == 0
        assert channel.client.is_open

    @pytest.mark.parametrize(
        ("body", "code", "text"),
        [
            (b"", 406, "a record batch begins with LVB1"),
            (batch_of(ROWS)[:-1], 406, "the sum of its sizes"),
            (batch_of([("", "q", b"", {})] * (MAX_ROWS + 1)), 406, "4097 rows; expected 1 to 4096"),
            (b"LVB1" + bytes(MAX_BYTES), 311, "expected at most 524288, so publish fewer rows"),
        ],
    )
    def test_an_invalid_batch_is_refused(self, site: Site, channel: Channel, body: bytes, code: int, text: str) -> None:
        channel.publish("", body, exchange=EXCHANGE)
        channel.run()
        found = channel.client.refusal()
        assert found[0] == code and text in found[1]
        assert site.vhost.queues["q"].ready_count == 0

    def test_a_batch_in_the_spool_is_refused_by_its_size(self, site: Site, channel: Channel) -> None:
        channel.publish("", bytes((1 << 20) + 1), exchange=EXCHANGE)
        channel.run()
        assert channel.client.refusal()[0] == 311

    def test_an_immediate_batch_is_refused(self, channel: Channel) -> None:
        publish(channel, ROWS, immediate=True)
        assert channel.client.refusal()[1].endswith("expected no flag, or mandatory for all its rows")

    def test_each_row_needs_permission_for_its_exchange_and_the_batch_needs_none(self, site: Site) -> None:
        site.allow("limited", "/", Permission("", "^mine|amq.default", ""))
        channel = site.channel(user="limited")
        publish(channel, [("", "q", b"", {})])
        assert site.vhost.queues["q"].ready_count == 1
        publish(channel, [("", "q", b"", {}), ("amq.topic", "a", b"", {})])
        code, text = channel.client.refusal()
        assert code == 403 and "row 1 of the record batch: write access to 'amq.topic'" in text
        assert site.vhost.queues["q"].ready_count == 1

    def test_copies_are_checked_before_any_row_is_published(self, site: Site, channel: Channel) -> None:
        publish(channel, [("", "q", b"", {}), ("", "q", b"", {"headers": {"CC": "not a list"}})])
        assert "row 1 of the record batch: invalid type for 'CC' header" in channel.client.refusal()[1]
        assert site.vhost.queues["q"].ready_count == 0

    @settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=40), st.binary(max_size=8)), min_size=1))
    def test_any_rows_are_published_or_refused(self, site: Site, rows: list[tuple[bytes, bytes, bytes]]) -> None:
        channel = site.channel()
        columns = [[row[column] for row in rows] for column in range(3)]
        channel.publish("", encode(*columns), exchange=EXCHANGE)
        channel.run()
        code, text = channel.client.refusal()
        assert not code or (code in (403, 404, 406) and text.partition(" - ")[2].startswith("row "))
        assert channel.client.is_open
        channel.client.drop()


class TestAmqp10:
    @pytest.fixture
    def session(self, site: Site) -> amqp10.Session:
        return amqp10.connect(site).begin()

    def refusal(self, sender: amqp10.Sender) -> tuple[str, str]:
        (frame,) = sender.client.all(Disposition)
        assert isinstance(frame.state, Rejected) and frame.state.error is not None
        return frame.state.error.condition, frame.state.error.description or ""

    def test_rows_that_are_not_published_are_in_the_outcome(self, site: Site, session: amqp10.Session) -> None:
        channel = site.channel()
        channel.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        sender = session.sender(ADDRESS)
        keys = ("full", "nowhere", "full", "q")
        columns = [make_address("", key) for key in keys], [b""] * 4, [message(key.encode()) for key in keys]
        sender.send(message(encode(*columns)))
        (frame,) = session.client.all(Disposition)
        assert isinstance(frame.state, Rejected) and frame.state.error is not None
        assert frame.state.error.condition == "leveret:rows-not-published"
        reason = "queue 'full' in vhost '/' is full"
        assert frame.state.error.info == {"unroutable": "1", "refused": "2", "reason": reason}
        assert [channel.bodies(key) for key in ("full", "q")] == [[b"full"], [b"q"]]

    @pytest.mark.parametrize(
        ("row", "condition", "text"),
        [
            ((make_address("x", ""), b"", b""), "amqp:not-found", "no exchange 'x'"),
            ((GOOD[0], b"\x00\x53\x99", b""), "amqp:precondition-failed", "expected a section"),
            ((GOOD[0], b"\x00\x53\x75\xb0\xff\xff\xff\xff", b""), "amqp:precondition-failed", ""),
            (
                (GOOD[0], message(properties=Properties(user_id=b"root")), b""),
                "amqp:unauthorized-access",
                "user-id is 'root'",
            ),
            ((GOOD[0], b"\x00\x53\x74\xd1" + struct.pack(">II", 20_004, 20_000) + b"\x40" * 20_000, b""), "", "values"),
        ],
    )
    def test_an_invalid_row_refuses_the_batch(
        self, site: Site, session: amqp10.Session, row: tuple[bytes, bytes, bytes], condition: str, text: str
    ) -> None:
        sender = session.sender(ADDRESS)
        rows = [(GOOD[0], b"", message())] * 70 + [row]
        columns = [[one[column] for one in rows] for column in range(3)]
        sender.send(message(encode(*columns)))
        found = self.refusal(sender)
        assert found[0] == (condition or "amqp:precondition-failed")
        assert found[1].startswith("row 70 of the record batch: ") and text in found[1]
        assert site.vhost.queues["q"].ready_count == 0

    @pytest.mark.parametrize(
        ("payload", "text"),
        [
            (message(b"LVB2"), "a record batch begins with LVB1"),
            (b"\x00\x53\x77\xa1\x01x", "without a data section"),
            (message(bytes(MAX_BYTES + 1)), "expected at most 524288"),
        ],
    )
    def test_an_invalid_batch_is_rejected(self, session: amqp10.Session, payload: bytes, text: str) -> None:
        sender = session.sender(ADDRESS)
        sender.send(payload)
        assert text in self.refusal(sender)[1]

    def test_an_invalid_settled_batch_detaches_the_link(self, session: amqp10.Session) -> None:
        session.sender(ADDRESS).send(message(b""), settled=True)
        assert session.client.error(Detach)[0] == "amqp:precondition-failed"

    def test_large_batches_are_published_in_order_and_limit_the_credit(self, site: Site, session: amqp10.Session) -> None:
        sender = session.sender(ADDRESS)
        assert sender.credit == 4
        for number in range(4):
            columns = [make_address("", "q")] * MAX_ROWS, [b""] * MAX_ROWS, [message(b"%d" % number)] * MAX_ROWS
            sender.send(message(encode(*columns)), run=False)
        session.client.run()
        assert {outcome[3] for outcome in sender.outcomes()} == {"Accepted"}
        queue = site.vhost.queues["q"]
        assert queue.ready_count == 4 * MAX_ROWS
        consumer = site.channel()
        consumer.consume("q", no_ack=True)
        assert consumer.delivered() == [b"%d" % number for number in range(4) for _ in range(MAX_ROWS)]

    def test_a_durable_batch_in_the_spool_is_published(self, tmp_path: Path) -> None:
        spool = FileSpool(tmp_path, 0)
        log = SlowLog(spool)
        site = prepared(make_site(log=log, spool_threshold=1000))
        sender = amqp10.connect(site).begin().sender(ADDRESS)
        rows = 100
        batch = encode([make_address("", "q")] * rows, [b""] * rows, [message(b"x" * 100)] * rows)
        payload = message(batch, header=Header(True))
        half = len(payload) // 2
        sender.part(payload[:half], more=True, delivery_id=0, delivery_tag=b"t")
        sender.part(payload[half:])
        sender.client.run()
        assert [outcome[3] for outcome in sender.outcomes()] == ["Accepted"]
        assert site.vhost.queues["q"].ready_count == rows
        assert not log.ahead
        spool.close()

    def test_a_transaction_cannot_contain_batches(self, session: amqp10.Session) -> None:
        id = Controller(session).declare()
        sender = session.sender(ADDRESS)
        sender.send(message(b""), state=TransactionalState(id))
        condition, text = session.client.error(Detach)
        assert condition == "amqp:not-implemented" and "expected a transfer outside of transactions" in text


def test_the_broker_announces_where_to_publish_batches(site: Site) -> None:
    client = Client(site)
    client.run()
    start = client.take("connection.start")
    assert start is not None and start.arguments["server_properties"]["record_batches"] == EXCHANGE
    small = Client(make_site(max_message_size=MAX_BYTES))
    small.run()
    start = small.take("connection.start")
    assert start is not None and "record_batches" not in start.arguments["server_properties"]
    for max_frame_size, announced in ((MIN_FRAME_SIZE - 1, None), (MIN_FRAME_SIZE, ADDRESS)):
        answer = amqp10.Client(site).open(max_frame_size=max_frame_size)
        assert answer.properties is not None and answer.properties.get("record_batches") == announced
