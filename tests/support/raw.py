"""A peer on a plain socket that may break every rule, stage by stage of the handshake."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Self

from pamqp import commands
from pamqp.header import ContentHeader

from tests.support.amqp import FRAME_END, METHOD, PROTOCOL_HEADER, Frame, decode, encode
from tests.support.broker import Broker

# The stages in order; each is reached by a correct client that then stops.
STAGES = ("connected", "started", "authenticated", "tuned", "opened", "channel", "method", "header", "body")


class Peer:
    """Reads frames with a deadline, sends anything. A context manager that closes the socket."""

    def __init__(self, broker: Broker, timeout: float = 15.0) -> None:
        self.broker = broker
        self.socket = broker.connect(timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self.buffer = bytearray()
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    # Output

    def send(self, data: bytes) -> None:
        """Send bytes; a socket that the broker has closed is not an error."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def method(self, method: Any, channel: int = 0) -> None:
        self.send(encode(method, channel))

    def half_close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.ended = True

    # Input

    def _fill(self, deadline: float) -> bool:
        """More input; False at its end. TimeoutError at the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the broker sent nothing more and did not close")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        finally:
            self.socket.settimeout(self.timeout)
        if not data:
            self.ended = True
            return False
        self.buffer += data
        return True

    def frame(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame, None at the end of the input. Raises TimeoutError if nothing arrives."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            if len(self.buffer) >= 8:
                kind, channel, size = struct.unpack_from(">BHI", self.buffer)
                if len(self.buffer) >= size + 8:
                    assert self.buffer[size + 7] == FRAME_END, "a frame without its end"
                    payload = bytes(self.buffer[7 : size + 7])
                    del self.buffer[: size + 8]
                    return kind, channel, payload
            if not self._fill(deadline):
                assert not self.buffer, f"half a frame before the end: {bytes(self.buffer)!r}"
                return None

    def next_method(self, timeout: float | None = None) -> Any:
        """Return the next method on any channel, None at the end; content and heartbeats are skipped."""
        while True:
            frame = self.frame(timeout)
            if frame is None:
                return None
            if frame[0] == METHOD:
                return decode(*frame)

    def expect(self, name: str) -> Any:
        method = self.next_method()
        assert method is not None and method.name == name, f"{method!r} came, {name} was expected"
        return method

    def raw(self, timeout: float | None = None) -> bytes:
        """Return all data until the broker closes the socket."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while self._fill(deadline):
            pass
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def outcome(self, timeout: float | None = None) -> int:
        """How the broker ends the connection: the code of its close, which is answered, or 0 for a closed socket."""
        while True:
            method = self.next_method(timeout)
            if method is None:
                return 0
            if method.name == "Connection.Close":
                self.method(commands.Connection.CloseOk())
                # After a framing error, the broker may be unable to parse the reply, but it does notice the end.
                self.half_close()
                self.raw(timeout)
                return int(method.reply_code)

    # Stages

    def reach(self, stage: str, *, vhost: str = "/", heartbeat: int = 0, frame_max: int = 131072,
              channel_max: int = 2047) -> Peer:  # fmt: skip
        """Proceed to `stage` correctly."""
        goal = STAGES.index(stage)
        for index in range(1, goal + 1):
            getattr(self, f"_to_{STAGES[index]}")(vhost, heartbeat, frame_max, channel_max)
        return self

    def _to_started(self, *_: Any) -> None:
        self.send(PROTOCOL_HEADER)
        self.expect("Connection.Start")

    def _to_authenticated(self, *_: Any) -> None:
        self.method(commands.Connection.StartOk({}, "PLAIN", f"\0{self.broker.user}\0{self.broker.password}", "en_US"))
        self.expect("Connection.Tune")

    def _to_tuned(self, vhost: str, heartbeat: int, frame_max: int, channel_max: int) -> None:
        self.method(commands.Connection.TuneOk(channel_max, frame_max, heartbeat))

    def _to_opened(self, vhost: str, *_: Any) -> None:
        self.method(commands.Connection.Open(vhost))
        self.expect("Connection.OpenOk")

    def _to_channel(self, *_: Any) -> None:
        self.method(commands.Channel.Open(), 1)
        self.expect("Channel.OpenOk")

    def _to_method(self, *_: Any) -> None:
        self.method(commands.Basic.Publish(exchange="", routing_key="nowhere"), 1)

    def _to_header(self, *_: Any) -> None:
        self.send(encode(ContentHeader(0, 1000, commands.Basic.Properties()), 1))

    def _to_body(self, *_: Any) -> None:
        self.send(b"\x03\x00\x01\x00\x00\x00\x64" + b"x" * 100 + b"\xce")


def frame(kind: int, channel: int, payload: bytes, end: int = FRAME_END, size: int | None = None) -> bytes:
    """A frame by its parts, which need not fit together."""
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes([end])


def content_header(
    channel: int, size: int, *, class_id: int = 60, weight: int = 0, flags: int = 0, rest: bytes = b""
) -> bytes:
    return frame(2, channel, struct.pack(">HHQH", class_id, weight, size, flags) + rest)
