"""SASL (security section 5.3), and what a hostile client may send before its open (transport sections 2.2 to 2.4)."""

from __future__ import annotations

import struct

import pytest

from leveret.protocols.amqp10.connection.connection import Connection
from leveret.security.scram import Keyring
from leveret.wire.amqp10.frames import AMQP, Empty, FrameReader, Header
from leveret.wire.amqp10.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from leveret.wire.amqp10.transport import Begin, Close, End, Open
from tests.protocols.amqp10.support import Client, make_site
from tests.protocols.support import LinkedPeer, Site
from tests.support.scram import ScramClient

BOTH = ["SCRAM-SHA-512", "SCRAM-SHA-256"]


def scram_site() -> Site:
    site = make_site()
    site.services.mechanisms = [*BOTH, "PLAIN"]
    site.users.keyring = Keyring(BOTH, 4096)
    return site


def sasl(site: Site | None = None) -> Client:
    client = Client(site or make_site(), sasl=True)
    client.take(SaslMechanisms)
    return client


def exchange(client: Client, *frames: SaslInit | SaslResponse) -> SaslOutcome | SaslChallenge:
    """Send client frames; return the reply to the last of them."""
    client.send(*frames)
    client.run()
    outcome = client.find(SaslOutcome)
    return outcome if outcome is not None else client.take(SaslChallenge)


def later(client: Client) -> None:
    """Let the time of a timer pass."""
    for _, call in client.site.later:
        call()
    client.site.later.clear()
    client.run()


def assert_refused(client: Client) -> None:
    """The outcome only reports the failure; the socket is closed a little later."""
    client.run()
    outcome = client.take(SaslOutcome)
    assert (outcome.code, outcome.additional_data) == (1, None)
    assert not client.session.user
    later(client)
    assert client.peer.closed


# SCRAM


@pytest.mark.parametrize("mechanism", BOTH)
def test_scram(mechanism: str) -> None:
    site = scram_site()
    client = Client(site, sasl=True)
    assert list(client.take(SaslMechanisms).sasl_server_mechanisms) == [*BOTH, "PLAIN", "ANONYMOUS"]
    scram = ScramClient(mechanism, "user", "user")
    answer = exchange(client, SaslInit(mechanism, scram.first()))
    assert isinstance(answer, SaslChallenge)
    outcome = exchange(client, SaslResponse(scram.final(answer.challenge)))
    assert isinstance(outcome, SaslOutcome) and outcome.code == 0
    scram.check(outcome.additional_data or b"")
    client.output.send_header(AMQP)
    client.open()
    assert client.session.user == "user"


@pytest.mark.parametrize(("user", "password"), [("user", "wrong"), ("unknown", "user")])
def test_scram_that_fails(user: str, password: str) -> None:
    client = sasl(scram_site())
    scram = ScramClient("SCRAM-SHA-256", user, password)
    answer = exchange(client, SaslInit("SCRAM-SHA-256", scram.first()))
    assert isinstance(answer, SaslChallenge)
    client.send(SaslResponse(scram.final(answer.challenge)))
    assert_refused(client)


def test_scram_of_a_user_of_another_machine() -> None:
    site = scram_site()
    site.users.loopback_users = frozenset({"user"})
    client = Client(site, sasl=True, host="192.0.2.1")
    scram = ScramClient("SCRAM-SHA-256", "user", "user")
    answer = exchange(client, SaslInit("SCRAM-SHA-256", scram.first()))
    assert isinstance(answer, SaslChallenge)
    client.send(SaslResponse(scram.final(answer.challenge)))
    assert_refused(client)


def test_a_challenge_fits_a_sasl_frame() -> None:
    client = sasl(scram_site())
    written: list[bytes] = []
    client.peer.write = lambda data: written.append(data)  # type: ignore[method-assign]
    client.send(SaslInit("SCRAM-SHA-512", ScramClient("SCRAM-SHA-512", "user", "user", nonce="n" * 256).first()))
    client.run()
    assert 256 < len(written[0]) <= 512


# Initial responses


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_absent_initial_response_is_requested(mechanism: str) -> None:
    client = sasl(scram_site())
    answer = exchange(client, SaslInit(mechanism))
    assert isinstance(answer, SaslChallenge) and answer.challenge == b""
    if mechanism == "PLAIN":
        outcome = exchange(client, SaslResponse(b"\0user\0user"))
        assert isinstance(outcome, SaslOutcome) and outcome.code == 0
    else:
        answer = exchange(client, SaslResponse(b"n,,n=user,r=nonce"))
        assert isinstance(answer, SaslChallenge) and answer.challenge.startswith(b"r=nonce")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_empty_initial_response_counts(mechanism: str) -> None:
    client = sasl(scram_site())
    client.send(SaslInit(mechanism, b""))
    assert_refused(client)


@pytest.mark.parametrize("response", [None, b"", b"trace"])
def test_anonymous_needs_no_response(response: bytes | None) -> None:
    outcome = exchange(sasl(), SaslInit("ANONYMOUS", response))
    assert isinstance(outcome, SaslOutcome) and outcome.code == 0


def test_any_host_name_will_do() -> None:
    outcome = exchange(sasl(), SaslInit("PLAIN", b"\0user\0user", "vhost:none"))
    assert isinstance(outcome, SaslOutcome) and outcome.code == 0


# Out of order


@pytest.mark.parametrize(
    "mechanism", ["", "plain", "Plain", "PLAIN ", "SCRAM-SHA-256-PLUS", "SCRAM-SHA-1", "AMQPLAIN", "X" * 400]
)
def test_mechanisms_that_were_not_offered(mechanism: str) -> None:
    client = sasl()
    client.send(SaslInit(mechanism, b"\0user\0user"))
    assert_refused(client)


def test_a_response_without_init() -> None:
    client = sasl()
    client.send(SaslResponse(b"\0user\0user"))
    assert_refused(client)


def test_init_twice() -> None:
    client = sasl(scram_site())
    exchange(client, SaslInit("SCRAM-SHA-256", b"n,,n=user,r=nonce"))
    client.send(SaslInit("PLAIN", b"\0user\0user"))
    assert_refused(client)


def test_an_init_after_a_refusal_is_ignored() -> None:
    client = sasl()
    client.send(SaslInit("PLAIN", b"\0user\0wrong"))
    client.run()
    client.send(SaslInit("PLAIN", b"\0user\0user"), SaslInit("PLAIN", b"\0user\0user"))
    assert_refused(client)
    assert client.find(SaslOutcome) is None


def test_init_while_the_first_is_being_checked() -> None:
    """Both in one piece: the second one is parsed after the login, when a header is due."""
    client = sasl()
    client.send(SaslInit("PLAIN", b"\0user\0user"), SaslInit("PLAIN", b"\0user\0user"))
    client.run()
    assert client.take(SaslOutcome).code == 0
    assert client.take(Header).protocol == AMQP
    assert client.peer.closed
    assert not client.session.opened


def test_a_superfluous_response() -> None:
    client = sasl()
    client.send(SaslInit("PLAIN", b"\0user\0user"))
    client.run()
    client.send(SaslResponse(b""))
    client.run()
    assert client.take(SaslOutcome).code == 0
    assert client.peer.closed


@pytest.mark.parametrize(
    "frame", [SaslMechanisms(("PLAIN",)), SaslChallenge(b""), SaslOutcome(0)], ids=["mechanisms", "challenge", "outcome"]
)
def test_frames_of_servers(frame: SaslMechanisms | SaslChallenge | SaslOutcome) -> None:
    client = sasl()
    client.send(frame)
    assert_refused(client)


# Invalid SASL frames


def open_octets() -> bytes:
    client = Client(make_site())
    client.output.send(Open("test"))
    return client.output.to_send()


@pytest.mark.parametrize(
    "octets",
    [
        struct.pack(">IBBH", 8, 2, 1, 0),
        struct.pack(">IBBH", 8, 2, 0, 0),
        open_octets(),
        struct.pack(">IBBH", 8193, 2, 1, 0),
        struct.pack(">IBBH", 0xFFFFFFFF, 2, 1, 0),
        struct.pack(">IBBH", 7, 2, 1, 0),
        struct.pack(">IBBH", 12, 4, 1, 0) + b"\0" * 4,
        struct.pack(">IBBH", 9, 2, 1, 0) + b"\x45",
        struct.pack(">IBBH", 12, 1, 1, 0) + b"\0" * 4,
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x02\x01\x00\x00",
        b"\x16\x03\x01\x00\x00\x00\x00\x00",
    ],
    ids=[
        "empty",
        "heartbeat",
        "open",
        "8193 octets",
        "4 GiB",
        "7 octets",
        "body behind the end",
        "no described type",
        "body in the header",
        "amqp header",
        "sasl header",
        "tls header",
        "hello",
    ],
)
def test_an_invalid_sasl_frame_ends_the_connection(octets: bytes) -> None:
    """At once, or at the end of the handshake timeout if the frame is incomplete; never a login."""
    client = sasl()
    client.session.data_received(octets)
    client.session.data_received(b"\0" * 16)
    client.run()
    assert client.peer.closed
    client.session.data_received(b"\0" * 10_000)
    client.run()
    assert not client.session.user


def test_a_frame_of_the_largest_size_there_may_be() -> None:
    client = sasl()
    frame = SaslInit("PLAIN", b"\0user\0" + b"x" * 8100)
    client.output.max_frame_size = 1 << 20
    client.send(frame)
    assert_refused(client)


# Headers after SASL


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x00\x01\x00\x01",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x00\x00",
    ],
    ids=["sasl", "tls", "revision", "0-9-1", "id 1"],
)
def test_another_header_gets_a_supported_one(header: bytes) -> None:
    client = sasl()
    client.send(SaslInit("PLAIN", b"\0user\0user"))
    client.run()
    assert client.take(SaslOutcome).code == 0
    client.session.data_received(header)
    client.run()
    answer = client.take(Header)
    assert (answer.protocol, answer.is_supported()) == (AMQP, True)
    assert client.peer.closed
    client.session.data_received(open_octets())
    client.run()
    assert not client.session.opened


def test_frames_where_a_header_is_due() -> None:
    client = sasl()
    client.send(SaslInit("PLAIN", b"\0user\0user"))
    client.run()
    client.session.data_received(open_octets())
    client.run()
    assert client.peer.closed
    assert not client.session.opened


# Before open


@pytest.mark.parametrize("header", [b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"], ids=["sasl", "amqp"])
def test_a_second_header_before_open(header: bytes) -> None:
    client = Client(make_site())
    client.session.data_received(header)
    client.run()
    client.take(Open)
    assert client.error(Close)[0] == "amqp:connection:framing-error"
    assert not client.session.opened


def test_empty_frames_before_open() -> None:
    client = Client(make_site())
    for _ in range(3):
        client.output.send_empty()
    client.open()
    assert client.session.opened


@pytest.mark.parametrize("size", [8193, 0xFFFFFFFF])
def test_a_frame_before_open_that_is_too_large(size: int) -> None:
    client = Client(make_site(max_frame_size=100_000))
    client.session.data_received(struct.pack(">IBBH", size, 2, 0, 0))
    client.run()
    assert client.take(Open).properties["amqp:connection-establishment-failed"]
    assert client.error(Close)[0] == "amqp:connection:framing-error"


def test_frames_after_open_may_be_as_large_as_agreed() -> None:
    client = Client(make_site(max_frame_size=100_000))
    client.open()
    client.session.data_received(struct.pack(">IBBH", 100_000, 2, 0, 0))
    client.run()
    assert client.find(Close) is None
    client.session.data_received(b"\0" * 100_000)
    assert client.error(Close)[0] == "amqp:decode-error"


def test_close_before_open() -> None:
    client = Client(make_site())
    client.send(Close())
    client.run()
    client.take(Open)
    assert client.error(Close)[0] == "amqp:illegal-state"


def test_a_second_open() -> None:
    client = Client(make_site())
    client.open()
    client.send(Open("other"))
    assert client.error(Close)[0] == "amqp:illegal-state"
    assert client.find(Open) is None
    assert not client.site.protocols.amqp10.containers


def test_an_open_on_another_channel() -> None:
    """Transport 2.7.1: it may use any channel up to the limit of both sides."""
    client = Client(make_site())
    client.send(Open("test", channel=7))
    client.run()
    assert client.take(Open).channel == 0


# Contents of open


@pytest.mark.parametrize(("size", "fits"), [(0, False), (511, False), (512, True), (4294967295, True)])
def test_max_frame_size(size: int, fits: bool) -> None:
    client = Client(make_site())
    client.open(max_frame_size=size)
    assert client.session.opened is fits
    if not fits:
        assert client.error(Close)[0] == "amqp:invalid-field"


def test_no_frame_exceeds_the_clients_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Including our open, with the longest host name."""
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 64)
    site = make_site()
    site.services.server_properties["version"] = "100.200.300.dev123456+0123456789"
    client = Client(site)
    written: list[bytes] = []
    client.peer.write = lambda data: written.append(data)  # type: ignore[method-assign]
    client.send(Open("test", max_frame_size=512))
    client.run()
    reader = FrameReader(512, 512, header=False)
    assert [type(item) for data in written for item in reader.receive(data)] == [Open]
    assert client.session.opened


def test_channel_max_of_the_client() -> None:
    client = Client(make_site())
    client.open(channel_max=0)
    client.begin(0)
    client.send(Begin(0, 10, 10, channel=1))
    assert client.error(Close)[0] == "amqp:resource-limit-exceeded"


def test_a_channel_is_free_again_after_end() -> None:
    client = Client(make_site())
    client.open(channel_max=0)
    for _ in range(3):
        client.begin(5).end()
    assert client.find(Close) is None


@pytest.mark.parametrize("timeout", [None, 0, 100, 0xFFFFFFFF])
def test_idle_time_outs_that_are_fine(timeout: int | None) -> None:
    site = make_site(idle_timeout=0)
    client = Client(site)
    client.open(idle_time_out=timeout)
    assert client.session.opened
    now = site.broker.timers.now()
    for step in range(1, 4):
        site.broker.timers.run(now + 1000 * step)
    client.run()
    assert bool(client.all(Empty)) is (timeout == 100)
    client.drop()


@pytest.mark.parametrize("timeout", [1, 99])
def test_idle_time_outs_that_are_too_short(timeout: int) -> None:
    client = Client(make_site())
    client.open(idle_time_out=timeout)
    condition, text = client.error(Close)
    assert condition == "amqp:not-allowed"
    assert "at least 100" in text
    assert not client.site.vhost.connections


def test_frames_after_a_refused_login_are_discarded() -> None:
    """An open that was sent ahead of the outcome."""
    client = sasl()
    client.send(SaslInit("PLAIN", b"\0user\0wrong"))
    client.output.send_header(AMQP)
    client.send(Open("test"), Begin(0, 10, 10), End())
    assert_refused(client)
    assert client.find(Open) is None
    assert not client.site.services.by_user


def test_byte_by_byte() -> None:
    site = scram_site()
    client = sasl(site)
    scram = ScramClient("SCRAM-SHA-256", "user", "user")

    def trickle() -> None:
        for octet in client.output.to_send():
            client.session.data_received(bytes((octet,)))
        client.run()

    client.send(SaslInit("SCRAM-SHA-256", scram.first()))
    trickle()
    client.send(SaslResponse(scram.final(client.take(SaslChallenge).challenge)))
    client.output.send_header(AMQP)
    client.send(Open("test"))
    trickle()
    assert client.take(SaslOutcome).code == 0
    client.take(Open)
    assert client.session.opened


def test_a_client_that_disconnects_during_the_login() -> None:
    site = scram_site()
    client = sasl(site)
    client.send(SaslInit("SCRAM-SHA-256", b"n,,n=user,r=nonce"))
    client.session.data_received(client.output.to_send())
    client.drop()
    assert client.session.login is None
    assert not site.services.sessions


def test_a_session_needs_no_client_to_be_dropped() -> None:
    site = make_site()
    for with_sasl in (True, False):
        session = Connection(LinkedPeer(site, None), site.protocols.amqp10, with_sasl)  # type: ignore[arg-type]
        site.run()
        session.connection_lost()
    assert not site.services.sessions
