"""Class message in requests and responses, as Qpid's peers of 2007 number them: responses name their requests."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp0.commands import Method
from tests.broker.support import HeldLog
from tests.protocols.amqp09.support import Channel, Client
from tests.protocols.amqp09.test_message import count, unacked
from tests.protocols.support import Site
from tests.support.queues import classic

BIG = bytes(range(256)) * 2000


class Numbered(Client):
    def open_vhost(self, insist: bool = False) -> None:
        self.engine.use_requests()
        super().open_vhost(insist)


@pytest.fixture
def channel(site: Site) -> Channel:
    return channel_of(site)


def channel_of(site: Site) -> Channel:
    client = Numbered(site)
    client.open()
    channel = client.channel()
    channel.declare()
    return channel


def request(channel: Channel, name: str, **arguments: Any) -> int:
    """Send a request, and return its id."""
    return channel.client.engine.send(channel.number, name, arguments)


def responses(channel: Channel) -> list[tuple[str, int]]:
    """Remove and return the received responses, with their requests."""
    channel.run()
    found = [item for item in channel.client.received if isinstance(item, Method) and item.replied_first]
    channel.client.received = [item for item in channel.client.received if item not in found]
    return [(item.name.removeprefix("message."), item.replied_first) for item in found]


def transfers(channel: Channel) -> list[Method]:
    """Remove and return the received transfers."""
    channel.run()
    found = [item for item in channel.client.received if isinstance(item, Method) and item.name == "message.transfer"]
    channel.client.received = [item for item in channel.client.received if item not in found]
    return found


def consume(channel: Channel, **arguments: Any) -> None:
    request(channel, "message.consume", queue="q", destination="d", **arguments)
    ((name, _),) = responses(channel)
    assert name == "ok"


def put(channel: Channel, *bodies: bytes) -> None:
    for body in bodies:
        request(channel, "message.transfer", routing_key="q", body=(0, body))
    assert {name for name, _ in responses(channel)} == {"ok"}


def answer(channel: Channel, name: str, first: Method, last: Method | None = None, **arguments: Any) -> None:
    """Respond to one request, or to all up to another one."""
    engine = channel.client.engine
    for id in range(first.request, (last or first).request + 1):
        engine.send(channel.number, name, arguments, id)
    channel.run()


def test_a_reference(channel: Channel) -> None:
    opened = request(channel, "message.open", reference="r")
    by_reference = request(channel, "message.transfer", routing_key="q", body=(1, b"r"))
    inline = request(channel, "message.transfer", routing_key="q", body=(0, b"x"))
    append = request(channel, "message.append", reference="r", bytes=b"abc")
    checkpoint = request(channel, "message.checkpoint", reference="r", identifier="c")
    closed = request(channel, "message.close", reference="r")
    resume = request(channel, "message.resume", reference="r", identifier="c")
    assert responses(channel) == [
        ("ok", opened),
        ("ok", inline),
        ("ok", append),
        ("ok", checkpoint),
        ("ok", closed),
        ("ok", by_reference),
        ("offset", resume),
    ]


def test_a_mandatory_message(site: Site, channel: Channel) -> None:
    taken = request(channel, "message.transfer", routing_key="q", body=(0, b"x"), mandatory=True)
    rejected = request(channel, "message.transfer", routing_key="nowhere", body=(0, b"x"), mandatory=True)
    channel.run()
    method = channel.client.take("message.reject", 1)
    assert method is not None and method.replied_first == rejected
    assert method.arguments == {"code": 0, "text": "NO_ROUTE"}
    assert responses(channel) == [("ok", taken)] and count(site) == 1


def test_a_mandatory_message_that_only_a_history_gets(site: Site, channel: Channel) -> None:
    site.vhost.declare_exchange("news", "x-recent-history")
    request(channel, "message.transfer", destination="news", body=(0, b"x"), mandatory=True)
    channel.run()
    method = channel.client.take("message.reject", 1)
    assert method is not None and method.arguments == {"code": 0, "text": "NO_ROUTE"}


def test_a_get_behind_a_commit() -> None:
    log = HeldLog()
    channel = channel_of(Site(log))
    channel.call("queue.declare", "queue.declare-ok", queue="durable", durable=True)
    put(channel, b"1")
    log.held = True
    kept = request(channel, "message.transfer", routing_key="durable", body=(0, b"x"), delivery_mode=2)
    got = request(channel, "message.get", queue="q")
    empty = request(channel, "message.get", queue="q")
    assert responses(channel) == []
    log.release_all()
    assert responses(channel) == [("ok", kept), ("ok", got), ("empty", empty)]
    assert [item.arguments["body"] for item in transfers(channel)] == [(0, b"1")]


def test_transfers_are_answered_in_any_order(site: Site, channel: Channel) -> None:
    put(channel, b"1", b"2", b"3")
    consume(channel)
    one, two, three = transfers(channel)
    assert (one.arguments["mandatory"], two.request, three.request) == (False, one.request + 1, one.request + 2)
    answer(channel, "message.ok", two)
    assert unacked(site) == 2
    answer(channel, "message.reject", one, code=0, text="no")
    assert unacked(site) == 1
    channel.client.drop()
    assert count(site) == 1 and classic(site.vhost.queues["q"]).ready.backlog.head[0].message.body == b"3"


def test_an_answer_to_many(site: Site, channel: Channel) -> None:
    put(channel, b"1", b"2", b"3", b"4")
    consume(channel)
    arrived = transfers(channel)
    method = Method(4, 1, "message.ok", 120, 500, {})
    method.replied_first = arrived[1].request
    method.replied_last = arrived[2].request
    session = channel.client.session
    session.perform_method(session.channels[1], method)
    assert unacked(site) == 2
    answer(channel, "message.ok", arrived[0])
    answer(channel, "message.ok", arrived[3])
    assert unacked(site) == 0 and channel.refused() == 0


def test_responses_to_other_methods_are_ignored(site: Site, channel: Channel) -> None:
    request(channel, "message.open", reference="r")
    request(channel, "message.transfer", routing_key="q", body=(1, b"r"))
    for at in range(0, len(BIG), 100_000):
        request(channel, "message.append", reference="r", bytes=BIG[at : at + 100_000])
    request(channel, "message.close", reference="r")
    responses(channel)
    consume(channel)
    channel.run()
    arrived = [item for item in channel.client.received if isinstance(item, Method)]
    assert [item.name.removeprefix("message.") for item in (*arrived[:3], arrived[-1])] == [
        "open",
        "transfer",
        "append",
        "close",
    ]
    assert b"".join(item.arguments["bytes"] for item in arrived[2:-1]) == BIG
    for item in arrived:
        assert unacked(site) == (1 if item.request <= arrived[1].request else 0)
        answer(channel, "message.ok", item)
    assert unacked(site) == 0 and channel.refused() == 0


def test_a_client_that_keeps_checkpoints(site: Site, channel: Channel) -> None:
    put(channel, b"small")
    for at in range(2):
        request(channel, "message.open", reference="r")
        request(channel, "message.transfer", routing_key="q", body=(1, b"r"), message_id=str(at))
        for begin in range(0, len(BIG), 100_000):
            request(channel, "message.append", reference="r", bytes=BIG[begin : begin + 100_000])
        request(channel, "message.close", reference="r")
    responses(channel)
    consume(channel, filter={"x-resume": True})
    asked = [item for item in channel.client.received if isinstance(item, Method) and item.name == "message.resume"]
    assert len(asked) == 2
    channel.client.received.clear()
    # In a different order than requested.
    for method, id in ((asked[1], "1"), (asked[0], "0")):
        answer(channel, "message.offset", method, value=len(BIG) - 5)
        (transfer,) = transfers(channel)
        assert transfer.arguments["message_id"] == id
        append = channel.client.take("message.append", 1)
        assert append is not None and append.arguments["bytes"] == BIG[-5:]
        assert channel.client.take("message.close", 1) is not None
        answer(channel, "message.ok", transfer)
    assert unacked(site) == 1
