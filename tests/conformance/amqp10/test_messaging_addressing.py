"""Sources and targets: dynamic nodes, filters, distribution modes (messaging section 3.5)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.messaging import Modified, Released, Source, Target
from leveret.wire.amqp10.transport import Attach, Detach
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.conformance.amqp10.conftest import Begin, Connect
from tests.support.peers.amqp10 import Receiver, Sender, Session, message, section


def dynamic(session: Session, role: bool, link: str) -> Any:
    if role:
        return session.receiver(name=link, source=Source(dynamic=True))
    return session.sender(name=link, target=Target(dynamic=True))


@pytest.mark.rule("1.0", "messaging.3.5.3.dynamic-address")
@pytest.mark.rule("1.0", "messaging.3.5.3.dynamic-address-speaks")
@pytest.mark.rule("1.0", "messaging.3.5.3.answer-traceable")
def test_a_dynamic_source_has_an_address_that_names_its_owner(connect: Connect, name: str) -> None:
    session = connect(container_id=f"{name}.container").begin()
    receiver: Receiver = dynamic(session, True, "replies")
    source = receiver.attached.source
    assert source.dynamic
    assert "replies" in source.address and f"{name}.container" in source.address
    # A node with that address exists, and addresses are unique.
    assert dynamic(session, True, "replies2").attached.source.address != source.address
    session.sender(source.address).deliver(message(b"x"))
    receiver.flow(1)
    assert receiver.get().body == b"x"


@pytest.mark.rule("1.0", "messaging.3.5.4.dynamic-address")
@pytest.mark.rule("1.0", "messaging.3.5.4.dynamic-address-speaks")
@pytest.mark.rule("1.0", "messaging.3.5.4.answer-traceable")
def test_a_dynamic_target_has_an_address_that_names_its_owner(connect: Connect, name: str) -> None:
    session = connect(container_id=f"{name}.container").begin()
    sender: Sender = dynamic(session, False, "work")
    target = sender.attached.target
    assert target.dynamic
    assert "work" in target.address and f"{name}.container" in target.address
    sender.deliver(message(b"x"))
    assert session.receiver(target.address, 1).get().body == b"x"


@pytest.mark.rule("1.0", "messaging.3.5.3.dynamic-without-address")
@pytest.mark.rule("1.0", "messaging.3.5.3.wish-without-address")
@pytest.mark.rule("1.0", "messaging.3.5.4.dynamic-without-address")
@pytest.mark.rule("1.0", "messaging.3.5.4.wish-without-address")
@pytest.mark.rule("1.0", "transport.amqp-error.invalid-field.choice")
@pytest.mark.parametrize("role", [True, False], ids=["source", "target"])
def test_a_dynamic_node_with_an_address_is_refused(session: Session, name: str, role: bool) -> None:
    more: Any = {} if role else {"initial_delivery_count": 0}
    session.attach(
        "l",
        role,
        source=Source(name, dynamic=True) if role else Source("here"),
        target=Target("here") if role else Target(name, dynamic=True),
        **more,
    )
    attached = session.take(Attach)
    assert (attached.source if role else attached.target) is None
    detach = session.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:invalid-field"


@pytest.mark.rule("1.0", "messaging.3.5.3.mode-told")
@pytest.mark.rule("1.0", "messaging.std-dist-mode.move.choice")
@pytest.mark.rule("1.0", "messaging.std-dist-mode.copy.choice")
@pytest.mark.parametrize(("asked", "told"), [(None, "move"), ("move", "move"), ("copy", "copy")])
def test_the_distribution_mode_is_reported(session: Session, name: str, asked: str | None, told: str) -> None:
    assert session.receiver(source=Source(name, distribution_mode=asked)).attached.source.distribution_mode == told


@pytest.mark.rule("1.0", "messaging.3.5.2.no-second-time")
@pytest.mark.rule("1.0", "messaging.3.5.2.copy-keeps-state")
@pytest.mark.rule("1.0", "messaging.std-dist-mode.copy.choice")
@pytest.mark.parametrize("expiry", ["session-end", "never"])
def test_a_link_that_browses_gets_every_message_once(begin: Begin, name: str, expiry: str) -> None:
    """Also after a reattach, as long as its source exists."""
    session = begin()
    sender = session.sender(name)
    for number in range(3):
        sender.deliver(message(b"%d" % number))
    source = Source(name, expiry_policy=expiry, distribution_mode="copy")
    receiver = session.receiver(source=source, credit=2, name="browser")
    for delivery in (receiver.get(), receiver.get()):
        receiver.accept(delivery)
    if expiry == "never":
        receiver.detach(closed=False)
        receiver = session.receiver(source=source, name="browser")
    receiver.flow(10)
    last = receiver.get()
    assert last.body == b"2"
    session.dispose(last.id, state=Released())
    sender.deliver(message(b"new"))
    assert receiver.get().body == b"new"
    receiver.nothing()
    # All messages are still available to others.
    other = session.receiver(name, 10)
    assert [other.get().body for _ in range(4)] == [b"0", b"1", b"2", b"new"]


# Filters


@pytest.mark.rule("1.0", "messaging.3.5.1.filter-steady")
def test_a_message_that_a_filter_refused_stays_refused_until_it_changes(session: Session, begin: Begin, name: str) -> None:
    session.sender(name).deliver(message(b"x", before=section(0x72, {Symbol("x-opt-n"): 1})))
    source = Source(name, filter={Symbol("f"): Described(ULong(0x120), "m.[x-opt-n] = 2")})
    receiver = session.receiver(source=source, credit=10)
    assert set(receiver.attached.source.filter) == {"f"}
    receiver.nothing()
    # A message that others released unchanged is the same message.
    other = begin().receiver(name, 1)
    other.session.dispose(other.get().id, state=Released())
    other.session.sync()
    receiver.nothing()
    # With other annotations it is a different one.
    other.flow(1)
    other.session.dispose(other.get().id, state=Modified(False, False, {Symbol("x-opt-n"): 2}))
    assert receiver.get().body == b"x"
