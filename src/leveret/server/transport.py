"""The asyncio protocol between a socket and a session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from leveret.management.connection_names import connection_name
from leveret.protocols.adoption import Adoption, PeerFacts
from leveret.protocols.detect import (
    HEADER_1_0_TLS,
    HEADER_SIZE,
    NEED_MORE,
    TLS_HEADER,
    TLS_HELLO,
    UNKNOWN,
    detect,
    supported_header,
)
from leveret.protocols.ingress_throttle import FIRST_READ, MAX_READ
from leveret.protocols.opening import Protocols
from leveret.protocols.peer import Peer, Receiver, Result, describe_tls
from leveret.server.admission import Admission
from leveret.server.tls import COMPLETE, INCOMPLETE, TlsProtocol, hello_state

logger = logging.getLogger("leveret.server")

# Bytes that the kernel receives in advance from a client whose reads are limited; Linux doubles the number. By itself, it
# receives megabytes: a fast publisher's messages would wait there instead of in a queue.
LIMITED_RECEIVE_BUFFER = 128 << 10
# Seconds without limited reads after which the kernel chooses the size again. Each reduction may lose packets in flight.
LIMITED_FOR = 5.0
# The option that, set to 0, lets Linux choose the buffer sizes again. The module socket has no name for it.
SO_BUF_LOCK = 72
# Congestion control for clients on this machine. The loopback interface loses nothing and has no queue, but BBR would pace
# the output, with a timer for each piece. Linux always has Reno.
LOOPBACK_CONGESTION = b"reno"
# Bytes in the socket's buffer above which deliveries stop.
HIGH_WATER = 1 << 20
# Maximum number of pieces per write to a socket (IOV_MAX is at least 1024 on Linux, macOS and the BSDs).
MAX_PIECES = 1024
# Bytes of a block of memory, which is freed at once.
RETAINED = 4 << 20
# Bytes per read from which the session copies what it keeps.
LARGE_READ = 8 << 10
# The same before the client opens its connection. TLS retains as much memory as its largest read.
READ_SIZE_BEFORE_OPEN = 8 << 10


@dataclass(slots=True)
class Sockets:
    """State shared by all sockets of a server.

    Attributes:
        protocols: The protocols that clients may speak.
        loop: The event loop.
        executor: The executor for blocking work.
        handshake_timeout: Seconds from accepting a socket to an open connection.
        admission: The sockets whose clients have not opened a connection.
        accepted: The open sockets.
        room: The read buffer shared by all sockets. A separate buffer for each read would fragment the heap, because a
            message or two of it survive, and the process would grow with its traffic.
        room_before_open: The part of `room` for sockets whose clients have not opened a connection.
    """

    protocols: Protocols
    loop: asyncio.AbstractEventLoop
    executor: Executor
    handshake_timeout: float
    admission: Admission
    accepted: set[SocketProtocol] = field(default_factory=set)
    room: memoryview = field(default_factory=lambda: memoryview(bytearray(MAX_READ)))
    room_before_open: memoryview = field(init=False)
    _parts: dict[int, memoryview] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.room_before_open = self.part(READ_SIZE_BEFORE_OPEN)
        _retain_freed_memory()

    def part(self, size: int) -> memoryview:
        """Return the first bytes of the read buffer; the few sizes share their parts."""
        part = self._parts.get(size)
        if part is None:
            part = self._parts[size] = self.room[:size]
        return part


def _retain_freed_memory() -> None:
    """Make glibc keep up to twice `RETAINED` bytes of freed memory at the end of the heap.

    By default it returns more than 128 KiB to the system at once, so that each large body would page fault again. It adapts
    the threshold to the largest block that was mapped and freed.
    """
    bytes(RETAINED)


class SocketPeer(Peer):
    """The session's interface to its socket.

    Attributes:
        is_plain: Whether the socket has the bytes of AMQP, so that another process can take it over.
    """

    __slots__ = (
        "_executor",
        "_gathers",
        "_loop",
        "_protocol",
        "_reader",
        "_timers",
        "_transport",
        "is_plain",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        sockets: Sockets,
        protocol: SocketProtocol,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = sockets.loop
        self._executor = sockets.executor
        # None if the socket is closed.
        self._protocol: SocketProtocol | None = protocol
        self._reader = _reader_of(transport)
        self._timers: tuple[asyncio.TimerHandle, ...] = ()
        address = address_of(transport)
        own = transport.get_extra_info("sockname") or ("", 0)
        proxy = transport.get_extra_info("proxy")
        self.host = address[0]
        via = "" if proxy is None else shown_address(proxy)
        self.name = connection_name(shown_address(address), shown_address(own), via)
        self.local = _is_local(address)
        tls = transport.get_extra_info("ssl_object")
        self.tls = tls is not None
        self.websocket_path = transport.get_extra_info("websocket", "")
        self.is_plain = not self.tls and not self.websocket_path
        # TLS encrypts pieces one by one, and other event loops have output that they do not report.
        self._gathers = self.is_plain and hasattr(os, "writev") and isinstance(sockets.loop, asyncio.SelectorEventLoop)
        if tls is not None:
            self.certificate = tls.getpeercert() or None
            self.tls_info = describe_tls(tls, self.certificate)

    def describe_client(self, facts: PeerFacts) -> None:
        """Describe the client of another socket than this one, which a relay or another process has accepted."""
        self.name = facts.name
        self.host = facts.host
        self.local = facts.local
        self.tls = facts.tls
        self.connected_at = facts.connected_at
        self.websocket_path = facts.websocket_path
        self.mechanism = facts.mechanism
        self.tls_info = facts.tls_info

    def facts(self) -> PeerFacts:
        """Return what `describe_client` needs in another process."""
        return PeerFacts(
            self.name,
            self.host,
            self.local,
            self.tls,
            self.connected_at,
            self.websocket_path,
            self.mechanism,
            self.tls_info,
        )

    def opened(self) -> None:
        if self._protocol is not None:
            self._protocol.opened()

    def pass_to(self, receiver: Receiver) -> None:
        """Pass input and states of the socket to another receiver from now on. The calls for the former one are dropped."""
        self._cancel_timers()
        if self._protocol is not None:
            self._protocol.session = receiver

    def await_drain(self) -> None:
        """Call `pause_writing` of the receiver at once, and `resume_writing` when the socket has taken all output."""
        self._transport.set_write_buffer_limits(high=0)

    def give_away(self) -> socket.socket:
        """Return a duplicate of the socket, and close this one without an effect on the connection.

        The caller has checked that all output is written and that the socket is plain.

        Raises:
            OSError: there is no file descriptor for the duplicate.
        """
        self._transport.pause_reading()
        duplicate = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        self._transport.abort()
        return duplicate

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def write_pieces(self, pieces: list[bytes | memoryview], size: int) -> None:
        """Write data in pieces. What the socket takes at once is not copied; the transport buffers the rest."""
        transport = self._transport
        if not self._gathers:
            transport.write(b"".join(pieces))
            return
        if not transport.get_write_buffer_size() and not transport.is_closing():
            pieces = self._unwritten(pieces, size)
        for piece in pieces:
            transport.write(piece)

    def _unwritten(self, pieces: list[bytes | memoryview], size: int) -> list[bytes | memoryview]:
        """Write to the socket, and return the rest. The transport, which writes that, handles errors."""
        try:
            written = os.writev(self._transport.get_extra_info("socket").fileno(), pieces[:MAX_PIECES])
        except OSError:
            return pieces
        if written == size:
            return []
        for index, piece in enumerate(pieces):
            if written < len(piece):
                return [memoryview(piece)[written:], *pieces[index + 1 :]]
            written -= len(piece)
        return []

    def close(self) -> None:
        close_once(self._transport)

    def finish(self) -> None:
        finish(self._transport)

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def limit_reads(self, size: int, slowed: bool) -> None:
        if self._protocol is not None:
            self._protocol.limit_reads(size, slowed)

    def is_writable(self) -> bool:
        return not self.unwritten()

    def unwritten(self) -> int:
        size = self._transport.get_write_buffer_size()
        # TLS has a buffer of its own, above that of the socket.
        return size + int(self._reader.get_write_buffer_size()) if self.tls_info is not None else size

    def hung_up(self) -> bool:
        accepted = self._transport.get_extra_info("socket")
        if accepted is None or accepted.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(accepted.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        now = self._loop.time()
        pending = [timer for timer in self._timers if timer.when() > now]
        self._timers = (*pending, self._loop.call_later(seconds, callback))

    def closed(self) -> None:
        """Cancel the timers of a closed socket, which keep the session alive."""
        self._cancel_timers()
        self._protocol = None

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = ()

    def run_blocking(self, function: Callable[[], Result], done: Callable[[Result], None]) -> None:
        future = self._loop.run_in_executor(self._executor, function)
        future.add_done_callback(partial(self._report, done))

    def _report(self, done: Callable[[Result], None], future: asyncio.Future[Result]) -> None:
        if not future.cancelled():
            error = future.exception()
            done(error if error is not None else future.result())


# An event loop transport, including its private attributes.
SelectorTransport: TypeAlias = Any


def _reader_of(transport: asyncio.Transport) -> SelectorTransport:
    """Return the transport that reads the socket, below those of a WebSocket and of TLS."""
    transport = transport.get_extra_info("below", transport)
    tls = getattr(transport, "_ssl_protocol", None)
    return transport if tls is None else tls._transport


def break_cycle(transport: SelectorTransport) -> None:
    """Break the reference cycle of a lost transport of asyncio, whose callback is its own method.

    Full garbage collections are too rare for brokers with many short connections.
    """
    if getattr(transport, "_read_ready_cb", None) is not None:
        transport._read_ready_cb = None


def close_once(transport: asyncio.Transport) -> None:
    """Close a transport, unless it is closing. asyncio's TLS transport cannot be aborted after a second close."""
    if not transport.is_closing():
        transport.close()


def finish(transport: asyncio.Transport) -> None:
    """Shut down the outgoing side after flushing the buffer. The socket closes when the client does the same."""
    if transport.is_closing():
        return
    if transport.can_write_eof():
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
    else:
        transport.close()  # TLS sends close_notify instead


def address_of(transport: asyncio.Transport) -> tuple[str, int]:
    """Return the address and port of the client; the address is "" without an IP address."""
    address = transport.get_extra_info("peername") or ("", 0)
    return str(address[0]), address[1]


def _is_local(address: tuple[str, int]) -> bool:
    """Return whether a client is on this machine."""
    host = address[0]
    return host.startswith(("127.", "::ffff:127.")) or host in ("::1", "")


def shown_address(address: tuple[str | int, ...] | str) -> str:
    """Return an address as messages show it."""
    if not isinstance(address, tuple):
        return str(address) or "local"
    host = str(address[0])
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


class SocketProtocol(asyncio.BufferedProtocol):
    """asyncio protocol of an accepted socket. It detects the AMQP version, then passes data to the session.

    TLS starts when the client's ClientHello is complete. After the handshake, `connection_made` is called again with the
    TLS transport.

    Args:
        sockets: The state shared by all sockets.
        tls: The TLS context for clients that request TLS, with AMQP 1.0's TLS protocol header or a ClientHello; None
            refuses them.
        tls_only: Whether the listener accepts only TLS.

    Attributes:
        node: The other node that relays for the client; "" if none does.
    """

    __slots__ = (
        "_awaits_hello",
        "_deadline",
        "_first",
        "_ignoring",
        "_limited",
        "_peer",
        "_reader",
        "_release",
        "_resuming",
        "_room",
        "_sockets",
        "_tls",
        "_tls_only",
        "_transport",
        "_upgrading",
        "node",
        "session",
    )

    def __init__(self, sockets: Sockets, tls: ssl.SSLContext | None, tls_only: bool) -> None:
        self._sockets = sockets
        self._tls = tls
        self._tls_only = tls_only
        self._first = b""
        self._awaits_hello = False
        self._ignoring = False
        self._upgrading = False
        self._resuming = False
        self._limited = False
        self._release: asyncio.TimerHandle | None = None
        self._room = sockets.room_before_open
        self._transport: asyncio.Transport | None = None
        self._reader: SelectorTransport = None
        self._deadline: asyncio.TimerHandle | None = None
        self._peer: SocketPeer | None = None
        self.node = ""
        self.session: Receiver | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._reader = _reader_of(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._sockets.accepted.add(self)
        self._upgrading = False
        if self._deadline is None:
            self._deadline = self._sockets.loop.call_later(self._sockets.handshake_timeout, self._too_slow)
            if sys.platform == "linux" and _is_local(address_of(transport)):
                self._set_option(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOOPBACK_CONGESTION)
        if self._sockets.protocols.services.stopping:
            transport.abort()

    def _too_slow(self) -> None:
        if self._transport is not None:
            name = shown_address(self._transport.get_extra_info("peername"))
            logger.warning(
                "%s: no connection opened within %g seconds ('server.handshake_timeout'), closing",
                name,
                self._sockets.handshake_timeout,
                extra={"peer": name},
            )
            self._transport.abort()

    def opened(self) -> None:
        """Lift the limits on sockets whose clients have not opened a connection."""
        self._room = self._sockets.part(FIRST_READ)
        self._sockets.admission.leave(self, opened=True)
        self._end_deadline()

    def limit_reads(self, size: int, slowed: bool) -> None:
        """Read at most `size` bytes at a time.

        From a client that is `slowed`, the kernel receives less in advance, too, when the reads are small: until then, the
        broker may only have been behind for a moment.
        """
        self._room = self._sockets.part(size)
        if sys.platform != "linux":
            return
        if slowed and size <= FIRST_READ:
            self._cancel_release()
            if not self._limited:
                self._limited = True
                self._set_option(socket.SOL_SOCKET, socket.SO_RCVBUF, LIMITED_RECEIVE_BUFFER)
        elif self._limited and self._release is None:
            self._release = self._sockets.loop.call_later(LIMITED_FOR, self._release_buffer)

    def _release_buffer(self) -> None:
        """Let the kernel choose the size of the receive buffer again."""
        self._release = None
        self._limited = False
        self._set_option(socket.SOL_SOCKET, SO_BUF_LOCK, 0)

    def _cancel_release(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def _set_option(self, level: int, option: int, value: int | bytes) -> None:
        with contextlib.suppress(OSError):  # the socket is closed, or the kernel has no such option
            self._reader.get_extra_info("socket").setsockopt(level, option, value)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def count_for(self, address: str) -> bool:
        """Count the socket for another address before its connection is open. Returns False if that has too many."""
        return self._sockets.admission.move(self, address)

    def is_waiting_for_broker(self) -> bool:
        return self._peer is not None and self._peer.checking

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        data = self._room[:nbytes]
        session = self.session
        if session is not None:
            session.data_received(data if nbytes >= LARGE_READ else bytes(data))
        else:
            self.received(bytes(data))

    def received(self, data: bytes | memoryview) -> None:
        """Pass input to the session, if there is one."""
        session = self.session
        if session is not None:
            session.data_received(data)
        elif not self._ignoring:
            self._first += data
            self._detect()

    def _detect(self) -> None:
        """Detect the client's protocol."""
        if self._awaits_hello:
            self._take_hello()
            return
        found = detect(self._first)
        if found == NEED_MORE:
            return
        transport = self._transport
        assert transport is not None
        if self._tls_only and found != TLS_HELLO:
            self._not_tls()
            return
        if found in (TLS_HEADER, TLS_HELLO) and self._tls is not None:
            if found == TLS_HEADER:
                transport.write(HEADER_1_0_TLS)
                self._first = self._first[HEADER_SIZE:]
            self._awaits_hello = True
            self._take_hello()
            return
        if found in (UNKNOWN, TLS_HEADER, TLS_HELLO):
            self._reject(found)
            return
        self._peer = SocketPeer(transport, self._sockets, self)
        session = self._sockets.protocols.make_session(found, self._peer)
        self.session = session
        rest = self._first[HEADER_SIZE:]
        self._first = b""
        if rest:
            session.data_received(rest)

    def _reject(self, found: int) -> None:
        """Send a supported protocol header and close."""
        transport = self._transport
        assert transport is not None
        name = shown_address(transport.get_extra_info("peername"))
        if found == UNKNOWN:
            reason = f"not a protocol header of AMQP 0-9-1 or 1.0: {self._first[:HEADER_SIZE]!r}"
        elif transport.get_extra_info("ssl_object") is not None:
            reason = "requested TLS within TLS"
        else:
            reason = "requested TLS, which is disabled; set 'tls.cert' to enable it"
        logger.info("%s: %s", name, reason, extra={"peer": name})
        transport.write(supported_header(self._first, self._tls is not None))
        finish(transport)
        self._first = b""
        self._ignoring = True

    def _take_hello(self) -> None:
        """Start TLS when the ClientHello is complete. Until then, only its received part uses memory."""
        state = hello_state(self._first)
        if state == COMPLETE:
            self._begin_tls()
        elif state != INCOMPLETE:
            self._not_tls()

    def _not_tls(self) -> None:
        transport = self._transport
        assert transport is not None
        name = shown_address(transport.get_extra_info("peername"))
        logger.info("%s: TLS failed: expected a ClientHello, got %r", name, self._first[:HEADER_SIZE], extra={"peer": name})
        self._first = b""
        self._ignoring = True
        transport.close()

    def _begin_tls(self) -> None:
        """Insert TLS between the socket and this protocol, and feed it the received data.

        `loop.start_tls` accepts no data and needs a task.
        """
        transport, context = self._transport, self._tls
        assert transport is not None and context is not None
        data = self._first
        self._first = b""
        self._tls = None
        self._tls_only = self._awaits_hello = False
        # The write buffer of TLS applies its own limits.
        transport.set_write_buffer_limits()
        self._upgrading = True
        handshake: asyncio.Future[None] = self._sockets.loop.create_future()
        handshake.add_done_callback(self._tls_began)
        tls = TlsProtocol(self._sockets.loop, self, context, handshake, self._sockets.handshake_timeout)
        transport.set_protocol(tls)
        tls.connection_made(transport)
        tls.feed(data)

    def _tls_began(self, handshake: asyncio.Future[None]) -> None:
        """Handle the end of the handshake. asyncio does not call `connection_lost` if it failed."""
        error = None if handshake.cancelled() else handshake.exception()
        if self._upgrading:
            self.connection_lost(error if isinstance(error, Exception) else None)

    def never_served(self) -> None:
        """Handle that the socket was lost before it was served."""
        self._sockets.admission.leave(self)

    def close_silent(self) -> None:
        """Close the socket if its client has not begun with AMQP."""
        if self.session is None and self._transport is not None:
            close_once(self._transport)

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._resuming = False
        if self.session is not None:
            self.session.pause_writing()

    def resume_writing(self) -> None:
        """Resume the session in the next turn.

        The session writes when it resumes. asyncio's transport closes a socket twice if a write within this call loses it.
        """
        self._resuming = True
        self._sockets.loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if self._resuming and self.session is not None:
            self.session.resume_writing()
        self._resuming = False

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            logger.info("TLS failed: %s", exc)
        self._upgrading = False
        self._sockets.accepted.discard(self)
        self._sockets.admission.leave(self)
        self._end_deadline()
        self._cancel_release()
        if self.session is not None:
            self.session.connection_lost()
            self.session = None
        if self._peer is not None:
            self._peer.closed()
            self._peer = None
        break_cycle(self._reader)
        self._reader = None
        self._transport = None


class AdoptedProtocol(SocketProtocol):
    """asyncio protocol of a socket that another process has accepted, and whose handshake it has run.

    Args:
        sockets: The state shared by all sockets.
        adoption: The connection.
        ended: Called once, when the socket is closed.
    """

    __slots__ = ("_adoption", "_ended")

    def __init__(self, sockets: Sockets, adoption: Adoption, ended: Callable[[], None]) -> None:
        super().__init__(sockets, None, False)
        self.node = adoption.node
        self._adoption: Adoption | None = adoption
        self._ended: Callable[[], None] | None = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Reading begins after this call, and a session may pause it.
        self._sockets.loop.call_soon(self._adopt)

    def _adopt(self) -> None:
        transport, adoption = self._transport, self._adoption
        self._adoption = None
        if adoption is None or transport is None or transport.is_closing():
            return
        protocols = self._sockets.protocols
        self._peer = peer = SocketPeer(transport, self._sockets, self)
        peer.describe_client(adoption.peer)
        session = protocols.adopt_session(adoption, peer)
        self.session = session
        protocols.open_adopted(session, adoption)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._report_end()

    def never_served(self) -> None:
        self._report_end()

    def _report_end(self) -> None:
        ended = self._ended
        self._ended = None
        if ended is not None:
            ended()


# Makes the protocol of an accepted socket: from the state of all sockets, the TLS context, and whether there is only TLS.
MakeProtocol: TypeAlias = Callable[[Sockets, ssl.SSLContext | None, bool], SocketProtocol]
