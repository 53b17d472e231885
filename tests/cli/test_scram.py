"""SCRAM against a broker process, over both protocols, and users from before there was SCRAM."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.protocols.detect import HEADER_0_9_1
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.specs import V0_9_1
from leveret.wire.amqp1.frames import AMQP, SASL, FrameReader
from leveret.wire.amqp1.output import Output
from leveret.wire.amqp1.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from leveret.wire.amqp1.transport import Open
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.scram import ScramClient

BOTH = ["SCRAM-SHA-512", "SCRAM-SHA-256"]
DEADLINE = 30.0
# Somebody else, so that there is no default user.
CONFIG = '[users.other]\npassword = "other"\n'


class Client:
    """A socket under an engine: `expect` waits for an item of a kind."""

    def __init__(self, broker: LeveretProcess, receive: Callable[[bytes], list[Any]]) -> None:
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


def log_in_0_9_1(broker: LeveretProcess, mechanism: str, user: str, password: str) -> list[str] | None:
    """The mechanisms that were offered; None where the login was refused. It goes on to open-ok."""
    engine = Engine(CLIENT, V0_9_1)
    client = Client(broker, engine.receive)
    scram = ScramClient(mechanism, user, password)

    def send(name: str, **arguments: Any) -> None:
        engine.send(0, name, arguments)
        client.socket.sendall(engine.to_send())

    try:
        client.socket.sendall(HEADER_0_9_1)
        offered = str(client.expect("connection.start").arguments["mechanisms"]).split()
        send("connection.start-ok", client_properties={"capabilities": {"authentication_failure_close": True}},
             mechanism=mechanism, response=scram.first(), locale="en_US")
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


def log_in_1_0(broker: LeveretProcess, mechanism: str, user: str, password: str) -> list[str] | None:
    """The same over AMQP 1.0, up to the broker's open."""
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


LOGINS = pytest.mark.parametrize("log_in", [log_in_0_9_1, log_in_1_0], ids=["0-9-1", "1.0"])
LogIn = Callable[[LeveretProcess, str, str, str], "list[str] | None"]


def permit(commands: Commands, user: str) -> None:
    commands.ok("permissions", "set", user, "--vhost", "/", "--configure", ".*", "--write", ".*", "--read", ".*")


@LOGINS
@pytest.mark.parametrize("mechanism", BOTH)
def test_scram(tmp_path: Path, log_in: LogIn, mechanism: str) -> None:
    """The default user, whose password is known in clear, and one that the command line added."""
    with LeveretProcess(tmp_path / "broker", config="") as broker:
        broker.start()
        offered = log_in(broker, mechanism, "guest", "guest")
        assert offered is not None and offered[:3] == [*BOTH, "PLAIN"]
        assert log_in(broker, mechanism, "guest", "wrong") is None
        assert log_in(broker, mechanism, "nobody", "guest") is None
        commands = Commands(broker.data_dir)
        commands.ok("users", "add", "alice", "--password-file", "-", input="secret")
        permit(commands, "alice")
        assert log_in(broker, mechanism, "alice", "secret") is not None
        commands.ok("users", "change", "alice", "--password-file", "-", input="new")
        assert log_in(broker, mechanism, "alice", "secret") is None
        broker.stop()
        broker.start()
        assert log_in(broker, mechanism, "alice", "new") is not None
        assert log_in(broker, mechanism, "guest", "guest") is None
        broker.check_log()


def test_users_from_before_there_was_scram(tmp_path: Path) -> None:
    broker = LeveretProcess(tmp_path / "broker", config=CONFIG + '[auth]\nmechanisms = ["PLAIN"]\n')
    with broker:
        broker.start()
        commands = Commands(broker.data_dir)
        commands.ok("users", "add", "alice", "--password-file", "-", input="secret")
        permit(commands, "alice")
        broker.stop()
        broker.config = CONFIG
        broker.start()
        assert [user["scram"] for user in commands.json("users")] == [False, True]
        # Nobody is offered what would lock alice out.
        parameters = pika.ConnectionParameters("127.0.0.1", broker.port,
                                               credentials=pika.PlainCredentials("alice", "secret"))
        connection = pika.BlockingConnection(parameters)
        connection.close()
        assert [user["scram"] for user in commands.json("users")] == [True, True]
        for _ in range(2):
            assert log_in_0_9_1(broker, BOTH[0], "alice", "secret") is not None
            assert log_in_1_0(broker, BOTH[1], "alice", "secret") is not None
            broker.stop()
            broker.start()
        broker.check_log()
