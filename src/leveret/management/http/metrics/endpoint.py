"""The HTTP endpoint of the metrics. It has a port of its own and no authentication, as in RabbitMQ."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from starlette.responses import Response, StreamingResponse

from leveret.management.http.cache import Cache
from leveret.management.http.control import Row
from leveret.management.http.deliveries import Deliveries
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable, HttpError
from leveret.management.http.metrics.broker import (
    DETAILED_PREFIX,
    GROUPS,
    PREFIX,
    Scrape,
    all_metrics,
    identity,
    of_alerts,
    of_process,
    of_shovels,
)
from leveret.management.http.metrics.objects import STREAM_CONSUMER_FAMILY, Selection
from leveret.management.http.places import SCRAPES, Places
from leveret.management.http.settings import HttpSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger("leveret.http")

# Seconds for a client to read a scrape.
_TIMEOUT: Final = 60.0
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_COMPRESSION: Final = 1
# The window of a gzip stream.
_GZIP: Final = 31
_MAX_QUERY: Final = 16384
_NOT_FOUND: Final = msgspec.json.encode({"error": "Object Not Found", "reason": "Not Found"})


class Metrics:
    """Serves the metrics of a broker.

    Args:
        cache: The objects with their counters.
        settings: The settings of the process.
        deliveries: Returns what was sent of alerts.
        consumers: Returns the named consumers of streams.
        shovels: Returns the shovels.
    """

    def __init__(
        self,
        cache: Cache,
        settings: HttpSettings,
        deliveries: Callable[[], list[Deliveries]],
        consumers: Callable[[], Awaitable[list[Row]]],
        shovels: Callable[[], Awaitable[list[Row]]],
    ) -> None:
        self._cache = cache
        self._deliveries = deliveries
        self._consumers = consumers
        self._shovels = shovels
        self._settings = settings
        # Each scrape in progress keeps the values of all objects.
        self._places = Places()
        self._paths: dict[str, Callable[[bytes], Awaitable[AsyncIterator[bytes]]]] = {
            "/metrics": self._aggregated,
            "/metrics/per-object": self._per_object,
            "/metrics/detailed": self._detailed,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        client = scope.get("client")
        try:
            async with self._places.take(SCRAPES, "", client[0] if client else ""), asyncio.timeout(_TIMEOUT):
                await (await self._respond(scope))(scope, receive, send)
        except HttpError as refused:
            await Response(f"{refused.reason}\n", refused.status, dict(refused.headers))(scope, receive, send)
        except TimeoutError:
            logger.info("a scrape was not read within %g seconds", _TIMEOUT)

    async def _respond(self, scope: Scope) -> Response:
        found = self._paths.get(scope["path"].removesuffix("/"))
        if found is None:
            return Response(_NOT_FOUND, 404, media_type="application/json")
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        if len(scope["query_string"]) > _MAX_QUERY:
            return Response(f"the query has more than {_MAX_QUERY} bytes\n", 400)
        try:
            await self._cache.refresh()
            parts = await found(scope["query_string"]) if method == "GET" else _nothing()
        except (BrokerUnavailable, BrokerRefused) as error:
            return Response(f"{error}\n", 503)
        compresses = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        headers = {"content-type": _CONTENT_TYPE, "vary": "accept-encoding"}
        if compresses:
            headers["content-encoding"] = "gzip"
        return StreamingResponse(_compressed(parts) if compresses else parts, headers=headers)

    async def _aggregated(self, _: bytes) -> AsyncIterator[bytes]:
        return self._write([all_metrics(self._cache, self._settings), *await self._of_services()])

    async def _per_object(self, _: bytes) -> AsyncIterator[bytes]:
        return self._write(
            [of_process(self._cache, self._settings), *await self._of_services()],
            Selection(PREFIX, None, None, await self._consumers()),
            "per-object",
        )

    async def _detailed(self, query: bytes) -> AsyncIterator[bytes]:
        wanted = parse_qs(query.decode("latin-1"))
        families = set(wanted.get("family", ()))
        vhosts = set(wanted["vhost"]) if "vhost" in wanted else None
        consumers = await self._consumers() if STREAM_CONSUMER_FAMILY in families else []
        return self._write(
            [group(DETAILED_PREFIX, self._cache, self._settings) for name, group in GROUPS.items() if name in families],
            Selection(DETAILED_PREFIX, families, vhosts, consumers),
            "detailed",
        )

    async def _of_services(self) -> list[Iterator[Metric]]:
        return [of_alerts(self._deliveries()), of_shovels(await self._shovels())]

    async def _write(
        self, groups: list[Iterator[Metric]], selection: Selection | None = None, endpoint: str = ""
    ) -> AsyncIterator[bytes]:
        """Yield the text of groups of metrics, then that of metrics of objects, and the identity of the endpoint."""
        for group in groups:
            yield generate_latest(Scrape(group))
        if selection is not None:
            async for part in selection.write(self._cache):
                yield part
            yield generate_latest(Scrape(identity(endpoint, self._cache, self._settings)))


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


async def _compressed(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    compressor = zlib.compressobj(_COMPRESSION, wbits=_GZIP)
    async for part in parts:
        yield compressor.compress(part)
    yield compressor.flush()
