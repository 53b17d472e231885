"""The ASGI application: paths, authentication, errors and headers."""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.responses import Response, StreamingResponse

from leveret.management.http import shovels
from leveret.management.http.alerts import Alerts
from leveret.management.http.cache import Cache
from leveret.management.http.control import Control, Row
from leveret.management.http.deliveries import Deliveries
from leveret.management.http.errors import (
    SHARD_UNAVAILABLE,
    BrokerRefused,
    BrokerUnavailable,
    HttpError,
    as_http_error,
    bad_request,
    not_authorised,
    not_found,
)
from leveret.management.http.event_stream import EventStream
from leveret.management.http.events import Events
from leveret.management.http.history_thread import History
from leveret.management.http.identity import ANONYMOUS, Identity
from leveret.management.http.listings import STREAM_CONSUMERS
from leveret.management.http.lists import RowStream
from leveret.management.http.log_records import Logs
from leveret.management.http.mail import Mailer
from leveret.management.http.masks import NO_MASKS, Masks
from leveret.management.http.payload_decoder import PayloadDecoder
from leveret.management.http.places import REQUESTS, Kind, Places
from leveret.management.http.request import Answer, CutOff, Request, asks_for
from leveret.management.http.settings import HttpSettings
from leveret.management.http.sign_in import SignIn
from leveret.management.http.snapshot import Snapshot
from leveret.management.http.table import Route, find
from leveret.management.http.uploads import chunks, expected_size
from leveret.management.http.webhooks import Webhooks
from leveret.management.recent_log import LogRecords
from leveret.security.tags import READ_ONLY

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger("leveret.http")

_JSON: Final = "application/json"
# The header with the numbers of the shards that are not ready.
_MISSING_SHARDS: Final = "leveret-missing-shards"
# Smaller bodies are not compressed.
_MIN_COMPRESSED: Final = 1024
_COMPRESSION: Final = 1
# The window of a gzip stream.
_GZIP: Final = 31
# Rows of a long list that are encoded at a time, and seconds after which fewer are.
_ROWS: Final = 200
_ROWS_TIME: Final = 0.02
_MAX_QUERY: Final = 16384
# Maximum bytes of a body, except of files. The broker accepts requests of 1 MiB.
_MAX_BODY: Final = 2 << 20
# The same of requests without credentials.
_MAX_PUBLIC_BODY: Final = 64 << 10
# More parts of a path than any route has.
_MAX_PARTS: Final = 16
# Methods that change nothing.
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
# Seconds for a client to send a body.
_BODY_TIMEOUT: Final = 60.0
_SECURITY: Final = (
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
    ("vary", "accept, accept-encoding, origin"),
)


class Application:
    """The HTTP API of one broker.

    Args:
        settings: The settings of the process.
        control: The calls of the broker.
        logins: The same for logins, so that those with wrong passwords do not delay other calls.
        log: The latest log records of this process.
    """

    def __init__(self, settings: HttpSettings, control: Control, logins: Control, log: LogRecords) -> None:
        self._settings = settings
        self._control = control
        self._snapshot = Snapshot(control)
        self._events = Events()
        self._cache = Cache(control, events=self._events)
        self._history = History(Path(settings.history))
        self._masks = Masks(settings.mask)
        self._webhooks = Webhooks(settings.webhooks, Path(settings.outbox))
        self._mailer = Mailer(settings.mail, settings.node, Path(settings.mails))
        self._alerts = Alerts(control, self._cache, self._events, self._webhooks, self._mailer)
        self._sign_in = SignIn(settings, control, logins)
        self._decoder = PayloadDecoder()
        self._logs = Logs(control, log)
        self._base = f"{settings.path_prefix}/api"
        self._places = Places()

    @property
    def cache(self) -> Cache:
        """The objects with their counters."""
        return self._cache

    def deliveries(self) -> list[Deliveries]:
        """Return what was sent to the mail server, if there is one, and to each webhook."""
        return [*([self._mailer.deliveries] if self._settings.mail.host else []), *self._webhooks.deliveries()]

    async def stream_consumers(self) -> list[Row]:
        """Return the named consumers of streams. Raises `BrokerUnavailable`."""
        return await self._snapshot.rows(STREAM_CONSUMERS.call)

    async def shovels(self) -> list[Row]:
        """Return the shovels. Raises `BrokerUnavailable`."""
        return await self._snapshot.rows(shovels.LIST)

    async def keep_statistics(self) -> None:
        """Read statistics each second, keep their history, and evaluate alerts, until the task is cancelled."""
        # Not cancelled, so that what a thread has begun to open is closed.
        opening = asyncio.create_task(self._open_databases())
        alerts: list[asyncio.Task[None]] = []
        try:
            await asyncio.shield(opening)
            running = (self._alerts.run(), self._webhooks.run(), self._mailer.run())
            alerts += [asyncio.create_task(task) for task in running]
            await self._cache.poll(self._ticked)
        finally:
            for task in alerts:
                task.cancel()
            await asyncio.wait([opening, *alerts])
            await self._webhooks.close()
            await self._mailer.close()
            await self._history.close()

    async def _open_databases(self) -> None:
        await self._history.open()
        await self._webhooks.open()
        await self._mailer.open()

    def _ticked(self) -> None:
        self._history.ticked(self._cache)
        self._events.ticked(self._cache.tick)

    def end_streams(self) -> None:
        """End the streams of events, which would keep their connections open."""
        self._events.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        async with AsyncExitStack() as places:
            await self._serve(scope, receive, send, headers, places)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str], places: AsyncExitStack
    ) -> None:
        try:
            answer = await self._answer(scope, receive, headers, places)
        except HttpError as error:
            answer = _refusal(error)
        except BrokerRefused as refused:
            answer = _refusal(as_http_error(refused))
        except BrokerUnavailable as error:
            answer = _refusal(HttpError(503, "service_unavailable", str(error)))
        except _Disconnected:
            return
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            answer = _refusal(HttpError(500, "internal_server_error", "internal error; see the broker's log"))
        if isinstance(answer.body, EventStream):
            await answer.body.respond(scope["method"], self._stream_headers(headers), receive, send)
            return
        try:
            await self._respond(answer, scope["method"], headers)(scope, receive, send)
        except CutOff as error:  # the server closes the connection, since the answer has no end
            logger.warning("%s %s was cut off: %s", scope["method"], scope["path"], error)

    async def _answer(self, scope: Scope, receive: Receive, headers: Mapping[str, str], places: AsyncExitStack) -> Answer:
        """Return the answer to a request, which occupies places until the answer has ended. Raises `HttpError`."""
        client = scope.get("client")
        address = client[0] if client else ""
        await places.enter_async_context(self._places.take(REQUESTS, "", address))
        parts = self._parts(scope)
        found = find(parts)
        if found is None:
            raise not_found()
        methods, path = found
        method = scope["method"]
        allowed = ", ".join(sorted({*methods, "HEAD", "OPTIONS"} if "GET" in methods else {*methods, "OPTIONS"}))
        if method == "OPTIONS":
            return Answer(200, headers=(("allow", allowed), *self._preflight(headers)))
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise HttpError(405, "method_not_allowed", f"expected {allowed}", (("allow", allowed),))
        if method not in _SAFE:
            self._check_origin(headers)
        identity = ANONYMOUS if route.public else await self._sign_in.identify(headers, address, method not in _SAFE)
        _check_access(route, identity, path)
        query = query_of(scope["query_string"])
        is_dry_run = route.has_dry_run and asks_for(query, "dry_run")
        _check_restrictions(route, identity, path, changes=method not in _SAFE and not route.reads and not is_dry_run)
        if "vhost" in path and route.scope != "all":
            await self._check_vhost(path["vhost"])

        async def occupy(kind: Kind) -> None:
            await places.enter_async_context(self._places.take(kind, identity.name, address))

        async def handle(max_body: int) -> Answer:
            content = b"" if route.streamed else await self._read(receive, headers, max_body)
            return await route.handler(
                Request(
                    self._settings,
                    self._control.on_behalf_of(identity.name, f"HTTP {_address(client)}", identity.token),
                    self._snapshot,
                    self._cache,
                    self._history,
                    self._events,
                    identity,
                    path,
                    query,
                    headers,
                    content,
                    chunks(receive, max_body),
                    self._sign_in,
                    address,
                    self._alerts,
                    self._masks if identity.tags.isdisjoint(self._settings.mask_exempt_tags) else NO_MASKS,
                    self.deliveries,
                    self._decoder,
                    self._logs,
                    occupy,
                )
            )

        async def show(max_body: int) -> Answer:
            """Answer, and name the shards whose objects are missing in lists."""
            answer = await handle(max_body)
            missing = [] if route.public or method not in _SAFE else self._cache.missing_shards()
            if not missing:
                return answer
            return replace(answer, headers=(*answer.headers, (_MISSING_SHARDS, ", ".join(map(str, missing)))))

        limit = self._settings.max_body_size
        if route.streamed:
            _check_upload(headers, limit)
        if route.place is not None:
            await occupy(route.place)
        if route.streamed or route.large:
            return await handle(limit)
        return await show(min(limit, _MAX_PUBLIC_BODY if route.public else _MAX_BODY))

    async def _check_vhost(self, name: str) -> None:
        """Raise `HttpError` (404) if a vhost does not exist. Every vhost has a default exchange."""
        try:
            await self._control.call("exchanges.show", {"vhost": name, "name": ""})
        except BrokerRefused as refused:
            if refused.condition == SHARD_UNAVAILABLE:
                raise  # the vhost exists, and must not seem to be deleted
            raise not_found() from None

    def _parts(self, scope: Scope) -> list[str]:
        """Return the decoded parts of the path below the base. Raises `HttpError`."""
        raw = scope["raw_path"].decode("latin-1").partition("?")[0]
        if not raw.startswith(self._base + "/"):
            raise not_found()
        return parts_of(raw[len(self._base) + 1 :].removesuffix("/"))

    async def _read(self, receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
        """Return the body of a request. Raises `HttpError` (400) if it is too large."""
        content = bytearray()
        deadline = asyncio.get_running_loop().time() + _BODY_TIMEOUT
        more = _length_of(headers) <= limit
        too_large = not more
        while more:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HttpError(408, "request_timeout", f"no complete body within {_BODY_TIMEOUT:g} seconds") from None
            if message["type"] == "http.disconnect":
                raise _Disconnected
            content += message.get("body", b"")
            more = message.get("more_body", False)
            if len(content) > limit:
                too_large = True
                break
        if too_large:
            raise bad_request("Exceeded HTTP request body size limit")
        return bytes(content)

    def _respond(self, answer: Answer, method: str, headers: Mapping[str, str]) -> Response:
        if isinstance(answer.body, RowStream):
            return self._stream(
                answer.body, method, {**dict(answer.headers), **dict(self._allowed_origin(headers))}, headers
            )
        if answer.stream is not None:
            found = {**dict(_SECURITY), **dict(answer.headers), **dict(self._allowed_origin(headers))}
            return StreamingResponse(answer.stream if method != "HEAD" else (), answer.status, found)
        content = answer.content if answer.body is None else encode(answer.body)
        response = Response(content, answer.status, {**dict(_SECURITY), **dict(answer.headers)})
        if answer.status == 204:
            del response.headers["content-length"]
        elif content:
            response.headers.setdefault("content-type", _JSON)
            if len(content) >= _MIN_COMPRESSED and "gzip" in headers.get("accept-encoding", ""):
                response.body = gzip.compress(content, _COMPRESSION, mtime=0)
                response.headers["content-encoding"] = "gzip"
                response.headers["content-length"] = str(len(response.body))
        for name, value in self._allowed_origin(headers):
            response.headers[name] = value
        if method == "HEAD":
            response.body = b""
        return response

    def _stream(self, rows: RowStream, method: str, more: Mapping[str, str], headers: Mapping[str, str]) -> Response:
        compresses = "gzip" in headers.get("accept-encoding", "")
        content = _stream(rows, compresses) if method != "HEAD" else ()
        response = StreamingResponse(content, 200, {**dict(_SECURITY), **more})
        response.headers["content-type"] = _JSON
        if compresses:
            response.headers["content-encoding"] = "gzip"
        return response

    def _stream_headers(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        # A proxy must pass each event on at once.
        more = (("content-type", "text/event-stream"), ("x-accel-buffering", "no"))
        return [*_SECURITY, *more, *self._allowed_origin(headers)]

    def _allowed_origin(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the headers that let a page of a configured origin read the answer."""
        origin = headers.get("origin")
        allowed = self._settings.cors_origins
        if origin is None or not ("*" in allowed or origin in allowed):
            return []
        if origin not in allowed:
            return [("access-control-allow-origin", "*")]  # without credentials that the browser remembers
        return [("access-control-allow-origin", origin), ("access-control-allow-credentials", "true")]

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise `HttpError` (401) for a change that a page of another origin requests.

        Browsers send remembered credentials with forms of any page.
        """
        origin = headers.get("origin")
        if origin is None or self._allowed_origin(headers):
            return
        if origin.partition("://")[2] != headers.get("host", ""):
            raise not_authorised("request of a page of another origin; the setting is management.cors_origins")

    def _preflight(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        if not self._allowed_origin(headers):
            return []
        wanted = headers.get("access-control-request-headers")
        return [
            ("access-control-allow-methods", "HEAD, GET, POST, PUT, DELETE, OPTIONS"),
            ("access-control-max-age", "1728000"),
            *([("access-control-allow-headers", wanted)] if wanted else []),
        ]


class _Disconnected(Exception):
    """The client closed the connection before it sent the body."""


def _check_access(route: Route, identity: Identity, path: Mapping[str, str]) -> None:
    """Raise `HttpError` unless the user may use the route: 401 without the tag, 404 for a vhost that is not visible."""
    vhost = path.get("vhost")
    route.access.check(identity, vhost)
    if vhost is None or route.scope == "all" or identity.is_administrator() or vhost in identity.vhosts:
        return
    if route.scope == "own" or not identity.sees(vhost):
        raise not_found()


def _check_restrictions(route: Route, identity: Identity, path: Mapping[str, str], *, changes: bool) -> None:
    """Raise `HttpError` (401) if a tag or the roles of the user forbid to change objects or to read payloads."""
    if changes and identity.is_read_only():
        raise not_authorised(f"the user has the tag '{READ_ONLY}' and may change nothing")
    if route.payloads:
        identity.check_payloads(path.get("vhost", ""), path["name"])


def _length_of(headers: Mapping[str, str]) -> int:
    """Return the length of a body, 0 if it is unknown. Raises `HttpError` (400)."""
    length = headers.get("content-length", "")
    if length and "transfer-encoding" in headers:  # a proxy may read another length
        raise HttpError(
            400, "bad_request", "both content-length and transfer-encoding; expected one", (("connection", "close"),)
        )
    return int(length) if length.isdecimal() else 0


def _check_upload(headers: Mapping[str, str], limit: int) -> None:
    """Raise `HttpError` (400) if a body that is processed while it is received is too large."""
    length = _length_of(headers)
    if length > limit:
        raise bad_request(f"the body has {length} bytes; {expected_size(limit)}")


def _address(client: tuple[str, int] | None) -> str:
    return f"{client[0]}:{client[1]}" if client else ""


def parts_of(path: str) -> list[str]:
    """Return the decoded parts of a path. `%2F` belongs to a part. Raises `HttpError` (400)."""
    try:
        return [unquote(part, errors="strict") for part in path.split("/", _MAX_PARTS)]
    except UnicodeDecodeError:
        raise bad_request("a name in the path is not UTF-8") from None


def query_of(raw: bytes) -> dict[str, str]:
    """Return the parameters of a query; the last one of each name. Raises `HttpError` (400)."""
    if len(raw) > _MAX_QUERY:
        raise bad_request(f"the query has {len(raw)} bytes; expected at most {_MAX_QUERY}")
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))


def _refusal(error: HttpError) -> Answer:
    body = {"error": error.error, "reason": error.reason} if error.error else None
    return Answer(error.status, body, error.headers)


async def _stream(rows: RowStream, compresses: bool) -> AsyncIterator[bytes]:
    """Encode a list in parts, and serve other requests between them."""
    compressor = zlib.compressobj(_COMPRESSION, wbits=_GZIP) if compresses else None
    found = iter(rows)
    begin = b"["
    while part := _take(found):
        content = begin + msgspec.json.encode(part)[1:-1]
        begin = b","
        yield content if compressor is None else compressor.compress(content)
        await asyncio.sleep(0)
    content = b"[]" if begin == b"[" else b"]"
    yield content if compressor is None else compressor.compress(content) + compressor.flush()


def _take(rows: Iterator[Row]) -> list[Row]:
    part: list[Row] = []
    deadline = time.perf_counter() + _ROWS_TIME
    for row in islice(rows, _ROWS):
        part.append(row)
        if time.perf_counter() >= deadline:
            break
    return part


def encode(body: object) -> bytes:
    """Return a body as JSON."""
    return msgspec.json.encode(body)
