"""The client's side of SCRAM (RFC 5802), written independently of the broker's library; and logins with it over sockets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Any

from leveret.protocols.detect import HEADER_AMQP091
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.specs import V0_9_1
from leveret.wire.amqp10.frames import AMQP, SASL, FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from leveret.wire.amqp10.transport import Open
from tests.support.broker import Broker

DEADLINE = 120.0
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ScramClient:
    """One exchange: `first`, `final`, and the proof expected from the server at the end.

    flag  the beginning of the first message: `n,,` for a client without channel binding, `y,,` for one that supports it
    """

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str = "", flag: str = "n,,") -> None:
        self.mechanism = mechanism
        self.hash = HASHES[mechanism]
        self.password = password.encode()
        self.flag = flag
        self.nonce = nonce or secrets.token_hex(12)
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"
        self.salt = b""
        self.iterations = 0
        self.server_nonce = ""
        self.signature = b""

    def first(self) -> bytes:
        return (self.flag + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        text = server_first.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        self.server_nonce = fields["r"]
        self.salt = base64.b64decode(fields["s"])
        self.iterations = int(fields["i"])
        assert self.server_nonce.startswith(self.nonce) and len(self.server_nonce) > len(self.nonce)
        salted = hashlib.pbkdf2_hmac(self.hash, self.password, self.salt, self.iterations)
        without_proof = f"c={base64.b64encode(self.flag.encode()).decode()},r={self.server_nonce}"
        message = f"{self.bare},{text},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self.hash, client_key).digest(), message)
        self.signature = self._mac(self._mac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check that the server knows the password."""
        assert server_final == b"v=" + base64.b64encode(self.signature)

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash)


class Client:
    """A socket under an engine: `expect` waits for an item of a kind."""

    def __init__(self, broker: Broker, receive: Callable[[bytes], list[Any]]) -> None:
        self.socket = broker.connect(DEADLINE)
        self.receive = receive
        self.items: list[Any] = []

    def expect(self, *kinds: Any) -> Any:
        while True:
            for index, item in enumerate(self.items):
                if (item.name if isinstance(item, Method) else type(item)) in kinds:
                    return self.items.pop(index)
            data = self.socket.recv(65536)
            assert data, f"the connection ended before {kinds}"
            self.items += self.receive(data)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def log_in_amqp091(broker: Broker, mechanism: str, user: str, password: str) -> list[str] | None:
    """Return the offered mechanisms; None if the login was refused. Continues to open-ok."""
    engine = Engine(CLIENT, V0_9_1)
    client = Client(broker, engine.receive)
    scram = ScramClient(mechanism, user, password)

    def send(name: str, **arguments: Any) -> None:
        engine.send(0, name, arguments)
        client.socket.sendall(engine.to_send())

    try:
        client.socket.sendall(HEADER_AMQP091)
        offered = str(client.expect("connection.start").arguments["mechanisms"]).split()
        send(
            "connection.start-ok",
            client_properties={"capabilities": {"authentication_failure_close": True}},
            mechanism=mechanism,
            response=scram.first(),
            locale="en_US",
        )
        send("connection.secure-ok", response=scram.final(octets(client.expect("connection.secure"))))
        answer = client.expect("connection.secure", "connection.close")
        if answer.name == "connection.close":
            assert answer.arguments["reply_code"] == 403
            return None
        scram.check(octets(answer))
        send("connection.secure-ok", response=b"")
        client.expect("connection.tune")
        send("connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0)
        send("connection.open", virtual_host="/")
        client.expect("connection.open-ok")
        return offered
    finally:
        client.close()


def octets(secure: Method) -> bytes:
    data = secure.arguments["challenge"]
    return data if isinstance(data, bytes) else str(data).encode()


def log_in_1_0(broker: Broker, mechanism: str, user: str, password: str) -> list[str] | None:
    """Log in over AMQP 1.0, up to the broker's open."""
    output = Output()
    client = Client(broker, FrameReader(1 << 20).receive)
    scram = ScramClient(mechanism, user, password)

    def send(frame: Any) -> None:
        output.send(frame)
        client.socket.sendall(output.to_send())

    try:
        output.send_header(SASL)
        client.socket.sendall(output.to_send())
        offered = [str(name) for name in client.expect(SaslMechanisms).sasl_server_mechanisms]
        send(SaslInit(mechanism, scram.first()))
        send(SaslResponse(scram.final(client.expect(SaslChallenge).challenge)))
        outcome = client.expect(SaslOutcome)
        if outcome.code:
            assert outcome.additional_data is None
            return None
        scram.check(outcome.additional_data)
        output.send_header(AMQP)
        send(Open("test"))
        assert "amqp:connection-establishment-failed" not in client.expect(Open).properties
        return offered
    finally:
        client.close()
