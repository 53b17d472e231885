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

from leveret.protocols.detect import HEADER_SIZE, NEED_MORE, UNKNOWN, detect, supported_header
from leveret.protocols.opening import make_session
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.protocols.session import Session

log = logging.getLogger("leveret.server")

# Deliveries stop while the socket's buffer holds more than this.
HIGH_WATER = 1 << 20
# What is read from a socket at once.
READ_OCTETS = 256 << 10


class SocketPeer(Peer):
    """What a session may ask of its socket."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._executor = executor
        self._timers: list[asyncio.TimerHandle] = []
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
        now = self._loop.time()
        self._timers = [timer for timer in self._timers if timer.when() > now]
        self._timers.append(self._loop.call_later(seconds, callback))

    def gone(self) -> None:
        """The socket is closed. What was to be called later would only keep the session alive till then."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def run_blocking(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        future = self._loop.run_in_executor(self._executor, function)
        future.add_done_callback(partial(_report, done))


def _report(done: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        error = future.exception()
        done(error if error is not None else future.result())


def _reader_of(transport: asyncio.Transport) -> Any:
    """The transport that reads the socket: that of TLS stands upon another one."""
    tls = getattr(transport, "_ssl_protocol", None)
    return transport if tls is None else tls._transport


def _shown(address: Any) -> str:
    if not isinstance(address, tuple):
        return str(address) or "local"
    host = str(address[0])
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


class SocketProtocol(asyncio.BufferedProtocol):
    """One accepted socket. Once the protocol is known, octets go straight to its session.

    `room` is READ_OCTETS that all sockets of a server are read into, one after the other. A piece of memory of that
    size for each read, of which a message or two remain, leaves holes in the heap into which the next one does not fit:
    the process would grow for as long as it has traffic.
    """

    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop, executor: Executor,
                 handshake_timeout: float, accepted: set[SocketProtocol], room: memoryview) -> None:
        self._services = services
        self._loop = loop
        self._executor = executor
        self._handshake_timeout = handshake_timeout
        self._accepted = accepted
        self._room = room
        self._first = b""
        self._ignoring = False
        self._transport: asyncio.Transport | None = None
        self._reader: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._peer: SocketPeer | None = None
        self.session: Session | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._reader = _reader_of(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._accepted.add(self)
        self._deadline = self._loop.call_later(self._handshake_timeout, self._too_slow)
        if self._services.stopping:
            transport.abort()

    def _too_slow(self) -> None:
        session = self.session
        if self._transport is not None and not (session is not None and session.opened):
            log.warning("%s: no connection opened within %g seconds (server.handshake_timeout), closing",
                        _shown(self._transport.get_extra_info("peername")), self._handshake_timeout)
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._room[:nbytes])
        session = self.session
        if session is not None:
            session.data_received(data)
        elif not self._ignoring:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        """Find out which protocol the client speaks."""
        self._first += data
        found = detect(self._first)
        if found == NEED_MORE:
            return
        transport = self._transport
        assert transport is not None
        if found == UNKNOWN:
            log.info("%s: not a protocol header of AMQP 0-9-1 or 1.0: %r", _shown(transport.get_extra_info("peername")),
                     self._first[:HEADER_SIZE])
            transport.write(supported_header(self._first))
            transport.close()
            self._ignoring = True
            return
        self._peer = SocketPeer(transport, self._loop, self._executor)
        session = make_session(found, self._peer, self._services)
        self.session = session
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
        if self._peer is not None:
            self._peer.gone()
            self._peer = None
        # No cycle may remain: the garbage collector comes too rarely for brokers with many short connections. A transport
        # of asyncio's keeps a method of its own as its call-back, and so itself.
        if getattr(self._reader, "_read_ready_cb", None) is not None:
            self._reader._read_ready_cb = None
        self._reader = None
        self._transport = None
