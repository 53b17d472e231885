"""The process of `leveret serve`: startup, signals, reload, shutdown, and a broker restart after its store fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from leveret._build import IS_CHECKOUT, __version__, build_info
from leveret.broker.errors import BrokerError
from leveret.cli.addresses import local_url
from leveret.cli.client_command import DEFAULT_URL
from leveret.cli.http_process import HttpProcess
from leveret.cli.running import REOPEN_DELAY, Running
from leveret.cli.telemetry_process import TelemetryProcess
from leveret.config import Config, ConfigError, Flags, ServerConfig, load_config
from leveret.config.values import Setting
from leveret.management.control_socket import ControlServer
from leveret.management.socket_path import CONTROL_SOCKET
from leveret.node.choices import CHOICES
from leveret.node.composition import Composition, cluster_settings, configured_ports, make_data_directory, tls_settings
from leveret.node.errors import HttpUnavailable
from leveret.node.http_endpoint import HttpEndpoint
from leveret.node.loading import executor, load_definitions
from leveret.node.part import Part
from leveret.security.declared import check_realms, declared_users
from leveret.security.tls import TlsError
from leveret.security.users import FROM_DEFAULT
from leveret.server.service_manager import ServiceManager
from leveret.storage.cluster import ClusterSettings, ServerAway
from leveret.storage.registry import MEMORY, POSTGRESQL, SQLITE, without_extra
from leveret.storage.salvage import NOTHING_LOST, Salvage

if TYPE_CHECKING:
    from leveret.cluster.starting import Start

logger = logging.getLogger("leveret.serve")

# Seconds in which the telemetry process may take the last spans over the control socket.
LAST_SPANS_TIMEOUT = 0.2
# The file of the audit log, in the data directory.
_AUDIT = "audit.sqlite"
# The directory of the log of the front, if several processes have used the data directory.
_SHARED = "shared"


class Serving(Running):
    """One run of `leveret serve`.

    Args:
        config: The configuration.
        path: The configuration file, if any.
        flags: As for `load_config`.
        ready_file: The file to write when the broker is ready.
        salvage: As for `Composition`; applies only to the first start, not to a reopened store.
        configured: The full names of the settings that are not defaults.
    """

    def __init__(
        self,
        config: Config,
        path: Path | None,
        flags: Flags,
        ready_file: Path | None,
        salvage: Salvage = NOTHING_LOST,
        configured: Container[str] = (),
    ) -> None:
        super().__init__(config)
        self._configured = configured
        self._path = path
        self._config_name = str(path) if path is not None else "the configuration"
        self._flags = flags
        self._ready_file = ready_file
        self._salvage = salvage
        # The broker keeps an automatically picked port when it restarts.
        self._ports = configured_ports(config)
        self._announced = False
        # When the current start began.
        self._began = 0.0
        # Ends a start that waits too long for PostgreSQL.
        self._start_limit: asyncio.TimerHandle | None = None
        self._waits_for = ""
        # Also serves while the store is reopened.
        self._http: HttpProcess | None = None
        self._telemetry: TelemetryProcess | None = None
        self._manager = ServiceManager()

    async def _serve(self) -> int:
        self._manager.open()
        alive = asyncio.create_task(self._manager.keep_alive())
        try:
            return await super()._serve()
        finally:
            if self._http is not None:
                await self._http.stop()
            if self._telemetry is not None:
                await self._telemetry.stop()
            alive.cancel()
            self._manager.close()

    async def _compose(self) -> Composition:
        self._began = time.monotonic()
        # The directory also contains the control socket, so that it must exist even if the store is in memory.
        make_data_directory(self._config.server.data_path)
        composition = await self._open()
        self._salvage = NOTHING_LOST
        if self._telemetry is None:
            self._telemetry = TelemetryProcess(self._config, self._control_path)
        self._telemetry.trace(composition.services.broker)
        if self._http is None:
            self._http = HttpProcess(HttpEndpoint(self._config, self._config.server.data_path, self._configured))
        self._remove_ready_file()
        return composition

    async def _open(self) -> Composition:
        """Return the broker with an open store, which may be on a server that is away at first."""
        limit = self._config.cluster.start_timeout
        if limit and self._config.storage.engine == POSTGRESQL and self._start_limit is None:
            self._start_limit = asyncio.get_running_loop().call_later(limit, self._end_start)
        while True:
            part = await self._make_part()
            try:
                return Composition(
                    self._part_config(),
                    self._config_name,
                    self._end.set,
                    salvage=self._salvage,
                    watchdog=self._watchdog,
                    part=part,
                )
            except ServerAway as error:
                self._report_wait(str(error))
            await self._until_stopped(asyncio.sleep(REOPEN_DELAY))

    def _begin_start(self, settings: ClusterSettings) -> Start:
        """Return the start over a database. Raises `StorageFailed` without the extra that it needs."""
        try:
            # Imported here because only this engine needs the extra `cluster`.
            from leveret.cluster.starting import Start
        except ImportError as error:
            raise without_extra(error) from None
        return Start(settings, self._report_wait)

    def _report_wait(self, reason: str) -> None:
        """Report what the start waits for."""
        self._waits_for = reason
        logger.warning("the start waits: %s", reason)
        self._manager.status(f"the start waits: {reason}")

    def _end_start(self) -> None:
        """End a start that takes too long."""
        limit = self._config.cluster.start_timeout
        self._fenced = f"not started within {limit:g} seconds ('cluster.start_timeout')"
        if self._waits_for:
            self._fenced += f": {self._waits_for}"
        self._end.set()

    async def _make_part(self) -> Part:
        """Return the part of the broker that this process serves. Raises `StartFailed` or `StorageFailed`."""
        data = self._config.server.data_path
        settings = cluster_settings(self._config)
        if self._config.storage.engine == POSTGRESQL and settings is not None:
            await self._until_stopped(self._begin_start(settings).reach())
        if self._config.storage.engine != SQLITE or not (data / _SHARED).is_dir():
            return Part()
        # Imported here because most data directories have only been used by one process.
        from leveret.cluster.layout import Reunited

        return Reunited(data)

    def _part_config(self) -> Config:
        """Return the configuration of this process."""
        return self._config

    @property
    def _control_path(self) -> Path:
        return self._config.server.data_path / CONTROL_SOCKET

    def _make_control(self, composition: Composition) -> ControlServer:
        return ControlServer(composition.admin, self._control_path)

    def _open_http(self) -> None:
        """Open the ports of the HTTP API and the metrics, at the first start. Raises `StartFailed`."""
        assert self._http is not None
        if self._announced:
            return
        try:
            self._http.endpoint.listen()
        except HttpUnavailable as error:
            logger.error("%s", error)  # messages matter more than their management

    async def _start(self, composition: Composition, control: ControlServer) -> None:
        await composition.server.start()
        self._open_audit(composition)
        await composition.part.started(composition.log, composition.broker)
        if not self._announced:
            await load_definitions(composition.config.management.load_definitions, executor(composition.admin))
        await composition.listen(self._ports)
        self._open_http()
        await self._start_control(control)

    async def _finish(self, composition: Composition, control: ControlServer) -> None:
        """Stop the broker, and the other processes unless the store is reopened."""
        self._remove_ready_file()
        assert self._http is not None and self._telemetry is not None
        ending: list[asyncio.Task[None]] = []
        if self._stopping:
            ending.append(asyncio.create_task(self._telemetry.stop()))
            await asyncio.wait(ending, timeout=LAST_SPANS_TIMEOUT)
        await control.stop()
        if self._stopping:
            await asyncio.gather(self._stop_server(composition), self._http.stop(), *ending)
        else:
            await self._stop_server(composition)
        composition.managed.audit.close()

    def _remove_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

    def _open_audit(self, composition: Composition) -> None:
        management = self._config.management
        if management.audit:
            path = self._config.server.data_path / _AUDIT
            composition.managed.audit.open(path, management.audit_max_size, management.audit_max_age)

    async def _announce(self, composition: Composition, control: ControlServer) -> None:
        assert self._http is not None and self._telemetry is not None
        if self._start_limit is not None:
            self._start_limit.cancel()
        took = time.monotonic() - self._began if self._announced else running_for()
        if not self._announced:
            self._announced = True
            if self._config.server.log_format == "text":
                for line in self._first_lines(composition):
                    click.echo(line)
                sys.stdout.flush()
            elif self._http.endpoint.listeners:
                logger.info("console: %s", local_url(self._http.endpoint.listeners[0]))
        logger.info("ready in %.2f s: %s", took, self._served(composition))
        self._manager.ready(self._status(composition))
        if self._ready_file is not None:
            first = composition.listeners[0].partition("://")[2]
            ready = {
                "host": first.rpartition(":")[0].strip("[]"),
                "port": int(first.rpartition(":")[2]),
                "pid": os.getpid(),
                "control": str(control.path),
                "listeners": composition.listeners,
                "management": self._http.endpoint.listeners,
                "metrics": self._http.endpoint.metrics_listeners,
                **self._more_facts(),
            }
            # Replace the file atomically, because readers poll for it.
            temporary = self._ready_file.with_name(self._ready_file.name + ".new")
            temporary.write_text(json.dumps(ready) + "\n", "utf-8")
            temporary.replace(self._ready_file)
        self._http.start()
        self._telemetry.start()

    def _more_facts(self) -> dict[str, list[int]]:
        """Return more fields of the ready file."""
        return {}

    def _served(self, composition: Composition) -> str:
        """Return where the broker listens, for the log and the service manager."""
        return ", ".join(composition.listeners)

    def _status(self, composition: Composition) -> str:
        return f"listening on {self._served(composition)}"

    def _reopening(self) -> None:
        self._manager.status("the store failed: reopening it")

    # Signals

    def _stop(self, name: str) -> None:
        super()._stop(name)
        self._manager.stopping()

    def _reload(self) -> None:
        """Reload certificates, users, vhosts and limits. An invalid configuration is logged and not applied."""
        composition = self._composition
        if composition is None:
            return
        self._manager.reloading()
        try:
            self._apply(composition)
        finally:
            self._manager.ready(self._status(composition))

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
            for problem in str(error).splitlines():
                logger.error("SIGHUP: configuration not reloaded: %s", problem)
            return
        self._config = reloaded(self._config, config)
        composition.reload(self._part_config())
        for setting in needing_restart(self._config, config):
            logger.warning("SIGHUP: setting '%s' has changed; restart the broker to apply it", setting)
        logger.info("SIGHUP: reloaded certificates, users, vhosts and limits")

    def _first_lines(self, composition: Composition) -> list[str]:
        """Return the startup banner."""
        assert self._http is not None
        api, metrics = self._http.endpoint.listeners, self._http.endpoint.metrics_listeners
        config = composition.config
        data = str(config.server.data_path) if config.storage.engine != MEMORY else "in memory only, lost on restart"
        data = composition.part.describe(composition.log) or data
        build = build_info()
        is_slow = IS_CHECKOUT and not build.compiled
        return [
            f"Leveret {__version__} ({build})",
            *(["  speed       `make compiled` makes it about three times as fast"] if is_slow else []),
            f"  listens on  {', '.join(composition.listeners)}",
            f"  data        {data}",
            f"  log in      {_how_to_log_in(composition)}",
            f"  manage      leveret status --data-dir {config.server.data_path}",
            *([f"  HTTP API    {', '.join(api)}"] if api else []),
            *([f"  console     {local_url(api[0])}"] if api else []),
            *([f"  metrics     {', '.join(metrics)}"] if metrics else []),
            *(_first_message(composition) if sys.stdout.isatty() else []),
        ]


def _first_message(composition: Composition) -> list[str]:
    """Return a command that publishes a message, if the user guest has its default password."""
    if not _has_default_user(composition):
        return []
    server, url = composition.config.server, _guest_url(composition)
    directory = "" if server.data_path == ServerConfig().data_path else f" --data-dir {shlex.quote(str(server.data_path))}"
    broker = "" if url in (DEFAULT_URL, DEFAULT_URL.replace("localhost", "127.0.0.1")) else f" --url {shlex.quote(url)}"
    return [
        f"  try it      leveret queues add hello{directory} && leveret publish hello 'Hello, world'{broker}"
        f" && leveret get hello{broker}"
    ]


def _has_default_user(composition: Composition) -> bool:
    users = composition.users
    return users.source(next(iter(users.users())).name) == FROM_DEFAULT


def _guest_url(composition: Composition) -> str:
    """Return the URL of the default user on this machine."""
    return local_url(f"{composition.listeners[0]}/", "guest:guest")


def _how_to_log_in(composition: Composition) -> str:
    users = composition.users
    names = [user.name for user in users.users()]
    if _has_default_user(composition):
        return f"guest, password guest, from this machine: {_guest_url(composition)}"
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"as one of {len(names)} users: {shown}" if len(names) > 1 else f"as {shown}"


# The sections that a broker reloads.
_RELOADABLE = ("limits", "users", "vhosts")
# The keys of [tls] that a listener can reload.
_RELOADABLE_TLS = ("cert", "key", "key_password_file", "ca")


def reloaded(old: Config, new: Config) -> Config:
    """Return the old configuration, updated with the new settings that apply without a restart."""
    tls = old.tls
    if old.tls.cert and new.tls.cert:
        tls = msgspec.structs.replace(tls, **{name: getattr(new.tls, name) for name in _RELOADABLE_TLS})
    return msgspec.structs.replace(old, tls=tls, **{name: getattr(new, name) for name in _RELOADABLE})


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
        elif section.name not in _RELOADABLE and before != after:
            changed.append(section.name)
    return changed


def needs_restart(name: str, running: Mapping[str, Setting], new: Mapping[str, Setting]) -> bool:
    """Return whether a change of a setting applies after a restart only.

    Args:
        name: The full name of the setting.
        running: The settings of the running broker, by name.
        new: The new settings, by name.
    """
    section, _, key = name.partition(".")
    if section == "tls" and key in _RELOADABLE_TLS:
        return running["tls.cert"] is None or new["tls.cert"] is None
    return section not in _RELOADABLE


def running_for() -> float:
    """Return the seconds since this process started, including the interpreter's startup."""
    # The program name is in parentheses and may contain any character. The start time is the 20th field after it, in ticks.
    fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
