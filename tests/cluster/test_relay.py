"""Clients whose TLS ends at the front."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from leveret.cluster.relay import REASON, Amqp0Frames, Amqp10Frames, Frames
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.specs import V0_9_1
from leveret.wire.amqp10.frames import FrameReader
from leveret.wire.amqp10.transport import Close, Open
from tests.cluster.joined import Cluster, joined
from tests.security.certificates import Authority
from tests.support.peers import amqp09, amqp091, amqp10
from tests.support.peers.amqp091 import Connection, method
from tests.support.peers.connection import Closed
from tests.support.polling import wait_until

# The start of a frame: of 3 bytes in 0-9-1, and of 16,777,216 in 1.0.
PART = b"\x01\0\0\0\0\0\x03ab"
LARGE = b"0123456789abcdef" * (8 << 16)  # 8 MiB


@dataclass
class Secured:
    """A cluster with TLS, and the context of its clients."""

    cluster: Cluster
    context: ssl.SSLContext

    def peer091(self) -> amqp091.Peer:
        peer = amqp091.Peer("127.0.0.1", self.cluster.port)
        peer.adopt(self.context.wrap_socket(peer.socket, server_hostname="localhost"))
        return peer

    def peer09(self) -> amqp09.Peer:
        peer = amqp09.Peer("127.0.0.1", self.cluster.port)
        peer.adopt(self.context.wrap_socket(peer.socket, server_hostname="localhost"))
        return peer

    def peer10(self) -> amqp10.Peer:
        peer = amqp10.Peer("127.0.0.1", self.cluster.port)
        peer.adopt(self.context.wrap_socket(peer.socket, server_hostname="localhost"))
        return peer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server")


@pytest.fixture
def secured(authority: Authority, certificate: tuple[Path, Path]) -> Iterator[Secured]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    with joined(tls=server, amqp10=Amqp10Settings(anonymous_user="user")) as cluster:
        yield Secured(cluster, ssl.create_default_context(cafile=str(authority.path)))


def test_messages_of_all_sizes(secured: Secured) -> None:
    with secured.peer091() as peer:
        peer.handshake("b", "user", "user")
        channel = peer.channel()
        channel.queue("q")
        bodies = [b"", b"x", b"y" * 100_000, LARGE, b"z"]
        for body in bodies:
            channel.publish(body, "q")
        for body in bodies:
            content = channel.get("q")
            assert content is not None and content.body == body
        described = secured.cluster.session("b").describe()
        assert described.tls
        assert described.name == f"127.0.0.1:{peer.local_port} -> 127.0.0.1:{secured.cluster.port}"
        assert secured.cluster.call(lambda: len(secured.cluster.front.admission)) == 0
        assert secured.cluster.call(lambda: len(secured.cluster.front.services.sessions)) == 0
        peer.send(0, method(Connection.Close, reply_code=200, class_id=0, method_id=0))
        peer.expect(0, Connection.CloseOk)
        peer.expect_eof(reset=False)
    wait_until(lambda: secured.cluster.shards["b"].ended)
    secured.cluster.wait_empty()


def test_0_9_and_1_0(secured: Secured) -> None:
    with secured.peer09() as older:
        older.connect("b", "user", "user")
        channel = older.open()
        channel.queue("q")
        channel.publish(LARGE, "q")
        content = channel.get("q")
        assert content is not None and content.body == LARGE
        older.close()
    with secured.peer10() as newer:
        newer.header()
        newer.open("box", hostname="vhost:b")
        session = newer.begin()
        session.sender("r").deliver(amqp10.message(LARGE[: 100 << 10]))
        newer.send(Close())
        newer.take(Close)
        newer.expect_eof()
    secured.cluster.wait_empty()


def test_a_client_that_breaks_off(secured: Secured) -> None:
    with secured.peer091() as peer:
        peer.handshake("b", "user", "user")
        peer.reset()
    wait_until(lambda: secured.cluster.shards["b"].ended)
    secured.cluster.wait_empty()


def test_the_death_of_a_shard_within_a_message(secured: Secured) -> None:
    """The client has got complete frames only, then connection.close."""
    with secured.peer091() as peer:
        peer.handshake("b", "user", "user")
        channel = peer.channel()
        channel.queue("q")
        for _ in range(8):
            channel.publish(LARGE, "q")
        channel.consume("q", no_ack=True)
        peer.read(1)
        secured.cluster.call(secured.cluster.shards["b"].die)
        received = 0
        while not isinstance(value := peer.read(None), Connection.Close):
            received += 1
        assert (value.reply_code, value.reply_text) == (320, "CONNECTION_FORCED - the shard of the connection has stopped")
        assert 0 < received < 8 * len(LARGE) // 131072
        peer.send(0, Connection.CloseOk())
        peer.expect_eof(reset=False)
    secured.cluster.wait_empty()


def test_the_death_of_a_shard_of_an_idle_client(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    with secured.peer10() as newer, secured.peer09() as older:
        newer.header()
        newer.open("box", hostname="vhost:b")
        older.connect("b", "user", "user")
        secured.cluster.call(secured.cluster.shards["b"].die)
        closed = newer.read()
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
        older.expect_end(320)
        newer.send(Close())
        newer.expect_eof()
        for peer in (older, newer):
            port = peer.socket.getsockname()[1]
            assert f"127.0.0.1:{port} -> 127.0.0.1:{secured.cluster.port}: connection closed: the shard" in caplog.text
    secured.cluster.wait_empty()


def test_a_shard_that_dies_before_it_adopts(secured: Secured) -> None:
    shard = secured.cluster.shards["b"]
    shard.hand_over = lambda sock, adoption: sock.close()  # type: ignore[method-assign]
    with secured.peer10() as newer:
        newer.header()
        newer.send(Open("box", hostname="vhost:b"))
        opened = newer.take(Open)
        assert opened.properties == {"amqp:connection-establishment-failed": True}
        closed = newer.read()
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
    with secured.peer091() as peer:
        peer.start()
        peer.start_ok("user", "user")
        peer.expect(0, Connection.Tune)
        peer.tune_ok()
        peer.send(0, method(Connection.Open, virtual_host="b"))
        peer.read_connection_close(320)
    secured.cluster.wait_empty()


def test_no_file_descriptor_for_the_relay(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    with secured.peer10() as newer:
        newer.header()
        secured.cluster.call(lambda: monkeypatch.setattr(socket, "socketpair", no_descriptor))
        newer.send(Open("box", hostname="vhost:b"))
        newer.expect_eof(reset=True)
        secured.cluster.call(monkeypatch.undo)
    secured.cluster.wait_empty()
    assert not secured.cluster.shards["b"].adopted


def no_descriptor(*_: object) -> None:
    raise OSError(errno.EMFILE, "too many open files")


def test_a_client_that_does_not_read_is_not_buffered(secured: Secured) -> None:
    """The relay stops to read from the shard, which stops to deliver."""
    with secured.peer091() as peer:
        peer.handshake("b", "user", "user")
        channel = peer.channel()
        channel.queue("q")
        for _ in range(8):
            channel.publish(LARGE, "q")
        channel.consume("q", no_ack=True)
        session = secured.cluster.session("b")
        wait_until(lambda: session.output.paused)
        (protocol,) = secured.cluster.front.accepted
        transport = protocol._transport
        assert transport is not None
        assert secured.cluster.call(transport.get_write_buffer_size) < 4 << 20
        for _ in range(8):
            assert peer.expect_content(1, Basic.Deliver).body == LARGE


def test_an_operator_closes_the_connection(secured: Secured) -> None:
    """The close of the shard passes; the relay adds none."""
    with secured.peer091() as peer:
        peer.handshake("b", "user", "user")
        session = secured.cluster.session("b")
        secured.cluster.call(lambda: session.shut_down("enough"))
        assert peer.read_connection_close(320).reply_text.endswith("enough")
        peer.send(0, Connection.CloseOk())
        peer.expect_eof(reset=False)
    secured.cluster.wait_empty()


def test_a_shard_that_closes_without_a_reply_to_its_close(secured: Secured) -> None:
    with secured.peer091() as peer:
        peer.handshake("b", "user", "user")
        session = secured.cluster.session("b")
        secured.cluster.call(lambda: session.shut_down("enough"))
        peer.read_connection_close(320)
        secured.cluster.call(secured.cluster.shards["b"].die)
        with pytest.raises(Closed):
            peer.read_bytes(1)
    secured.cluster.wait_empty()


def frames0(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">BHI", 3, 1, len(one)) + one + b"\xce" for one in payloads)


def frames10(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">IBBH", len(one) + 8, 2, 0, 0) + one for one in payloads)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_any_division_of_frames(payloads: list[bytes], data: st.DataObject) -> None:
    cases: list[tuple[Frames, bytes]] = [
        (Amqp0Frames(), frames0(payloads) + PART),
        (Amqp10Frames(), frames10(payloads) + PART),
    ]
    for frames, whole in cases:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
        complete = b""
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            complete += frames.complete(whole[start:end])
        assert complete == whole[: whole.rindex(PART)]


def test_closes_of_the_relay() -> None:
    engine = Engine(CLIENT, V0_9_1)
    engine.begin_open(1)
    (closed,) = engine.receive(Amqp0Frames().close(REASON))
    assert isinstance(closed, Method) and closed.name == "connection.close"
    items = FrameReader(1 << 20, header=False).receive(Amqp10Frames().close(REASON))
    assert [type(item) for item in items] == [Open, Close]


@pytest.mark.parametrize("frame", [b"\x09\0\0\0\0\0\x18" + bytes(24) + b"\xce", b"\x01\0\0\0\0\0\x04\0\x0a\0\x33\xce"])
def test_no_close_after_a_close(frame: bytes) -> None:
    """Nor after a frame with a number."""
    frames = Amqp0Frames()
    assert frames.complete(frame) == frame
    assert frames.close(REASON) == b""
