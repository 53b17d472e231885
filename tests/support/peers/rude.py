"""A peer of AMQP 0-9-1 that may break every rule, stage by stage of the handshake, and expects to be disconnected."""

from __future__ import annotations

import socket
import time
from typing import Any

from pamqp import commands
from pamqp.header import ContentHeader

from tests.support.broker import Broker
from tests.support.peers import amqp091
from tests.support.peers.connection import Closed
from tests.support.peers.framing import (
    BODY_FRAME,
    HEADER_AMQP091,
    METHOD_FRAME,
    Frame,
    decode,
    encode,
    frame_bytes,
)

# The stages in order; each is reached by a correct client that then stops.
STAGES = ("connected", "started", "authenticated", "tuned", "opened", "channel", "method", "header", "body")


class RudePeer(amqp091.Peer):
    """A peer for which the end of the connection is an answer.

    ended  the broker has closed the socket
    """

    def __init__(self, broker: Broker, timeout: float = 15.0) -> None:
        super().__init__(broker.host, broker.port, timeout)
        self.broker = broker
        self.ended = False

    # Output

    def send_bytes(self, data: bytes) -> None:
        """Send bytes; a socket that the broker has closed is not an error."""
        try:
            super().send_bytes(data)
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def send_method(self, method: Any, channel: int = 0) -> None:
        self.send_bytes(encode(method, channel))

    def half_close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.ended = True

    # Input

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def next_frame(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame, None at the end of the input."""
        try:
            return self.read_payload(self._deadline(timeout))
        except Closed:
            assert not self.buffer, f"half a frame before the end: {bytes(self.buffer)!r}"
            self.ended = True
            return None

    def next_method(self, timeout: float | None = None) -> Any:
        """Return the next method on any channel, None at the end; content and heartbeats are skipped."""
        while True:
            frame = self.next_frame(timeout)
            if frame is None:
                return None
            if frame[0] == METHOD_FRAME:
                return decode(*frame)

    def expect_method(self, name: str) -> Any:
        method = self.next_method()
        assert method is not None and method.name == name, f"{method!r} arrived, expected {name}"
        return method

    def read_to_end(self, timeout: float | None = None) -> bytes:
        """Return all data until the broker closes the socket."""
        deadline = self._deadline(timeout)
        data = bytearray()
        try:
            while True:
                data += self.read_bytes(1, deadline) + self.buffer
                self.buffer.clear()
        except Closed:
            self.ended = True
            return bytes(data)

    def outcome(self, timeout: float | None = None) -> int:
        """Return how the broker ends the connection: the code of its close, which is answered, or 0 for a closed socket."""
        while True:
            method = self.next_method(timeout)
            if method is None:
                return 0
            if method.name == "Connection.Close":
                self.send_method(commands.Connection.CloseOk())
                # After a framing error, the broker may be unable to parse the reply, but it notices the end.
                self.half_close()
                self.read_to_end(timeout)
                return int(method.reply_code)

    # Stages

    def reach(self, stage: str, *, vhost: str = "/", heartbeat: int = 0, frame_max: int = 131072,
              channel_max: int = 2047) -> RudePeer:  # fmt: skip
        """Proceed to `stage` correctly."""
        goal = STAGES.index(stage)
        for index in range(1, goal + 1):
            getattr(self, f"_to_{STAGES[index]}")(vhost, heartbeat, frame_max, channel_max)
        return self

    def _to_started(self, *_: Any) -> None:
        self.send_bytes(HEADER_AMQP091)
        self.expect_method("Connection.Start")

    def _to_authenticated(self, *_: Any) -> None:
        self.start_ok(self.broker.user, self.broker.password)
        self.expect_method("Connection.Tune")

    def _to_tuned(self, vhost: str, heartbeat: int, frame_max: int, channel_max: int) -> None:
        self.tune_ok(channel_max, frame_max, heartbeat)

    def _to_opened(self, vhost: str, *_: Any) -> None:
        self.send_method(commands.Connection.Open(vhost))
        self.expect_method("Connection.OpenOk")

    def _to_channel(self, *_: Any) -> None:
        self.send_method(commands.Channel.Open(), 1)
        self.expect_method("Channel.OpenOk")

    def _to_method(self, *_: Any) -> None:
        self.send_method(commands.Basic.Publish(exchange="", routing_key="nowhere"), 1)

    def _to_header(self, *_: Any) -> None:
        self.send_bytes(encode(ContentHeader(0, 1000, commands.Basic.Properties()), 1))

    def _to_body(self, *_: Any) -> None:
        self.send_bytes(frame_bytes(BODY_FRAME, 1, b"x" * 100))
