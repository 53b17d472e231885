"""Front end of the engine for threads. A thread that waits for a result reads the socket for all threads.

One lock guards the engine. A waiting thread becomes the leader if there is none: it reads from the socket without the lock,
and feeds the engine with the lock. The other threads sleep until the leader has their result or hands over its role. A call
in a single-threaded program thus needs no thread switch. The connection's own thread does the background work: heartbeats,
delayed writes and reconnects.
"""

from __future__ import annotations

import _thread
import os
import queue
import socket
import ssl
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, ParamSpec, TypeVar

from leveret.client._sync.message import Delivery, FileMessage, Message
from leveret.client._sync.sockets import AnySocket, open_socket
from leveret.client._sync.waiter import ThreadWaiter, wake
from leveret.client.engine.common.backoff import Backoffs
from leveret.client.engine.common.connection import BaseConnectionCore
from leveret.client.engine.common.endpoints import Endpoints
from leveret.client.engine.common.frontend import FrontEnd, Procedure
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.socket_errors import lost_error
from leveret.client.engine.protocols import fallback_core, new_core
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
from leveret.client.events import Closed, Connected, Event, EventCallback, Reconnecting, add_event, supersedes
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT, Default, Limit

P = ParamSpec("P")
R = TypeVar("R")

# Bytes of output at which it is written at once. Less output is delayed by up to FLUSH_DELAY seconds in a series of calls.
FLUSH_SIZE: Final = 32768
FLUSH_DELAY: Final = 0.002
# Bytes not accepted by the socket above which publishers wait.
HIGH_WATER: Final = 1 << 20
# Seconds between checks by the connection's own thread, for a connection in use and for an idle one.
BUSY_INTERVAL: Final = 0.05
IDLE_INTERVAL: Final = 1.0
# Seconds that `close` waits for that thread, which may be in a callback of the application.
JOIN_TIMEOUT: Final = 10.0


class EventQueue(queue.Queue[Event]):
    """A queue of events."""

    def _put(self, item: Event) -> None:
        add_event(self.queue, item)


class Driver(FrontEnd):
    """The socket of a connection, its lock, and its thread.

    Attributes:
        lock: Guards the engine.
        hosts: Hosts to connect to.
        core: Engine of the connection.
        callbacks: Callbacks for events.
        closed: Set when the connection is closed for good.
    """

    message_class = Message
    delivery_class = Delivery
    file_class = FileMessage

    def __init__(self, hosts: Sequence[Parameters]) -> None:
        self.lock = threading.RLock()
        self.hosts = list(hosts)
        self._backoffs = Backoffs()
        self.core: BaseConnectionCore = new_core(self, self.hosts[0])
        self._socket: AnySocket | None = None
        # A socket that is being connected.
        self._connecting: socket.socket | None = None
        # Output that the socket has not accepted yet.
        self._unsent: memoryview | None = None
        # Cause of an unusable socket, until the engine is notified.
        self._broken: ConnectionLost | None = None
        self._has_leader = False
        self._sleepers: deque[_thread.LockType] = deque()
        self._flush_pending = False
        self._last_written = 0.0
        self._last_received = 0.0
        # Events with the callbacks at their time: those that are added later must not get them.
        self._events: deque[tuple[Event, list[EventCallback]]] = deque()
        on_event = self.hosts[0].on_event
        self.callbacks: list[Callable[[Event], object]] = [] if on_event is None else [on_event]
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
        """Connect for the first time, trying every host once. Raises the error of the last host."""
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
        """Connect to this server, or to one that it redirects to."""
        endpoints = Endpoints(parameters)
        while True:
            try:
                self._connect_to(endpoints.current)
                return
            except ConnectionFailed as error:
                endpoints.advance(error)

    def _connect_to(self, parameters: Parameters) -> None:
        """Open a socket and run the handshake. Raises `Error`, and then leaves no socket open."""
        deadline = time.monotonic() + parameters.connect_timeout
        try:
            sock = open_socket(parameters, deadline, self._begin_connecting)
        finally:
            self._connecting = None
        try:
            with self.lock:
                if self.core.is_closed:
                    raise copy_error(self.core.last_error)
                self._socket = sock
                self._unsent = None
                self._broken = None
                self._paused = False
                self._last_received = self._last_written = time.monotonic()
            self.run(self.core.handshake(parameters), None, "the handshake", deadline)
        except Timeout:
            self._drop(sock)
            raise ConnectionFailed(
                f"no connection to {parameters.host}:{parameters.port} within {parameters.connect_timeout:g} s"
                " (connect_timeout)",
                host=parameters.host,
                port=parameters.port,
            ) from None
        except ConnectionClosed as error:
            self._drop(sock)
            kind = TlsFailed if isinstance(error.__cause__, ssl.SSLError) else ConnectionFailed
            raise kind(
                f"{parameters.host}:{parameters.port} closed the connection before it was open: {error}",
                host=parameters.host,
                port=parameters.port,
                reply_code=error.reply_code,
                reply_text=error.reply_text,
            ) from None
        except BaseException:
            self._drop(sock)
            raise

    def _begin_connecting(self, connecting: socket.socket) -> None:
        with self.lock:
            if self.core.is_closed:
                raise copy_error(self.core.last_error)
            self._connecting = connecting

    def _drop(self, sock: AnySocket) -> None:
        """Shut down a socket. A thread that reads from it closes it, so that its descriptor is not reused too early."""
        with self.lock:
            if self._socket is sock:
                self._socket = None
            sock.shut_down()
            if not self._has_leader:
                sock.close()

    def close(self) -> None:
        """Close the connection and end the thread."""
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
        """Abandon the connection in a forked child, which neither has the thread nor owns the socket."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._wake = threading.Event()
        self.closed = threading.Event()
        self._has_leader = False
        self.callbacks.clear()
        sock, self._socket = self._socket, None
        if sock is not None:
            # Do not shut it down: the stream belongs to the parent.
            sock.close()
        self.core.end(
            ConnectionLost(
                "the connection is lost: it belongs to the parent process of a fork; expected each process to open its own"
            )
        )

    # Waiting

    def run(self, procedure: Procedure, limit: Limit, what: str, deadline: float | None = None) -> None:
        """Run a procedure of the engine, with the timeouts of `wait` for each of its waits."""
        try:
            waiter = self.call(procedure.send, None)
            while True:
                try:
                    result = self.wait(waiter, limit, what, deadline=deadline)
                except BaseException as error:
                    waiter = self._throw(procedure, error)
                else:
                    waiter = self.call(procedure.send, result)
        except StopIteration:
            return

    def _throw(self, procedure: Procedure, error: BaseException) -> ThreadWaiter:
        """Continue a procedure with the exception of its wait, which may leave it again."""
        with self.lock:
            try:
                waiter: ThreadWaiter = procedure.throw(error)
                return waiter
            except BaseException as raised:
                if raised is not error:
                    self.interrupted(raised)
                raise

    def wait(
        self, waiter: Result, limit: Limit, what: str, left: float | None = None, deadline: float | None = None
    ) -> Result:
        """Wait for the result, without holding the lock. Raises its exception, and `Timeout`.

        Args:
            waiter: Waiter for the result.
            limit: Timeout in seconds.
            what: Operation, for the message of a timeout.
            left: Seconds left of the timeout, if some have passed.
            deadline: Deadline of the monotonic clock, if there is no timeout.
        """
        seconds = self.core.parameters.timeout if isinstance(limit, Default) else limit
        if seconds is not None:
            deadline = time.monotonic() + (seconds if left is None else left)
        try:
            return self._wait(waiter, deadline)
        except _DeadlinePassed:
            after = "" if seconds is None else f" after {seconds:g} s"
            raise Timeout(f"{what}: timed out{after} (option timeout)") from None

    def _wait(self, waiter: ThreadWaiter, deadline: float | None) -> Result:
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
                    if self._has_leader or self._socket is None or self._is_stalled():
                        self._sleep(waiter, left)
                    else:
                        self._lead(self._socket, left)
            finally:
                waiter.abandon()
                if self._sleepers and not self._has_leader:
                    wake(self._sleepers[0])
        return waiter.get()

    def _is_stalled(self) -> bool:
        """Whether no thread may read. The connection's own thread must, because no other one would write the output."""
        return self.core.stalled and threading.current_thread() is not self._thread

    def _lead(self, sock: AnySocket, left: float | None) -> None:
        """Read once on behalf of all waiting threads."""
        data: list[bytes] = []
        try:
            self._has_leader = True
            try:
                raised = self._unlocked(partial(sock.receive, data, left, self._unsent is not None))
            finally:
                self._has_leader = False
            if self._socket is not sock:
                sock.close()
            elif data:
                self._received(data[0])
            elif isinstance(raised, OSError):
                self._socket_lost(lost_error(raised))
            if self._unsent is not None:
                self._write()
        except BaseException as error:
            # Data that was read may be lost.
            self.interrupted(error)
            raise
        if raised is not None and not isinstance(raised, OSError):
            raise raised

    def _sleep(self, waiter: ThreadWaiter, left: float | None) -> None:
        """Sleep until the leader has the result or gives up its role."""
        if self._socket is None and threading.current_thread() is self._thread:
            raise ConnectionLost(
                "the connection is lost, and the reconnecting thread cannot wait for it; expected on_event"
                " callbacks that do not wait"
            )
        sleeper = _thread.allocate_lock()
        sleeper.acquire()
        try:
            self._sleepers.append(sleeper)
            waiter.sleeper = sleeper
            raised = self._unlocked(partial(sleeper.acquire, True, -1 if left is None else left))
        finally:
            waiter.sleeper = None
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
        if raised is not None:
            raise raised

    def _unlocked(self, block: Callable[[], object]) -> BaseException | None:
        """Run a blocking call without the lock, and return its exception.

        A signal handler may raise anywhere in the main thread, even while it waits for the lock. On return, the lock is
        held exactly once.
        """
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
        """Handle an exception raised within the engine, with the lock held.

        An exception of a signal handler may have interrupted an atomic sequence, so the connection is unusable.
        """
        if not isinstance(error, Exception):
            self._broken = ConnectionLost(f"the connection is lost: it was interrupted by {type(error).__name__}")
            self._wake.set()

    def wait_open(self, limit: Limit = DEFAULT, left: float | None = None) -> None:
        """Wait for a connection; `limit` and `left` as for `wait`.

        Raises the error of a connection that is closed for good, and `Timeout`.
        """
        while not self.core.opened:
            with self.lock:
                waiter = self.core.ready_waiter()
            self.wait(waiter, limit, f"a connection ({self.core.last_error})", left)

    def wait_closed(self, timeout: float | None) -> bool:
        """Wait until the connection is closed for good. Returns False after the timeout."""
        return self.closed.wait(timeout)

    def call(self, function: Callable[P, R], *args: P.args, **keywords: P.kwargs) -> R:
        """Call the engine, with the lock held."""
        with self.lock:
            try:
                return function(*args, **keywords)
            except BaseException as error:
                self.interrupted(error)
                raise

    def read_file(self, read: Callable[[], bytes]) -> bytes:
        """Call a function that reads from a file."""
        return read()

    def result_of(self, waiter: ThreadWaiter) -> Result:
        """Return the result of a waiter whose caller has stopped waiting; None if it has none."""
        return waiter.result

    # Methods of FrontEnd. The lock is held.

    def new_waiter(self) -> ThreadWaiter:
        """Return a new waiter for a result."""
        return ThreadWaiter()

    def flush_soon(self) -> None:
        """Write the engine's output soon."""
        self._active = True
        if self.core.engine.pending > FLUSH_SIZE or time.monotonic() - self._last_written > FLUSH_DELAY:
            self._write()
        else:
            self._flush_pending = True
            if self._thread_idle:
                self._wake.set()

    def emit(self, event: Event) -> None:
        """Notify the callbacks of an event."""
        with self.lock:
            if self._events and supersedes(event, self._events[-1][0]):
                self._events.pop()
            self._events.append((event, list(self.callbacks)))
        if isinstance(event, Closed):
            self.closed.set()
        self._wake.set()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        # Only the connection's own thread pauses, unless the engine is stalled: a thread that waits for a result must read.
        self._paused = True

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._paused = False
        # Do not count the pause as silence of the server.
        self._last_received = time.monotonic()
        if self._sleepers and not self._has_leader:
            wake(self._sleepers[0])

    def close_socket(self) -> None:
        """Write the remaining output, and close the socket."""
        self._write()
        sock = self._socket
        if sock is not None:
            self._drop(sock)

    def reconnect(self) -> None:
        """Start reconnecting, unless already in progress."""
        self._reconnect = True
        self._wake.set()

    # The socket. The lock is held.

    def _write(self) -> None:
        """Write as much as the socket accepts. A broken socket is handled later, because the engine may be in a call."""
        self._flush_pending = False
        sock = self._socket
        if sock is None or self._broken is not None:
            return
        try:
            while True:
                if self._unsent is None:
                    data = self.core.to_send()
                    if not data:
                        break
                    self._unsent = memoryview(data)
                self._last_written = time.monotonic()
                sent = sock.send(self._unsent)
                if sent < len(self._unsent):
                    self._unsent = self._unsent[sent:]
                    break
                self._unsent = None
            pending = 0 if self._unsent is None else len(self._unsent) + self.core.engine.pending
            full = pending > HIGH_WATER
            if full != self.core.socket_is_full:
                self.core.set_socket_full(full, pending)
            elif full:
                self.core.check_output(pending)
        except OSError as error:
            self._broken = lost_error(error)
            self._wake.set()
        except BaseException as error:
            self.interrupted(error)
            raise

    def _received(self, data: bytes) -> None:
        if not data:
            self._socket_lost(lost_error(None))
            return
        self._active = True
        self._last_received = time.monotonic()
        try:
            self.core.receive(data)
        except Exception as error:
            # A bug in the client must neither end the reading thread nor go unreported.
            self._broken = lost_error(error)
            self._wake.set()
        except BaseException as error:
            self.interrupted(error)
            raise

    def _socket_lost(self, error: ConnectionLost) -> None:
        self._broken = None
        self._unsent = None
        sock = self._socket
        try:
            if sock is not None:
                self._drop(sock)
            self.core.lost(error)
        except BaseException as raised:
            self.interrupted(raised)
            raise

    # The connection's own thread

    def _run_thread(self) -> None:
        try:
            self._housekeep()
        except BaseException as error:
            # No other thread would fail the waiters.
            with self.lock:
                self.core.end(lost_error(error))
            raise
        finally:
            self._run_callbacks()

    def _housekeep(self) -> None:
        while not self.core.is_closed:
            with self.lock:
                self._thread_idle = not self._active and not self._flush_pending
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
        sock = self._socket
        if sock is None:
            return
        self._write()
        now = time.monotonic()
        heartbeat = self.core.engine.heartbeat
        if heartbeat and now - self._last_written >= heartbeat / 2:
            self.core.engine.send_heartbeat()
            self._write()
        if not self._has_leader and not self._paused:
            self._read_available(sock)
        heartbeat_timeout = self.core.heartbeat_timeout
        if 0 < heartbeat_timeout < now - self._last_received and not self._paused and self._socket is sock:
            self._socket_lost(
                ConnectionLost(
                    f"the connection is lost: no data from the server for {now - self._last_received:.0f} s"
                    f" (heartbeat: {heartbeat_timeout / 2:g} s)"
                )
            )

    def _read_available(self, sock: AnySocket) -> None:
        """Read at most a few times. Remaining data stays in the socket."""
        for _ in range(4):
            data: list[bytes] = []
            try:
                sock.receive(data, 0, False)
            except OSError as error:
                self._socket_lost(lost_error(error))
                return
            if not data:
                return
            self._received(data[0])
            if self._socket is not sock or self._broken is not None or self._paused:
                return

    def _run_callbacks(self) -> None:
        while self._events:
            with self.lock:
                event, callbacks = self._events.popleft()
            for callback in callbacks:
                try:
                    callback(event)
                except BaseException:
                    # Report it like an uncaught thread exception, and continue.
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _reconnect_until_open(self) -> None:
        """Reconnect until the connection is restored or all attempts have failed."""
        error: Error = self.core.last_error
        for attempt in self._backoffs.begin(self.hosts, self.core.parameters, error):
            parameters = attempt.parameters
            self.emit(Reconnecting(parameters.host, parameters.port, attempt.number, attempt.delay))
            self._run_callbacks()
            if self.closed.wait(attempt.delay):
                return
            try:
                self._connect(parameters)
                sock = self._socket
                try:
                    self.run(self.core.recover(), DEFAULT, "recovering the connection")
                except BaseException:
                    if sock is not None:
                        self._drop(sock)
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
    """The deadline has passed."""


# The drivers of this process.
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _forked() -> None:
    for driver in list(_drivers):
        driver.after_fork()


os.register_at_fork(after_in_child=_forked)
