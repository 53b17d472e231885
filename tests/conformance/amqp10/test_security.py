"""Security layers: TLS and SASL (security part)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.config.model import Config
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from tests.conformance.amqp10.conftest import Connect
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, leveret_only, toml_string
from tests.support.peers.amqp10 import AMQP, SASL, TLS, Peer, composite, frame
from tests.support.peers.connection import Closed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker that has a certificate."""
    leveret_only("it has settings of its own")
    certificate, key = authority.issue("server")
    config = f"[tls]\nport = 0\ncert = {toml_string(str(certificate))}\nkey = {toml_string(str(key))}\n"
    with LeveretProcess(tmp_path_factory.mktemp("secure"), config=config).start() as process:
        yield process
        process.check_log()


def encrypted(peer: Peer, authority: Authority) -> Peer:
    """The peer with TLS between it and its socket."""
    context = ssl.create_default_context(cafile=str(authority.path))
    peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
    return peer


@pytest.mark.rule("1.0", "security.5.1.layer-ends")
@pytest.mark.rule("1.0", "transport.2.2.mismatch-closes")
@pytest.mark.rule("1.0", "transport.2.2.mismatch-reads-on")
@pytest.mark.parametrize("refused", ["login", "mechanism", "header within SASL", "header after SASL", "header"])
def test_the_end_of_a_layer_closes_the_outgoing_side_and_reads_the_rest(raw: Connect, refused: str) -> None:
    peer = raw()
    if refused in ("login", "mechanism"):
        assert peer.login("PLAIN" if refused == "login" else "NO-SUCH", b"\0guest\0wrong") == 1
    elif refused == "header":
        peer.send_bytes(b"AMQP\x00\x02\x00\x00")
        assert peer.read_bytes(8) == AMQP
    else:
        peer.header(SASL)
        peer.take(SaslMechanisms)
        if refused == "header after SASL":
            peer.send(SaslInit("PLAIN", b"\0guest\0guest"))
            assert peer.take(SaslOutcome).code == 0
        peer.send_bytes(AMQP if refused == "header within SASL" else TLS)
        if refused == "header after SASL":
            assert peer.read_bytes(8) == AMQP
    peer.expect_eof()
    # More than the socket buffers hold: the broker reads it, and does not reset the connection.
    for _ in range(128):
        peer.send_bytes(bytes(1 << 16))
    peer.socket.shutdown(socket.SHUT_WR)
    peer.expect_eof()


# TLS (5.2)


@pytest.mark.rule("1.0", "security.5.2.tls-header-first")
def test_tls_begins_with_its_header_in_both_directions(raw: Connect, secure: LeveretProcess, authority: Authority) -> None:
    peer = raw(secure).header(TLS)
    encrypted(peer, authority)
    # The other layers follow, each with its header.
    assert peer.login() == 0
    peer.open()
    peer.close()


@pytest.mark.rule("1.0", "transport.2.8.secure-port")
def test_on_the_secure_port_tls_begins_at_once(secure: LeveretProcess, authority: Authority) -> None:
    assert Config().tls.port == 5671
    port = int(secure.wait_for_log("amqps://").rpartition("amqps://")[2].partition(":")[2].split()[0].rstrip(","))
    peer = encrypted(Peer("localhost", port), authority)
    peer.header(SASL)
    peer.take(SaslMechanisms)
    peer.drop()


@pytest.mark.rule("1.0", "security.5.2.tls-header-first")
def test_a_tls_header_without_tls_is_answered_with_another(raw: Connect) -> None:
    peer = raw()
    peer.send_bytes(TLS)
    assert peer.read_bytes(8) in (AMQP, SASL)
    peer.expect_eof()


@pytest.mark.rule("1.0", "security.5.2.tls-header-first")
def test_within_tls_there_is_no_other_tls(raw: Connect, secure: LeveretProcess, authority: Authority) -> None:
    peer = encrypted(raw(secure).header(TLS), authority)
    peer.send_bytes(TLS)
    assert peer.read_bytes(8) in (AMQP, SASL)
    peer.expect_eof()


# SASL (5.3)


@pytest.mark.rule("1.0", "security.5.3.sasl-header-first")
@pytest.mark.rule("1.0", "security.5.3.2.roles")
@pytest.mark.rule("1.0", "security.5.3.2.mechanisms-announced")
def test_sasl_begins_with_its_header_and_the_mechanisms_of_the_broker(raw: Connect) -> None:
    peer = raw()
    peer.send_bytes(SASL)
    assert peer.read_bytes(8) == SASL
    # The accepting side is the SASL server: it sends first, and decides.
    assert "PLAIN" in peer.take(SaslMechanisms).sasl_server_mechanisms
    peer.send(SaslInit("PLAIN", b"\0guest\0guest"))
    assert peer.take(SaslOutcome).code == 0
    peer.header(AMQP)
    peer.open()
    peer.close()


@pytest.mark.rule("1.0", "security.5.3.sasl-header-first")
@pytest.mark.rule("1.0", "security.5.3.3.headers-afterwards")
def test_after_sasl_the_amqp_header_is_required(raw: Connect) -> None:
    peer = raw().header(SASL)
    peer.take(SaslMechanisms)
    peer.send(SaslInit("PLAIN", b"\0guest\0guest"))
    assert peer.take(SaslOutcome).code == 0
    peer.send_bytes(SASL)
    assert peer.read_bytes(8) == AMQP
    peer.expect_eof()


@pytest.mark.rule("1.0", "security.5.3.2.roles")
@pytest.mark.parametrize(
    "data",
    [
        composite(0x40, b"\xa3\x05PLAIN"),
        composite(0x42, b"\xa0\x01c"),
        composite(0x44, b"\x50\x00"),
    ],
    ids=["mechanisms", "challenge", "outcome"],
)
def test_the_connecting_peer_cannot_be_the_sasl_server(raw: Connect, data: bytes) -> None:
    peer = raw().header(SASL)
    peer.take(SaslMechanisms)
    peer.send_bytes(frame(data, type=1))
    with pytest.raises(Closed):
        while True:
            body = peer.read()
            assert isinstance(body, SaslOutcome) and body.code != 0


@pytest.mark.rule("1.0", "security.5.3.1.channel-octets")
@pytest.mark.rule("1.0", "security.5.3.1.channel-octets-drawn")
@pytest.mark.rule("1.0", "security.5.3.1.doff")
def test_the_brokers_sasl_frames_are_plain(raw: Connect) -> None:
    peer = raw()
    assert peer.login() == 0
    assert [(item.type, item.doff, item.channel) for item in peer.frames] == [(1, 2, 0)] * len(peer.frames)
    assert len(peer.frames) == 2


@pytest.mark.rule("1.0", "security.5.3.1.channel-octets")
@pytest.mark.rule("1.0", "security.5.3.1.channel-octets-drawn")
@pytest.mark.rule("1.0", "security.5.3.1.doff")
@pytest.mark.rule("1.0", "security.5.3.1.extended-ignored")
def test_ignored_bytes_of_a_sasl_frame_are_ignored(raw: Connect) -> None:
    peer = raw().header(SASL)
    peer.take(SaslMechanisms)
    peer.send_bytes(
        frame(encode_composite(SaslInit("PLAIN", b"\0guest\0guest")), 0xFFFF, type=1, doff=4, extended=b"whatever")
    )
    assert peer.take(SaslOutcome).code == 0


@pytest.mark.rule("1.0", "security.5.3.3.unknown-mechanism")
@pytest.mark.rule("1.0", "security.5.3.2.mechanism-chosen")
@pytest.mark.parametrize("mechanism", ["NO-SUCH-MECHANISM", "plain", "AMQPLAIN", ""])
def test_a_mechanism_that_was_not_offered_fails_the_login_and_closes(raw: Connect, mechanism: str) -> None:
    peer = raw()
    assert peer.login(mechanism, b"") == 1
    peer.expect_eof()


@pytest.mark.rule("1.0", "security.5.3.3.unknown-mechanism")
def test_a_login_that_fails_closes(raw: Connect) -> None:
    peer = raw()
    assert peer.login(response=b"\0guest\0wrong") == 1
    peer.expect_eof()


@pytest.mark.rule("1.0", "types.1.3.multiple-mandatory")
def test_the_list_of_mechanisms_is_never_empty(raw: Connect, tmp_path: Path) -> None:
    """Even if no user can log in with any of them."""
    leveret_only("it has settings of its own")
    config = '[auth]\nmechanisms = ["AMQPLAIN"]\n[amqp10]\nanonymous_user = ""\n'
    with LeveretProcess(tmp_path / "own", config=config).start() as process:
        peer = raw(process).header(SASL)
        assert len(peer.take(SaslMechanisms).sasl_server_mechanisms) >= 1


@pytest.mark.rule("1.0", "transport.2.2.mismatch-closes")
def test_no_sasl_if_it_is_required(raw: Connect, tmp_path: Path) -> None:
    """The broker sends the SASL header and closes the socket, without reading the client's input."""
    leveret_only("it has settings of its own")
    with LeveretProcess(tmp_path / "own", config='[amqp10]\nanonymous_user = ""\n').start() as process:
        peer = raw(process)
        peer.send_bytes(AMQP + frame(composite(0x10, "client")))
        assert peer.read_bytes(8) == SASL
        peer.expect_eof()
        peer = raw(process)
        assert peer.login() == 0
        peer.open()
