"""Messages in their places: browse, search, move, copy, delete, resend; pausing queues; changes by pattern."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from leveret.management.http.connections import connections_by_number
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.identity import ADMIN, ANY, POLICY, Access
from leveret.management.http.request import NO_CONTENT, Answer, Request

_NUMBERS: Final = ("offset", "count", "truncate", "examine", "examine_bytes")
_TEXTS: Final = ("state", "encoding", "cursor", "since")
# The property that `since` compares.
_TIME: Final = "timestamp"
# Access by kind of the objects to delete. The broker checks the permissions for queues and exchanges.
_DELETABLE: Final[dict[str, Access]] = {
    "queues": ANY,
    "exchanges": ANY,
    "policies": POLICY,
    "operator_policies": ADMIN,
    "users": ADMIN,
    "vhosts": ADMIN,
}


async def check_queue(request: Request) -> None:
    """Raise `HttpError` (404) if the queue of the path does not exist."""
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})


def check_conditions(request: Request, body: Row) -> None:
    """Raise `HttpError` (401) for conditions on what the user may not read, since they disclose it."""
    if body.get("selector"):
        request.masks.check_selector()
    if body.get("since"):
        request.masks.check_field(_TIME)
    if isinstance(body.get("header"), str):
        request.masks.check_field(f"headers.{body['header']}")
    where = body.get("where")
    check_fields(request, where if isinstance(where, list) else [])


def check_fields(request: Request, where: list[object]) -> None:
    """Raise `HttpError` (401) for conditions on fields that the user may not read."""
    for condition in where:
        field = condition.get("field") if isinstance(condition, dict) else ""
        if not isinstance(field, str):
            continue
        request.masks.check_field(field)
        if field.startswith("body"):
            request.identity.check_payloads(request.vhost, request.name)


def with_body(request: Request, *keys: str) -> Row:
    """Return the keys of the body that an operation has."""
    body = request.body()
    return {key: body[key] for key in keys if body.get(key) is not None}


_LIMITED: Final = ("where", "since", "selector", "cursor", "examine", "examine_bytes", "seconds")
_BROWSE: Final = (*_LIMITED, "state", "offset", "count", "encoding", "truncate", "encoded")
_SELECT: Final = (*_LIMITED, "state", "ids", "queue_id")
_TARGET: Final = (*_SELECT, "to_queue", "to_exchange", "routing_key", "to_origin", "to_origin_exchange")
_RESEND: Final = ("id", "queue_id", "exchange", "routing_key", "payload", "payload_encoding", "properties")


def numbers_of(request: Request, *names: str) -> Row:
    """Return the parameters of the query with these names. Raises `HttpError` (400)."""
    return {name: _number(name, request.query[name]) for name in names if name in request.query}


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"invalid value of '{name}'; expected a number") from None


async def browse(request: Request) -> Answer:
    """Look at messages; the parameters of the query are those of the operation."""
    await check_queue(request)
    wanted: Row = {name: request.query[name] for name in _TEXTS if name in request.query}
    if wanted.get("since"):
        request.masks.check_field(_TIME)
    wanted |= numbers_of(request, *_NUMBERS)
    wanted["encoded"] = request.asks_for("encoded")
    return Answer(body=await _browse(request, wanted))


async def search(request: Request) -> Answer:
    """Look for messages; the keys of the body are those of the operation."""
    await check_queue(request)
    check_conditions(request, request.body())
    return Answer(body=await _browse(request, with_body(request, *_BROWSE)))


async def _browse(request: Request, wanted: Row) -> Row:
    """Return messages. Without the right to read payloads, these are empty."""
    if not request.identity.may_read_payloads(request.vhost, request.name):
        wanted["truncate"] = 0
    found: Row = await request.control.call(
        "messages.browse", {"vhost": request.vhost, "queue": request.name, **wanted}, user=request.identity.name
    )
    await request.masks.apply(found["messages"])
    return found


def _look(call: str, *keys: str) -> Callable[[Request], Awaitable[Answer]]:
    """Return the handler of an operation that counts messages of a queue."""

    async def handle(request: Request) -> Answer:
        await check_queue(request)
        check_conditions(request, request.body())
        wanted = {"vhost": request.vhost, "queue": request.name, **with_body(request, *keys)}
        return Answer(body=await request.control.call(call, wanted, user=request.identity.name))

    return handle


async def read_payload(request: Request) -> Answer:
    """Return a range of the payload of a message; the parameters of the query are those of the operation."""
    request.masks.check_body()
    await check_queue(request)
    wanted: Row = {"vhost": request.vhost, "queue": request.name, "id": _number("id", request.path["id"])}
    wanted |= numbers_of(request, "queue_id", "first", "length")
    return Answer(body=await request.control.call("messages.payload", wanted, user=request.identity.name))


def _change(call: str, *keys: str) -> Callable[[Request], Awaitable[Answer]]:
    """Return the handler of an operation on messages of a queue."""

    async def handle(request: Request) -> Answer:
        await check_queue(request)
        check_conditions(request, request.body())
        return Answer(body=await request.change_as_user(call, {"queue": request.name, **with_body(request, *keys)}))

    return handle


count: Final = _look("messages.count", *_LIMITED, "state")
dead_letters: Final = _look("messages.dead_letters", *_LIMITED, "header")
preview: Final = _look("messages.preview", *_TARGET)
move: Final = _change("messages.move", *_TARGET)
copy: Final = _change("messages.copy", *_TARGET)
delete: Final = _change("messages.delete", *_SELECT)
_resend: Final = _change("messages.resend", *_RESEND)


async def resend(request: Request) -> Answer:
    """Publish a changed copy of a message, and delete the message."""
    request.masks.check_content(request.body())
    return await _resend(request)


async def pause(request: Request) -> Answer:
    await request.change_as_user("queues.pause", {"name": request.name})
    return NO_CONTENT


async def resume(request: Request) -> Answer:
    await request.change_as_user("queues.resume", {"name": request.name})
    return NO_CONTENT


async def cancel_consumer(request: Request) -> Answer:
    """Cancel the consumers of a queue with a tag; `connection` (a name) and `channel` of the query select one."""
    wanted: Row = {"vhost": request.vhost, "queue": request.name, "tag": request.path["tag"]}
    if "connection" in request.query:
        connections = await connections_by_number(request)
        named = [number for number, item in connections.items() if item["name"] == request.query["connection"]]
        if not named:
            raise not_found()
        wanted["connection"] = named[0]
    if "channel" in request.query:
        if not request.query["channel"].isdecimal():
            raise bad_request("invalid value of 'channel'; expected a number")
        wanted["channel"] = int(request.query["channel"])
    await request.change("consumers.cancel", wanted)
    return NO_CONTENT


def _check_vhost(request: Request) -> None:
    """Raise `HttpError` (400) unless the user sees the vhost of the body."""
    vhost = request.text("vhost", "/")
    if vhost not in request.identity.vhosts and not request.identity.is_administrator():
        raise bad_request(f"vhost '{vhost}' does not exist")


async def change_queues(request: Request) -> Answer:
    """Purge, pause or resume queues whose names match, or list them: `action` and `pattern` are required."""
    request.required("action", "pattern")
    _check_vhost(request)
    wanted = with_body(request, "action", "pattern", "vhost", "dry_run", "after")
    try:
        return Answer(body=await request.control.call("queues.change_matching", wanted, user=request.identity.name))
    finally:
        request.changed()


async def delete_matching(request: Request) -> Answer:
    """Delete objects whose names match, or list them: `kind` and `pattern` are required."""
    kind, _ = request.required("kind", "pattern")
    access = _DELETABLE.get(kind) if isinstance(kind, str) else None
    if access is None:
        raise bad_request(f"unknown kind '{kind}'; expected one of {', '.join(_DELETABLE)}")
    access.check(request.identity, request.text("vhost", "/"))
    wanted = with_body(request, "kind", "pattern", "vhost", "dry_run", "if_unused", "if_empty")
    if kind not in ("users", "vhosts"):
        _check_vhost(request)
    user = request.identity.name if access is ANY else None
    try:
        return Answer(body=await request.control.call("objects.delete", wanted, user=user))
    finally:
        request.changed()
