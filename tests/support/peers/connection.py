"""The socket of a raw peer, with a deadline on every read."""

from __future__ import annotations

import socket
import struct
import time
from typing import Self

TIMEOUT = 120.0


class Closed(AssertionError):
    """The broker closed the socket."""


class Connection:
    """One blocking socket. A context manager that closes it."""

    def __init__(self, host: str, port: int, timeout: float = TIMEOUT, receive_buffer: int = 0) -> None:
        opened = socket.socket()
        if receive_buffer:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(timeout)
        opened.connect((host, port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.adopt(opened, timeout)

    def adopt(self, opened: socket.socket, timeout: float = TIMEOUT) -> None:
        """Use a socket that is already open."""
        self.timeout = timeout
        self.socket = opened
        self.buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.drop()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_bytes(self, count: int, deadline: float | None = None) -> bytes:
        """Read exactly this many bytes. Raises Closed if the socket ends before."""
        if deadline is None:
            deadline = time.monotonic() + self.timeout
        while len(self.buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"nothing arrived within {self.timeout} s (have {self._unread()})")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            except ConnectionError as error:
                raise Closed(f"the broker closed the socket: {error}") from None
            finally:
                self.socket.settimeout(self.timeout)
            if not data:
                raise Closed(f"the broker closed the socket (have {self._unread()})")
            self.buffer += data
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def _unread(self) -> str:
        """Describe unread input for messages."""
        return repr(bytes(self.buffer[:100]))

    def expect_eof(self, reset: bool = True) -> None:
        """Expect the end of the socket (or a reset, if allowed), and nothing before it."""
        try:
            extra = self.read_bytes(1)
        except Closed as closed:
            assert reset or "closed the socket (" in str(closed), closed
            return
        raise AssertionError(f"expected the end of the socket, got {(extra + self.buffer)[:200]!r}")

    def reset(self) -> None:
        """Cut the connection with a TCP reset, which is noticed even if earlier data is unread."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def drop(self) -> None:
        """Close the socket without a close method."""
        self.socket.close()
