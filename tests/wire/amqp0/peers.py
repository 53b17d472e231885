"""Engines for the tests: pairs connected in memory, and a server fed by the test."""

from __future__ import annotations

import struct
from typing import Any

from leveret.wire.amqp0.commands import Command, Error, Method, Publish
from leveret.wire.amqp0.engine import CLIENT, SERVER, Engine
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9_1

BASIC = 60


def frame(type: int, channel: int, payload: bytes, end: int = 206) -> bytes:
    return struct.pack(">BHI", type, channel, len(payload)) + payload + bytes((end,))


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short_string(text: str) -> bytes:
    octets = text.encode()
    return bytes((len(octets),)) + octets


def publish_method(channel: int, exchange: str = "", routing_key: str = "q", flags: int = 0) -> bytes:
    return method(channel, BASIC, 40, b"\0\0" + short_string(exchange) + short_string(routing_key) + bytes((flags,)))


def content_header(channel: int, size: int, class_id: int = BASIC, weight: int = 0, **properties: Any) -> bytes:
    header = encode_header(BASIC, size, properties)
    return frame(2, channel, struct.pack(">HH", class_id, weight) + header[4:])


def publish_frames(channel: int, body: bytes, *, routing_key: str = "q", flags: int = 0, **properties: Any) -> bytes:
    frames = publish_method(channel, "", routing_key, flags) + content_header(channel, len(body), **properties)
    return frames + frame(3, channel, body) if body else frames


def shape(command: Command) -> tuple[Any, ...]:
    """Return a command in a comparable form: its class and all attributes."""
    names: list[str] = []
    for owner in type(command).__mro__:
        slots = getattr(owner, "__slots__", ())
        names.extend(name for name in slots if not name.startswith("_"))
    names = names or [name for name in dir(command) if not name.startswith("_")]
    values: dict[str, Any] = {}
    for name in sorted(set(names)):
        value = getattr(command, name)
        if name == "body":
            value = joined(value)
        if isinstance(value, Publish):
            value = value.address, value.header
        values[name] = value
    return type(command).__name__, values


def joined(body: bytes | list[bytes]) -> bytes:
    return body if isinstance(body, bytes) else b"".join(body)


class Pair:
    """A client and a server, connected in memory. `server_got` and `client_got` collect the received commands."""

    def __init__(self, version: Version = V0_9_1, **options: Any) -> None:
        self.server = Engine(SERVER, version, **options)
        self.client = Engine(CLIENT, version)
        self.server_got: list[Command] = []
        self.client_got: list[Command] = []

    def pump(self) -> None:
        while self.server.pending or self.client.pending:
            self.client_got += self.client.receive(self.server.to_send())
            self.server_got += self.server.receive(self.client.to_send())

    def open(self, *, frame_max: int = 0, channel_max: int = 0, heartbeat: int = 0) -> None:
        server, client = self.server, self.client
        server.send(0, "connection.start", {"version_minor": 9, "mechanisms": "PLAIN", "locales": "en_US"})
        self.pump()
        client.send(0, "connection.start-ok", {"mechanism": "PLAIN", "response": "\0u\0p", "locale": "en_US"})
        self.pump()
        server.send(
            0,
            "connection.tune",
            {"channel_max": server.channel_max, "frame_max": server.frame_max, "heartbeat": server.heartbeat},
        )
        self.pump()
        client.send(0, "connection.tune-ok", {"channel_max": channel_max, "frame_max": frame_max, "heartbeat": heartbeat})
        client.send(0, "connection.open", {"virtual_host": "/"})
        self.pump()
        server.send(0, "connection.open-ok")
        self.pump()

    def open_channel(self, number: int) -> None:
        self.client.send(number, "channel.open")
        self.pump()
        self.server.send(number, "channel.open-ok")
        self.pump()

    def clear(self) -> None:
        self.server_got.clear()
        self.client_got.clear()


def open_pair(*channels: int, version: Version = V0_9_1, frame_max: int = 0, **options: Any) -> Pair:
    pair = Pair(version, **options)
    pair.open(frame_max=frame_max)
    for number in channels:
        pair.open_channel(number)
    pair.clear()
    return pair


def open_server(*channels: int, version: Version = V0_9_1, frame_max: int = 0, **options: Any) -> Engine:
    """A server engine whose connection and channels are open, without pending output."""
    return open_pair(*channels, version=version, frame_max=frame_max, **options).server


def only_error(commands: list[Command]) -> Error:
    assert len(commands) == 1, [shape(command) for command in commands]
    error = commands[0]
    assert isinstance(error, Error)
    return error


def names(commands: list[Command]) -> list[str]:
    return [command.name if isinstance(command, Method) else type(command).__name__ for command in commands]
