"""A process of `leveret serve`: signals, event loop, shutdown, and a restart of its broker after the store fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
import threading
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any

from leveret.broker.errors import StorageFailed
from leveret.cli.logs import set_up_logging
from leveret.config import Config
from leveret.management.control_socket import ControlServer
from leveret.management.recent_log import RecentLog
from leveret.node.composition import Composition
from leveret.node.errors import StartFailed
from leveret.server.garbage import INTERVAL, Collector
from leveret.server.watchdog import Watchdog

logger = logging.getLogger("leveret.serve")

# Seconds before a failed store is reopened.
REOPEN_DELAY = 1.0
# Seconds reserved for the store. It gets them even if `server.shutdown_timeout` is shorter.
STORE_TIMEOUT = 2.0
# Seconds after that for all else: the other processes, and the list of the nodes in PostgreSQL.
REST_TIMEOUT = 5.0
# The exit code if the process does not end in time.
UNFINISHED = 1


def client_timeout(shutdown_timeout: float) -> float:
    """Return the share of `server.shutdown_timeout` in which clients may answer `connection.close`."""
    return max(shutdown_timeout - STORE_TIMEOUT, shutdown_timeout / 2)


def stop_timeout(shutdown_timeout: float) -> float:
    """Return the seconds in which a process stops after a signal."""
    return max(shutdown_timeout, client_timeout(shutdown_timeout) + STORE_TIMEOUT)


class Stopped(Exception):
    """A signal has ended the start."""


class Running:
    """The run of one process that serves a broker, or a part of it.

    Args:
        config: The configuration.
        shard: The number of the shard in log records; None if the process is not a shard.
    """

    # The signals that stop the process.
    _signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, config: Config, shard: int | None = None) -> None:
        self._config = config
        self._shard = shard
        self._composition: Composition | None = None
        self._watchdog = Watchdog(config.server.slow_turn)
        self._collector = Collector(config.broker.gc_threshold)
        self._end = asyncio.Event()
        self._stopping = False
        # Ends the process if the store does not finish in time after a signal.
        self._deadline: threading.Timer | None = None
        # Why a failed store must not be reopened by this process.
        self._fenced = ""
        self._log = RecentLog()

    def run(self) -> int:
        """Serve until a signal. Returns the exit code. Raises `ConfigError`, `TlsError`, `StorageFailed`, `StartFailed`."""
        config = self._config
        set_up_logging(config.server.log_level, config.server.log_format, self._log, self._shard)
        sys.setswitchinterval(config.broker.switch_interval)
        self._collector.tune()
        raise_file_limit()
        self._prepare()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self._watchdog)) as runner:
            return runner.run(self._serve())

    def _prepare(self) -> None:
        """Prepare the start, before there is an event loop."""

    async def _serve(self) -> int:
        """Handle signals, and serve."""
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        return await self._serve_until_stopped()

    async def _until_stopped(self, starting: Coroutine[Any, Any, None]) -> None:
        """Wait for a part of the start. Raises `Stopped` if a signal ends it."""
        start = asyncio.create_task(starting)
        end = asyncio.create_task(self._end.wait())
        await asyncio.wait((start, end), return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if start.done():
            start.result()
        else:
            start.cancel()
            await asyncio.wait([start])
            raise Stopped

    async def _serve_until_stopped(self) -> int:
        end = self._end
        while True:
            await self._serve_once()
            if self._stopping:
                return 0
            if self._fenced:
                raise StorageFailed(self._fenced)
            logger.error("reopening the store")
            self._reopening()
            # The failed store set the event. A signal sets it again and ends the delay.
            end.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REOPEN_DELAY):
                    await end.wait()
            if self._stopping:
                logger.info("stopped")
                return 0
            end.clear()

    async def _collect(self, composition: Composition) -> None:
        """Check periodically whether a full garbage collection is due."""
        while True:
            await asyncio.sleep(INTERVAL)
            self._collector.check(composition.services.broker.tight)

    async def _serve_once(self) -> None:
        """Serve until a signal, or until the store fails."""
        try:
            self._composition = composition = await self._compose()
        except Stopped:
            return
        composition.managed.log = self._log.records
        control = self._make_control(composition)
        collecting: asyncio.Task[None] | None = None
        try:
            await self._start(composition, control)
            self._collector.start()  # before clients connect, since it takes longer than a turn
            await self._announce(composition, control)
            self._start_shovels(composition)
            composition.services.broker.jobs.stepped = self._collector.examine_young
            self._watchdog.watch(composition.services.describe_turn)
            collecting = asyncio.create_task(self._collect(composition))
            await self._end.wait()
            if not composition.log.may_reopen:
                self._fenced = composition.log.reason
        except Stopped:
            pass
        finally:
            if collecting is not None:
                collecting.cancel()
            self._watchdog.watch(None)
            self._composition = None
            await self._finish(composition, control)
            self._collector.stop()
        if self._stopping:
            logger.info("stopped")

    @abstractmethod
    async def _compose(self) -> Composition:
        """Return a recovered broker. Raises `Stopped` if a signal ends the start."""

    @abstractmethod
    def _make_control(self, composition: Composition) -> ControlServer:
        """Return the server of the control socket."""

    @abstractmethod
    async def _start(self, composition: Composition, control: ControlServer) -> None:
        """Open the store and the listeners. Raises `StartFailed`, or `Stopped` if a signal ends the start."""

    @abstractmethod
    async def _announce(self, composition: Composition, control: ControlServer) -> None:
        """Report that the broker serves."""

    def _start_shovels(self, composition: Composition) -> None:
        """Start the shovels, which may connect to this broker."""
        composition.shovels.start()

    @abstractmethod
    def _reload(self) -> None:
        """Apply a changed configuration."""

    def _reopening(self) -> None:
        """Report that a failed store is reopened."""

    async def _start_control(self, control: ControlServer) -> None:
        try:
            await control.start()
        except OSError as error:
            raise StartFailed(f"cannot create control socket {control.path}: {error}") from None

    async def _finish(self, composition: Composition, control: ControlServer) -> None:
        """Stop the broker."""
        await control.stop()
        await self._stop_server(composition)

    async def _stop_server(self, composition: Composition) -> None:
        await composition.shovels.stop()
        try:
            await composition.server.stop(self._stop_reason() if self._stopping else "the store failed")
        except StorageFailed as error:
            # Reopening a failed store reports its state.
            if self._stopping:
                raise
            logger.error("%s", error)
        if self._deadline is not None:
            self._deadline.cancel()  # the other processes have time limits of their own

    def _stop_reason(self) -> str:
        return "the broker stops"

    def _stop(self, name: str) -> None:
        """Stop because of a signal, or a message of that name."""
        logger.info("%s: stopping", name)
        if not self._stopping:
            timeout = self._config.server.shutdown_timeout
            if self._composition is not None:
                self._composition.server.shutdown_timeout = client_timeout(timeout)
            limit = stop_timeout(timeout)
            self._deadline = _exit_after(limit, f"the store did not finish within {timeout:g} seconds")
            # Whatever keeps the process, such as a thread that does not end.
            _exit_after(limit + REST_TIMEOUT, f"the process did not end within {limit + REST_TIMEOUT:g} seconds")
        self._stopping = True
        self._end.set()


def _exit_after(limit: float, problem: str) -> threading.Timer:
    """Exit after some seconds, unless the timer is cancelled: a single sync can take very long on a slow disk.

    This is as safe as a power failure: all confirmed messages are on disk.
    """
    timer = threading.Timer(limit, _exit_unfinished, [problem])
    timer.daemon = True
    timer.start()
    return timer


def _exit_unfinished(problem: str) -> None:
    logger.error("%s ('server.shutdown_timeout'): exiting; no confirmed message is lost", problem)
    logging.shutdown()
    os._exit(UNFINISHED)


MAX_FILES = 1 << 20


def raise_file_limit() -> int:
    """Raise the limit on open files, and thus on connections, to the system's maximum. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Linux refuses RLIM_INFINITY.
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    except (OSError, ValueError):
        return soft
