"""Transfers of a client, and their dispositions (transport section 2.6, messaging section 3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.message import FORMAT_AMQP1
from leveret.security.permissions import Permission
from leveret.wire.amqp10.messaging import Header, Properties, Rejected, Source, Target
from leveret.wire.amqp10.transport import Attach, Close, Detach, Disposition, End, Flow, Transfer
from tests.broker.support import HeldLog
from tests.protocols.amqp10.support import Client, Session, connect, make_site, message
from tests.protocols.support import Site, bytes_of
from tests.support.queues import classic


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def queued(site: Site, name: str = "q") -> list[bytes]:
    return [bytes_of(entry.message.body) for entry in classic(site.vhost.queues[name]).ready.backlog.head]


def test_a_message_is_stored_unchanged(site: Site, session: Session) -> None:
    annotations = b"\x00\x53\x72\xc1\x01\x00"
    footer = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x78\xd1\x00\x00\x00\x04\x00\x00\x00\x00"
    payload = message(b"body", durable=True, before=annotations, after=footer, properties=Properties("id"))
    sender = session.sender()
    sender.send(payload)
    assert sender.outcomes() == [(0, 0, True, "Accepted")]
    stored = classic(site.vhost.queues["q"]).ready.backlog.head[0].message
    assert stored.format == FORMAT_AMQP1
    assert stored.persistent
    assert stored.body == b"\x00\x53\x75\xb0\x00\x00\x00\x04body"
    body = payload.index(stored.body)
    assert stored.header == payload[:body] + footer
    assert stored.header[stored.headers_at :] == footer


def test_priority_and_ttl(site: Site, session: Session) -> None:
    session.sender().send(message(header=Header(priority=7, ttl=60000)))
    stored = classic(site.vhost.queues["q"]).ready.backlog.head[0].message
    assert stored.priority == 7
    assert not stored.persistent
    assert 59000 < stored.expires_at - site.broker.timers.now() <= 60000


def test_outcomes_are_sent_in_ranges(session: Session) -> None:
    sender = session.sender()
    for _ in range(5):
        sender.send(run=False)
    assert sender.outcomes() == [(0, 4, True, "Accepted")]


@pytest.mark.rule("1.0", "messaging.3.2.1.durable-kept")
def test_accepted_is_sent_after_the_commit() -> None:
    held = HeldLog()
    site = make_site(log=held)
    session = connect(site).begin()
    sender = session.sender()
    held.held = True
    sender.send()
    assert sender.outcomes() == [(0, 0, True, "Accepted")]
    sender.send(message(durable=True))
    sender.send()
    assert sender.outcomes() == []
    held.release()
    assert sender.outcomes() == [(1, 2, True, "Accepted")]


def test_settled_transfers_get_no_disposition(site: Site, session: Session) -> None:
    sender = session.sender()
    sender.send(settled=True)
    assert sender.outcomes() == []
    assert len(queued(site)) == 1


def test_an_unroutable_message_is_released(session: Session) -> None:
    sender = session.sender("/exchanges/amq.direct/nowhere")
    sender.send()
    assert sender.outcomes() == [(0, 0, True, "Released")]


@pytest.mark.parametrize("address", ["/topic/unknown", "topic://unknown"])
def test_topics_accept_everything(session: Session, address: str) -> None:
    sender = session.sender(address)
    sender.send()
    assert sender.outcomes() == [(0, 0, True, "Accepted")]


def test_a_full_queue_rejects(site: Site, session: Session) -> None:
    site.vhost.declare_queue("full", None, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    sender = session.sender("full")
    sender.send()
    sender.send()
    found = session.client.all(Disposition)
    assert isinstance(found[1].state, Rejected)
    assert found[1].state.error is not None
    assert found[1].state.error.condition == "amqp:resource-limit-exceeded"


def test_receiver_settle_mode_second(session: Session) -> None:
    sender = session.sender(rcv_settle_mode=1)
    assert sender.attached.rcv_settle_mode == 1
    sender.send()
    assert sender.outcomes() == [(0, 0, False, "Accepted")]
    endpoint = session.client.session.sessions.by_channel[0]
    assert endpoint.unsettled
    session.dispose(0, role=False)
    assert not endpoint.unsettled


def test_frames_are_joined(site: Site, session: Session) -> None:
    sender = session.sender()
    payload = message(b"abcdef")
    sender.part(payload[:5], delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    sender.part(payload[5:9], more=True)
    sender.part(payload[9:])
    assert sender.outcomes() == [(0, 0, True, "Accepted")]
    assert queued(site)[0].endswith(b"abcdef")


def test_an_aborted_delivery_is_forgotten(site: Site, session: Session) -> None:
    sender = session.sender()
    sender.part(b"\x00\x53", delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    sender.part(b"anything", aborted=True)
    session.next_id = 1
    sender.send()
    assert sender.outcomes() == [(1, 1, True, "Accepted")]
    assert len(queued(site)) == 1


def test_settled_in_the_last_frame(session: Session) -> None:
    sender = session.sender(snd_settle_mode=1)
    payload = message(b"abcdef")
    sender.part(payload[:5], delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    sender.part(payload[5:], settled=True)
    assert sender.outcomes() == []
    assert session.client.find(Detach) is None


def test_an_unknown_resumed_delivery_is_ignored(site: Site, session: Session) -> None:
    sender = session.sender()
    sender.send(resume=True)
    assert queued(site) == []
    assert session.client.find(Detach) is None


def refused(session: Session) -> str:
    return session.client.error(Detach)[0]


def test_a_message_that_cannot_be_read(session: Session) -> None:
    session.sender().send(b"\x00\x53\x75\x40")
    assert refused(session) == "amqp:decode-error"


@pytest.mark.rule("1.0", "transport.2.6.7.limit-kept")
@pytest.mark.rule("1.0", "transport.2.6.7.no-credit-no-transfer")
@pytest.mark.rule("1.0", "transport.link-error.transfer-limit-exceeded.choice")
def test_more_than_the_credit() -> None:
    session = connect(make_site(link_credit=3)).begin()
    sender = session.sender()
    assert sender.credit == 3
    for _ in range(3):
        sender.part(message(), delivery_id=session.next_id, delivery_tag=b"%d" % session.next_id, more=True)
        sender.part(b"", aborted=True)
        session.next_id += 1
    session.client.run()
    # It got credit again when half of it was used.
    assert session.client.all(Flow)
    endpoint = session.client.session.sessions.by_channel[0]
    endpoint.handles[0].credit = 0
    sender.send()
    assert refused(session) == "amqp:link:transfer-limit-exceeded"


def test_no_credit_during_an_alarm() -> None:
    site = make_site(link_credit=4)
    session = connect(site).begin()
    site.services.set_alarm("memory")
    sender = session.sender()
    assert sender.credit == 0
    site.services.set_alarm("")
    session.client.run()
    assert session.client.take(Flow).link_credit == 4


def test_an_alarm_withdraws_credit(site: Site, session: Session) -> None:
    sender = session.sender()
    site.services.set_alarm("memory")
    session.client.run()
    assert session.client.take(Flow).link_credit == 0
    # It may have been on its way already.
    sender.send()
    assert sender.outcomes() == [(0, 0, True, "Accepted")]
    site.services.set_alarm("")
    session.client.run()
    assert (session.client.take(Flow).link_credit or 0) > 0


def test_a_message_that_is_too_large() -> None:
    session = connect(make_site(max_message_size=100)).begin()
    sender = session.sender()
    assert sender.attached.max_message_size == 100
    sender.send(message(b"x" * 200))
    assert refused(session) == "amqp:link:message-size-exceeded"
    # Others are not concerned.
    other = session.sender("other")
    other.send(delivery_id=1)
    assert other.outcomes() == [(1, 1, True, "Accepted")]


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"delivery_id": None, "delivery_tag": b"t"}, "amqp:invalid-field"),
        ({"delivery_id": 0, "delivery_tag": None}, "amqp:invalid-field"),
        ({"delivery_id": 0, "delivery_tag": b"t" * 33}, "amqp:invalid-field"),
        ({"delivery_id": 0, "delivery_tag": b"t", "message_format": 77}, "amqp:not-implemented"),
        ({"delivery_id": 0, "delivery_tag": b"t", "rcv_settle_mode": 1}, "amqp:invalid-field"),
    ],
)
def test_illegal_transfers(session: Session, fields: dict[str, Any], condition: str) -> None:
    session.sender().part(message(), **fields)
    assert refused(session) == condition


@pytest.mark.parametrize(("mode", "settled"), [(0, True), (1, False)])
def test_the_sender_settle_mode_is_kept(session: Session, mode: int, settled: bool) -> None:
    session.sender(snd_settle_mode=mode).send(settled=settled)
    assert refused(session) == "amqp:not-allowed"


def test_another_delivery_id_within_a_delivery(session: Session) -> None:
    sender = session.sender()
    sender.part(b"\x00", delivery_id=0, delivery_tag=b"t", more=True)
    sender.part(b"\x53", delivery_id=1)
    assert refused(session) == "amqp:invalid-field"


def test_transfers_after_a_refusal_are_discarded(site: Site, session: Session) -> None:
    sender = session.sender()
    sender.send(b"\xff", run=False)
    sender.send(run=False)
    session.client.run()
    assert refused(session) == "amqp:decode-error"
    assert queued(site) == []
    session.client.send(Detach(sender.handle, True))
    assert session.sender(handle=sender.handle).attached.target is not None


@pytest.mark.rule("1.0", "transport.session-error.errant-link.choice")
def test_strict_mode_ends_the_session_then() -> None:
    session = connect(make_site(strict=True)).begin()
    sender = session.sender("q")
    sender.send(b"\xff", run=False)
    sender.send(run=False)
    assert session.client.error(End)[0] == "amqp:session:errant-link"


def test_a_handle_without_a_link(session: Session) -> None:
    session.client.send(Transfer(9, 0, b"t", 0))
    assert session.client.error(End)[0] == "amqp:session:unattached-handle"


def test_a_handle_that_is_in_use(session: Session) -> None:
    session.sender(handle=3)
    session.client.send(Attach("other", 3, False))
    assert session.client.error(End)[0] == "amqp:session:handle-in-use"


def test_a_handle_above_handle_max() -> None:
    session = connect(make_site(links=2)).begin()
    assert session.begun.handle_max == 1
    session.client.send(Attach("other", 2, False))
    assert session.client.error(Close)[0] == "amqp:connection:framing-error"


@pytest.mark.rule("1.0", "transport.session-error.window-violation.choice")
def test_more_than_the_window() -> None:
    session = connect(make_site()).begin()
    endpoint = session.client.session.sessions.by_channel[0]
    endpoint.incoming_window = 0
    session.sender().send()
    assert session.client.error(End)[0] == "amqp:session:window-violation"


def test_the_window_opens_again(session: Session) -> None:
    sender = session.sender()
    window = session.begun.incoming_window
    for _ in range(window // 2):
        sender.part(b"", delivery_id=0, delivery_tag=b"t", more=True)
    found = [flow for flow in session.client.all(Flow) if flow.handle is None]
    assert found[-1].incoming_window == window
    assert found[-1].next_incoming_id == window // 2


def test_a_transfer_on_the_wrong_link(session: Session) -> None:
    receiver = session.receiver()
    session.client.send(Transfer(receiver.handle, 0, b"t", 0))
    assert session.client.error(End)[0] == "amqp:not-allowed"


def test_the_subject_is_the_key(site: Site, session: Session) -> None:
    queue = site.vhost.declare_queue("bound", None)
    site.vhost.bind(queue, "amq.direct", "key", {})
    sender = session.sender("/exchanges/amq.direct")
    sender.send(message(properties=Properties(subject="key")))
    sender.send(message(properties=Properties(subject="other")))
    assert sender.outcomes() == [(0, 0, True, "Accepted"), (1, 1, True, "Released")]


@pytest.mark.rule("1.0", "transport.amqp-error.precondition-failed.choice")
def test_the_anonymous_terminus(site: Site, session: Session) -> None:
    site.vhost.declare_queue("one", None)
    sender = session.sender(None)
    assert sender.attached.target.address is None
    for to in ("/queues/one", "one", "/queues/none", None, "/queues/a/b", "/exchanges/none/k"):
        sender.send(message(properties=Properties(to=to)))
    states = [frame.state for frame in session.client.all(Disposition)]
    assert [type(state).__name__ for state in states] == ["Accepted"] * 2 + ["Rejected"] * 4
    assert [state.error.condition for state in states[2:]] == [
        "amqp:not-found",
        "amqp:precondition-failed",
        "amqp:invalid-field",
        "amqp:not-found",
    ]
    assert len(queued(site, "one")) == 2


def test_the_anonymous_terminus_of_a_source_without_rejected(session: Session) -> None:
    sender = session.sender(None, source=Source("here", outcomes=("amqp:accepted:list",)))
    sender.send(message(properties=Properties(to="/queues/none")))
    assert refused(session) == "amqp:not-found"


def test_user_id(session: Session) -> None:
    sender = session.sender()
    sender.send(message(properties=Properties(user_id=b"user")))
    sender.send(message(properties=Properties(user_id=b"other")))
    states = [frame.state for frame in session.client.all(Disposition)]
    assert type(states[0]).__name__ == "Accepted"
    assert states[1].error.condition == "amqp:unauthorized-access"


def test_permissions(site: Site) -> None:
    site.allow("user", "/", Permission("", "^mine$", ""))
    session = connect(site).begin()
    for address in ("new", "/exchanges/amq.direct/k", "/queues/mine"):
        assert session.sender(address).attached.target is None, address
        assert refused(session) in ("amqp:unauthorized-access", "amqp:not-found")


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("address", ["q", "/queues/q", "queue://q"])
def test_a_queue_deleted_while_a_client_sends(site: Site, session: Session, address: str, settled: bool) -> None:
    site.vhost.declare_queue("q", None)
    sender = session.sender(address)
    sender.send(settled=settled)
    site.vhost.delete_queue("q", None)
    assert sender.outcomes() == ([] if settled else [(0, 0, True, "Accepted")])
    session.client.run()
    detach = session.client.take(Detach)
    sender.send(settled=settled)  # in flight when the broker detaches the link
    assert not session.client.received
    assert detach.closed and detach.error is not None
    assert (detach.error.condition, detach.error.description) == (
        "amqp:resource-deleted",
        "queue 'q' in vhost '/' was deleted",
    )
    assert session.sender("q", name="again").attached is not None  # which declares it again


@pytest.mark.parametrize("kind", ["queue", "exchange"])
@pytest.mark.parametrize("kept", [False, True])
def test_all_senders_to_a_deleted_node_are_detached(site: Site, session: Session, kind: str, kept: bool) -> None:
    vhost = site.vhost
    vhost.declare_queue("n", None)
    vhost.declare_exchange("n", "fanout")
    vhost.declare_queue("other", None)
    address = f"/{kind}s/n"
    target = Target(address, expiry_policy="never" if kept else "session-end")
    left = session.sender(target=target, name="left")
    left.detach(closed=False)
    senders = [session.sender(target=target, name=f"link {number}") for number in range(3)]
    others = [session.sender(other) for other in ("/queues/other", "/exchanges/amq.fanout", None)]
    if kind == "queue":
        vhost.delete_queue("n", None)
    else:
        vhost.delete_exchange("n")
    session.client.run()
    detached = session.client.all(Detach)
    assert {(frame.closed, frame.error.condition, frame.error.description) for frame in detached if frame.error} == {
        (not kept, "amqp:resource-deleted", f"{kind} 'n' in vhost '/' was deleted")
    }
    assert len(detached) == len(senders)
    for sender in others[:2]:
        sender.send()
        assert sender.outcomes()[0][3] in ("Accepted", "Released")
    assert session.sender(target=target, name="left").attached.target is None  # its node is missing
    assert refused(session) == "amqp:not-found"


@pytest.mark.parametrize("address", ["$cbs", "$management", "queue://$cbs", "/queue/$cbs"])
def test_no_queue_is_created_for_a_service_of_other_brokers(site: Site, session: Session, address: str) -> None:
    """Azure's clients would send their token there, and it would stay on disk."""
    for role in (False, True):
        session.attach(f"link {role}", role, source=Source(address), target=Target(address), initial_delivery_count=0)
        detach = session.client.take(Detach)
        assert detach.error is not None and detach.error.condition == "amqp:not-found"
        assert "claims-based security" in str(detach.error.description)
    relay = session.sender(None)
    relay.send(message(b"token", properties=Properties(to=address)))
    [disposition] = session.client.all(Disposition)
    assert isinstance(disposition.state, Rejected) and disposition.state.error is not None
    assert disposition.state.error.condition == "amqp:not-found"
    assert not site.vhost.queues
    site.vhost.declare_queue("$cbs", None)
    sender = session.sender("$cbs", name="declared")
    sender.send()
    assert sender.outcomes() == [(1, 1, True, "Accepted")]


def test_other_clients_are_not_concerned_by_garbage(site: Site) -> None:
    good = connect(site).begin().sender()
    bad = Client(site)
    bad.open()
    bad.session.data_received(b"\xff" * 64)
    assert bad.error(Close)[0] == "amqp:connection:framing-error"
    good.send()
    assert good.outcomes() == [(0, 0, True, "Accepted")]


def test_deliveries_that_are_not_complete() -> None:
    """Together they use at most as much memory as one message may."""
    session = connect(make_site(max_message_size=3 << 20)).begin()
    one, two = session.sender("one"), session.sender("two")
    piece = b"x" * 100_000
    for number in range(20):
        for sender in (one, two):
            if session.client.find(Detach) is None:
                sender.part(
                    piece,
                    delivery_id=sender.handle if number == 0 else None,
                    delivery_tag=b"t" if number == 0 else None,
                    more=True,
                )
                session.client.run()
    connection = session.client.session
    assert 1 << 20 < connection.partial <= 2_000_000
    for sender in (one, two):
        session.client.send(Detach(sender.handle, True))
    session.client.run()
    assert connection.partial == 0


def test_unsettled_deliveries_limit_credit() -> None:
    session = connect(make_site(link_credit=10)).begin()
    endpoint = session.client.session.sessions.by_channel[0]
    sender = session.sender(rcv_settle_mode=1)
    endpoint.unsettled.update(dict.fromkeys(range(1000, 1000 + 20_000)))
    for _ in range(10):
        sender.send()
    assert session.client.find(Flow) is None
    session.dispose(1000, 22_000, role=False)
    assert session.client.take(Flow).link_credit == 10


def test_a_sender_may_skip_deliveries(session: Session) -> None:
    """It advances the delivery-count, and the limit that the credit sets stays where it is; it cannot go back."""
    sender = session.sender()
    for count, current in ((30, 30), (10, 30), (40, 40)):
        session.client.send(Flow(1000, 0, 1000, 0, sender.handle, count, echo=True, channel=session.channel))
        session.client.run()
        state = session.client.all(Flow)[-1]
        assert (state.delivery_count, state.link_credit) == (current, sender.credit - current)
