"""TCP and TLS sockets for threads: one thread may read while another writes, and writes never block."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

from leveret.client.engine.common.socket_errors import socket_error
from leveret.client.errors import ConnectionFailed
from leveret.client.parameters import Parameters

READ_SIZE: Final = 1 << 18
# Seconds after which a read without a timeout returns, to check whether to continue.
READ_TIMEOUT: Final = 0.5
# Waking a sleeping CPU can take longer than the server's reply. If the last wait was shorter than SPIN_THRESHOLD, the next
# one polls the socket for up to SPIN_TIME seconds before it sleeps, unless the machine has only one CPU.
SPIN_THRESHOLD: Final = 0.0003
SPIN_TIME: Final = 0.00008 if (os.cpu_count() or 1) > 1 else 0.0


class PlainSocket:
    """A TCP socket in blocking mode. The kernel enforces the read timeout, which saves a system call."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(READ_TIMEOUT * 1e6)))
        self._socket = connected
        self._last_read_fast = False
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._either = select.poll()
        self._either.register(connected, select.POLLIN | select.POLLOUT)

    def receive(self, into: list[bytes], seconds: float | None, writing: bool) -> None:
        """Append received data to `into`: b"" at the end of the stream, nothing after a timeout.

        With `writing`, the call also returns when the socket is writable. Raises OSError.

        Data that was read is in the list even if a signal handler raises: `extend` with a `map` leaves no gap between
        reading and appending.
        """
        try:
            if writing:
                self._either.poll(READ_TIMEOUT * 1000 if seconds is None else seconds * 1000)
            elif seconds is None or seconds >= READ_TIMEOUT:
                began = time.perf_counter()
                if self._last_read_fast:
                    until = began + SPIN_TIME
                    while not self._readable.poll(0) and time.perf_counter() < until:
                        pass
                into.extend(map(self._socket.recv, (READ_SIZE,)))
                self._last_read_fast = time.perf_counter() - began < SPIN_THRESHOLD
                return
            elif not self._readable.poll(seconds * 1000):
                return
            into.extend(map(self._socket.recv, (READ_SIZE,), (socket.MSG_DONTWAIT,)))
        except BlockingIOError:
            return

    def send(self, data: bytes | memoryview) -> int:
        """Write without blocking, and return the number of bytes that the socket accepted. Raises OSError."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def shut_down(self) -> None:
        """Shut down both directions, which ends a blocked read."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class TlsSocket:
    """A non-blocking TLS socket. Both directions share OpenSSL's state, so a lock guards it."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._lock = threading.Lock()
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._either = select.poll()
        self._either.register(connected, select.POLLIN | select.POLLOUT)

    def receive(self, into: list[bytes], seconds: float | None, writing: bool) -> None:
        """Append received data to `into`; see `PlainSocket.receive`."""
        self._read(into)
        if not into:
            limit = READ_TIMEOUT if seconds is None else min(seconds, READ_TIMEOUT)
            (self._either if writing else self._readable).poll(limit * 1000)
            self._read(into)

    def _read(self, into: list[bytes]) -> None:
        with self._lock:
            try:
                into.append(self._socket.recv(READ_SIZE))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except ssl.SSLEOFError:
                into.append(b"")
            except OSError:
                raise
            except BaseException:
                # A signal handler raised: data may be lost, and the rest cannot be decrypted without it.
                self.shut_down()
                raise

    def send(self, data: bytes | memoryview) -> int:
        """Write without blocking; see `PlainSocket.send`."""
        with self._lock:
            try:
                return self._socket.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0

    def shut_down(self) -> None:
        """Shut down both directions, which ends a blocked read."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


AnySocket = PlainSocket | TlsSocket


def open_socket(parameters: Parameters, deadline: float, begun: Callable[[socket.socket], None]) -> AnySocket:
    """Open a socket before the deadline of the monotonic clock.

    Args:
        parameters: Host and TLS settings.
        deadline: Deadline.
        begun: Called with each socket before it is connected.

    Raises:
        ConnectionFailed: The host cannot be reached.
        TlsFailed: TLS cannot be set up.
    """
    context = parameters.tls_context()
    try:
        connected = _connect(parameters, deadline, begun)
        if context is None:
            return PlainSocket(connected)
        try:
            # `wrap_socket` moves the file descriptor to a new object.
            secured = context.wrap_socket(connected, server_hostname=parameters.tls_name, do_handshake_on_connect=False)
        except BaseException:
            connected.close()
            raise
        try:
            secured.settimeout(_left(deadline))
            begun(secured)
            secured.do_handshake()
            return TlsSocket(secured)
        except BaseException:
            secured.close()
            raise
    except TimeoutError:
        raise ConnectionFailed(
            f"no connection to {parameters.host}:{parameters.port} within"
            f" {parameters.connect_timeout:g} s (connect_timeout)",
            host=parameters.host,
            port=parameters.port,
        ) from None
    except OSError as error:
        raise socket_error(parameters, error) from error


def _connect(parameters: Parameters, deadline: float, begun: Callable[[socket.socket], None]) -> socket.socket:
    """Connect to the first address of the host that answers. Raises OSError."""
    refused: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(parameters.host, parameters.port, 0, socket.SOCK_STREAM):
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.settimeout(_left(deadline))
            begun(connecting)
            connecting.connect(address)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connecting
        except OSError as error:
            connecting.close()
            refused = error
        except BaseException:
            connecting.close()
            raise
    raise refused or OSError("the host name has no address")


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
