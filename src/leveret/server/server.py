"""The server: listeners, the clock of the broker's timers, and the shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

from leveret.broker.log import FAILED
from leveret.protocols.adoption import Adoption
from leveret.protocols.login_queue import MAX_RUNNING
from leveret.protocols.opening import Protocols
from leveret.server.admission import Admission
from leveret.server.listener import Listener
from leveret.server.periodic import Tasks
from leveret.server.transport import AdoptedProtocol, MakeProtocol, SocketProtocol, Sockets
from leveret.server.waiting_room import WaitingRoom
from leveret.server.watch import INTERVAL, Watch
from leveret.server.watchdog import Watchdog

logger = logging.getLogger("leveret.server")

# Maximum seconds between runs of the timers of a broker with vhosts.
MAX_TIMER_SLEEP = 0.05
BACKLOG = 1024
# Seconds between checks whether the protocols are ready for connections.
RECOVERY_POLL_INTERVAL = 0.005

# The task that attaches a protocol to an accepted socket.
Connecting: TypeAlias = asyncio.Task[tuple[asyncio.Transport, SocketProtocol]]


class Server:
    """Server of one broker on any number of listeners.

    Args:
        protocols: The protocols that clients may speak.
        handshake_timeout: Seconds from accepting a socket to an open connection.
        shutdown_timeout: Seconds for clients to answer the close on shutdown.
        memory_limit: Memory in bytes above which the memory alarm is raised; 0 is unlimited.
        disk_free: Free disk space in bytes below which the disk alarm is raised; 0 is unlimited.
        data_path: The directory whose disk space is monitored.
        on_failure: Called once when the store has failed permanently.
        tls: The TLS context for clients that request TLS on a plain listener; None refuses them.
        watchdog: The watchdog of the event loop; None if it has none.
        timer_interval: Maximum seconds between runs of the broker's timers, which bounds the delay of a new timer.
    """

    def __init__(
        self,
        protocols: Protocols,
        *,
        handshake_timeout: float = 10.0,
        shutdown_timeout: float = 5.0,
        memory_limit: int = 0,
        disk_free: int = 0,
        data_path: Path | None = None,
        on_failure: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
        watchdog: Watchdog | None = None,
        timer_interval: float = MAX_TIMER_SLEEP,
    ) -> None:
        self.protocols = protocols
        self.services = services = protocols.services
        self.broker = services.broker
        self.handshake_timeout = handshake_timeout
        self.shutdown_timeout = shutdown_timeout
        self.watch = Watch(services, memory_limit, disk_free, data_path)
        self.on_failure = on_failure
        self.tls = tls
        self.admission = Admission()
        self.waiting_room = WaitingRoom(self.admission, handshake_timeout)
        self._admits = False
        self.listeners: list[Listener] = []
        self.accepted: set[SocketProtocol] = set()
        self._connecting: set[Connecting] = set()
        self._sockets: Sockets | None = None
        self.executor = ThreadPoolExecutor(max_workers=MAX_RUNNING, thread_name_prefix="leveret-auth")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: Tasks | None = None
        self._failed = False
        self._watchdog = watchdog
        self._timer_interval = timer_interval
        # Whether the watchdog runs callbacks of other threads, which is cheaper than the loop's own method.
        self._watchdog_posts = False

    async def start(self) -> None:
        """Start the log and the broker's timers. Add listeners with `listen`."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._sockets = Sockets(self.protocols, loop, self.executor, self.handshake_timeout, self.admission, self.accepted)
        self.admission.on_leave = self._admit_soon
        self.services.call_soon = loop.call_soon
        broker = self.broker
        broker.jobs.call_soon = loop.call_soon
        broker.log.on_state = self._log_state
        watchdog = self._watchdog
        self._watchdog_posts = watchdog is not None and watchdog.take_posts(loop)
        broker.log.start(self._post, None if watchdog is None else watchdog.when_idle)
        if broker.overflow is not None:
            broker.overflow.start(self._post)
        if broker.segments is not None:
            broker.segments.store.start(self._post)
        broker.start()
        broker.uploads.start(self._post)
        states = self.services.states
        for state in states:
            state.start(self._post)
        broker.end_turn()
        while not all(state.is_ready() for state in states) and not self._failed:
            await asyncio.sleep(RECOVERY_POLL_INTERVAL)
        self._tasks = Tasks(loop)
        self._tasks.start("the clock of the broker's timers", self._tick, self._timer_interval)
        self._tasks.start("the watch over memory and disk", self._check, INTERVAL)

    def _post(self, callback: Callable[[], None]) -> None:
        """Run a log callback on the event loop, in its own turn. May be called from any thread."""
        assert self._loop is not None
        if self._watchdog is not None and self._watchdog_posts:
            self._watchdog.post(partial(self._turn, callback))
            return
        try:
            self._loop.call_soon_threadsafe(self._turn, callback)
        except RuntimeError:
            logger.debug("the event loop is closed: dropped the notification of a commit")

    def _turn(self, callback: Callable[[], None]) -> None:
        callback()
        self.broker.end_turn()

    async def listen(
        self,
        host: str | None,
        port: int,
        tls: ssl.SSLContext | None = None,
        make_protocol: MakeProtocol = SocketProtocol,
    ) -> tuple[str, int]:
        """Listen on an address and return the bound address; port 0 picks a free port.

        Args:
            host: The address.
            port: The port.
            tls: The TLS context of a listener that accepts only TLS; None for a plain listener.
            make_protocol: Makes the protocol of an accepted socket.

        Raises:
            OSError: The address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        # Use asyncio only to resolve the address and bind the socket.
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        listening = server.sockets[0].dup()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it
        server.close()
        context = tls or self.tls

        def make() -> SocketProtocol:
            assert self._sockets is not None
            return make_protocol(self._sockets, context, tls is not None)

        listener = Listener(loop, listening, partial(self._take, make))
        try:
            listener.start(BACKLOG)
        except OSError:
            listener.close()
            raise
        self.listeners.append(listener)
        return listener.address

    def _take(self, make: Callable[[], SocketProtocol], accepted: socket.socket, host: str) -> None:
        """Serve an accepted socket, now or when fewer clients are in the handshake."""
        serve = partial(self._serve, make, accepted, host)
        room = self.waiting_room
        if not (room and room.has(host)) and self.admission.admit(host, may_wait=True):
            serve()
        elif not room.take(accepted, host, serve):
            # Full: as without a room.
            if self.admission.admit(host):
                serve()
            else:
                accepted.close()

    def _serve(self, make: Callable[[], SocketProtocol], accepted: socket.socket, host: str) -> None:
        protocol = make()
        self.admission.enter(protocol, host)
        self._connect(protocol, accepted)

    def _admit_soon(self) -> None:
        """Admit waiting sockets, once for all that leave in this turn."""
        if self.waiting_room and not self._admits:
            assert self._loop is not None
            self._admits = True
            self._loop.call_soon(self._admit)

    def _admit(self) -> None:
        self._admits = False
        if self.waiting_room.admit():
            self._admit_soon()

    def adopt(self, sock: socket.socket, adoption: Adoption, ended: Callable[[], None]) -> None:
        """Serve a connection that another process has accepted, and whose handshake it has run.

        Args:
            sock: The client's socket, or one to a relay. The server closes it.
            adoption: The connection.
            ended: Called once, when the socket is closed.
        """
        assert self._sockets is not None
        self._connect(AdoptedProtocol(self._sockets, adoption, ended), sock)

    def disown(self, node: str) -> None:
        """Close the adopted connections that another node relays, because it is gone.

        The system would notice that of unsent output after minutes only.
        """
        for protocol in list(self.accepted):
            if protocol.node == node:
                protocol.abort()

    def _connect(self, protocol: SocketProtocol, accepted: socket.socket) -> None:
        assert self._loop is not None
        connecting = self._loop.create_task(self._loop.connect_accepted_socket(lambda: protocol, accepted))
        self._connecting.add(connecting)
        connecting.add_done_callback(partial(self._connected, protocol))

    def _connected(self, protocol: SocketProtocol, connecting: Connecting) -> None:
        """Handle the result of creating a socket's transport."""
        self._connecting.discard(connecting)
        if connecting.cancelled() or connecting.exception() is not None:
            logger.debug("lost an accepted socket before serving it")
            protocol.never_served()

    def close_listeners(self) -> None:
        """Take no new clients."""
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        self.waiting_room.close()

    async def stop(self, reason: str = "the broker stops") -> None:
        """Close the listeners, then the connections with 320, then the log."""
        services = self.services
        services.stopping = True
        self.broker.indexing.give_up()
        self.close_listeners()
        for session in list(services.sessions):
            session.shut_down(reason)
        for protocol in list(self.accepted):
            protocol.close_silent()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.shutdown_timeout
        if self._connecting:
            await asyncio.wait(self._connecting)
        while self.accepted and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for protocol in list(self.accepted):
            protocol.abort()
        while self.accepted:
            await asyncio.sleep(0)
        if self._tasks is not None:
            self._tasks.stop()
        if self.broker.segments is not None:
            self.broker.segments.store.stop()
        self.broker.check_clock()
        self.broker.end_turn()
        self.broker.note_occupied()
        try:
            self.broker.uploads.close()
            self.broker.log.close()
        finally:
            # Also if closing the log failed, so that its directory is unlocked for a restart.
            if self.broker.overflow is not None:
                self.broker.overflow.close()
            # Changes of its state during the close may still be on their way.
            self.broker.log.on_state = None
            self.watch.close()
            self.executor.shutdown(wait=False, cancel_futures=True)

    def _tick(self) -> float:
        """Run the timers that are due. Returns the seconds until the next one, at most the interval."""
        timers = self.broker.timers
        self.broker.check_clock()
        now = timers.now()
        due = timers.next_due()
        if due and due <= now:
            timers.run(now)
            due = timers.next_due()
        self.broker.end_turn()
        return min(self._timer_interval, max(0.001, (due - now) / 1000)) if due else self._timer_interval

    def _check(self) -> float:
        self.watch.check()
        for listener in self.listeners:
            listener.check()
        self.waiting_room.expire()
        self._admit_soon()
        self.broker.end_turn()
        return INTERVAL

    def _log_state(self) -> None:
        """Handle a change of the log's state: full, failed or recovered."""
        broker = self.broker
        if broker.log.state == FAILED:
            if not self._failed:
                self._failed = True
                logger.error("the store has failed: %s", broker.log.reason)
                broker.indexing.give_up()
                if self.on_failure is not None:
                    self.on_failure()
            return
        self.watch.check()
