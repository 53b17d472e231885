"""Publishing messages, and getting them from queues."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from leveret.management.http.errors import bad_request
from leveret.management.http.request import Answer, Request, exchange_of

_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")


def _number(value: object, name: str) -> int:
    """Return a number, which clients also send as a string. Raises `HttpError` (400)."""
    with suppress(ValueError):
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
    raise bad_request(f"invalid value of '{name}'; expected a number")


async def get(request: Request) -> Answer:
    """Get messages from a queue: `count`, `ackmode` and `encoding` are required, `truncate` is not."""
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    count, mode, encoding = request.required("count", "ackmode", "encoding")
    if mode not in _MODES:
        raise bad_request(f"invalid ackmode '{mode}'; expected one of {', '.join(_MODES)}")
    if encoding not in ("auto", "base64"):
        raise bad_request(f"invalid encoding '{encoding}'; expected auto or base64")
    wanted = {"queue": request.name, "count": _number(count, "count"), "mode": mode, "encoding": encoding}
    truncate = request.body().get("truncate")
    if truncate is not None:
        wanted["truncate"] = _number(truncate, "truncate")
    found = (await request.change_as_user("messages.get", wanted))["messages"]
    await request.masks.apply(found)
    for message in found:
        # An empty table is a list in RabbitMQ's answers.
        message["properties"] = message["properties"] or []
    return Answer(body=found)


async def _find_exchange(request: Request) -> str:
    """Return the name of the exchange of the path, to which users publish. Raises `HttpError`."""
    name = exchange_of(request.name)
    exchange = await request.get("exchanges.show", {"vhost": request.vhost, "name": name})
    if exchange["internal"]:
        raise bad_request(f"cannot publish to internal exchange '{name}' in vhost '{request.vhost}'")
    return name


async def find_destinations(request: Request) -> Answer:
    """Return the queues that a message would reach, with the keys `routing_key` and `properties`."""
    wanted = {
        "vhost": request.vhost,
        "exchange": await _find_exchange(request),
        "routing_key": request.text("routing_key"),
        "properties": _properties(request.body().get("properties", {})),
    }
    return Answer(body=await request.control.call("messages.destinations", wanted, user=request.identity.name))


async def publish(request: Request) -> Answer:
    """Publish a message: `properties`, `routing_key`, `payload` and `payload_encoding` are required."""
    name = await _find_exchange(request)
    names = ("properties", "routing_key", "payload", "payload_encoding")
    properties, _, _, encoding = request.required(*names, nullable=("properties", "routing_key"))
    if encoding not in ("string", "base64"):
        raise bad_request(f"unsupported encoding '{encoding}'; expected string or base64")
    message = {
        "exchange": name,
        "routing_key": request.text("routing_key"),
        "payload": request.text("payload"),
        "payload_encoding": encoding,
        "properties": _properties(properties),
    }
    return Answer(body=await request.change_as_user("messages.publish", message))


def _properties(value: object) -> object:
    """Return message properties that are not null. Clients also send empty lists for empty tables, as RabbitMQ does."""
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request("invalid value of 'properties'; expected an object")
    found = {name: given for name, given in value.items() if given is not None}
    return found | {"headers": {}} if found.get("headers") == [] else found
