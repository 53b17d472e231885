"""The process of `leveret serve`: startup, signals, reload, shutdown, and a broker restart after its store fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from leveret._build import __version__, build_info
from leveret.broker.errors import BrokerError, StorageFailed
from leveret.cli.http_process import HttpProcess
from leveret.cli.logs import set_up_logging
from leveret.cli.telemetry_process import TelemetryProcess
from leveret.config import Config, ConfigError, load_config
from leveret.management.control_socket import ControlServer
from leveret.management.recent_log import RecentLog
from leveret.management.socket_path import CONTROL_SOCKET
from leveret.node.choices import CHOICES
from leveret.node.composition import Composition, make_data_directory, tls_settings
from leveret.node.errors import StartFailed
from leveret.node.http_endpoint import HttpEndpoint
from leveret.node.loading import load_definitions
from leveret.security.declared import check_realms, declared_users
from leveret.security.tls import TlsError
from leveret.security.users import FROM_DEFAULT
from leveret.server.garbage import INTERVAL, Collector
from leveret.server.service_manager import ServiceManager
from leveret.server.watchdog import Watchdog
from leveret.storage.registry import MEMORY
from leveret.storage.salvage import NOTHING_LOST, Salvage

logger = logging.getLogger("leveret.serve")

# Seconds before a failed store is reopened.
REOPEN_DELAY = 1.0
# Seconds in which the telemetry process may take the last spans over the control socket.
LAST_SPANS_TIMEOUT = 0.2
# The file of the audit log, in the data directory.
_AUDIT = "audit.sqlite"
# Seconds reserved for the store. It gets them even if `server.shutdown_timeout` is shorter.
STORE_TIMEOUT = 2.0
# The exit code if the store does not finish in time.
UNFINISHED = 1


def client_timeout(shutdown_timeout: float) -> float:
    """Return the share of `server.shutdown_timeout` in which clients may answer `connection.close`."""
    return max(shutdown_timeout - STORE_TIMEOUT, shutdown_timeout / 2)


class Serving:
    """One run of `leveret serve`.

    Args:
        path: The configuration file, if any.
        flags: As for `load_config`.
        ready_file: The file to write when the broker is ready.
        salvage: As for `Composition`; applies only to the first start, not to a reopened store.
    """

    def __init__(
        self, path: Path | None, flags: Sequence[tuple[str, str]], ready_file: Path | None, salvage: Salvage = NOTHING_LOST
    ) -> None:
        self._path = path
        self._flags = flags
        self._ready_file = ready_file
        self._salvage = salvage
        self._config = load_config(path, flags=flags, choices=CHOICES)
        # The broker keeps an automatically picked port when it restarts.
        self._ports: dict[bool, int] = {False: self._config.server.port, True: self._config.tls.port}
        self._composition: Composition | None = None
        self._watchdog = Watchdog(self._config.server.slow_turn)
        self._collector = Collector(self._config.broker.gc_threshold)
        self._end: asyncio.Event | None = None
        self._stopping = False
        # Ends the process if the store does not finish in time after a signal.
        self._deadline: threading.Timer | None = None
        self._announced = False
        # Why a failed store must not be reopened by this process.
        self._fenced = ""
        # Also serves while the store is reopened.
        self._http: HttpProcess | None = None
        self._telemetry: TelemetryProcess | None = None
        self._manager = ServiceManager()
        self._log = RecentLog()

    def run(self) -> int:
        """Serve until a signal. Returns the exit code. Raises `ConfigError`, `TlsError`, `StorageFailed`, `StartFailed`."""
        config = self._config
        set_up_logging(config.server.log_level, config.server.log_format, self._log)
        sys.setswitchinterval(config.broker.switch_interval)
        self._collector.tune()
        raise_file_limit()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self._watchdog)) as runner:
            return runner.run(self._serve())

    async def _serve(self) -> int:
        loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._manager.open()
        alive = asyncio.create_task(self._manager.keep_alive())
        try:
            return await self._serve_until_stopped(self._end)
        finally:
            if self._http is not None:
                await self._http.stop()
            if self._telemetry is not None:
                await self._telemetry.stop()
            alive.cancel()
            self._manager.close()

    async def _serve_until_stopped(self, end: asyncio.Event) -> int:
        while True:
            await self._serve_once(end)
            if self._stopping:
                return 0
            if self._fenced:
                raise StorageFailed(self._fenced)
            logger.error("reopening the store")
            self._manager.status("the store failed: reopening it")
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

    async def _serve_once(self, end: asyncio.Event) -> None:
        """Serve until a signal, or until the store fails."""
        began = time.monotonic()
        name = str(self._path) if self._path is not None else "the configuration"
        # The directory also contains the control socket, so that it must exist even if the store is in memory.
        make_data_directory(self._config.server.data_path)
        composition = Composition(self._config, name, end.set, salvage=self._salvage, watchdog=self._watchdog)
        self._salvage = NOTHING_LOST
        self._composition = composition
        composition.managed.log = self._log.records
        control = ControlServer(composition.admin, self._config.server.data_path / CONTROL_SOCKET)
        if self._http is None:
            self._http = HttpProcess(self._http_endpoint())
        if self._telemetry is None:
            self._telemetry = TelemetryProcess(self._config, control.path)
        self._telemetry.trace(composition.services.broker)
        collecting: asyncio.Task[None] | None = None
        self._remove_ready_file()
        try:
            await self._start(composition, control)
            self._announce(composition, control.path, began)
            self._http.start()
            self._telemetry.start()
            composition.services.broker.jobs.stepped = self._collector.examine_young
            self._watchdog.watch(composition.services.describe_turn)
            collecting = asyncio.create_task(self._collect(composition))
            await end.wait()
            if not composition.log.may_reopen:
                self._fenced = composition.log.reason
        finally:
            if collecting is not None:
                collecting.cancel()
            self._watchdog.watch(None)
            self._composition = None
            self._remove_ready_file()
            await self._finish(composition, control, self._http, self._telemetry)
        if self._stopping:
            logger.info("stopped")

    def _http_endpoint(self) -> HttpEndpoint:
        """Return the endpoint of the HTTP API, without listeners if its ports cannot be opened."""
        endpoint = HttpEndpoint(self._config, self._config.server.data_path)
        try:
            endpoint.listen()
        except StartFailed as error:
            logger.error("%s", error)  # messages matter more than their management
        return endpoint

    async def _start(self, composition: Composition, control: ControlServer) -> None:
        """Open the store and the listeners. Raises `StartFailed`."""
        await composition.server.start()
        self._open_audit(composition)
        if not self._announced:
            await load_definitions(composition)
        await composition.listen(self._ports)
        try:
            await control.start()
        except OSError as error:
            raise StartFailed(f"cannot create control socket {control.path}: {error}") from None
        self._collector.start()  # before clients connect, since it takes longer than a turn

    async def _finish(
        self, composition: Composition, control: ControlServer, http: HttpProcess, telemetry: TelemetryProcess
    ) -> None:
        """Stop the broker, and the other processes unless the store is reopened."""
        ending: list[asyncio.Task[None]] = []
        if self._stopping:
            ending.append(asyncio.create_task(telemetry.stop()))
            await asyncio.wait(ending, timeout=LAST_SPANS_TIMEOUT)
        await control.stop()
        if self._stopping:
            await asyncio.gather(self._stop_server(composition), http.stop(), *ending)
        else:
            await self._stop_server(composition)
        composition.managed.audit.close()
        self._collector.stop()

    def _remove_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

    def _open_audit(self, composition: Composition) -> None:
        management = self._config.management
        if management.audit:
            path = self._config.server.data_path / _AUDIT
            composition.managed.audit.open(path, management.audit_max_size, management.audit_max_age)

    async def _stop_server(self, composition: Composition) -> None:
        try:
            await composition.server.stop("the broker stops" if self._stopping else "the store failed")
        except StorageFailed as error:
            # Reopening a failed store reports its state.
            if self._stopping:
                raise
            logger.error("%s", error)
        if self._deadline is not None:
            self._deadline.cancel()  # the other processes have time limits of their own

    def _announce(self, composition: Composition, control_path: Path, began: float) -> None:
        took = time.monotonic() - began if self._announced else running_for()
        if not self._announced:
            self._announced = True
            if self._config.server.log_format == "text":
                for line in _first_lines(composition, self._http):
                    click.echo(line)
                sys.stdout.flush()
        logger.info("ready in %.2f s: %s", took, ", ".join(composition.listeners))
        self._manager.ready(_status(composition))
        if self._ready_file is not None:
            first = composition.listeners[0].partition("://")[2]
            ready = {
                "host": first.rpartition(":")[0].strip("[]"),
                "port": int(first.rpartition(":")[2]),
                "pid": os.getpid(),
                "control": str(control_path),
                "listeners": composition.listeners,
                "management": self._http_listeners(),
                "metrics": [] if self._http is None else self._http.endpoint.metrics_listeners,
            }
            # Replace the file atomically, because readers poll for it.
            temporary = self._ready_file.with_name(self._ready_file.name + ".new")
            temporary.write_text(json.dumps(ready) + "\n", "utf-8")
            temporary.replace(self._ready_file)

    def _http_listeners(self) -> list[str]:
        return [] if self._http is None else self._http.endpoint.listeners

    # Signals

    def _stop(self, name: str) -> None:
        logger.info("%s: stopping", name)
        self._manager.stopping()
        assert self._end is not None
        if not self._stopping:
            timeout = self._config.server.shutdown_timeout
            if self._composition is not None:
                self._composition.server.shutdown_timeout = client_timeout(timeout)
            seconds = max(timeout, client_timeout(timeout) + STORE_TIMEOUT)
            self._deadline = threading.Timer(seconds, _exit_unfinished, [timeout])
            self._deadline.daemon = True
            self._deadline.start()
        self._stopping = True
        self._end.set()

    def _reload(self) -> None:
        """Reload certificates, users, vhosts and limits. An invalid configuration is logged and not applied."""
        composition = self._composition
        if composition is None:
            return
        self._manager.reloading()
        try:
            self._apply(composition)
        finally:
            self._manager.ready(_status(composition))

    def _apply(self, composition: Composition) -> None:
        try:
            config = load_config(self._path, flags=self._flags, choices=CHOICES)
            declared = declared_users(config.users)
            check_realms(config.vhosts)
            settings = tls_settings(config.tls)
            if composition.tls is not None and settings is not None:
                composition.tls.reload(settings)
            composition.users.declare(declared)
        except (ConfigError, TlsError, BrokerError) as error:
            logger.error("SIGHUP: configuration not reloaded: %s", error)
            return
        self._config = reloaded(self._config, config)
        composition.reload(self._config)
        for setting in needing_restart(self._config, config):
            logger.warning("SIGHUP: setting '%s' has changed; restart the broker to apply it", setting)
        logger.info("SIGHUP: reloaded certificates, users, vhosts and limits")


def _first_lines(composition: Composition, http: HttpProcess | None) -> list[str]:
    """Return the startup banner."""
    api, metrics = ([], []) if http is None else (http.endpoint.listeners, http.endpoint.metrics_listeners)
    config = composition.config
    data = str(config.server.data_path) if config.storage.engine != MEMORY else "in memory only, lost on restart"
    data = composition.log.describe() or data
    return [
        f"Leveret {__version__} ({build_info()})",
        f"  listens on  {', '.join(composition.listeners)}",
        f"  data        {data}",
        f"  log in      {_how_to_log_in(composition)}",
        f"  manage      leveret status --data-dir {config.server.data_path}",
        *([f"  HTTP API    {', '.join(api)}"] if api else []),
        *([f"  metrics     {', '.join(metrics)}"] if metrics else []),
    ]


def _status(composition: Composition) -> str:
    return f"listening on {', '.join(composition.listeners)}"


def _how_to_log_in(composition: Composition) -> str:
    users = composition.users
    names = [user.name for user in users.users()]
    if users.source(names[0]) == FROM_DEFAULT:
        scheme, _, address = composition.listeners[0].partition("://")
        return f"guest, password guest, from this machine: {scheme}://guest:guest@{address}/"
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"as one of {len(names)} users: {shown}" if len(names) > 1 else f"as {shown}"


def _exit_unfinished(timeout: float) -> None:
    """Exit before the store has finished, because a single sync can take very long on a slow disk.

    This is as safe as a power failure: all confirmed messages are on disk.
    """
    logger.error(
        "the store did not finish within %g seconds ('server.shutdown_timeout'): exiting; no confirmed message is lost",
        timeout,
    )
    logging.shutdown()
    os._exit(UNFINISHED)


# The keys of [tls] that a listener can reload.
_RELOADABLE_TLS = ("cert", "key", "key_password_file", "ca")


def reloaded(old: Config, new: Config) -> Config:
    """Return the old configuration, updated with the new settings that apply without a restart."""
    tls = old.tls
    if old.tls.cert and new.tls.cert:
        tls = msgspec.structs.replace(tls, **{name: getattr(new.tls, name) for name in _RELOADABLE_TLS})
    return msgspec.structs.replace(old, tls=tls, limits=new.limits, users=new.users, vhosts=new.vhosts)


def needing_restart(running: Config, new: Config) -> list[str]:
    """Return the names of changed settings that require a restart."""
    changed = []
    for section in msgspec.structs.fields(Config):
        before, after = getattr(running, section.name), getattr(new, section.name)
        if isinstance(before, msgspec.Struct):
            changed += [
                f"{section.name}.{field.name}"
                for field in msgspec.structs.fields(before)
                if getattr(before, field.name) != getattr(after, field.name)
            ]
    return changed


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


def running_for() -> float:
    """Return the seconds since this process started, including the interpreter's startup."""
    # The program name is in parentheses and may contain any character. The start time is the 20th field after it, in ticks.
    fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
