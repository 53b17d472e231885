"""Streams over 0-9-1 and 1.0: readers, offsets, filters, errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Detach
from leveret.wire.amqp10.values import Described, Symbol, Timestamp, ULong
from tests.protocols.amqp10.support import Receiver, Session, connect, make_site, message
from tests.protocols.support import Channel, Site, properties_of

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def channel(site: Site) -> Channel:
    channel = site.channel()
    channel.declare("s", durable=True, arguments=STREAM)
    return channel


def read(site: Site, start: Any = "first", prefetch: int = 100, **arguments: Any) -> Channel:
    """A channel that reads the stream from an offset."""
    reader = site.channel()
    reader.qos(prefetch)
    reader.consume("s", arguments={"x-stream-offset": start, **arguments})
    reader.run()
    return reader


def publish(channel: Channel, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.publish("s", body, **properties)
    channel.run()


class TestOver091:
    def test_readers_see_all_messages_with_their_offsets(self, site: Site, channel: Channel) -> None:
        publish(channel, b"a", b"b", headers={"kept": 1})
        for _ in range(2):
            deliveries = read(site).deliveries()
            assert [properties_of(delivery)["headers"] for delivery in deliveries] == [
                {"kept": 1, "x-stream-offset": 0},
                {"kept": 1, "x-stream-offset": 1},
            ]
            assert not any(delivery.redelivered for delivery in deliveries)

    def test_last_starts_at_the_latest_commit(self, site: Site, channel: Channel) -> None:
        for body in (b"1", b"2", b"3"):
            publish(channel, body)
        publish(channel, b"4", b"5")  # in one turn, and one commit
        assert read(site, "last").delivered() == [b"4", b"5"]
        publish(channel, b"6")
        assert read(site, "last").delivered() == [b"6"]

    def test_last_of_an_empty_stream(self, site: Site, channel: Channel) -> None:
        reader = read(site, "last")
        publish(channel, b"1")
        assert reader.delivered() == [b"1"]

    @pytest.mark.parametrize("unfiltered", [False, True])
    def test_an_empty_filter_value_counts_as_none(self, site: Site, channel: Channel, unfiltered: bool) -> None:
        for value in ("", "a", "b", None):
            publish(channel, repr(value).encode(), headers={"x-stream-filter-value": value} if value is not None else {})
        wanted: dict[str, Any] = {"x-stream-filter": "a", "x-stream-match-unfiltered": unfiltered}
        assert read(site, **wanted).delivered() == ([b"''", b"'a'", b"None"] if unfiltered else [b"'a'"])
        empty: dict[str, Any] = {"x-stream-filter": ""}
        assert read(site, **empty).delivered() == [b"''"]

    def test_acknowledgements_are_credit(self, site: Site, channel: Channel) -> None:
        publish(channel, b"1", b"2", b"3", b"4", b"5")
        reader = read(site, prefetch=2)
        assert reader.delivered() == [b"1", b"2"]
        reader.ack(1)
        reader.nack(2, requeue=True)
        reader.run()
        assert reader.delivered() == [b"3", b"4"]
        reader.reject(4)
        reader.run()
        assert reader.delivered() == [b"5"]
        reader.close()
        assert read(site).delivered() == [b"1", b"2", b"3", b"4", b"5"]

    @pytest.mark.parametrize(
        ("start", "bodies"),
        [
            (1, [b"b", b"c"]),
            ("next", []),
            (datetime(2001, 1, 1, tzinfo=UTC), [b"a", b"b", b"c"]),
            ("1h", [b"a", b"b", b"c"]),
        ],
        ids=["offset", "next", "timestamp", "interval"],
    )
    def test_start_positions(self, site: Site, channel: Channel, start: Any, bodies: list[bytes]) -> None:
        publish(channel, b"a", b"b", b"c")
        assert read(site, start).delivered() == bodies

    def test_filters(self, site: Site, channel: Channel) -> None:
        publish(channel, b"red", headers={"x-stream-filter-value": "red"})
        publish(channel, b"blue", headers={"x-stream-filter-value": "blue"})
        publish(channel, b"none")
        one: dict[str, Any] = {"x-stream-filter": "red"}
        assert read(site, **one).delivered() == [b"red"]
        more: dict[str, Any] = {"x-stream-filter": ["red"], "x-stream-match-unfiltered": True}
        assert read(site, **more).delivered() == [b"red", b"none"]

    def test_transactions_are_visible_at_the_commit(self, site: Site, channel: Channel) -> None:
        reader = read(site)
        channel.call("tx.select", "tx.select-ok")
        publish(channel, b"a")
        reader.run()
        assert reader.delivered() == []
        channel.call("tx.commit", "tx.commit-ok")
        reader.run()
        assert reader.delivered() == [b"a"]

    def test_statistics_count_retained_messages(self, channel: Channel) -> None:
        publish(channel, b"a", b"b")
        answer = channel.call("queue.declare", "queue.declare-ok", queue="s", passive=True)
        assert answer["message_count"] == 2

    @pytest.mark.parametrize("start", ["soon", -5, True, 1.5], ids=str)
    def test_invalid_positions(self, site: Site, channel: Channel, start: Any) -> None:
        reader = site.channel()
        reader.qos(1)
        reader.send("basic.consume", queue="s", arguments={"x-stream-offset": start})
        reader.run()
        code, text = reader.client.refusal()
        assert code == 406
        assert "x-stream-offset" in text

    def test_without_a_prefetch(self, site: Site, channel: Channel) -> None:
        reader = site.channel()
        reader.send("basic.consume", queue="s")
        reader.run()
        code, text = reader.client.refusal()
        assert code == 406
        assert "basic.qos" in text

    @pytest.mark.parametrize(
        ("method", "arguments"),
        [
            ("basic.get", {"queue": "s"}),
            ("queue.purge", {"queue": "s"}),
            ("basic.consume", {"queue": "s", "no_ack": True}),
        ],
        ids=["get", "purge", "no-ack"],
    )
    def test_unsupported_operations(self, site: Site, channel: Channel, method: str, arguments: dict[str, Any]) -> None:
        other = site.channel()
        other.qos(1)
        other.send(method, **arguments)
        other.run()
        assert other.client.refusal()[0] == 540
        assert read(site).delivered() == []

    def test_deleting_cancels_readers(self, site: Site, channel: Channel) -> None:
        publish(channel, b"a", b"b")
        reader = read(site, prefetch=1)
        answer = channel.call("queue.delete", "queue.delete-ok", queue="s")
        assert answer["message_count"] == 2
        reader.ack(1)
        reader.run()
        assert reader.client.is_open


def receive(session: Session, credit: int = 100, **filters: Any) -> Receiver:
    """Return a link that reads the stream. Filters are given by the last part of their names."""
    described = {
        Symbol(name): Described(Symbol("rabbitmq:stream-" + name.replace("_", "-")), value)
        for name, value in filters.items()
    }
    return session.receiver(source=Source("s", filter=described), credit=credit)


class TestOver10:
    @pytest.fixture
    def session(self, site: Site, channel: Channel) -> Session:
        return connect(site).begin()

    def test_offsets_are_annotations(self, site: Site, channel: Channel, session: Session) -> None:
        session.sender("s").send(message(b"one"))
        publish(channel, b"two")
        receiver = receive(session, offset_spec="first")
        frames = receiver.deliveries()
        assert len(frames) == 2
        for number, frame in enumerate(frames):
            sections = split(frame.payload)
            annotations = frame.payload[sections.message_annotations : sections.message_annotations_end]
            value = b"\x81" + number.to_bytes(8, "big")  # a long
            assert encode_value(Symbol("x-stream-offset")) + value in annotations

    @pytest.mark.parametrize(
        ("start", "bodies"),
        [
            ("first", [b"0", b"1", b"2"]),
            (ULong(1), [b"1", b"2"]),
            ("next", []),
            (Timestamp(0), [b"0", b"1", b"2"]),
        ],
        ids=["first", "offset", "next", "timestamp"],
    )
    def test_start_positions(self, session: Session, start: Any, bodies: list[bytes]) -> None:
        sender = session.sender("s")
        for number in range(3):
            sender.send(message(b"%d" % number))
        receiver = receive(session, offset_spec=start)
        assert receiver.bodies() == bodies
        assert list(receiver.attached.source.filter) == ["offset_spec"]
        # Other readers see it too, regardless of its outcome.
        receiver.session.dispose(0, 2)
        assert receive(connect(session.client.site).begin(), offset_spec=start).bodies() == bodies

    def test_filters(self, channel: Channel, session: Session) -> None:
        publish(channel, b"red", headers={"x-stream-filter-value": "red"})
        publish(channel, b"blue", headers={"x-stream-filter-value": "blue"})
        publish(channel, b"none")
        annotated = b"\x00\x53\x72" + encode_value({Symbol("x-stream-filter-value"): "red"})
        session.sender("s").send(message(b"annotated", before=annotated))
        receiver = receive(session, offset_spec="first", filter=["red", "green"], match_unfiltered=True)
        assert receiver.bodies() == [b"red", b"none", b"annotated"]

    def test_they_are_ignored_by_other_queues(self, session: Session) -> None:
        described = {Symbol("o"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
        assert session.receiver(source=Source("q", filter=described)).attached.source.filter is None

    def test_invalid_positions(self, session: Session) -> None:
        described = {Symbol("o"): Described(Symbol("rabbitmq:stream-offset-spec"), "soon")}
        session.receiver(source=Source("s", filter=described))
        error = session.client.take(Detach).error
        assert error is not None and error.condition == "amqp:precondition-failed"

    def test_browsing_begins_with_the_first(self, session: Session) -> None:
        session.sender("s").send(message(b"m"))
        receiver = session.receiver(source=Source("s", distribution_mode="copy"), credit=5)
        assert receiver.bodies() == [b"m"]
