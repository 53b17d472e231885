"""Clients that attack the front, and input in unusual pieces."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from random import Random
from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.detect import HEADER_AMQP09, HEADER_AMQP091
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transport import Begin, Close, Open
from tests.cluster.joined import joined
from tests.support.peers import amqp09, amqp091, amqp10
from tests.support.peers.amqp091 import Connection, method
from tests.support.peers.connection import Closed
from tests.support.polling import wait_until

HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
EMPTY_FRAME = b"\0\0\0\x08\x02\0\0\0"


def tuned(peer: amqp091.Peer) -> None:
    """Do everything before connection.open."""
    peer.start()
    peer.start_ok("user", "user")
    peer.expect(0, Connection.Tune)
    peer.tune_ok()


def opening(vhost: str = "b") -> bytes:
    """Return connection.open as bytes."""
    payload = b"\x00\x0a\x00\x28" + bytes((len(vhost),)) + vhost.encode() + b"\0\0"
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"


def test_single_bytes() -> None:
    with joined() as cluster, amqp091.Peer("127.0.0.1", cluster.port) as peer:
        tuned(peer)
        for byte in HEARTBEAT + opening():
            peer.send_bytes(bytes((byte,)))
            time.sleep(0.001)
        peer.expect(0, Connection.OpenOk)
        assert [one.input for one in cluster.shards["b"].adopted] == [opening()]


def test_single_bytes_of_1_0() -> None:
    with joined() as cluster, amqp10.Peer("127.0.0.1", cluster.port) as peer:
        peer.login("PLAIN", b"\0user\0user")
        output = Output()
        output.send(Open("box", hostname="vhost:b"))
        data = output.to_send()
        for byte in EMPTY_FRAME + data:
            peer.send_bytes(bytes((byte,)))
            time.sleep(0.001)
        peer.take(Open)
        assert [one.input for one in cluster.shards["b"].adopted] == [data]


def test_a_megabyte_behind_the_open() -> None:
    """The adoption has what the front has read of it; the rest is still in the socket."""
    bodies = [bytes((number % 256,)) * 1000 for number in range(1000)]
    with joined() as cluster, amqp091.Peer("127.0.0.1", cluster.port) as peer:
        tuned(peer)
        engine = Engine(CLIENT, V0_9_1)
        engine.begin_tuned(131072, 10, 0)
        engine.send(0, "connection.open", {"virtual_host": "b"})
        engine.send(1, "channel.open", {})
        engine.send(1, "queue.declare", {"queue": "q"})
        for body in bodies:
            engine.send_publish(1, b"\0\x01q", 0, encode_header(60, len(body), {}), body, len(body))
        peer.send_bytes(engine.to_send())
        peer.expect(0, Connection.OpenOk)
        peer.expect(1, amqp091.ChannelClass.OpenOk)
        channel = amqp091.Channel(peer, 1)
        assert channel.expect(Queue.DeclareOk).message_count == 0
        (adoption,) = cluster.shards["b"].adopted
        assert len(adoption.input) <= 16 << 10
        received: list[bytes] = []
        while len(received) < len(bodies):
            channel.send(Basic.Get, queue="q", no_ack=True)
            value = peer.read(1)
            if isinstance(value, Basic.GetOk):
                received.append(peer.rest_of_content(1, value).body)
        assert received == bodies


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (struct.pack(">BHI", 1, 0, 1 << 30) + b"\0", 501),
        (struct.pack(">BHI", 1, 0, 9000) + b"\x00\x0a\x00\x28", 501),
        (opening()[:-1] + b"\0", 501),
        (opening()[:11] + b"\xff" + opening()[12:], 502),
        (b"\x01\0\0\0\0\0\x02\0\x0a\xce", 501),
        (struct.pack(">BHI", 3, 1, 8000) + bytes(8000) + b"\xce", 504),
        (b"\x07" * 100, 501),
        (HEARTBEAT * 2000 + opening("c"), 530),
    ],
    ids=["huge", "large open", "wrong end", "long name", "half a method", "a body", "nonsense", "many heartbeats"],
)
def test_attacks_before_the_open(attack: bytes, code: int) -> None:
    """The session at the front refuses them as it does without shards."""
    with joined() as cluster, amqp091.Peer("127.0.0.1", cluster.port) as peer:
        tuned(peer)
        peer.send_bytes(attack)
        assert peer.read_connection_close(code).reply_code == code
        assert not any(shard.adopted for shard in cluster.shards.values())


def test_many_heartbeats_before_the_open() -> None:
    with joined() as cluster, amqp091.Peer("127.0.0.1", cluster.port) as peer:
        tuned(peer)
        peer.send_bytes(HEARTBEAT * 5000 + opening())
        peer.expect(0, Connection.OpenOk)
        assert cluster.session("b").opened


def test_many_empty_frames_before_the_open() -> None:
    with joined() as cluster, amqp10.Peer("127.0.0.1", cluster.port) as peer:
        peer.login("PLAIN", b"\0user\0user")
        peer.send_bytes(EMPTY_FRAME * 5000)
        peer.send(Open("box", hostname="vhost:b"), Begin(0, 10, 10))
        peer.take(Open)
        peer.take(Begin)
        assert cluster.session("b").opened


def test_an_open_before_the_login() -> None:
    with joined() as cluster:
        with amqp091.Peer("127.0.0.1", cluster.port) as peer:
            peer.start()
            peer.send_bytes(opening())
            peer.read_connection_close(503)
        with amqp10.Peer("127.0.0.1", cluster.port) as newer:
            newer.header(amqp10.SASL)
            newer.send(Open("box", hostname="vhost:b"))
            newer.read()  # the mechanisms
            newer.expect_eof()
        assert not cluster.shards["b"].adopted


@pytest.mark.parametrize("first", [b"", HEADER_AMQP091[:3], HEADER_AMQP091, HEADER_AMQP09, amqp10.SASL, amqp10.AMQP])
def test_slow_clients_are_disconnected(first: bytes) -> None:
    settings = Amqp10Settings(anonymous_user="user")
    with joined(handshake_timeout=0.2, amqp10=settings) as cluster:
        with socket.create_connection(("127.0.0.1", cluster.port)) as client:
            client.settimeout(60)
            client.sendall(first)
            # Bytes that a busy machine sends too late reset the connection.
            with contextlib.suppress(ConnectionResetError):
                while client.recv(4096):
                    pass
        cluster.wait_empty()


def test_half_an_open_does_not_extend_the_handshake() -> None:
    # Long enough for a busy machine to send the half.
    with joined(handshake_timeout=3) as cluster, amqp091.Peer("127.0.0.1", cluster.port) as peer:
        tuned(peer)
        peer.send_bytes(opening()[:-1])
        peer.expect_eof()
        assert not cluster.shards["b"].adopted


def test_only_clients_in_the_handshake_count_as_unauthenticated() -> None:
    with joined() as cluster:
        cluster.front.admission.per_address = 3
        peers = [amqp091.Peer("127.0.0.1", cluster.port) for _ in range(3)]
        for peer in peers:
            peer.start()
        with amqp091.Peer("127.0.0.1", cluster.port) as waiting:
            wait_until(lambda: cluster.call(lambda: len(cluster.front.waiting_room)) == 1)
            for peer in peers:
                peer.start_ok("user", "user")
                peer.expect(0, Connection.Tune)
                peer.tune_ok()
                peer.send(0, method(Connection.Open, virtual_host="b"))
                peer.expect(0, Connection.OpenOk)
            waiting.handshake("b", "user", "user")
        wait_until(lambda: cluster.call(lambda: len(cluster.front.admission)) == 0)
        with amqp091.Peer("127.0.0.1", cluster.port) as another:
            another.handshake("b", "user", "user")
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("available", [True, False])
def test_a_client_that_does_not_read(available: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is handed over when it has read the output of the handshake, of which nothing is lost.

    If its shard is not available then, its reply to the close is read.
    """
    properties = {"filling": "x" * (5 << 20)}
    options: dict[str, Any] = {"server_properties": properties, "settings": {"frame_max": 16 << 20}}
    with joined(**options) as cluster, amqp091.Peer("127.0.0.1", cluster.port, receive_buffer=4096) as peer:
        peer.send_bytes(HEADER_AMQP091)
        peer.start_ok("user", "user")
        wait_until(lambda: cluster.call(lambda: any(one.user for one in cluster.front.services.sessions)))
        peer.tune_ok(frame_max=16 << 20)
        peer.send_bytes(opening())
        # The front has read the open when it does not read any more.
        wait_until(lambda: cluster.call(lambda: all(is_drained_later(one) for one in cluster.front.accepted)))
        assert not cluster.shards["b"].adopted
        if not available:
            cluster.shards["b"].unavailable = "shard 1 is restarting"
        start = peer.expect(0, Connection.Start)
        assert start.server_properties["filling"] == properties["filling"]
        peer.expect(0, Connection.Tune)
        if available:
            peer.expect(0, Connection.OpenOk)
        else:
            peer.expect_connection_close(320)
            assert "without connection.close-ok" not in caplog.text
        assert len(cluster.shards["b"].adopted) == available


def is_drained_later(protocol: Any) -> bool:
    transport = protocol._transport
    return not transport.is_reading() and transport.get_write_buffer_limits() == (0, 0)


@pytest.mark.parametrize("kind", ["0-9-1", "0-9", "1.0"])
def test_a_shard_that_is_down(kind: str) -> None:
    """Its clients get the reason; those without permissions learn nothing."""
    with joined() as cluster:
        shard = cluster.shards["b"]
        shard.unavailable = "shard 1 is restarting"
        if kind == "1.0":
            with amqp10.Peer("127.0.0.1", cluster.port) as newer:
                newer.login("PLAIN", b"\0user\0user")
                newer.send(Open("box", hostname="vhost:b"))
                newer.take(Open)
                closed = newer.read()
                assert isinstance(closed, Close) and closed.error is not None
                assert closed.error.condition == "amqp:connection:forced"
                assert closed.error.description == shard.unavailable
                newer.send(Close())
                newer.expect_eof()
            with amqp10.Peer("127.0.0.1", cluster.port) as limited:
                limited.login("PLAIN", b"\0limited\0limited")
                limited.send(Open("box", hostname="vhost:b"))
                limited.take(Open)
                closed = limited.read()
                assert isinstance(closed, Close) and closed.error is not None
                assert closed.error.condition == "amqp:unauthorized-access"
        elif kind == "0-9":
            with amqp09.Peer("127.0.0.1", cluster.port) as older:
                older.reach_open("user", "user")
                older.send_method(0, "connection.open", virtual_host="b")
                assert shard.unavailable in older.expect_end(320).reply_text
        else:
            with amqp091.Peer("127.0.0.1", cluster.port) as peer:
                tuned(peer)
                peer.send_bytes(opening())
                assert shard.unavailable in peer.expect_connection_close(320).reply_text
        cluster.wait_empty()
        assert not shard.adopted


def test_no_file_descriptor_for_the_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with joined() as cluster:
        with amqp091.Peer("127.0.0.1", cluster.port) as peer:
            tuned(peer)
            cluster.call(lambda: monkeypatch.setattr(os, "dup", no_descriptor))
            peer.send_bytes(opening())
            peer.expect_eof()
            cluster.call(monkeypatch.undo)
        cluster.wait_empty()
        assert not cluster.shards["b"].adopted


def test_redirects_of_0_9() -> None:
    """The front redirects clients; those that insist are handed over."""
    with joined(amqp09=Amqp09Settings(redirect="other:5672", known_hosts="a,b")) as cluster:
        with amqp09.Peer("127.0.0.1", cluster.port) as peer:
            peer.reach_open("user", "user")
            peer.send_method(0, "connection.open", virtual_host="b", insist=False)
            assert peer.expect_method(0, "connection.redirect").host == "other:5672"
            assert not cluster.shards["b"].adopted
        with amqp09.Peer("127.0.0.1", cluster.port) as insisting:
            assert insisting.connect("b", "user", "user", insist=True).known_hosts == "a,b"
            assert cluster.session("b").opened


def test_requests_of_0_9() -> None:
    """Qpid's clients of 2007 wrap methods in requests, from connection.open on."""
    with joined() as cluster, socket.create_connection(("127.0.0.1", cluster.port)) as client:
        client.settimeout(60)
        engine = Engine(CLIENT, V0_9)
        received: list[Any] = []

        def expect(name: str) -> Method:
            while not received:
                received.extend(engine.receive(client.recv(1 << 16)))
            found = received.pop(0)
            assert isinstance(found, Method) and found.name == name
            return found

        def send(channel: int, name: str, **arguments: Any) -> None:
            engine.send(channel, name, arguments)
            client.sendall(engine.to_send())

        client.sendall(HEADER_AMQP09)
        expect("connection.start")
        send(0, "connection.start-ok", mechanism="PLAIN", response="\0user\0user", locale="en_US")
        expect("connection.tune")
        send(0, "connection.tune-ok", channel_max=10, frame_max=131072)
        engine.use_requests()
        send(0, "connection.open", virtual_host="/b")
        expect("connection.open-ok")
        send(1, "channel.open")
        expect("channel.open-ok")
        assert cluster.session("b").engine.uses_requests


def test_heartbeats_continue_in_the_shard() -> None:
    with joined() as cluster, amqp091.Peer("127.0.0.1", cluster.port) as peer:
        peer.handshake("b", "user", "user", interval=1)
        session = cluster.session("b")
        assert session.describe().heartbeat == 1
        kinds = set()
        with pytest.raises(Closed):  # the client sends none
            while True:
                kinds.add(peer.read_payload()[0])
        assert kinds == {8}


def test_idle_time_outs_continue_in_the_shard() -> None:
    settings = Amqp10Settings(idle_timeout=0.5)
    with joined(amqp10=settings) as cluster, amqp10.Peer("127.0.0.1", cluster.port) as peer:
        peer.login("PLAIN", b"\0user\0user")
        peer.open("box", idle_time_out=200, hostname="vhost:b")
        assert peer.read() is None  # an empty frame
        while (closed := peer.read()) is None:
            pass
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:resource-limit-exceeded"
        assert cluster.shards["b"].adopted


def test_pipelining_over_sasl_with_a_wrong_password() -> None:
    with joined() as cluster, amqp10.Peer("127.0.0.1", cluster.port) as peer:
        output = Output()
        output.send(SaslInit("PLAIN", b"\0user\0wrong"))
        start = amqp10.SASL + output.to_send() + amqp10.AMQP
        output.send(Open("box", hostname="vhost:b"))
        peer.send_bytes(start + output.to_send())
        assert peer.read_bytes(8) == amqp10.SASL
        peer.take(SaslMechanisms)
        assert peer.take(SaslOutcome).code == 1
        peer.expect_eof()
        assert not cluster.shards["b"].adopted


def test_mutated_input(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing raises, and every connection that was handed over ends."""
    random = Random(7)
    older = HEARTBEAT + opening() + b"\x01\0\1\0\0\0\5\0\x14\0\x0a\0\xce"
    output = Output()
    output.send(SaslInit("PLAIN", b"\0user\0user"))
    newer = output.to_send() + amqp10.AMQP + EMPTY_FRAME
    output.send(Open("box", hostname="vhost:b"))
    output.send(Begin(0, 10, 10))
    newer += output.to_send()
    with joined() as cluster:
        for number in range(150):
            data = bytearray(older if number % 2 else newer)
            for _ in range(random.randrange(4)):
                data[random.randrange(len(data))] = random.randrange(256)
            with amqp091.Peer("127.0.0.1", cluster.port) as peer:
                if number % 2:
                    tuned(peer)
                else:
                    peer.send_bytes(amqp10.SASL)
                middle = random.randrange(len(data))
                with contextlib.suppress(ConnectionError):  # the front may have closed the socket
                    peer.send_bytes(bytes(data[:middle]))
                    peer.send_bytes(bytes(data[middle:]))
                    peer.socket.shutdown(socket.SHUT_WR)
                    while peer.socket.recv(4096):
                        pass
        cluster.wait_empty()
        shard = cluster.shards["b"]
        assert len(shard.adopted) > 50
        wait_until(lambda: len(shard.ended) == len(shard.adopted))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
