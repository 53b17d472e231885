"""Messages: publish one, get some from the head of a queue."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import field

from leveret.broker import routing
from leveret.broker.bodies import Body, StoredBody, size_of, whole
from leveret.broker.consumer import Client, Scope
from leveret.broker.dead_letter import split_address
from leveret.broker.errors import AccessRefused, PreconditionFailed, ResourceError
from leveret.broker.message import Entry, Message, make_address
from leveret.broker.queues.loading import Waiting
from leveret.broker.routing import Route, check_keys, resolve
from leveret.broker.watches import trace_get
from leveret.management.json_values import ClientTable
from leveret.management.operations.operation import EACH, Context, Operation, Operations, check, check_topics
from leveret.management.structs import Reply, Request

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost

# Maximum number of messages, and bytes of their payloads, in one reply.
MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 8 << 20
# Messages to get in one turn, and bytes of their payloads.
STEP: Final = 50
STEP_BYTES: Final = 1 << 20

Encoding = Literal["auto", "base64"]
Mode = Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]


class Publish(Request, kw_only=True):
    """A message to publish. `properties` are those of class basic, by their names in AMQP 0-9-1 with underscores."""

    vhost: str = "/"
    exchange: str = ""
    routing_key: str = ""
    payload: str = ""
    payload_encoding: Literal["string", "base64"] = "string"
    properties: dict[str, Any] = field(default_factory=dict)


class Published(Reply, kw_only=True):
    """Whether the message was routed to a queue."""

    routed: bool


class Destinations(Reply, kw_only=True):
    """The queues that a message would reach.

    Attributes:
        queues: Their names, at most `MAX_MESSAGES`.
        total: Their number.
    """

    queues: list[str]
    total: int


class Get(Request, kw_only=True):
    """Request to get messages.

    Attributes:
        count: Maximum number of messages.
        mode: Whether to acknowledge or reject the messages, and whether to requeue them.
        encoding: Whether payloads that are UTF-8 are returned as text.
        truncate: Maximum number of bytes of a payload to return.
    """

    vhost: str = "/"
    queue: str
    count: int = 1
    mode: Mode = "ack_requeue_true"
    encoding: Encoding = "auto"
    truncate: int | None = None


class GotMessage(Reply, kw_only=True):
    """A message from a queue. `message_count` is the number of ready messages behind it."""

    exchange: str
    routing_key: str
    redelivered: bool
    message_count: int
    properties: ClientTable
    payload: str
    payload_bytes: int
    payload_encoding: Literal["string", "base64"]


class GotMessages(Reply, kw_only=True):
    """Messages from a queue."""

    messages: list[GotMessage]


class Loaded(Waiting):
    """Waits until more entries of a queue are in memory."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def loaded(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def address_to(request: Publish) -> bytes:
    """Return the address of a message. Raises `PreconditionFailed`."""
    try:
        return make_address(request.exchange, request.routing_key)
    except ValueError as error:
        raise PreconditionFailed(str(error)) from None


def route_to(context: Context, request: Publish, address: bytes) -> Route:
    """Return the route of a message that the principal may publish."""
    check(context, request.vhost, "write", request.exchange)
    route = context.vhost(request.vhost).route(address)
    if route.exchange.internal or route.owner or route.request:
        raise AccessRefused(f"cannot publish to exchange '{request.exchange}' in vhost '{request.vhost}'")
    return route


def _encode(context: Context, request: Publish, address: bytes, route: Route) -> tuple[Message, list[str]]:
    """Return a message and its further routing keys, all of which the principal may use."""
    message = context.managed.codec.encode(
        address, payload_of(request.payload, request.payload_encoding), request.properties, context.principal.user
    )
    return message, keys_of(context, request, route, message)


def keys_of(context: Context, request: Publish, route: Route, message: Message) -> list[str]:
    """Return the further routing keys of a message, all of which the principal may use."""
    keys = context.managed.codec.copy_keys(message)
    if route.exchange.has_topics:
        check_topics(context, request.vhost, request.exchange, [route.routing_key, *keys])
    return keys


def find_destinations(context: Context, request: Publish) -> Destinations:
    """Return the queues that a message would reach, and publish nothing."""
    address = address_to(request)
    route = route_to(context, request, address)
    message, more_keys = _encode(context, request, address, route)
    keys = check_keys(context.broker, [route.routing_key, *more_keys])
    headers = context.broker.decode_headers(message) if route.depends else {}
    queues = routing.destinations_of(resolve(context.vhost(request.vhost), route.exchange, keys, headers, message))
    return Destinations(queues=[queue.name for queue in queues[:MAX_MESSAGES]], total=len(queues))


def publish(context: Context, request: Publish) -> Published:
    """Publish a message."""
    address = address_to(request)
    route = route_to(context, request, address)
    check_alarm(context)
    message, keys = _encode(context, request, address, route)
    return Published(routed=push(context, context.vhost(request.vhost), route, message, keys))


def check_alarm(context: Context) -> None:
    """Raise `ResourceError` for new messages while publishers are blocked."""
    alarm = context.managed.alarm()
    if alarm:
        raise ResourceError(f"publishers are blocked: {alarm} alarm")


def push(context: Context, vhost: Vhost, route: Route, message: Message, keys: list[str]) -> bool:
    """Add a message to the queues of a route. Return whether there is one. Raises `ResourceError` if one refuses it."""
    queues = route.queues
    if route.dynamic or keys:
        check_keys(context.broker, [route.routing_key, *keys])
        queues = vhost.route_message(route, message, keys, _client(context))
    else:
        route.published += 1
    if routing.push(route, message, queues) is not None:
        raise ResourceError("a queue refused the message: it is full (x-overflow)")
    return not routing.is_unroutable(queues)


def payload_of(payload: str, encoding: str) -> bytes:
    """Return a payload that a request has as text or base64. Raises `PreconditionFailed`."""
    if encoding == "string":
        return payload.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise PreconditionFailed("the payload is not base64") from None


async def get(context: Context, request: Get) -> GotMessages:
    """Get messages from the head of a queue, then acknowledge, reject or requeue them."""
    if request.count < 0 or (request.truncate is not None and request.truncate < 0):
        raise PreconditionFailed("negative count or truncate; expected at least 0")
    check(context, request.vhost, "read", request.queue)
    vhost = context.vhost(request.vhost)
    queue = vhost.queue(request.queue, None)
    if queue.consumers.is_exclusive():
        raise AccessRefused(f"queue '{request.queue}' in vhost '{request.vhost}' in exclusive use")
    queue.catch_up()
    queue.lifetime.touch()
    entries: list[Entry] = []
    found: list[GotMessage] = []
    try:
        async for entry in _take(queue, min(request.count, MAX_MESSAGES), request.truncate):
            entries.append(entry)
            trace_get(queue, entry, _client(context))
            found.append(_describe(context, queue, entry, request))
    finally:
        for entry in entries:
            _settle(queue, entry, request.mode)
    return GotMessages(messages=found)


def _client(context: Context) -> Client:
    """Return the caller in trace messages, which has no channel."""
    return Client(context.principal.source, 0, context.principal.user or context.principal.actor)


async def _take(queue: Queue, count: int, truncate: int | None) -> AsyncIterator[Entry]:
    """Acquire entries. Takes several turns if they are many, large, or paged out."""
    total = step = 0
    scope = Scope()
    for number in range(1, count + 1):
        entry = None
        while entry is None:
            entry = queue.get(False, 0, scope)
            if entry is None:
                if queue.deleted or not queue.paging.must_load(0, scope):
                    return
                waiting = Loaded()
                queue.paging.wait_loaded(waiting)
                await waiting.future
        size = entry.message.size if truncate is None else min(entry.message.size, truncate)
        total += size
        step += size
        yield entry
        if total > MAX_BYTES:
            return
        if number % STEP == 0 or step > STEP_BYTES:
            step = 0
            await asyncio.sleep(0)


def _settle(queue: Queue, entry: Entry, mode: Mode) -> None:
    if mode == "ack_requeue_true":
        queue.requeue(entry, False)
    elif mode == "ack_requeue_false":
        queue.settle(entry)
    elif mode == "reject_requeue_true":
        queue.requeue(entry)
    else:
        queue.reject(entry)


def _describe(context: Context, queue: Queue, entry: Entry, request: Get) -> GotMessage:
    properties, body = context.managed.codec.decode(entry)
    content = start_of(body, request.truncate)
    payload, payload_encoding = encode(content, request.encoding)
    exchange, routing_key = split_address(address_of(entry))
    return GotMessage(
        exchange=exchange,
        routing_key=routing_key,
        redelivered=entry.acquired_count > 1,
        message_count=queue.ready_count,
        properties=ClientTable(properties),
        payload=payload,
        payload_bytes=size_of(body),
        payload_encoding=payload_encoding,
    )


def address_of(entry: Entry) -> bytes:
    """Return the address of an entry as its consumers see it."""
    overlay = entry.overlay
    return entry.message.address if overlay is None or overlay.address is None else overlay.address


def start_of(body: Body, length: int | None) -> bytes:
    """Return the first bytes of a body."""
    if isinstance(body, StoredBody):
        return body.read(0, MAX_BYTES if length is None else min(length, MAX_BYTES))
    return whole(body) if length is None else whole(body)[:length]


def encode(content: bytes, encoding: Encoding) -> tuple[str, Literal["string", "base64"]]:
    """Return a payload for a reply, and its encoding: base64 if that is requested or the payload is not UTF-8."""
    if encoding == "auto":
        with suppress(UnicodeDecodeError):
            return content.decode(), "string"
    return base64.b64encode(content).decode(), "base64"


OPERATIONS: Operations = {
    "messages.destinations": Operation(find_destinations, Publish, Destinations, EACH),
    "messages.publish": Operation(publish, Publish, Published, EACH, changes=True),
    "messages.get": Operation(get, Get, GotMessages, EACH, changes=True),
}
