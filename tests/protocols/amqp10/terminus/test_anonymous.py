"""The anonymous terminus: a message is treated as if a link to its address had been attached."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.security.permissions import Permission
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Properties, Source, Target
from leveret.wire.amqp10.transport import Detach, Disposition
from leveret.wire.amqp10.values import Byte, Symbol
from tests.protocols.amqp10.support import Client, Session, connect, make_site, message
from tests.protocols.support import Site


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def to(address: str, kind: int | None = None, body: bytes = b"m") -> bytes:
    before = b""
    if kind is not None:
        before = b"\x00\x53\x72" + encode_pairs([(Symbol("x-opt-a"), [1]), (Symbol("x-opt-jms-dest"), Byte(kind))])
    return message(body, before=before, properties=Properties(to=address))


def outcomes(client: Client) -> list[Any]:
    return [frame.state for frame in client.all(Disposition)]


def test_a_rejected_message_is_named_by_its_tag(session: Session) -> None:
    sender = session.sender(None)
    sender.send(to("/queues/none"), delivery_tag=b"which")
    [state] = outcomes(session.client)
    assert state.error.condition == "amqp:not-found"
    assert state.error.info == {"delivery-tag": b"which"}


@pytest.mark.parametrize(
    ("settled", "source"), [(True, Source("here")), (None, Source("here", outcomes=("amqp:accepted:list",)))]
)
@pytest.mark.parametrize("address", ["/queues/none", "/queues/a/b", "/exchanges/none/k", "/exchanges/secret/k"])
def test_the_error_that_ends_the_link_has_the_tag(site: Site, settled: bool | None, source: Source, address: str) -> None:
    site.vhost.declare_exchange("secret", "direct")
    site.allow("user", "/", Permission(".*", "^(?!secret).*", ".*"))
    session = connect(site).begin()
    sender = session.sender(None, source=source)
    sender.send(to(address), settled=settled, delivery_tag=b"which")
    error = session.client.take(Detach).error
    assert error is not None and error.info == {"delivery-tag": b"which"}


def test_errors_of_other_links_have_no_tag(site: Site, session: Session) -> None:
    site.vhost.declare_queue("full", None, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    session.sender("full").send()
    [state] = outcomes(session.client)
    assert state.error.condition == "amqp:resource-limit-exceeded"
    assert state.error.info is None


def test_a_queue_is_created_as_by_a_link(site: Site, session: Session) -> None:
    sender = session.sender(None)
    for address in ("new", "/queue/newer", "queue://newest"):
        sender.send(to(address))
    assert {type(state).__name__ for state in outcomes(session.client)} == {"Accepted"}
    assert {name: site.vhost.queues[name].durable for name in ("new", "newer", "newest")} == dict.fromkeys(
        ("new", "newer", "newest"), True
    )


@pytest.mark.parametrize("options", [{}, {"auto_create": False}])
def test_a_queue_is_not_created_without_permission(options: dict[str, Any]) -> None:
    site = make_site(**options)
    if not options:
        site.allow("user", "/", Permission("", ".*", ".*"))
    session = connect(site).begin()
    session.sender(None).send(to("new"))
    [state] = outcomes(session.client)
    link = session.sender("new")
    assert link.attached.target is None
    refused = session.client.take(Detach).error
    assert refused is not None
    assert (state.error.condition, state.error.description) == (refused.condition, refused.description)
    assert "new" not in site.vhost.queues


@pytest.mark.parametrize(("kind", "queues", "topics"), [(0, 1, 0), (1, 0, 1), (None, 0, 1), (9, 0, 1), (-1, 0, 1)])
def test_jms_destinations_determine_the_kind_of_a_name(
    site: Site, session: Session, kind: int | None, queues: int, topics: int
) -> None:
    site.vhost.declare_exchange("name", "fanout")
    site.vhost.declare_queue("bound", None)
    site.vhost.bind(site.vhost.queues["bound"], "name", "", {})
    session.sender(None).send(to("name", kind))
    assert [type(state).__name__ for state in outcomes(session.client)] == ["Accepted"]
    assert site.vhost.queues["bound"].ready_count == topics
    created = site.vhost.queues.get("name")
    assert (created.ready_count if created is not None else 0) == queues


def test_a_jms_topic_accepts_messages_without_subscribers(site: Site, session: Session) -> None:
    receiver = session.receiver(source=Source("news", capabilities=("topic",)), credit=5)
    session.sender(None).send(to("news", 1))
    session.sender(None).send(to("olds", 1))
    assert [type(state).__name__ for state in outcomes(session.client)] == ["Accepted"] * 2
    assert receiver.bodies() == [b"m"]
    assert not {"news", "olds"} & set(site.vhost.queues)


def test_temporary_queues_of_jms_are_not_created_by_name(site: Site, session: Session) -> None:
    session.sender(None).send(to("gone", 2))
    [state] = outcomes(session.client)
    assert state.error.condition == "amqp:not-found"
    assert "gone" not in site.vhost.queues


def test_a_queue_that_is_exclusive_to_another_accepts_replies(site: Site, session: Session) -> None:
    site.vhost.declare_queue("answers", object(), exclusive=True)
    session.sender(None).send(to("/queues/answers"))
    session.sender("/queues/answers").send()
    assert [type(state).__name__ for state in outcomes(session.client)] == ["Accepted"] * 2
    assert site.vhost.queues["answers"].ready_count == 2


class TestTemporaryTopics:
    @pytest.mark.parametrize("receives", [True, False])
    def test_its_address_ends_with_its_link(self, site: Site, session: Session, receives: bool) -> None:
        other = connect(site, container="other").begin()
        if receives:
            link: Any = session.receiver(source=Source(None, dynamic=True, capabilities=("temporary-topic",)))
            address = link.attached.source.address
        else:
            link = session.sender(target=Target(None, dynamic=True, capabilities=("temporary-topic",)))
            address = link.attached.target.address
        early = other.sender(address)
        other.receiver(address, credit=1)
        relay = other.sender(None)
        early.send()
        relay.send(to(address))
        assert [type(state).__name__ for state in outcomes(other.client)] == ["Accepted"] * 2
        assert site.protocols.amqp10.termini.topics
        link.detach()
        assert not site.protocols.amqp10.termini.topics
        relay.send(to(address))
        [state] = outcomes(other.client)
        assert state.error.condition == "amqp:not-found"
        assert other.client.error(Detach)[0] == "amqp:resource-deleted"  # of the early sender
        for again in (other.sender(address), other.receiver(address)):
            attached = again.attached
            assert (attached.target if attached.role else attached.source) is None
            assert other.client.error(Detach)[0] == "amqp:not-found"

    def test_it_ends_with_the_connection(self, site: Site, session: Session) -> None:
        sender = session.sender(target=Target(None, dynamic=True, capabilities=("temporary-topic",)))
        address = sender.attached.target.address
        session.client.drop()
        other = connect(site, container="other").begin()
        assert other.sender(address).attached.target is None
        assert not site.protocols.amqp10.termini.topics

    def test_a_refused_link_leaves_no_topic(self, site: Site) -> None:
        site.allow("user", "/", Permission(".*", "", ""))
        session = connect(site).begin()
        session.sender(target=Target(None, dynamic=True, capabilities=("temporary-topic",)))
        session.receiver(source=Source(None, dynamic=True, capabilities=("temporary-topic",)))
        assert not site.protocols.amqp10.termini.topics

    def test_other_keys_of_the_topic_exchange_are_no_temporary_topics(self, session: Session) -> None:
        session.sender("topic://amq.generic").send()
        assert [type(state).__name__ for state in outcomes(session.client)] == ["Accepted"]
