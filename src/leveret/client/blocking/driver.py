"""Threads under the engine: who waits for something reads the socket for all.

One lock guards the engine. A thread that waits becomes the leader, unless there is one: it reads from the socket, without
the lock, and feeds the engine, with it. The others sleep until the leader has their result, or passes its task on. So a
call costs no change of threads where there is one thread, and the thread of the connection's own only looks after what
nobody waits for: heartbeats, what is left to be written, and reconnecting.
"""

from __future__ import annotations

import _thread
import os
import random
import socket
import ssl
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from leveret.client.blocking.message import BlockingDelivery, BlockingFileMessage, BlockingMessage
from leveret.client.blocking.sockets import AnySocket, open_socket
from leveret.client.blocking.waiter import BlockingWaiter, wake
from leveret.client.core.backoff import Backoff
from leveret.client.core.endpoints import Endpoints
from leveret.client.core.frontend import FrontEnd, Procedure
from leveret.client.core.protocols import AnyCore, fallback_core, new_core
from leveret.client.core.socket_errors import lost_error
from leveret.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    ProtocolMismatch,
    Timeout,
    TlsFailed,
    copy_error,
)
from leveret.client.events import Closed, Connected, Event, Reconnecting
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT, Default, Limit

# Octets that are written at once; less waits for more for FLUSH_DELAY seconds at most, while somebody does something.
FLUSH_SIZE: Final = 32768
FLUSH_DELAY: Final = 0.002
# Octets that the socket does not take before publishers wait.
HIGH_WATER: Final = 1 << 20
# How often the connection's own thread looks after a connection in use, and after one that is not. Seconds.
BUSY_INTERVAL: Final = 0.05
IDLE_INTERVAL: Final = 1.0
# How long `close` waits for that thread, which may be in a call of the application's. Seconds.
JOIN_TIMEOUT: Final = 10.0


class Driver(FrontEnd):
    """The socket of a connection, its lock, and its thread."""

    message_class = BlockingMessage
    delivery_class = BlockingDelivery
    file_class = BlockingFileMessage

    def __init__(self, hosts: Sequence[Parameters], callbacks: list[Callable[[Event], object]]) -> None:
        self.lock = threading.RLock()
        self.hosts = list(hosts)
        self.core: AnyCore = new_core(self, self.hosts[0])
        self._socket: AnySocket | None = None
        # One that is being connected.
        self._connecting: socket.socket | None = None
        # What the socket has not taken yet.
        self._unsent: memoryview | None = None
        # Why the socket cannot be used any more, until the engine is told.
        self._broken: ConnectionLost | None = None
        self._has_leader = False
        self._sleepers: deque[_thread.LockType] = deque()
        self._dirty = False
        self._last_written = 0.0
        self._last_received = 0.0
        self._events: deque[Event] = deque()
        self._callbacks = callbacks
        self._wake = threading.Event()
        self._thread_idle = False
        self._active = False
        self._reconnect = False
        self._paused = False
        self._thread = threading.Thread(target=self._run_thread, name="leveret connection", daemon=True)
        self.closed = threading.Event()
        _drivers.add(self)

    # Opening

    def open(self) -> None:
        """The first time: every host once. Raises the error of the last."""
        for number, parameters in enumerate(self.hosts, 1):
            try:
                self.core = new_core(self, parameters)
                try:
                    self._connect(parameters)
                except ProtocolMismatch as error:
                    self.core = fallback_core(self, parameters, error)
                    self._connect(parameters)
                with self.lock:
                    self.core.ready()
            except Error:
                if number == len(self.hosts):
                    raise
                continue
            with self.lock:
                self.emit(Connected(parameters.host, parameters.port, number, True))
            self._thread.start()
            return

    def _connect(self, parameters: Parameters) -> None:
        """To this server, or where it sends us."""
        endpoints = Endpoints(parameters)
        while True:
            try:
                self._connect_to(endpoints.current)
                return
            except ConnectionFailed as error:
                endpoints.advance(error)

    def _connect_to(self, parameters: Parameters) -> None:
        """A socket and the handshake. Raises an `Error`, and leaves no socket behind then."""
        deadline = time.monotonic() + parameters.connect_timeout
        try:
            opened = open_socket(parameters, deadline, self._begin_connecting)
        finally:
            self._connecting = None
        try:
            with self.lock:
                if self.core.is_closed:
                    raise copy_error(self.core.last_error)
                self._socket = opened
                self._unsent = None
                self._broken = None
                self._paused = False
                self._last_received = self._last_written = time.monotonic()
            self.run(self.core.connected(parameters), None, "the handshake", deadline)
        except Timeout:
            self._drop(opened)
            raise ConnectionFailed(
                f"no connection to {parameters.host}:{parameters.port} within {parameters.connect_timeout:g} s"
                " (connect_timeout)", host=parameters.host, port=parameters.port) from None
        except ConnectionClosed as error:
            self._drop(opened)
            kind = TlsFailed if isinstance(error.__cause__, ssl.SSLError) else ConnectionFailed
            raise kind(f"{parameters.host}:{parameters.port} ended the connection before it was open: {error}",
                       host=parameters.host, port=parameters.port, reply_code=error.reply_code,
                       reply_text=error.reply_text) from None
        except BaseException:
            self._drop(opened)
            raise

    def _begin_connecting(self, connecting: socket.socket) -> None:
        with self.lock:
            if self.core.is_closed:
                raise copy_error(self.core.last_error)
            self._connecting = connecting

    def _drop(self, opened: AnySocket) -> None:
        """Give a socket up. A thread that reads from it closes it, as its number must not be used again before."""
        with self.lock:
            if self._socket is opened:
                self._socket = None
            opened.shut_down()
            if not self._has_leader:
                opened.close()

    def close(self) -> None:
        """Close the connection in order, and end the thread."""
        try:
            self.run(self.core.close(), None, "connection.close", time.monotonic() + self.core.parameters.connect_timeout)
        except Error:
            pass
        finally:
            with self.lock:
                left, connecting = self._socket, self._connecting
                if connecting is not None:
                    try:
                        connecting.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
            if left is not None:
                self._drop(left)
            self._wake.set()
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join(JOIN_TIMEOUT)

    def after_fork(self) -> None:
        """In the child of a fork, which has neither the thread nor a right to the socket."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._wake = threading.Event()
        self.closed = threading.Event()
        self._has_leader = False
        self._callbacks.clear()
        opened, self._socket = self._socket, None
        if opened is not None:
            # Its end of the stream is the parent's.
            opened.close()
        self.core.end(ConnectionLost("the connection is lost: it belongs to the process that was forked; open one in each"))

    # Waiting

    def run(self, procedure: Procedure, limit: Limit, what: str, deadline: float | None = None) -> None:
        """Do what a procedure of the engine does, waiting for one thing after the other, for each as long as `wait`."""
        try:
            with self.lock:
                waiter = next(procedure)
            while True:
                try:
                    result = self.wait(waiter, limit, what, deadline=deadline)
                except BaseException as error:
                    with self.lock:
                        waiter = procedure.throw(error)
                else:
                    with self.lock:
                        waiter = procedure.send(result)
        except StopIteration:
            return

    def wait(self, waiter: Any, limit: Limit, what: str, left: float | None = None, deadline: float | None = None) -> Any:
        """The result, within so many seconds, or as many as are `left` of them; without a limit until the deadline, which
        is of the monotonic clock. Raises its exception, and `Timeout`. The lock must not be held."""
        seconds = self.core.parameters.timeout if isinstance(limit, Default) else limit
        if seconds is not None:
            deadline = time.monotonic() + (seconds if left is None else left)
        try:
            return self._wait(waiter, deadline)
        except _DeadlinePassed:
            within = "in time" if seconds is None else f"within {seconds:g} s"
            raise Timeout(f"{what}: nothing came {within} (timeout)") from None

    def _wait(self, waiter: BlockingWaiter, deadline: float | None) -> Any:
        with self.lock:
            try:
                self._write()
                while not waiter.done():
                    if self._broken is not None:
                        self._socket_lost(self._broken)
                        continue
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise _DeadlinePassed
                    if self._has_leader or self._socket is None:
                        self._sleep(waiter, left)
                    else:
                        self._lead(self._socket, left)
            finally:
                waiter.abandon()
                if self._sleepers and not self._has_leader:
                    wake(self._sleepers[0])
        return waiter.get()

    def _lead(self, opened: AnySocket, left: float | None) -> None:
        """Read once, for everybody."""
        data: list[bytes] = []
        self._has_leader = True
        try:
            raised = self._unlocked(partial(opened.receive, data, left, self._unsent is not None))
        finally:
            self._has_leader = False
        if self._socket is not opened:
            opened.close()
        elif data:
            self._received(data[0])
        elif isinstance(raised, OSError):
            self._socket_lost(lost_error(raised))
        if self._unsent is not None:
            self._write()
        if raised is not None and not isinstance(raised, OSError):
            raise raised

    def _sleep(self, waiter: BlockingWaiter, left: float | None) -> None:
        """Until the leader has the result, or is done itself."""
        if self._socket is None and threading.current_thread() is self._thread:
            raise ConnectionLost("the connection is lost, and its own thread, which connects again, cannot wait for that:"
                                 " expected callbacks of on_event that wait for nothing")
        sleeper = _thread.allocate_lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        waiter.sleeper = sleeper
        try:
            raised = self._unlocked(partial(sleeper.acquire, True, -1 if left is None else left))
        finally:
            waiter.sleeper = None
            self._sleepers.remove(sleeper)
        if raised is not None:
            raise raised

    def _unlocked(self, block: Callable[[], object]) -> BaseException | None:
        """Do what may take time without the lock; the result is what it raised. The handler of a signal may raise wherever
        the main thread is, and while it waits for the lock, too: it must have it in the end, and only once."""
        raised: BaseException | None = None
        try:
            self.lock.release()
            block()
        except BaseException as error:
            raised = error
        while True:
            try:
                if self.lock._is_owned():  # type: ignore[attr-defined]
                    return raised
                self.lock.acquire()
            except BaseException as error:
                raised = error

    def interrupted(self, error: BaseException) -> None:
        """Something was raised within the engine. What a signal's handler raised may have come between two steps that
        belong together, so that the connection cannot be used any more. The lock is held."""
        if not isinstance(error, Exception):
            self._broken = ConnectionLost(f"the connection is lost: it was interrupted by {type(error).__name__}")
            self._wake.set()

    def wait_open(self, limit: Limit, left: float | None = None) -> None:
        """Until there is a connection, `limit` and `left` as of `wait`. Raises the error of one that is closed for good,
        and `Timeout`."""
        while not self.core.opened:
            with self.lock:
                waiter = self.core.ready_waiter()
            self.wait(waiter, limit, f"a connection ({self.core.last_error})", left)

    # FrontEnd; the lock is held.

    def new_waiter(self) -> BlockingWaiter:
        return BlockingWaiter()

    def flush_soon(self) -> None:
        self._active = True
        if self.core.engine.pending > FLUSH_SIZE or time.monotonic() - self._last_written > FLUSH_DELAY:
            self._write()
        else:
            self._dirty = True
            if self._thread_idle:
                self._wake.set()

    def emit(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, Closed):
            self.closed.set()
        self._wake.set()

    def pause_reading(self) -> None:
        # Only the connection's own thread heeds it: who waits for something must read.
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False

    def close_socket(self) -> None:
        self._write()
        opened = self._socket
        if opened is not None:
            self._drop(opened)

    def reconnect(self) -> None:
        self._reconnect = True
        self._wake.set()

    # The socket; the lock is held.

    def _write(self) -> None:
        """Write what the socket takes. A socket that breaks is looked after later: the engine may be in the middle."""
        self._dirty = False
        opened = self._socket
        if opened is None or self._broken is not None:
            return
        try:
            while True:
                if self._unsent is None:
                    data = self.core.to_send()
                    if not data:
                        break
                    self._unsent = memoryview(data)
                self._last_written = time.monotonic()
                sent = opened.send(self._unsent)
                if sent < len(self._unsent):
                    self._unsent = self._unsent[sent:]
                    break
                self._unsent = None
        except OSError as error:
            self._broken = lost_error(error)
            self._wake.set()
            return
        except BaseException as error:
            self.interrupted(error)
            raise
        full = self._unsent is not None and len(self._unsent) + self.core.engine.pending > HIGH_WATER
        if full != self.core.socket_is_full:
            self.core.socket_full(full)

    def _received(self, data: bytes) -> None:
        if not data:
            self._socket_lost(lost_error(None))
            return
        self._active = True
        self._last_received = time.monotonic()
        try:
            self.core.receive(data)
        except Exception as error:
            # A mistake of ours, which must not end the thread that happens to read; nor may it go unheard.
            self._broken = lost_error(error)
            self._wake.set()
        except BaseException as error:
            self.interrupted(error)
            raise

    def _socket_lost(self, error: ConnectionLost) -> None:
        self._broken = None
        self._unsent = None
        opened = self._socket
        if opened is not None:
            self._drop(opened)
        self.core.lost(error)

    # The connection's own thread

    def _run_thread(self) -> None:
        try:
            self._housekeep()
        except BaseException as error:
            # Nobody else would end what waits for it.
            with self.lock:
                self.core.end(lost_error(error))
            raise
        finally:
            self._run_callbacks()

    def _housekeep(self) -> None:
        while not self.core.is_closed:
            with self.lock:
                self._thread_idle = not self._active and not self._dirty
                self._active = False
            heartbeat = self.core.engine.heartbeat
            pause = BUSY_INTERVAL
            if self._thread_idle:
                due = self._last_written + heartbeat / 2 - time.monotonic()
                pause = min(IDLE_INTERVAL, max(due, 0.0)) if heartbeat else IDLE_INTERVAL
            self._wake.wait(pause)
            self._wake.clear()
            self._thread_idle = False
            with self.lock:
                self._check_socket()
            self._run_callbacks()
            if self._reconnect and not self.core.is_closed:
                self._reconnect = False
                self._reconnect_until_open()

    def _check_socket(self) -> None:
        if self._broken is not None:
            self._socket_lost(self._broken)
        opened = self._socket
        if opened is None:
            return
        self._write()
        now = time.monotonic()
        heartbeat = self.core.engine.heartbeat
        if heartbeat and now - self._last_written >= heartbeat / 2:
            self.core.engine.send_heartbeat()
            self._write()
        if not self._has_leader and not self._paused:
            self._read_available(opened)
        heartbeat_timeout = self.core.heartbeat_timeout
        if 0 < heartbeat_timeout < now - self._last_received and not self._paused and self._socket is opened:
            self._socket_lost(ConnectionLost(
                f"the connection is lost: no data from the server for {now - self._last_received:.0f} s"
                f" (heartbeat: {heartbeat_timeout / 2:g} s)"))

    def _read_available(self, opened: AnySocket) -> None:
        """A few reads at most: what application threads do not take they shall find in the socket."""
        for _ in range(4):
            data: list[bytes] = []
            try:
                opened.receive(data, 0, False)
            except OSError as error:
                self._socket_lost(lost_error(error))
                return
            if not data:
                return
            self._received(data[0])
            if self._socket is not opened or self._broken is not None or self._paused:
                return

    def _run_callbacks(self) -> None:
        while self._events:
            event = self._events.popleft()
            for callback in list(self._callbacks):
                try:
                    callback(event)
                except BaseException:
                    # As for a thread's own: it is shown, and the thread goes on.
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _reconnect_until_open(self) -> None:
        """Until it is connected again and everything is as it was, or the attempts are used up."""
        error: Error = self.core.last_error
        for attempt in Backoff(self.hosts, self.core.parameters, random.random):
            parameters = attempt.parameters
            self.emit(Reconnecting(parameters.host, parameters.port, attempt.number, attempt.delay))
            self._run_callbacks()
            if self.closed.wait(attempt.delay):
                return
            try:
                self._connect(parameters)
                opened = self._socket
                try:
                    self.run(self.core.recover(), DEFAULT, "recovering the connection")
                except BaseException:
                    if opened is not None:
                        self._drop(opened)
                    raise
            except Error as failed:
                error = failed
                with self.lock:
                    self.core.lost(ConnectionLost(f"the connection is lost: {failed}"))
                if self.core.is_closed:
                    return
                continue
            self.emit(Connected(parameters.host, parameters.port, attempt.number, False))
            return
        with self.lock:
            self.core.end(error)


class _DeadlinePassed(Exception):
    """A deadline has passed."""


# Those of this process.
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _forked() -> None:
    for driver in list(_drivers):
        driver.after_fork()


os.register_at_fork(after_in_child=_forked)
