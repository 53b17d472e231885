"""Sole connections of containers, and opens that fail."""

from __future__ import annotations

import pytest

from leveret.broker.broker import VhostSettings
from leveret.protocols.amqp10.connection.exclusive_container import CAPABILITY
from leveret.security.permissions import Permission
from leveret.wire.amqp10.transport import Close
from leveret.wire.amqp10.values import Symbol
from tests.protocols.amqp10.support import Client, connect, make_site
from tests.protocols.support import Site

FAILED = "amqp:connection-establishment-failed"


def open_one(site: Site, *, alone: bool = False, container: str = "c", user: str = "", **options: str) -> Client:
    client = Client(site, container=container, sasl=bool(user))
    if user:
        assert client.login(user) == 0
    client.opened = client.open(desired_capabilities=(CAPABILITY,) if alone else (), **options)  # type: ignore[attr-defined]
    return client


def refused(client: Client) -> bool:
    """Whether the open was followed by the close that the capability asks for."""
    close = client.find(Close)
    properties = client.opened.properties  # type: ignore[attr-defined]
    if close is None:
        assert FAILED not in properties
        assert client.session.opened
        return False
    assert properties[FAILED] is True
    assert close.error is not None
    assert close.error.condition == "amqp:invalid-field"
    assert close.error.info == {"invalid-field": "container-id"}
    assert isinstance(close.error.info["invalid-field"], Symbol)
    return True


def test_it_is_offered() -> None:
    assert CAPABILITY in Client(make_site()).open().offered_capabilities


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (True, True, True),
        (True, False, True),
        (False, True, True),
        (False, False, False),
    ],
)
def test_one_of_the_two_desires_it(first: bool, second: bool, expected: bool) -> None:
    site = make_site()
    held = open_one(site, alone=first)
    assert not refused(held)
    assert refused(open_one(site, alone=second)) is expected
    # The existing one is not affected.
    assert held.begin()


def test_later_connections_may_desire_it_only_if_alone() -> None:
    site = make_site()
    assert not refused(open_one(site))
    assert not refused(open_one(site))
    assert refused(open_one(site, alone=True))


@pytest.mark.parametrize("how", ["close", "loss", "operator"])
def test_the_end_of_the_connection_admits_the_next_one(how: str) -> None:
    site = make_site()
    client = open_one(site, alone=True)
    if how == "close":
        client.send(Close())
        client.run()
    elif how == "loss":
        client.drop()
    else:
        client.session.shut_down("for a test")
        client.run()
    assert not site.protocols.amqp10.containers
    again = open_one(site, alone=True)
    assert not refused(again)
    # Late frames of the first one change nothing.
    if not client.peer.closed:
        client.drop()
    assert refused(open_one(site, alone=True))


def test_a_refused_connection_reserves_nothing() -> None:
    site = make_site()
    held = open_one(site, alone=True)
    other = open_one(site, alone=True)
    assert refused(other)
    other.drop()
    assert site.vhost.connections == 1
    assert refused(open_one(site, alone=True))
    held.drop()
    assert not site.protocols.amqp10.containers
    assert not refused(open_one(site, alone=True))


def test_containers_are_those_of_a_user_in_a_vhost() -> None:
    site = make_site()
    site.broker.add_vhost("two", VhostSettings())
    everything = Permission(".*", ".*", ".*")
    site.declared = {}
    site.allow("user", "/", everything)
    site.declared["user"].user.permissions["two"] = everything
    site.allow("other", "/", everything)
    assert not refused(open_one(site, alone=True))
    assert not refused(open_one(site, alone=True, container="d"))
    assert not refused(open_one(site, alone=True, hostname="vhost:two"))
    assert not refused(open_one(site, alone=True, user="other"))
    assert refused(open_one(site, alone=True, user="user"))


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"hostname": "vhost:none"}, "amqp:unauthorized-access"),
        ({"max_frame_size": 511}, "amqp:invalid-field"),
        ({"idle_time_out": 1}, "amqp:not-allowed"),
    ],
    ids=["vhost", "frame size", "idle time-out"],
)
def test_every_failed_open_has_the_property(options: dict[str, object], condition: str) -> None:
    site = make_site()
    client = Client(site)
    assert client.open(**options).properties[FAILED] is True
    for _, callback in site.later:  # an unknown vhost is refused after a delay
        callback()
    assert client.error(Close)[0] == condition
    assert not client.session.shared.containers


def test_a_successful_open_does_not_have_it() -> None:
    client = Client(make_site())
    assert FAILED not in client.open().properties
    assert client.session.opened


def test_a_refusal_later_is_no_failed_open() -> None:
    site = make_site()
    client = connect(site)
    client.session.shut_down("for a test")
    assert client.error(Close)[0] == "amqp:connection:forced"
