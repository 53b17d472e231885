"""Contents whose properties exceed the frame-max of their consumer, by content class."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp0.commands import Error
from tests.protocols.amqp09.contents import KINDS, consume, put, take
from tests.protocols.amqp09.support import Channel, Client
from tests.protocols.support import Site, properties_of

SMALL = 4096


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def publisher(site: Site) -> Channel:
    client = Client(site)
    client.open()
    channel = client.channel()
    channel.declare("dead")
    return channel


def small(site: Site) -> Channel:
    client = Client(site, frame_max=SMALL)
    client.open()
    assert client.engine.frame_max == SMALL
    return client.channel()


def headers(kind: str, size: int) -> dict[str, Any]:
    return {"application_headers" if kind == "message" else "headers": {"own": "x" * size}}


def check(channel: Channel) -> None:
    """Check that no frame was larger than agreed."""
    assert not [item for item in channel.client.received if isinstance(item, Error)]
    assert channel.client.is_open


@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "get"])
def test_they_are_left_to_other_consumers_or_dead_lettered(
    site: Site, publisher: Channel, kind: str, dead_letters: bool
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} if dead_letters else {}
    publisher.declare("q", arguments=arguments)
    of_class = "message" if kind == "get" else kind
    put(publisher, of_class, b"big", **headers(of_class, 20_000))
    put(publisher, of_class, b"small")
    channel = small(site)
    if kind == "get":
        channel.call("message.get", "message.ok", queue="q", destination="d")
    else:
        consume(channel, kind)
    taken = take(channel, of_class)
    assert taken is not None and taken[0] == b"small"
    assert take(channel, of_class) is None
    check(channel)
    if kind == "get":
        channel.call("message.get", "message.empty", queue="q", destination="d")
    queue = site.vhost.queues["q"]
    assert queue.ready_count == (0 if dead_letters else 1)
    dead = site.channel().get("dead")
    assert (dead is not None) == dead_letters
    if dead is not None:
        assert properties_of(dead)["headers"]["x-death"][0]["reason"] == "rejected"
    channel.client.drop()
    if not dead_letters:
        other = Client(site)
        other.open()
        receiver = other.channel()
        consume(receiver, of_class)
        bodies = [body for body, _ in iter(lambda: take(receiver, of_class), None)]
        # The one delivered above returns, unless its consumer needs no acknowledgement.
        assert bodies == ([b"big"] if kind == "stream" else [b"big", b"small"])


@pytest.mark.parametrize("kind", KINDS)
def test_deaths_give_way(site: Site, publisher: Channel, kind: str) -> None:
    publisher.declare("q" * 200, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    publisher.declare("q")
    put(publisher, kind, b"body", "q" * 200, **headers(kind, 3800))
    if kind == "message":
        publisher.call("message.get", "message.ok", queue="q" * 200, destination="d")
        publisher.send("message.reject", code=0, text="")
        publisher.run()
    else:
        queue = site.vhost.queues["q" * 200]
        entry = queue.get(False)
        assert entry is not None
        queue.reject(entry)
        publisher.run()
    channel = small(site)
    consume(channel, kind)
    taken = take(channel, kind)
    check(channel)
    assert taken is not None and taken[0] == b"body"
    table = taken[1]["application_headers" if kind == "message" else "headers"]
    assert table["own"] == "x" * 3800 and "x-death" not in table


@pytest.mark.parametrize(("kind", "queue_type"), [("file", "stream"), ("message", "stream"), ("message", "classic")])
def test_a_reader_of_copies_loses_its_connection(site: Site, publisher: Channel, kind: str, queue_type: str) -> None:
    """It must not miss the message unnoticed, because no other consumer gets its copy."""
    publisher.declare("q", durable=True, arguments={"x-queue-type": queue_type})
    for body, size in ((b"1", 10), (b"2", 20_000), (b"3", 10)):
        put(publisher, kind, body, **headers(kind, size))
    channel = small(site)
    channel.call(f"{kind}.qos", "message.ok" if kind == "message" else "file.qos-ok", prefetch_count=10)
    filter = {"x-stream-offset": "first"} if queue_type == "stream" else {"x-browse": True}
    consume(channel, kind, filter=filter, no_ack=queue_type == "classic")
    if kind == "message":
        taken = take(channel, kind)
        assert taken is not None and taken[0] == b"1"
    code, text = channel.client.refusal()
    assert code == 501
    assert "queue 'q'" in text and "frame-max" in text
    channel.client.drop()
    assert (site.vhost.queues["q"].ready_count, site.vhost.queues["q"].unacked) == (3, 0)
