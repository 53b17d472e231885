"""Permissions and users that change while their connections are open."""

from __future__ import annotations

import pytest

from leveret.security.passwords import Hasher
from leveret.security.permissions import Permission
from leveret.security.users import DeclaredUser, User
from tests.protocols.support import Channel, Client, Site


class TrustingHasher(Hasher):
    """Accepts every password for every hash."""

    def verify(self, hash: str, password: bytes) -> bool:
        return True


def half_open(site: Site, user: str) -> Client:
    """Return a client that has sent its password and reads nothing."""
    client = Client(site, user=user)
    client.run()
    client.engine.send(
        0,
        "connection.start-ok",
        {
            "client_properties": {"capabilities": client.capabilities},
            "mechanism": "PLAIN",
            "response": f"\0{user}\0{user}",
            "locale": "en_US",
        },
    )
    client.flush()
    return client


@pytest.fixture
def site() -> Site:
    site = Site()
    site.allow("limited", "/", Permission("^mine", "^mine|amq.default", "^mine"))
    return site


@pytest.fixture
def channel(site: Site) -> Channel:
    return site.channel(user="limited")


def refused(channel: Channel, name: str, **arguments: object) -> int:
    channel.send(name, **arguments)
    channel.run()
    return channel.client.refusal()[0]


class TestRequiredPermissions:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("queue.declare", {"queue": "other"}),
            ("queue.delete", {"queue": "other"}),
            ("queue.purge", {"queue": "other"}),
            ("basic.consume", {"queue": "other"}),
            ("basic.get", {"queue": "other"}),
            ("queue.bind", {"queue": "other", "exchange": "mine"}),
            ("queue.bind", {"queue": "mine", "exchange": "amq.topic"}),
            ("queue.unbind", {"queue": "mine", "exchange": "amq.topic"}),
            ("exchange.declare", {"exchange": "other", "type": "fanout"}),
            ("exchange.delete", {"exchange": "other"}),
            ("exchange.bind", {"destination": "mine", "source": "amq.topic"}),
            ("exchange.bind", {"destination": "other", "source": "mine"}),
            ("queue.declare", {"queue": "mine2", "arguments": {"x-dead-letter-exchange": "other"}}),
            ("exchange.declare", {"exchange": "mine2", "type": "fanout", "arguments": {"alternate-exchange": "other"}}),
        ],
        ids=str,
    )
    def test_refused(self, site: Site, channel: Channel, name: str, arguments: dict[str, object]) -> None:
        owner = site.channel()
        owner.declare("other")
        owner.declare("mine")
        owner.call("exchange.declare", "exchange.declare-ok", exchange="mine", type="fanout")
        owner.call("exchange.declare", "exchange.declare-ok", exchange="other", type="fanout")
        assert refused(channel, name, **arguments) == 403

    def test_publishing_needs_write_on_the_exchange(self, site: Site, channel: Channel) -> None:
        channel.publish("k", exchange="amq.topic")
        channel.run()
        assert channel.client.refusal()[0] == 403

    def test_granted_operations(self, channel: Channel) -> None:
        channel.declare("mine")
        channel.call("exchange.declare", "exchange.declare-ok", exchange="mine", type="fanout")
        channel.call("queue.bind", "queue.bind-ok", queue="mine", exchange="mine")
        channel.publish("k", exchange="mine")
        channel.run()
        assert channel.bodies("mine") == [b"m"]


class TestChanges:
    """Changes apply from the next command on, regardless of caches."""

    def test_write_is_revoked_from_a_publisher(self, site: Site, channel: Channel) -> None:
        channel.declare("mine")
        channel.publish("mine")
        channel.run()
        assert channel.client.is_open
        site.allow("limited", "/", Permission("^mine", "", "^mine"))
        channel.publish("mine")
        channel.run()
        assert channel.client.refusal()[0] == 403
        assert site.vhost.queues["mine"].ready_count == 1

    def test_write_is_granted(self, site: Site, channel: Channel) -> None:
        channel.publish("k", exchange="amq.topic")
        channel.run()
        assert channel.client.refusal()[0] == 403
        site.allow("limited", "/", Permission("", "amq.topic", ""))
        channel = channel.client.channel(channel.number)
        channel.publish("k", exchange="amq.topic")
        channel.run()
        assert channel.client.refusal() == (0, "")

    def test_configure_is_revoked(self, site: Site, channel: Channel) -> None:
        channel.declare("mine")
        site.allow("limited", "/", Permission("", "", ""))
        assert refused(channel, "queue.declare", queue="mine") == 403

    def test_another_users_change_revokes_nothing(self, site: Site, channel: Channel) -> None:
        channel.declare("mine")
        channel.publish("mine")
        channel.run()
        site.allow("other", "/", Permission("", "", ""))
        channel.publish("mine")
        channel.run()
        assert channel.client.is_open and site.vhost.queues["mine"].ready_count == 2


class TestLogin:
    def test_a_wrong_password(self, site: Site) -> None:
        client = site.connect(user="limited", password="wrong")
        assert not client.session.opened
        code, text = client.refusal()
        assert code == 403 and "PLAIN" in text

    def test_a_user_that_does_not_exist(self, site: Site) -> None:
        client = site.connect(user="unknown")
        assert client.refusal()[0] == 403

    def test_a_client_without_the_capability_is_disconnected_after_a_delay(self, site: Site) -> None:
        client = site.connect(user="unknown", capabilities={"authentication_failure_close": False})
        assert client.refusal() == (0, "") and not client.session.opened
        assert [seconds for seconds, _ in site.later] == [1.0]
        site.later[0][1]()
        assert client.peer.closed

    def test_guest_may_log_in_from_the_local_machine_only(self, site: Site) -> None:
        site.allow("guest", "/", Permission(".*", ".*", ".*"))
        assert site.connect(user="guest").is_open
        assert site.connect(user="guest", host="192.0.2.1").refusal()[0] == 403

    def test_a_vhost_without_permissions(self, site: Site) -> None:
        site.allow("outsider", "/", None)
        assert site.connect(user="outsider").refusal()[0] == 530

    def test_a_vhost_that_does_not_exist(self, site: Site) -> None:
        assert site.connect(vhost="nowhere").refusal()[0] == 530

    def test_a_user_deleted_while_its_password_is_checked(self) -> None:
        site = Site(hasher=TrustingHasher())
        site.users.declare({"hashed": DeclaredUser(user=User(name="hashed", password_hash="any"))})
        client = half_open(site, "hashed")
        site.users.declare({})
        client.run()
        assert client.refusal()[0] == 403

    def test_a_user_deleted_between_login_and_open(self, site: Site) -> None:
        client = half_open(site, "limited")
        site.users.declare({name: user for name, user in site.declared.items() if name != "limited"})
        client.run()
        assert client.refusal()[0] == 0, "the login was right"
        client.engine.send(0, "connection.tune-ok", {"channel_max": 10, "frame_max": 131072, "heartbeat": 0})
        client.engine.send(0, "connection.open", {"virtual_host": "/"})
        client.run()
        assert client.refusal()[0] == 530


class TestUserIdProperty:
    def test_the_own_user_id_is_accepted(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.publish(user_id="user")
        channel.run()
        assert channel.bodies() == [b"m"]

    def test_the_user_id_of_another_user_is_refused(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.publish(user_id="limited")
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_an_impersonator_may_set_any_user_id(self, site: Site) -> None:
        site.allow("relay", "/", Permission(".*", ".*", ".*"), tags=("impersonator",))
        channel = site.channel(user="relay")
        channel.declare()
        channel.publish(user_id="limited")
        channel.run()
        assert channel.bodies() == [b"m"]
