"""Messages whose header frames exceed the frame-max of their consumer: they can be neither sent nor split."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.amqp091 import content
from leveret.wire.amqp0.commands import Error
from leveret.wire.amqp10.encode import encode_pairs
from tests.protocols.amqp10.support import connect, make_site, message
from tests.protocols.support import Channel, Site, bytes_of, properties_of

SMALL = 4096
LONG = {"long": "x" * 20_000}
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def publisher(site: Site) -> Channel:
    return site.channel()


def small(site: Site) -> Channel:
    """A channel of a client that fails if it receives a frame larger than agreed."""
    channel = site.channel(frame_max=SMALL)
    assert channel.client.engine.frame_max == SMALL
    return channel


def bodies(channel: Channel, get: bool, no_ack: bool) -> list[bytes]:
    """Return the bodies that a consumer, or basic.get, receives, and acknowledge them."""
    found = []
    if get:
        while (got := channel.get(no_ack=no_ack)) is not None:
            found.append(bytes_of(got.body))
    else:
        channel.consume(tag="c", no_ack=no_ack)
        found = channel.delivered()
    if not no_ack:
        channel.ack(0, multiple=True)
        channel.run()
    assert not [item for item in channel.client.received if isinstance(item, Error)]
    assert channel.client.is_open
    return found


def send_10(site: Site, properties: dict[str, Any], body: bytes = b"big") -> None:
    """Send a message to the queue `q` over 1.0, where properties may be spread over frames."""
    section = b"\x00\x53\x74" + encode_pairs(list(properties.items()))
    connect(site).begin().sender("/queues/q").send(message(body, before=section))


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("get", [False, True], ids=["consume", "get"])
class TestHeadersOfAPublisher:
    def test_without_a_dead_letter_exchange_they_stay_for_other_consumers(
        self, site: Site, publisher: Channel, get: bool, no_ack: bool
    ) -> None:
        publisher.declare()
        publisher.publish(body=b"big", headers=LONG)
        publisher.publish(body=b"small")
        publisher.run()
        channel = small(site)
        assert bodies(channel, get, no_ack) == [b"small"]
        queue = site.vhost.queues["q"]
        assert (queue.ready_count, queue.unacked) == (1, 0)
        publisher.publish(body=b"next")
        publisher.run()
        assert (bodies(channel, get, no_ack) if get else channel.delivered()) == [b"next"]
        assert publisher.bodies() == [b"big"]

    def test_with_a_dead_letter_exchange_they_are_dead_lettered(
        self, site: Site, publisher: Channel, get: bool, no_ack: bool
    ) -> None:
        publisher.declare(arguments=DEAD_LETTERS)
        publisher.declare("dead")
        publisher.publish(body=b"big", headers=LONG)
        publisher.publish(body=b"small")
        publisher.run()
        assert bodies(small(site), get, no_ack) == [b"small"]
        dead = publisher.get("dead")
        assert dead is not None and properties_of(dead)["headers"]["x-death"][0]["reason"] == "rejected"
        queue = site.vhost.queues["q"]
        assert (queue.ready_count, queue.unacked) == (0, 0)

    def test_they_are_dead_lettered_once_if_they_return(
        self, site: Site, publisher: Channel, get: bool, no_ack: bool
    ) -> None:
        publisher.declare(arguments=DEAD_LETTERS)
        publisher.declare("dead", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
        publisher.publish(body=b"big", headers=LONG)
        publisher.run()
        client = small(site)
        if not get:
            client.consume("dead", tag="other", no_ack=no_ack)
        assert bodies(client, get, no_ack) == []
        assert bodies(small(site), get, no_ack) == []
        assert site.vhost.queues["dead" if get else "q"].ready_count == 1

    def test_a_message_of_amqp_1_0_with_properties_for_several_frames(
        self, site: Site, publisher: Channel, get: bool, no_ack: bool
    ) -> None:
        publisher.declare()
        send_10(site, {f"property {number}": "x" * 10_000 for number in range(15)})
        assert site.vhost.queues["q"].ready_count == 1
        assert bodies(publisher, get, no_ack) == []
        assert site.vhost.queues["q"].ready_count == 1


class TestRedelivery:
    def test_it_is_offered_once_to_each_channel_up_to_the_delivery_limit(self, site: Site, publisher: Channel) -> None:
        publisher.declare(durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
        publisher.publish(body=b"big", headers=LONG)
        publisher.run()
        for left in (1, 1, 0):
            assert bodies(small(site), False, False) == []
            assert site.vhost.queues["q"].ready_count == left

    def test_the_log_names_the_queue_at_a_bounded_rate(
        self, site: Site, publisher: Channel, caplog: pytest.LogCaptureFixture
    ) -> None:
        publisher.declare()
        for _ in range(250):
            publisher.publish(body=b"big", headers=LONG)
        publisher.run()
        assert bodies(small(site), False, False) == []
        lines = [record.getMessage() for record in caplog.records if "frame" in record.getMessage()]
        assert len(lines) == 1
        assert "queue 'q' in vhost '/'" in lines[0] and "20036 bytes" in lines[0] and "4096" in lines[0]

    @pytest.mark.parametrize(("size", "empty"), [(4500, 1), (100_000, 10)])
    def test_a_get_passes_many_of_them_in_pieces(self, site: Site, publisher: Channel, size: int, empty: int) -> None:
        """The larger their headers, the fewer it passes."""
        publisher.declare()
        for _ in range(20):
            publisher.publish(body=b"big", headers={"long": "x" * size})
        publisher.publish(body=b"small")
        publisher.run()
        channel = small(site)
        for _ in range(empty):
            assert channel.get() is None
        got = channel.get()
        assert got is not None and got.body == b"small"

    @pytest.mark.parametrize("arguments", [{"x-max-priority": 3}, {"x-single-active-consumer": True}])
    def test_queues_of_other_dispatchers(self, site: Site, publisher: Channel, arguments: dict[str, Any]) -> None:
        publisher.declare(arguments=arguments)
        for body, headers in ((b"1", LONG), (b"2", None), (b"3", LONG), (b"4", None)):
            publisher.publish(body=body, headers=headers)
        publisher.run()
        channel = small(site)
        channel.qos(1)
        channel.consume()
        assert channel.delivered() == [b"2"]
        channel.ack(0, multiple=True)
        assert channel.delivered() == [b"4"]
        channel.client.drop()
        assert publisher.bodies() == [b"1", b"3", b"4"]


class TestHeadersOfTheBroker:
    """Headers that the broker has added give way, if the message fits without them."""

    def die(self, publisher: Channel, times: int, **properties: Any) -> None:
        """Reject a message in a number of queues; it ends up in the queue `q`."""
        names = [f"{'d' * 200}{number}" for number in range(times)]
        for name, target in zip(names, [*names[1:], "q"], strict=True):
            publisher.declare(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
        publisher.declare()
        publisher.publish(names[0], b"dead", **properties)
        for name in names:
            publisher.send("basic.get", queue=name, no_ack=False)
            publisher.run()
            got: Any = publisher.client.take("basic.get-ok", 1)
            publisher.reject(got.arguments["delivery_tag"], requeue=False)
            publisher.run()

    def test_the_latest_deaths_that_fit_are_kept(self, site: Site, publisher: Channel) -> None:
        self.die(publisher, 12, headers={"own": "x" * 1000})
        channel = small(site)
        channel.consume()
        [delivery] = channel.deliveries()
        headers = properties_of(delivery)["headers"]
        names = [death["queue"][200:] for death in headers["x-death"]]
        assert names == [str(number) for number in range(11, 11 - len(names), -1)]
        assert 3 <= len(names) < 12
        assert len(delivery.header) > SMALL - 700  # another death would not fit
        assert headers["own"] == "x" * 1000 and headers["x-first-death-queue"].endswith("0")
        channel.client.drop()
        got = publisher.get()
        assert got is not None and len(properties_of(got)["headers"]["x-death"]) == 12

    @pytest.mark.parametrize("get", [False, True], ids=["consume", "get"])
    def test_without_room_for_a_death_the_headers_are_as_published(self, site: Site, publisher: Channel, get: bool) -> None:
        own = {"own": "x" * 3800}
        self.die(publisher, 1, headers=own, message_id="m")
        channel = small(site)
        if get:
            found: Any = channel.get()
        else:
            channel.consume()
            [found] = channel.deliveries()
        assert properties_of(found) == {"headers": own, "message_id": "m"}

    def test_an_offset_gives_way(self, site: Site, publisher: Channel) -> None:
        publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"})
        own = {"own": "x" * 4050}
        publisher.publish("s", headers=own)
        publisher.run()
        channel = small(site)
        channel.qos(10)
        channel.consume("s", arguments={"x-stream-offset": "first"})
        [delivery] = channel.deliveries()
        assert properties_of(delivery)["headers"] == own


class TestReadersOfCopies:
    """A stream cannot give the message to another consumer, and its consumer must not miss it."""

    def test_a_stream_consumer_loses_its_connection(self, site: Site, publisher: Channel) -> None:
        publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"})
        for body, headers in ((b"1", None), (b"2", LONG), (b"3", None)):
            publisher.publish("s", body, headers=headers)
        publisher.run()
        channel = small(site)
        channel.qos(10)
        channel.consume("s", arguments={"x-stream-offset": "first"})
        assert channel.delivered() == [b"1"]
        code, text = channel.client.refusal()
        assert code == 501
        assert "queue 's'" in text and "20036 bytes" in text and "4096" in text
        channel.client.drop()
        assert site.vhost.queues["s"].unacked == 0
        other = site.channel()
        other.qos(10)
        other.consume("s", arguments={"x-stream-offset": "first"})
        assert other.delivered() == [b"1", b"2", b"3"]

    def test_a_browser_loses_its_connection(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        for body, headers in ((b"1", None), (b"2", LONG), (b"3", None)):
            publisher.publish(body=body, headers=headers)
        publisher.run()
        channel = small(site)
        channel.consume(no_ack=True, arguments={"x-browse": True})
        assert channel.delivered() == [b"1"]
        assert channel.client.refusal()[0] == 501
        assert site.vhost.queues["q"].ready_count == 3


class TestPublishing:
    @pytest.mark.parametrize("excess, code", [(0, 0), (1, 501), (8, 501)])
    def test_a_header_frame_may_not_exceed_the_limit_at_all(
        self, site: Site, publisher: Channel, excess: int, code: int
    ) -> None:
        """Other frames may have 8 bytes more, but every consumer with the same limit must be able to receive a header."""
        publisher.declare()
        channel = small(site)
        # 14 bytes before the table, 4 of its size, and 12 around the text.
        channel.publish(body=b"m", headers={"long12": "x" * (SMALL - 8 - 14 - 4 - 12 + excess)})
        channel.run()
        assert channel.client.refusal()[0] == code
        assert bodies(small(site), False, False) == ([] if code else [b"m"])

    def test_returned_messages_fit(self, site: Site) -> None:
        channel = small(site)
        channel.publish("missing", headers={"long": "x" * 4000}, mandatory=True)
        channel.run()
        assert channel.client.take("basic.return", 1) is not None
        assert channel.client.is_open


def test_deaths_are_left_out_without_decoding_the_others(
    site: Site, publisher: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To decode 1,500 of them takes longer than a turn may."""
    publisher.declare()
    deaths = [{"queue": f"d{number}", "reason": "rejected", "count": 1} for number in range(1500)]
    publisher.publish(body=b"1", headers={"x-death": deaths, "own": "x"})
    publisher.run()
    channel = small(site)
    monkeypatch.setattr(content, "decode_header", lambda header: pytest.fail("it decodes a header"))
    channel.consume()
    [delivery] = channel.deliveries()
    kept = properties_of(delivery)["headers"]
    assert kept["own"] == "x" and kept["x-death"] == deaths[: len(kept["x-death"])]
    assert SMALL - 100 < len(delivery.header) <= SMALL - 8
