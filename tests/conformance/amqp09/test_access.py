"""Class access, and the ticket that every method carries: a virtual host with realms (`conftest`).

A ticket without the required access is refused with 403 on the channel, a ticket of another channel with 530 on the
connection.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp09.conftest import CLOSED, OWN, REALM, RIGHTS, SHARED, UNKNOWN, Connect, ticket
from tests.support.peers.amqp09 import Channel
from tests.support.peers.codec09 import INLINE, Body

Guarded = Callable[[], Channel]


@pytest.fixture
def own(name: str) -> str:
    """A name in the realm in which `guest` has every right."""
    return f"own.{name}"


def prepare(channel: Channel, name: str) -> None:
    """A queue and an exchange of that name."""
    number = ticket(channel, "active")
    channel.queue(name, ticket=number)
    channel.exchange(name, ticket=number)


@pytest.mark.rule("0-9", "access.request.realm.validity")
@pytest.mark.rule("0-9", "access-refused.constant")
@pytest.mark.rule("0-9", "access.request.realm.validity.reply-code")
@pytest.mark.rule("0-9", "access.request.text.refused")
def test_unknown_and_inaccessible_realms_are_refused_alike(guarded: Guarded) -> None:
    texts = []
    for realm in (UNKNOWN, CLOSED):
        channel = guarded()
        channel.send("access.request", realm=realm, active=True)
        closed = channel.peer.expect_end(403, "access.request")
        texts.append(closed.reply_text.replace(realm, "REALM"))
    assert texts[0] == texts[1]


@pytest.mark.rule("0-9", "access.request.realm.validity")
def test_a_known_realm_is_granted(guarded: Guarded) -> None:
    channel = guarded()
    first = ticket(channel, *RIGHTS[1:])
    second = ticket(channel, "read", realm=SHARED)
    assert first and second and first != second


@pytest.mark.rule("0-9", "access.request.exclusive.validity")
@pytest.mark.rule("0-9", "access.request.exclusive.validity.reply-code")
@pytest.mark.parametrize("first", [("exclusive", "read"), ("read",)], ids=["exclusive", "shared"])
@pytest.mark.rule("0-9", "access.request.exclusive.text.alone")
def test_exclusive_access_is_limited_to_one_channel(connect: Connect, first: tuple[str, ...], name: str) -> None:
    peer = connect(REALM)
    holder, channel = peer.open(1), peer.open(2)
    ticket(holder, *first, realm=SHARED)
    channel.send("access.request", realm=SHARED, exclusive=True, read=True)
    peer.expect_end(403, "access.request")


@pytest.mark.rule("0-9", "access.request.exclusive.validity")
@pytest.mark.rule("0-9", "access.request.exclusive.validity.reply-code")
def test_the_channel_with_the_only_ticket_may_have_it_exclusive(guarded: Guarded) -> None:
    channel = guarded()
    ticket(channel, "read", realm=SHARED)
    ticket(channel, "exclusive", "read", realm=SHARED)
    # Another channel is refused until that channel is closed.
    other = guarded()
    other.send("access.request", realm=SHARED, read=True)
    other.peer.expect_end(403, "access.request")
    channel.close()
    other = guarded()
    ticket(other, "exclusive", "read", realm=SHARED)
    other.close()


@pytest.mark.rule("0-9", "access.request-ok.per-channel")
@pytest.mark.rule("0-9", "not-allowed.constant")
@pytest.mark.rule("0-9", "access.request-ok.per-channel.reply-code")
def test_a_ticket_of_another_channel_is_not_allowed(connect: Connect, own: str) -> None:
    peer = connect(REALM)
    first, second = peer.open(1), peer.open(2)
    number = ticket(first, "active")
    second.send("queue.declare", queue=own, ticket=number)
    peer.expect_end(530, "queue.declare")
    assert not connect().open().exists(own)


@pytest.mark.rule("0-9", "access.request-ok.per-channel")
@pytest.mark.rule("0-9", "access.request-ok.per-channel.reply-code")
def test_tickets_are_checked_without_realms_too(connect: Connect, name: str) -> None:
    peer = connect()
    first, second = peer.open(1), peer.open(2)
    number = ticket(first, "active", realm=f"/{name}")
    first.queue(name, ticket=number)
    second.send("queue.declare", queue=name, ticket=number)
    peer.expect_end(530, "queue.declare")


# The right that each method requires, and a call that is granted with it.
TICKETED = [
    pytest.param(
        "exchange.declare",
        "active",
        {"exchange": "NAME.new", "type": "direct"},
        marks=pytest.mark.rule("0-9", "exchange.declare.ticket.validity"),
        id="exchange.declare",
    ),
    pytest.param(
        "exchange.declare",
        "passive",
        {"exchange": "NAME", "type": "direct", "passive": True},
        marks=pytest.mark.rule("0-9", "exchange.declare.ticket.validity"),
        id="exchange.declare-passive",
    ),
    pytest.param(
        "exchange.delete",
        "active",
        {"exchange": "NAME"},
        marks=pytest.mark.rule("0-9", "exchange.delete.ticket.validity"),
        id="exchange.delete",
    ),
    pytest.param(
        "queue.declare",
        "active",
        {"queue": "NAME.new"},
        marks=pytest.mark.rule("0-9", "queue.declare.ticket.validity"),
        id="queue.declare",
    ),
    pytest.param(
        "queue.purge", "read", {"queue": "NAME"}, marks=pytest.mark.rule("0-9", "queue.purge.ticket.01"), id="queue.purge"
    ),
    pytest.param(
        "basic.consume",
        "read",
        {"queue": "NAME"},
        marks=pytest.mark.rule("0-9", "basic.consume.ticket.01"),
        id="basic.consume",
    ),
    pytest.param(
        "basic.get", "read", {"queue": "NAME"}, marks=pytest.mark.rule("0-9", "basic.get.ticket.01"), id="basic.get"
    ),
    pytest.param(
        "basic.publish",
        "write",
        {"exchange": "NAME"},
        marks=pytest.mark.rule("0-9", "basic.publish.ticket.01"),
        id="basic.publish",
    ),
    pytest.param(
        "file.consume",
        "read",
        {"queue": "NAME"},
        marks=pytest.mark.rule("0-9", "file.consume.ticket.01"),
        id="file.consume",
    ),
    pytest.param(
        "file.publish",
        "write",
        {"exchange": "NAME", "identifier": "NAME"},
        marks=pytest.mark.rule("0-9", "file.publish.ticket.01"),
        id="file.publish",
    ),
    pytest.param(
        "stream.consume",
        "read",
        {"queue": "NAME"},
        marks=pytest.mark.rule("0-9", "stream.consume.ticket.01"),
        id="stream.consume",
    ),
    pytest.param(
        "stream.publish",
        "write",
        {"exchange": "NAME"},
        marks=pytest.mark.rule("0-9", "stream.publish.ticket.01"),
        id="stream.publish",
    ),
    pytest.param(
        "message.consume",
        "read",
        {"queue": "NAME", "destination": "d"},
        marks=pytest.mark.rule("0-9", "message.consume.ticket.01"),
        id="message.consume",
    ),
    pytest.param(
        "message.get",
        "read",
        {"queue": "NAME", "destination": "d"},
        marks=pytest.mark.rule("0-9", "message.get.ticket.01"),
        id="message.get",
    ),
    pytest.param(
        "message.transfer",
        "write",
        {"destination": "NAME", "body": Body(INLINE, b"x")},
        marks=pytest.mark.rule("0-9", "message.transfer.ticket.01"),
        id="message.transfer",
    ),
]
ANSWERS = {
    "basic.get": "basic.get-empty",
    "basic.publish": "",
    "stream.publish": "",
    "file.publish": "",
    "message.consume": "message.ok",
    "message.get": "message.empty",
    "message.transfer": "message.ok",
}


def call(channel: Channel, name: str, fields: dict[str, object], own: str, number: int) -> None:
    """Make the call with this ticket, with a content for methods that have one."""
    given = {key: value.replace("NAME", own) if isinstance(value, str) else value for key, value in fields.items()}
    if name == "file.publish":
        channel.stage(own, b"x")
    channel.send(name, ticket=number, **given)
    if name in ("basic.publish", "stream.publish"):
        channel.peer.send_bytes(channel.peer.content_frames(channel.number, name.split(".")[0], b"x", {}))


@pytest.mark.parametrize(("method", "right", "fields"), TICKETED)
@pytest.mark.rule("0-9", "exchange.declare.ticket.text.realm")
@pytest.mark.rule("0-9", "queue.declare.ticket.text.realm")
@pytest.mark.rule("0-9", "queue.purge.ticket.text.realm")
def test_a_ticket_with_the_right_is_granted(
    guarded: Guarded, own: str, method: str, right: str, fields: dict[str, object]
) -> None:
    channel = guarded()
    prepare(channel, own)
    call(channel, method, fields, own, ticket(channel, right))
    answer = ANSWERS.get(method, f"{method}-ok")
    if answer:
        channel.expect(answer)
    channel.call("channel.ping", "channel.ok")
    channel.expect("channel.pong")


@pytest.mark.rule("0-9", "not-found.constant")
@pytest.mark.parametrize(("method", "right", "fields"), TICKETED)
@pytest.mark.parametrize("wrong", ["rights", "none", "unknown", "realm"])
@pytest.mark.rule("0-9", "exchange.declare.ticket.validity.reply-code")
@pytest.mark.rule("0-9", "exchange.delete.ticket.validity.reply-code")
@pytest.mark.rule("0-9", "queue.declare.ticket.validity.reply-code")
@pytest.mark.rule("0-9", "basic.consume.ticket.01.reply-code")
@pytest.mark.rule("0-9", "message.consume.ticket.01.reply-code")
@pytest.mark.rule("0-9", "access.text.before-work")
@pytest.mark.rule("0-9", "exchange.declare.ticket.text.same-realm")
@pytest.mark.rule("0-9", "queue.declare.ticket.text.same-realm")
@pytest.mark.rule("0-9", "queue.purge.ticket.text.realm")
def test_any_other_ticket_is_refused(
    guarded: Guarded, own: str, method: str, right: str, fields: dict[str, object], wrong: str
) -> None:
    channel = guarded()
    prepare(channel, own)
    make: dict[str, Callable[[], int]] = {
        "rights": lambda: ticket(channel, *(name for name in RIGHTS[1:] if name != right)),
        "none": lambda: 0,
        "unknown": lambda: 4711,
        "realm": lambda: ticket(channel, right, realm=SHARED),
    }
    call(channel, method, fields, own, make[wrong]())
    channel = channel.refused(403, method)
    # The call had no effect.
    reader = ticket(channel, "read", "passive")
    assert channel.get(own, ticket=reader) is None
    channel.call("exchange.declare", exchange=own, passive=True, ticket=reader)
    channel.send("queue.declare", queue=own + ".new", passive=True, ticket=reader)
    channel.refused(404, "queue.declare")


@pytest.mark.rule("0-9", "queue.bind.failure")
def test_a_bind_without_its_ticket_is_refused(guarded: Guarded, own: str) -> None:
    channel = guarded()
    prepare(channel, own)
    channel.send("queue.bind", queue=own, exchange=own, ticket=ticket(channel, "read", realm=OWN))
    channel.refused(403, "queue.bind")
