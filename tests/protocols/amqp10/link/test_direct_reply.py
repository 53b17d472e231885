"""Direct reply-to: dynamic sources with the capability `rabbitmq:volatile-queue`, and the other side in 0-9-1."""

from __future__ import annotations

import pytest

from leveret.security.permissions import Permission
from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.messaging import Properties, Source
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Attach, Detach
from tests.protocols.amqp10.support import Client, Receiver, Session, body_of, connect, make_site, message
from tests.protocols.support import Channel, Site, bytes_of
from tests.protocols.support import properties_of as properties_of_0_9_1

SETTLED = 1
PREFIX = "/queues/amq.rabbitmq.reply-to."


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


@pytest.fixture
def channel(site: Site) -> Channel:
    return site.channel()


def replies(session: Session, credit: int = 10, *, settle_mode: int = SETTLED, source: Source | None = None) -> Receiver:
    wanted = source or Source(dynamic=True, expiry_policy="link-detach", capabilities=("rabbitmq:volatile-queue",))
    return session.receiver(None, credit, source=wanted, snd_settle_mode=settle_mode)


def address_of(receiver: Receiver) -> str:
    address = receiver.attached.source.address
    assert address.startswith(PREFIX)
    return str(address)


def request(reply_to: str, id: str = "request 1") -> bytes:
    return message(b"question", properties=Properties(id, reply_to=reply_to))


def properties_of(payload: bytes) -> Properties:
    found = sections_of.properties(split(payload))
    assert found is not None
    return found


def test_no_queue_is_created_without_permissions(site: Site) -> None:
    site.allow("user", "/", Permission())
    before = set(site.vhost.queues)
    session = connect(site).begin()
    replies(session)
    assert session.client.error(Detach)[0] == "amqp:unauthorized-access"
    assert set(site.vhost.queues) == before


def test_the_attach_describes_the_queue(site: Site, session: Session) -> None:
    one = replies(session)
    source = one.attached.source
    assert source.dynamic
    assert source.expiry_policy == "link-detach"
    assert list(source.capabilities) == ["rabbitmq:volatile-queue"]
    assert one.attached.snd_settle_mode == SETTLED
    assert address_of(one) != address_of(replies(session))
    assert address_of(one).removeprefix("/queues/") in site.vhost.queues


def test_a_request_and_its_answer(site: Site, session: Session) -> None:
    answers = replies(session)
    session.sender("requests").send(request(address_of(answers)))
    responder = connect(site, container="responder").begin()
    [asked] = responder.receiver("requests", 1).deliveries()
    reply_to = properties_of(asked.payload).reply_to
    assert reply_to == address_of(answers)
    relay = responder.sender(None)
    relay.send(message(b"by relay", properties=Properties(to=reply_to, correlation_id="request 1")))
    direct = responder.sender(reply_to)
    direct.send(message(b"by link", properties=Properties(correlation_id="request 1")))
    assert [outcome[-1] for outcome in relay.outcomes() + direct.outcomes()] == ["Accepted", "Accepted"]
    got = answers.deliveries()
    assert [body_of(frame.payload) for frame in got] == [b"by relay", b"by link"]
    assert all(frame.settled for frame in got)
    assert properties_of(got[0].payload).correlation_id == "request 1"


def test_request_over_1_0_and_reply_over_0_9_1(session: Session, channel: Channel) -> None:
    answers = replies(session)
    session.sender("requests").send(request(address_of(answers)))
    taken = channel.get("requests")
    assert taken is not None
    asked = properties_of_0_9_1(taken)
    assert asked["reply_to"] == address_of(answers).removeprefix("/queues/")
    channel.publish(asked["reply_to"], b"answer", correlation_id=asked["message_id"])
    channel.run()
    [frame] = answers.deliveries()
    assert body_of(frame.payload) == b"answer"
    assert properties_of(frame.payload).correlation_id == "request 1"


def test_request_over_0_9_1_and_reply_over_1_0(session: Session, channel: Channel) -> None:
    channel.declare("requests")
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.publish("requests", b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    channel.run()
    [asked] = session.receiver("requests", 1).deliveries()
    properties = properties_of(asked.payload)
    assert properties.reply_to.startswith(PREFIX)
    session.sender(properties.reply_to).send(message(b"answer", properties=Properties(correlation_id="1")))
    [answer] = channel.deliveries()
    assert bytes_of(answer.body) == b"answer"
    assert properties_of_0_9_1(answer)["correlation_id"] == "1"


def test_the_queue_is_deleted_with_its_link(site: Site, session: Session) -> None:
    answers = replies(session)
    name = address_of(answers).removeprefix("/queues/")
    answers.detach()
    assert name not in site.vhost.queues
    sender = session.sender(PREFIX + "gone")
    assert sender.attached.target is None
    assert session.client.error(Detach)[0] == "amqp:not-found"


def test_the_queue_is_deleted_with_its_connection(site: Site, session: Session) -> None:
    replies(session)
    before = len(site.vhost.queues)
    session.client.drop()
    assert len(site.vhost.queues) == before - 1


def test_other_links_cannot_get_the_replies(site: Site, session: Session) -> None:
    address = address_of(replies(session))
    thief = connect(site, container="thief").begin()
    assert thief.receiver(address, 1).attached.source is None
    condition, text = thief.client.error(Detach)
    assert condition == "amqp:unauthorized-access"
    assert "exclusive" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settle_mode": 0}, "settled"),
        ({"settle_mode": 2}, "settled"),
        ({"source": Source("mine", dynamic=True, capabilities=("rabbitmq:volatile-queue",))}, "address"),
    ],
    ids=["unsettled", "mixed", "address"],
)
def test_bad_attaches(site: Site, session: Session, options: dict[str, object], says: str) -> None:
    before = len(site.vhost.queues)
    assert replies(session, 0, **options).attached.source is None  # type: ignore[arg-type]
    condition, text = session.client.error(Detach)
    assert condition == "amqp:invalid-field"
    assert says in text
    assert len(site.vhost.queues) == before


def test_other_dynamic_sources_are_unchanged(session: Session) -> None:
    attached: Attach = session.receiver(None, source=Source(dynamic=True)).attached
    assert not attached.source.address.startswith(PREFIX)


def test_clients_may_have_many(site: Site) -> None:
    client: Client = connect(site)
    session = client.begin()
    addresses = {address_of(replies(session)) for _ in range(20)}
    assert len(addresses) == 20
