"""A socket of asyncio's under a protocol session."""

from __future__ import annotations

import asyncio
import logging
import select
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from leveret.protocols.detect import HEADER_0_9_1, HEADER_SIZE, NEED_MORE, UNKNOWN, detect
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.protocols.session import Session
from leveret.protocols.v0_9_1.connection import Connection

log = logging.getLogger("leveret.server")

# Deliveries stop while the socket's buffer holds more than this.
HIGH_WATER = 1 << 20


class SocketPeer(Peer):
    """What a session may ask of its socket."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._executor = executor
        address = transport.get_extra_info("peername") or ("", 0)
        own = transport.get_extra_info("sockname") or ("", 0)
        self.host = str(address[0])
        self.name = f"{_shown(address)} -> {_shown(own)}"
        self.local = self.host.startswith("127.") or self.host in ("::1", "") or self.host.startswith("::ffff:127.")
        tls = transport.get_extra_info("ssl_object")
        self.tls = tls is not None
        if tls is not None:
            self.certificate = tls.getpeercert() or None

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def hung_up(self) -> bool:
        socket = self._transport.get_extra_info("socket")
        if socket is None or socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(socket.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._loop.call_later(seconds, callback)

    def run_blocking(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        future = self._loop.run_in_executor(self._executor, function)
        future.add_done_callback(partial(_report, done))


def _report(done: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        error = future.exception()
        done(error if error is not None else future.result())


def _shown(address: Any) -> str:
    if not isinstance(address, tuple):
        return str(address) or "local"
    host = str(address[0])
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


class SocketProtocol(asyncio.Protocol):
    """One accepted socket. Once the protocol is known, octets go straight to its session."""

    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop, executor: Executor,
                 handshake_timeout: float, accepted: set[SocketProtocol]) -> None:
        self._services = services
        self._loop = loop
        self._executor = executor
        self._handshake_timeout = handshake_timeout
        self._accepted = accepted
        self._first = b""
        self._ignoring = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.session: Session | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._accepted.add(self)
        self._deadline = self._loop.call_later(self._handshake_timeout, self._too_slow)
        if self._services.stopping:
            transport.abort()

    def _too_slow(self) -> None:
        session = self.session
        if self._transport is not None and not (isinstance(session, Connection) and session.opened):
            log.warning("%s: no connection.open within %g seconds (server.handshake_timeout), closing",
                        _shown(self._transport.get_extra_info("peername")), self._handshake_timeout)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            return
        self._first += data
        found = detect(self._first)
        if found == NEED_MORE:
            return
        transport = self._transport
        assert transport is not None
        if found == UNKNOWN:
            log.info("%s: not the protocol header of AMQP 0-9-1: %r", _shown(transport.get_extra_info("peername")),
                     self._first[:HEADER_SIZE])
            transport.write(HEADER_0_9_1)
            transport.close()
            self._ignoring = True
            return
        session = Connection(SocketPeer(transport, self._loop, self._executor), self._services)
        self.session = session
        # From here on asyncio calls the session itself.
        self.data_received = session.data_received  # type: ignore[method-assign]
        rest = self._first[HEADER_SIZE:]
        self._first = b""
        if rest:
            session.data_received(rest)

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        if self.session is not None:
            self.session.pause_writing()

    def resume_writing(self) -> None:
        if self.session is not None:
            self.session.resume_writing()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            log.info("TLS failed: %s", exc)
        self._accepted.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self.session is not None:
            self.session.connection_lost()
            self.session = None
        # No cycle may remain: the garbage collector comes too rarely for brokers with many short connections.
        self.__dict__.pop("data_received", None)
        self._transport = None
