"""A client of AMQP 0-9 on a socket, method by method, with the project's engine."""

from __future__ import annotations

from typing import Any

from leveret.wire.amqp0.commands import Command, Error, Method
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.support.broker import Broker

HEADER = b"AMQP\x01\x01\x00\x09"
FILE = 70
CONNECTION_FORCED = 320


class Client:
    """A connection with channel 1, which may be resumed by `channel_id`."""

    def __init__(self, broker: Broker, timeout: float = 60.0) -> None:
        self.socket = broker.connect(timeout)
        self.engine = Engine(CLIENT, V0_9)
        self.engine.max_upload_size = 1 << 40
        self.engine.spools_uploads = True
        self.received: list[Command] = []
        self.socket.sendall(HEADER)
        self.expect("connection.start")
        self.send(
            "connection.start-ok", 0, mechanism="PLAIN", response=f"\0{broker.user}\0{broker.password}", locale="en_US"
        )
        self.expect("connection.tune")
        self.send("connection.tune-ok", 0, channel_max=self.engine.channel_max, frame_max=self.engine.frame_max)
        self.call("connection.open", "connection.open-ok", 0, virtual_host=broker.vhost)
        self.channel_id: str = self.call("channel.open", "channel.open-ok")["channel_id"]

    def flush(self) -> None:
        self.socket.sendall(self.engine.to_send())

    def send(self, name: str, channel: int = 1, **arguments: Any) -> None:
        self.engine.send(channel, name, arguments)
        self.flush()

    def next(self) -> Command:
        """Return the next command. Raises ConnectionError at the end."""
        while not self.received:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the socket")
            self.received += self.engine.receive(data)
        return self.received.pop(0)

    def expect(self, name: str) -> Method:
        """Return the next command, which must have this name.

        While the broker pauses the channel (`channel.flow`), the client answers and waits, unless it expects that command.
        Raises ConnectionError if the broker closes the connection because it stops.
        """
        command = self._after_flow(name)
        if (
            isinstance(command, Method)
            and command.name == "connection.close" != name
            and (command.arguments["reply_code"] == CONNECTION_FORCED)
        ):
            raise ConnectionError(f"the broker closed the connection: {command.arguments['reply_text']}")
        assert isinstance(command, Method) and command.name == name, (
            name,
            getattr(command, "name", command),
            (command.text if isinstance(command, Error) else getattr(command, "arguments", "")),
        )
        return command

    def _after_flow(self, name: str) -> Command:
        found: Command | None = None
        active = True
        while found is None or not (active or getattr(found, "name", "") == "connection.close"):
            command = self.next()
            if isinstance(command, Method) and command.name == "channel.flow" != name:
                active = command.arguments["active"]
                self.send("channel.flow-ok", command.channel, active=active)
            elif found is None:
                found = command
            else:
                self.received.insert(0, command)
                break
        return found

    def call(self, name: str, answer: str, channel: int = 1, **arguments: Any) -> dict[str, Any]:
        self.send(name, channel, **arguments)
        return self.expect(answer).arguments

    def open_file(self, identifier: str, size: int) -> int:
        """Return the staged size of a file."""
        there: int = self.call("file.open", "file.open-ok", identifier=identifier, content_size=size)["staged_size"]
        return there

    def begin_stage(self, size: int) -> None:
        """Send a `file.stage` of `size` bytes; `stage_octets` sends the bytes."""
        self.engine.send_content(1, "file.stage", {}, encode_header(FILE, size, {"filename": "f"}, QPID, V0_9), b"")
        self.flush()

    def stage_octets(self, data: bytes) -> None:
        self.engine.send_body(1, data)
        self.flush()

    def close(self) -> None:
        self.socket.close()
