"""Listeners, the clock of the broker's timers, and an orderly stop."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from leveret.broker.log import FAILED
from leveret.protocols.login_queue import MAX_RUNNING
from leveret.protocols.services import Services
from leveret.server.admission import Admission
from leveret.server.listener import Listener
from leveret.server.periodic import Tasks
from leveret.server.transport import SocketProtocol, Sockets
from leveret.server.watch import INTERVAL, Watch

log = logging.getLogger("leveret.server")

# The longest sleep of the timers' clock, so that a timer set in the meantime is not missed for longer.
LONGEST_SLEEP = 0.05
BACKLOG = 1024
# Seconds between looks whether what links of AMQP 1.0 have acquired is in memory again.
READING = 0.005


class Server:
    """Serves one broker on any number of listeners.

    memory_limit, disk_free  octets, 0 for none; handshake_timeout, shutdown_timeout in seconds
    tls                      what clients of plain listeners get who ask for TLS, None for nothing
    on_failure               called once when the store has failed for good: nothing can be confirmed any more
    """

    def __init__(self, services: Services, *, handshake_timeout: float = 10.0, shutdown_timeout: float = 5.0,
                 memory_limit: int = 0, disk_free: int = 0, data_path: Path | None = None,
                 on_failure: Callable[[], None] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.services = services
        self.broker = services.broker
        self.handshake_timeout = handshake_timeout
        self.shutdown_timeout = shutdown_timeout
        self.watch = Watch(services, memory_limit, disk_free, data_path)
        self.on_failure = on_failure
        self.tls = tls
        self.admission = Admission()
        self.listeners: list[Listener] = []
        self.accepted: set[SocketProtocol] = set()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._sockets: Sockets | None = None
        self.executor = ThreadPoolExecutor(max_workers=MAX_RUNNING, thread_name_prefix="leveret-auth")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: Tasks | None = None
        self._failed = False

    async def start(self) -> None:
        """Start the log and the broker's clock; listeners are added with `listen`."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._sockets = Sockets(self.services, loop, self.executor, self.handshake_timeout, self.admission, self.accepted)
        self.services.call_soon = loop.call_soon
        broker = self.broker
        broker.jobs.call_soon = loop.call_soon
        broker.log.on_state = self._log_state
        broker.log.start(self._post)
        if broker.overflow is not None:
            broker.overflow.start(self._post)
        if broker.segments is not None:
            broker.segments.store.start(self._post)
        broker.start()
        broker.staging.start(self._post)
        self.services.tunnels.start(self._post)
        termini = self.services.termini
        termini.start()
        broker.end_turn()
        while not termini.is_ready() and not self._failed:
            await asyncio.sleep(READING)
        self._tasks = Tasks(loop)
        self._tasks.start("the clock of the broker's timers", self._tick, LONGEST_SLEEP)
        self._tasks.start("the watch over memory and disk", self._look, INTERVAL)

    def _post(self, callback: Callable[[], None]) -> None:
        """Have the log's call-backs run on the event loop, from any thread: each is a turn of its own."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._turn, callback)
        except RuntimeError:
            log.debug("the event loop is gone; a commit is not reported any more")

    def _turn(self, callback: Callable[[], None]) -> None:
        callback()
        self.broker.end_turn()

    async def listen(self, host: str | None, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen on an address; returns the one that it got (port 0 is any). OSError where that fails."""
        loop = asyncio.get_running_loop()
        # asyncio looks the address up and binds; it does not begin to serve.
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        listening = server.sockets[0].dup()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it
        server.close()
        listener = Listener(loop, listening, partial(self._take, tls or self.tls, tls is not None))
        try:
            listener.start(BACKLOG)
        except OSError:
            listener.close()
            raise
        self.listeners.append(listener)
        return listener.address

    def _take(self, tls: ssl.SSLContext | None, tls_only: bool, accepted: socket.socket, host: str) -> None:
        """A socket was accepted."""
        assert self._loop is not None and self._sockets is not None
        if not self.admission.admit(host):
            accepted.close()
            return
        protocol = SocketProtocol(self._sockets, host, tls, tls_only)
        self.admission.enter(protocol, host)
        connecting = self._loop.create_task(self._loop.connect_accepted_socket(lambda: protocol, accepted))
        self._connecting.add(connecting)
        connecting.add_done_callback(partial(self._connected, protocol))

    def _connected(self, protocol: SocketProtocol, connecting: asyncio.Task[Any]) -> None:
        """The socket has its transport, which calls the protocol from now on."""
        self._connecting.discard(connecting)
        if connecting.cancelled() or connecting.exception() is not None:
            log.debug("an accepted socket was lost before it was served")
            self.admission.leave(protocol)

    async def stop(self, reason: str = "the broker stops") -> None:
        """Close the listeners, then the connections with 320, then the log."""
        services = self.services
        services.stopping = True
        for listener in self.listeners:
            listener.close()
        for session in list(services.sessions):
            session.shut_down(reason)
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
        self.broker.look_at_clock()
        self.broker.end_turn()
        try:
            self.broker.staging.close()
            self.broker.log.close()
        finally:
            # Also where the log cannot be closed properly: its directory is to be free for a new start.
            if self.broker.overflow is not None:
                self.broker.overflow.close()
            self.watch.close()
            self.executor.shutdown(wait=False, cancel_futures=True)

    def _tick(self) -> float:
        """Run the timers that are due. Returns the seconds until the next one is, LONGEST_SLEEP at most."""
        timers = self.broker.timers
        self.broker.look_at_clock()
        now = timers.now()
        due = timers.next_due()
        if due and due <= now:
            timers.run(now)
            due = timers.next_due()
        self.broker.end_turn()
        return min(LONGEST_SLEEP, max(0.001, (due - now) / 1000)) if due else LONGEST_SLEEP

    def _look(self) -> float:
        self.watch.look()
        for listener in self.listeners:
            listener.look()
        self.broker.end_turn()
        return INTERVAL

    def _log_state(self) -> None:
        """The log is full, failed, or well again."""
        broker = self.broker
        if broker.log.state == FAILED:
            if not self._failed:
                self._failed = True
                log.error("the store has failed: %s", broker.log.reason)
                if self.on_failure is not None:
                    self.on_failure()
            return
        self.watch.look()
