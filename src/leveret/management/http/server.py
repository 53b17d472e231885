"""The server of the HTTP API: uvicorn on sockets that are open."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from leveret.management.http.app import Application
from leveret.management.http.console import Console
from leveret.management.http.control import Control
from leveret.management.http.hosts import HostCheck, Refusals
from leveret.management.http.metrics.endpoint import Metrics
from leveret.management.http.places import REQUESTS
from leveret.management.http.settings import HttpSettings
from leveret.management.http.slow_clients import SlowClients
from leveret.management.parent import wait_for_end
from leveret.management.recent_log import LogRecords

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger("leveret.http")

# Seconds for which an idle connection stays open.
_KEEP_ALIVE: Final = 75
# Seconds in which open requests may finish when the process stops, before their connections are closed, and after which
# uvicorn would cancel the remaining ones and log errors.
_STOP_TIMEOUT: Final = 2
_CANCEL_TIMEOUT: Final = 4
# Maximum number of connections at a time.
_MAX_CONCURRENT: Final = REQUESTS.total
# Maximum number of connections without those that wait for a request being closed.
_MAX_WAITING: Final = 500
# Ticks of the server, a tenth of a second each, between two looks at slow clients.
_SWEEP: Final = 5
# Maximum number of pending logins.
_MAX_LOGINS: Final = 64
# Maximum bytes of the head of a request.
_MAX_HEAD: Final = 64 << 10


class _Connection(H11Protocol):
    """A connection. Invalid requests are logged with the address of the client, at a bounded rate."""

    refusals: ClassVar = Refusals()

    def send_400_response(self, msg: str) -> None:
        self.refusals.note(self.client, "invalid HTTP")
        super().send_400_response(msg)


class _ServerLog(logging.Filter):
    """Drops warnings of uvicorn about single requests: they come at any rate, and without the address of the client."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING


class _Server(uvicorn.Server):
    """A server that closes connections of slow clients.

    It leaves signals alone: the process ends when the broker closes its standard input.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._slow_clients = SlowClients(_MAX_WAITING)
        self._refusals = Refusals()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.get_running_loop().call_later(_STOP_TIMEOUT, self._close_connections)
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    def _close_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP == 0:
            connections = self.server_state.connections
            if len(connections) >= _MAX_CONCURRENT:
                self._refusals.note(None, f"{_MAX_CONCURRENT} connections are open, the maximum")
            self._slow_clients.close([found for found in connections if isinstance(found, H11Protocol)])
        return await super().on_tick(counter)


async def serve(settings: HttpSettings, parent: BinaryIO, log: LogRecords) -> None:
    """Serve the API until the other end of `parent` is closed.

    Args:
        settings: The settings.
        parent: The pipe from the broker's process.
        log: The latest log records of this process; none if it is the broker's.
    """
    path = Path(settings.control)
    application = Application(settings, Control(path), Control(path, _MAX_LOGINS), log)
    metrics = Metrics(
        application.cache, settings, application.deliveries, application.stream_consumers, application.shovels
    )
    logging.getLogger("uvicorn.error").addFilter(_ServerLog())
    servers = [
        (_make_server(Console(settings, application), settings), settings.sockets),
        (_make_server(metrics, settings), settings.metrics_sockets),
    ]
    ended = asyncio.create_task(wait_for_end(parent))
    ended.add_done_callback(lambda _: _stop([server for server, _ in servers], application))
    logger.info("HTTP API ready: %s", ", ".join([*settings.listeners, *settings.metrics_listeners]))
    statistics = asyncio.create_task(application.keep_statistics())
    await asyncio.gather(*[_serve(server, numbers) for server, numbers in servers if numbers])
    ended.cancel()
    statistics.cancel()
    await asyncio.wait([statistics])


def _stop(servers: list[uvicorn.Server], application: Application) -> None:
    for server in servers:
        server.should_exit = True
    application.end_streams()


async def _serve(server: uvicorn.Server, numbers: list[int]) -> None:
    # The server closes its sockets. Those of the caller stay open.
    await server.serve([socket.socket(fileno=os.dup(number)) for number in numbers])


def _make_server(application: ASGIApp, settings: HttpSettings) -> uvicorn.Server:
    """Return a server. Raises `SystemExit` if the certificate cannot be loaded."""
    config = uvicorn.Config(
        HostCheck(application, settings.hosts),
        http=_Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_CANCEL_TIMEOUT,
        limit_concurrency=_MAX_CONCURRENT,
        h11_max_incomplete_event_size=_MAX_HEAD,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        logger.error("cannot load the certificate of 'management.tls_cert': %s", error)
        raise SystemExit(1) from None
    return _Server(config)
