"""Requests as handlers see them, and their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from leveret.broker.arguments import misspelt_arguments
from leveret.management.http.alerts import Alerts
from leveret.management.http.cache import Cache
from leveret.management.http.control import Control, Row
from leveret.management.http.deliveries import Deliveries
from leveret.management.http.errors import BrokerRefused, HttpError, bad_request, not_found
from leveret.management.http.events import Events
from leveret.management.http.history_thread import History
from leveret.management.http.identity import Identity
from leveret.management.http.lists import MAX_PAGE_SIZE
from leveret.management.http.log_records import Logs
from leveret.management.http.masks import Masks
from leveret.management.http.measured import MAX_LISTED_SAMPLES, MAX_STREAMED_SAMPLES, Window, windows_of
from leveret.management.http.payload_decoder import PayloadDecoder
from leveret.management.http.places import Kind
from leveret.management.http.settings import HttpSettings
from leveret.management.http.sign_in import SignIn
from leveret.management.http.snapshot import Snapshot
from leveret.management.json_values import ReplyValue

# The name of the default exchange in paths.
DEFAULT_EXCHANGE: Final = "amq.default"
_DOUBLY_ENCODED: Final = "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
_TRUE: Final = (True, "true")
_FALSE: Final = (False, "false", None, "")


@dataclass(slots=True)
class Answer:
    """An answer.

    Attributes:
        status: The status code.
        body: A value to encode as JSON; None for an empty body.
        headers: More headers.
        content: The body of an answer that is not JSON, whose type is in `headers`.
        stream: The same in parts. If it raises `CutOff`, the client gets no end of the answer.
    """

    status: int = 200
    body: ReplyValue = None
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""
    stream: AsyncIterator[bytes] | None = None


class CutOff(Exception):
    """An answer that cannot be completed."""


class BrokenUpload(Exception):
    """A body that is not read to its end. `status` is that of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


NO_CONTENT: Final = Answer(204)
CREATED: Final = Answer(201)
_WARNING: Final = "x-leveret-warning"
# Maximum number of warnings in an answer.
_MAX_WARNINGS: Final = 10


def declared(is_new: bool, known: Iterable[str], arguments: Iterable[str]) -> Answer:
    """Return the answer to a declaration, with a header for each argument that is probably misspelt."""
    headers = tuple((_WARNING, warning) for warning in misspelt_arguments(known, arguments)[:_MAX_WARNINGS])
    return Answer(201 if is_new else 204, headers=headers)


@dataclass(slots=True)
class Request:
    """One request of an authenticated user.

    Attributes:
        settings: The settings of the process.
        control: The calls of the broker.
        snapshot: The lists of objects.
        cache: The objects with statistics.
        history: The statistics of the last day and month.
        events: Live events.
        identity: The user.
        path: The decoded parts of the path that the route names.
        query: The parameters of the query.
        headers: The headers, with names in lower case.
        content: The body.
        chunks: The parts of a body that is read while it is processed. Raises `BrokenUpload`.
        sign_in: The sessions of users.
        address: The IP address of the client.
        alerts: The alerts that are raised.
        masks: The fields of messages that are hidden from the user.
        deliveries: Returns what was sent of the alerts.
        decoder: Decodes payloads.
        logs: The latest log records.
        occupy: Occupies a place until the answer has ended. Raises `HttpError` if there is none.
    """

    settings: HttpSettings
    control: Control
    snapshot: Snapshot
    cache: Cache
    history: History
    events: Events
    identity: Identity
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes
    chunks: AsyncIterator[bytes]
    sign_in: SignIn
    address: str
    alerts: Alerts
    masks: Masks
    deliveries: Callable[[], list[Deliveries]]
    decoder: PayloadDecoder
    logs: Logs
    occupy: Callable[[Kind], Awaitable[None]]
    _body: Row | None = field(default=None)
    _windows: dict[str, Window] | None = field(default=None)

    @property
    def vhost(self) -> str:
        return self.path["vhost"]

    @property
    def name(self) -> str:
        return self.path["name"]

    @property
    def windows(self) -> dict[str, Window]:
        """The samples that the query asks for, by family of statistics. Raises `HttpError` (400)."""
        if self._windows is None:
            self._windows = windows_of(self.query)
        return self._windows

    def check_samples(self, objects: int, limit: int) -> None:
        """Raise `HttpError` (400) if the samples of these objects would make the answer too large."""
        count = objects * max((len(window.ticks(0)) for window in self.windows.values()), default=0)
        if count > limit:
            raise bad_request(
                f"{objects} objects have {count} samples of each statistic; expected at most {limit}:"
                " ask for a page, a smaller age, or a larger incr"
            )

    def check_listed_samples(self, objects: int) -> None:
        """Raise `HttpError` (400) if the samples of a list of these objects, or of one page of it, would be too large."""
        if self.query.get("page") is None:
            self.check_samples(objects, MAX_STREAMED_SAMPLES)
        else:
            self.check_samples(min(objects, MAX_PAGE_SIZE), MAX_LISTED_SAMPLES)

    def body(self) -> Row:
        """Return the body, a JSON object. An empty one stands for an empty object. Raises `HttpError` (400)."""
        if self._body is None:
            self._body = _decode(self.content)
        return self._body

    def required(self, *names: str, nullable: Collection[str] = ()) -> list[Any]:
        """Return keys of the body. Raises `HttpError` (400) if one is missing, or null unless it is among `nullable`."""
        body = self.body()
        missing = [name for name in names if body.get(name) is None and not (name in nullable and name in body)]
        if missing:
            raise bad_request("[" + ",".join(f"{{key_missing,{name}}}" for name in missing) + "]")
        return [body.get(name) for name in names]

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean key of the body, which clients also send as a string. Raises `HttpError` (400)."""
        value = self.body().get(name, default)
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise bad_request(f"invalid value of '{name}'; expected true or false")

    def arguments(self) -> Row:
        """Return the key `arguments` of the body. Raises `HttpError` (400) if it is not an object."""
        found = self.body().get("arguments") or {}
        if not isinstance(found, dict):
            raise bad_request("invalid value of 'arguments'; expected an object")
        return found

    def integer(self, name: str, default: int = 0) -> int:
        """Return a key of the body that is an integer; the default if it is null or missing. Raises `HttpError` (400)."""
        value = self.body().get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad_request(f"invalid value of '{name}'; expected an integer")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return a key of the body that is a text; the default if it is null or missing. Raises `HttpError` (400)."""
        value = self.body().get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise bad_request(f"invalid value of '{name}'; expected a string")
        return value

    def asks_for(self, name: str) -> bool:
        """Return whether a parameter of the query is true."""
        return asks_for(self.query, name)

    def changed(self) -> None:
        """Have lists that are read from now on show all changes so far."""
        self.snapshot.expire()
        self.cache.expire()

    async def change(self, call: str, arguments: Row) -> Any:
        """Execute an operation that changes the broker as a whole; lists that are read afterwards show the change."""
        try:
            return await self.control.call(call, arguments)
        finally:
            self.changed()

    async def change_users(self, call: str, arguments: Row) -> Any:
        """Execute an operation that changes users or permissions. The default user becomes a user like any other."""
        await self.control.call("users.keep_default")
        return await self.change(call, arguments)

    async def change_as_user(self, call: str, arguments: Row) -> Any:
        """Execute an operation in the vhost of the path that checks the user's permissions itself."""
        try:
            return await self.control.call(call, {"vhost": self.vhost, **arguments}, user=self.identity.name)
        finally:
            self.changed()

    async def change_in_vhost(self, call: str, arguments: Row) -> Any:
        """Execute an operation in the vhost of the path with the user's permissions."""
        try:
            return await self.control.call_as(self.identity.name, self.vhost, call, arguments)
        finally:
            self.changed()

    async def find(self, call: str, arguments: Row) -> Row | None:
        """Return an object, or None if it does not exist."""
        try:
            found: Row = await self.control.call(call, arguments)
        except BrokerRefused as refused:
            if refused.condition == "not-found":
                return None
            raise
        return found

    async def get(self, call: str, arguments: Row) -> Row:
        """Return an object. Raises `HttpError` (404) if it does not exist."""
        found = await self.find(call, arguments)
        if found is None:
            raise not_found()
        return found


def asks_for(query: Mapping[str, str], name: str) -> bool:
    """Return whether a parameter of a query is true."""
    return query.get(name) in ("true", "1")


def exchange_of(name: str) -> str:
    """Return the name of an exchange in a path."""
    return "" if name == DEFAULT_EXCHANGE else name


def _decode(content: bytes) -> Row:
    if content.removeprefix(b"\xef\xbb\xbf").strip() in (b"", b"null", b"undefined"):
        return {}
    try:
        value = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpError(400, "bad_request", "not_json") from None
    if isinstance(value, str):
        raise bad_request(_DOUBLY_ENCODED)
    if not isinstance(value, dict):
        raise bad_request("not_json")
    return value
