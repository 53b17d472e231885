"""Login, open and close (transport sections 2.2 to 2.4, security section 5.3)."""

from __future__ import annotations

import pytest

from leveret.broker.broker import VhostSettings
from leveret.protocols.ingress_throttle import ALARM
from leveret.security.permissions import Permission
from leveret.security.users import UserLimits
from leveret.wire.amqp10.frames import SASL, Empty
from leveret.wire.amqp10.security import SaslMechanisms
from leveret.wire.amqp10.transport import Begin, Close, End, Flow, Open
from tests.protocols.amqp10.support import Client, connect, make_site


def test_open_identifies_the_broker() -> None:
    site = make_site(max_frame_size=70000, sessions=7, idle_timeout=20.0)
    answer = Client(site).open()
    assert answer.max_frame_size == 70000
    assert answer.channel_max == 6
    assert answer.idle_time_out == 10000
    assert answer.properties["product"] == "RabbitMQ"
    assert "Leveret" in answer.properties["platform"]
    name = site.broker.node_name
    assert name.startswith("rabbit@")
    assert (answer.container_id, answer.properties["node"], answer.properties["cluster_name"]) == (name, name, name)


def test_plain() -> None:
    client = Client(make_site(), sasl=True)
    assert client.login() == 0
    client.open()
    assert client.session.user == "user"
    assert client.session.opened


def test_a_wrong_password() -> None:
    site = make_site()
    client = Client(site, sasl=True)
    assert client.login("user", "wrong") == 1
    assert not client.peer.closed
    for _, call in site.later:
        call()
    assert client.peer.closed


def test_the_mechanisms() -> None:
    site = make_site()
    assert list(Client(site, sasl=True).take(SaslMechanisms).sasl_server_mechanisms) == ["PLAIN", "ANONYMOUS"]
    site.protocols.amqp10.settings.anonymous_user = ""
    assert list(Client(site, sasl=True).take(SaslMechanisms).sasl_server_mechanisms) == ["PLAIN"]


def test_anonymous() -> None:
    client = Client(make_site(), sasl=True)
    assert client.login(mechanism="ANONYMOUS") == 0
    client.open()
    assert client.session.user == "user"


def test_a_mechanism_that_was_not_offered() -> None:
    assert Client(make_site(), sasl=True).login(mechanism="AMQPLAIN") == 1


def assert_sasl_required(client: Client) -> None:
    """The reply is the header of SASL, and the socket is closed, whatever follows the client's header."""
    assert client.peer.closed
    client.send(Open("test"), Begin(0, 1, 1))
    client.session.data_received(client.output.to_send())
    client.site.run()
    assert client.received == [] and not client.peer.written
    assert not client.session.opened and not client.session.user


def test_clients_without_sasl_are_refused_without_an_anonymous_user() -> None:
    assert_sasl_required(Client(make_site(user=""), answer=SASL))


def test_the_anonymous_user_may_be_restricted_to_loopback() -> None:
    site = make_site()
    site.users.loopback_users = frozenset({"user"})
    assert_sasl_required(Client(site, host="192.0.2.1", answer=SASL))
    client = Client(site, sasl=True, host="192.0.2.1")
    assert list(client.take(SaslMechanisms).sasl_server_mechanisms) == ["PLAIN"]


@pytest.mark.parametrize(
    ("hostname", "vhost"),
    [
        (None, "/"),
        ("localhost", "/"),
        ("vhost:/", "/"),
        ("vhost:two", "two"),
        ("vhost:a%2Fb", "a/b"),
        ("vhost:%2F", "/"),
    ],
)
def test_vhosts(hostname: str | None, vhost: str) -> None:
    site = make_site()
    for name in ("two", "a/b"):
        site.broker.add_vhost(name, VhostSettings())
    site.allow("user", vhost, Permission(".*", ".*", ".*"))
    client = Client(site)
    client.open(hostname=hostname)
    assert client.session.vhost_name == vhost


def test_unknown_and_forbidden_vhosts_cannot_be_distinguished() -> None:
    site = make_site()
    site.broker.add_vhost("two", VhostSettings())
    answers = []
    for hostname in ("vhost:two", "vhost:one", "vhost:tw%6F"):
        client = Client(site)
        product = str(client.open(hostname=hostname).properties["product"])
        assert client.find(Close) is None  # some clients of RabbitMQ would reconnect for ever
        site.later.pop()[1]()
        condition, text = client.error(Close)
        assert product == text
        answers.append((condition, text.replace("one", "two").replace("tw%6F", "two")))
    assert set(answers) == {
        ("amqp:unauthorized-access", "vhost 'two' does not exist, or user 'user' has no permissions in it")
    }


def test_a_refused_vhost_with_a_long_name_fits_the_smallest_frames() -> None:
    site = make_site()
    site.broker.global_parameters.set("cluster_name", "n" * 255)
    site.broker.node_name = "leveret@" + "n" * 64
    client = Client(site)
    product = str(client.open(hostname="vhost:" + "ä" * 600, max_frame_size=512).properties["product"])
    assert product.startswith("vhost 'ää") and product.endswith("...")
    site.later.pop()[1]()
    condition, text = client.error(Close)
    assert condition == "amqp:unauthorized-access" and text.startswith(product[:-3])
    assert Client(site).open(max_frame_size=512).properties["product"] == "RabbitMQ"


def test_a_client_closes_because_its_vhost_was_refused() -> None:
    site = make_site()
    client = Client(site)
    client.open(hostname="vhost:one")
    client.send(Close())
    client.run()
    assert client.take(Close).error is None
    assert client.peer.closed
    site.later.pop()[1]()
    assert client.all(Close) == []


def test_close_is_answered() -> None:
    site = make_site()
    client = connect(site)
    client.send(Close())
    client.run()
    assert client.take(Close).error is None
    assert client.peer.closed


def test_all_frames_in_one_piece() -> None:
    """Pipelined opens (transport section 2.4.1)."""
    client = Client(make_site())
    client.send(Open("test"), Begin(0, 10, 10), End(), Close())
    client.run()
    assert [type(item).__name__ for item in client.received] == ["Open", "Begin", "End", "Close"]


def test_pipelined_login() -> None:
    from leveret.wire.amqp10.frames import AMQP
    from leveret.wire.amqp10.security import SaslInit

    client = Client(make_site(), sasl=True)
    client.send(SaslInit("PLAIN", b"\0user\0user"))
    client.output.send_header(AMQP)
    client.send(Open("test"))
    client.run()
    client.take(Open)
    assert client.session.opened


def test_a_frame_before_open() -> None:
    client = Client(make_site())
    client.send(Begin(0, 10, 10))
    client.run()
    client.take(Open)
    assert client.error(Close)[0] == "amqp:illegal-state"


def test_a_frame_that_is_too_large() -> None:
    client = connect(make_site(max_frame_size=1000))
    client.session.data_received(b"\x00\x10\x00\x00\x02\x00\x00\x00")
    assert client.error(Close)[0] == "amqp:connection:framing-error"


def test_garbage() -> None:
    client = connect(make_site())
    client.session.data_received(b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45")
    assert client.error(Close)[0] == "amqp:decode-error"


def test_a_channel_above_channel_max() -> None:
    client = connect(make_site(sessions=4))
    client.send(Begin(0, 10, 10, channel=4))
    assert client.error(Close)[0] == "amqp:connection:framing-error"


def test_a_channel_that_is_in_use() -> None:
    client = connect(make_site())
    client.begin(3)
    client.send(Begin(0, 10, 10, channel=3))
    assert client.error(Close)[0] == "amqp:not-allowed"


def test_a_channel_without_a_session() -> None:
    client = connect(make_site())
    client.send(Flow(1, 0, 1, channel=9))
    assert client.error(Close)[0] == "amqp:not-allowed"


def test_channels_belong_to_one_direction() -> None:
    client = connect(make_site())
    assert client.begin(5).begun.channel == 0
    assert client.begin(2).begun.channel == 1


def test_only_a_close_counts_after_an_error() -> None:
    client = connect(make_site())
    client.send(Flow(1, 0, 1, channel=9))
    client.run()
    client.send(Begin(0, 10, 10))
    client.run()
    assert client.find(Begin) is None
    client.send(Close())
    client.run()
    assert client.peer.closed


def test_idle_time_out_of_the_client() -> None:
    site = make_site(idle_timeout=0)
    client = Client(site)
    client.open(idle_time_out=900)
    site.broker.timers.run(site.broker.timers.now() + 301)
    site.broker.timers.run(site.broker.timers.now() + 700)
    assert client.all(Empty)


def test_idle_time_out_of_the_broker() -> None:
    site = make_site(idle_timeout=1.0)
    client = Client(site)
    client.open()
    now = site.broker.timers.now()
    for step in range(1, 6):
        site.broker.timers.run(now + 251 * step)
    assert client.error(Close)[0] == "amqp:resource-limit-exceeded"


def test_a_client_whose_socket_is_not_read_is_not_idle() -> None:
    site = make_site(idle_timeout=1.0)
    client = Client(site)
    client.open()
    now = site.broker.timers.now()
    client.session.ingress.pause(ALARM)
    for step in range(1, 10):
        site.broker.timers.run(now + 251 * step)
    client.session.ingress.release(ALARM)
    client.run()
    assert client.find(Close) is None
    for step in range(10, 14):
        site.broker.timers.run(now + 251 * step)
    assert client.error(Close)[0] == "amqp:resource-limit-exceeded"


@pytest.mark.rule("1.0", "transport.2.4.5.unsupported-closes")
def test_an_idle_time_out_that_is_too_short() -> None:
    client = Client(make_site())
    client.open(idle_time_out=10)
    assert client.error(Close)[0] == "amqp:not-allowed"


def test_an_operator_closes() -> None:
    client = connect(make_site())
    client.session.shut_down("for a test")
    assert client.error(Close) == ("amqp:connection:forced", "for a test")


def test_the_maximum_number_of_connections_of_a_vhost() -> None:
    site = make_site()
    site.broker.add_vhost("/", VhostSettings(max_connections=1))
    connect(site)
    client = Client(site)
    client.open()
    assert client.error(Close)[0] == "amqp:resource-limit-exceeded"


def test_no_state_is_left() -> None:
    site = make_site()
    client = connect(site)
    session = client.begin()
    session.receiver("q", 10)
    session.sender("q")
    client.drop()
    assert not site.services.sessions
    assert not site.protocols.amqp10.links
    assert not site.broker.holders
    assert not site.protocols.amqp10.termini.by_key
    assert site.vhost.connections == 0
    assert not site.vhost.queues["q"].consumers


def test_the_maximum_number_of_channels_of_a_user() -> None:
    """Sessions and the channels of 0-9-1 count together."""
    site = make_site()
    site.allow("user", "/", Permission(".*", ".*", ".*"), limits=UserLimits(max_channels=2))
    site.channel()
    client = connect(site)
    client.begin()
    client.send(Begin(0, 10, 10, channel=1))
    assert client.error(Close)[0] == "amqp:not-allowed"
