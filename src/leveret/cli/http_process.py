"""The HTTP process of `leveret serve`: its listening sockets, its start, and its restart when it ends unexpectedly."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
import time
from pathlib import Path
from typing import Final

import msgspec

from leveret._build import __version__
from leveret._isolation import python_command
from leveret.config import Config
from leveret.management.http.settings import HttpSettings, node_name
from leveret.node.errors import StartFailed
from leveret.node.listening import addresses_of, bracketed

log = logging.getLogger("leveret.serve")

_MODULE: Final = "leveret.cli.http_main"
_REQUIRED: Final = ("h11", "prometheus_client", "starlette", "uvicorn")
_BACKLOG: Final = 128
# The file of the long history, in the data directory.
_HISTORY: Final = "history.sqlite"
# Seconds before a restart: first, at most, and the time after which a process counts as stable.
_MIN_DELAY: Final = 0.5
_MAX_DELAY: Final = 30.0
_STABLE: Final = 60.0
# Seconds for the process to end, before it is killed.
_STOP_TIMEOUT: Final = 4.0


class HttpProcess:
    """The HTTP API of a broker. The sockets stay open while the process restarts.

    Attributes:
        listeners: The addresses of the API, as URLs. Empty if there is none.
        metrics_listeners: The addresses of the metrics, as URLs. Empty if there are none.
    """

    def __init__(self, config: Config, control: Path) -> None:
        self._config = config
        self._control = control
        self._sockets: list[socket.socket] = []
        self._metrics_sockets: list[socket.socket] = []
        self._task: asyncio.Task[None] | None = None
        self.listeners: list[str] = []
        self.metrics_listeners: list[str] = []

    def listen(self) -> None:
        """Open the listening sockets. Logs why there is no API if it is not installed, or the port is in use."""
        management = self._config.management
        if not management.enabled:
            return
        missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
        if missing:
            log.info("no HTTP API: %s not installed; install leveret[management]", ", ".join(missing))
            return
        self._sockets = self._open("HTTP API", "port", management.port)
        self.listeners = self._urls(self._sockets, f"{management.path_prefix}/")
        if self._sockets and management.metrics_enabled:
            self._metrics_sockets = self._open("metrics", "metrics_port", management.metrics_port)
            self.metrics_listeners = self._urls(self._metrics_sockets, "/metrics")

    def _open(self, what: str, setting: str, port: int) -> list[socket.socket]:
        try:
            return _listen(self._config.management.host, port)
        except (OSError, StartFailed) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else error
            log.error(
                "no %s: cannot listen on port %d: %s; change 'management.host' or 'management.%s'",
                what,
                port,
                text,
                setting,
            )
            return []

    def _urls(self, sockets: list[socket.socket], path: str) -> list[str]:
        scheme = "https" if self._config.management.tls_cert is not None else "http"
        addresses = [opened.getsockname()[:2] for opened in sockets]
        return [f"{scheme}://{bracketed(host)}:{port}{path}" for host, port in addresses]

    def start(self) -> None:
        """Start the process unless it runs, without waiting for it."""
        if self._sockets and self._task is None:
            self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """End the process and close the sockets."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for opened in (*self._sockets, *self._metrics_sockets):
            opened.close()
        self._sockets, self._metrics_sockets = [], []

    async def _keep_running(self) -> None:
        delay = _MIN_DELAY
        while True:
            began = time.monotonic()
            code = await self._run()
            if time.monotonic() - began > _STABLE:
                delay = _MIN_DELAY
            log.error("the HTTP process ended with code %d; restarting it in %g seconds", code, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY)

    async def _run(self) -> int:
        """Run the process and return its exit code. A cancelled run ends it."""
        process = await asyncio.create_subprocess_exec(
            *python_command(_MODULE),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[opened.fileno() for opened in (*self._sockets, *self._metrics_sockets)],
        )
        assert process.stdin is not None
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(msgspec.json.encode(self._settings()) + b"\n")
                await process.stdin.drain()
            return await process.wait()
        finally:
            process.stdin.close()
            if process.returncode is None:
                await _end(process)

    def _settings(self) -> HttpSettings:
        config = self._config
        management = config.management
        return HttpSettings(
            control=str(self._control),
            sockets=[opened.fileno() for opened in self._sockets],
            metrics_sockets=[opened.fileno() for opened in self._metrics_sockets],
            metrics_listeners=self.metrics_listeners,
            node=node_name(),
            version=__version__,
            rabbitmq_version=management.rabbitmq_version,
            path_prefix=management.path_prefix,
            cors_origins=management.cors_origins,
            max_body_size=management.max_body_size,
            tls_cert=management.tls_cert,
            tls_key=management.tls_key,
            disk_free_limit=config.limits.disk_free,
            listeners=self.listeners,
            history=str(config.server.data_path / _HISTORY),
            log_level=config.server.log_level,
            log_format=config.server.log_format,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_STOP_TIMEOUT):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a host with the same port. Addresses that this machine lacks are skipped.

    Raises:
        OSError: No address can be listened on, or the port is in use.
        StartFailed: The host is unknown.
    """
    opened: list[socket.socket] = []
    failure: OSError | None = None
    for address in addresses_of(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            opened.append(_bind(family, address, opened[0].getsockname()[1] if opened else port))
        except OSError as error:
            failure = error
    if not opened:
        assert failure is not None
        raise failure
    return opened


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
