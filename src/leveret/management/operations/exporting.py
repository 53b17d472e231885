"""Messages of a queue in their places, complete and with the AMQP types of their values. Nothing is acquired.

`messages.import` publishes what this operation returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, UnsetType

from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Entry
from leveret.management.descriptions import MAX_EXPORTED_IDS
from leveret.management.json_values import ClientTable, Json, encode_json, exact
from leveret.management.operations.browsing import (
    Browse,
    BrowsedMessage,
    Found,
    Holder,
    Turns,
    browse_with,
    check_same,
    describe,
    find_queue,
)
from leveret.management.operations.messages import MAX_BYTES
from leveret.management.operations.operation import EACH, Context, Operation, Operations
from leveret.management.operations.payloads import find_in_place
from leveret.management.structs import Reply


class Export(Browse, kw_only=True):
    """Request for complete messages. A payload with more bytes than `truncate` is omitted.

    Attributes:
        ids: The ids of ready, unacked or delayed messages; None for those that meet the conditions.
        queue_id: The id of the queue that was browsed. If it was declared again since, the request is refused.
        typed: Whether values keep their types. Otherwise all messages have properties as `messages.browse` returns them.
    """

    ids: list[int] | None = None
    queue_id: int | None = None
    typed: bool = True


class ExportedMessage(Reply, kw_only=True):
    """A complete message.

    Attributes:
        id: Identifies the message in its queue; for a stream its offset.
        exchange: The exchange; an object with the key `$string` if the name is not UTF-8, as in `routing_key`.
        redelivered: Whether it was delivered before.
        deliveries: Deliveries so far.
        failures: Deliveries that failed.
        time: About when the message of a stream was appended, in milliseconds of Unix time: when its chunk began, if the
            chunk is not sealed. Other queues do not know when a message arrived.
        protocol: The protocol of the publisher.
        properties: The properties of AMQP 0-9-1, with typed headers.
        amqp10: The sections of a message of AMQP 1.0, in place of `properties`.
        malformed: Why the message cannot be decoded, in place of both.
        payload: The payload; empty if it is omitted.
    """

    id: int
    exchange: Json
    routing_key: Json
    redelivered: bool
    deliveries: int
    failures: int
    time: int | UnsetType = UNSET
    protocol: str
    properties: Raw | UnsetType = UNSET
    amqp10: Raw | UnsetType = UNSET
    malformed: Raw | UnsetType = UNSET
    payload_bytes: int
    payload_encoding: Literal["string", "base64"]
    payload: str


class Exported(Reply, kw_only=True):
    """Complete messages of a queue.

    Attributes:
        queue_id: Identifies the queue.
        messages: The messages.
        examined: Number of messages that were looked at.
        skipped: Those that do not match because a condition is on a value and their JSON is too large to be decoded.
        missing: Number of ids of messages that are not in the queue any more.
        cursor: Where the next request continues; None at the end.
    """

    queue_id: int
    messages: list[ExportedMessage]
    examined: int
    skipped: int
    missing: int = 0
    cursor: str | None = None


class _Descriptions:
    """The messages of a reply, as `browse` describes them."""

    def __init__(self, context: Context, request: Export) -> None:
        self._context = context
        self._request = request
        self._found: list[tuple[Found, BrowsedMessage]] = []

    def add(self, found: Found, request: Browse, holder: Holder | None) -> BrowsedMessage:
        """Describe a message as `browse` does, and keep it."""
        message = describe(found, request, holder)
        self._found.append((found, message))
        return message

    async def complete(self) -> list[ExportedMessage]:
        """Return the complete messages. Tables may be large: a thread decodes them."""
        codec = self._context.managed.codec
        turns = Turns(self._context)
        waiting: list[tuple[Found, BrowsedMessage, int | UnsetType, Callable[[], dict[str, Any]]]] = []
        for found, message in self._found:
            typed = codec.typed(found.entry) if self._request.typed else _plain(found)
            waiting.append((found, message, _time_of(found.entry), typed))
            await turns.pause()
        return await self._context.managed.in_thread(
            lambda: [self._exported(found, message, time, typed()) for found, message, time, typed in waiting]
        )

    def _exported(
        self, found: Found, message: BrowsedMessage, time: int | UnsetType, typed: dict[str, Any]
    ) -> ExportedMessage:
        is_whole = message.payload_bytes <= min(self._request.truncate, MAX_BYTES)
        return ExportedMessage(
            id=message.id,
            exchange=exact(found.exchange),
            routing_key=exact(found.routing_key),
            redelivered=message.redelivered,
            deliveries=message.deliveries,
            failures=message.failures,
            time=time,
            protocol=message.protocol,
            payload=message.payload if is_whole else "",
            payload_bytes=message.payload_bytes,
            payload_encoding=message.payload_encoding if is_whole else "base64",
            **{name: Raw(encode_json(value)) for name, value in typed.items()},
        )


def _time_of(entry: Entry) -> int | UnsetType:
    stream = entry.queue.vhost.streams.get(entry.queue.id)
    chunk = None if stream is None else stream.find_chunk(entry.seq)
    return chunk.time_of(entry.seq - chunk.first) if chunk is not None and chunk.first <= entry.seq < chunk.end else UNSET


def _plain(found: Found) -> Callable[[], dict[str, Any]]:
    return lambda: {"properties": ClientTable(found.properties)}


async def export(context: Context, request: Export) -> Exported:
    """Return complete messages of a queue."""
    queue = find_queue(context, request.vhost, request.queue)
    if request.queue_id is not None:
        check_same(queue, request.queue_id)
    descriptions = _Descriptions(context, request)
    if request.ids is None:
        page = await browse_with(context, request, descriptions.add)
        return Exported(
            queue_id=page.queue_id,
            messages=await descriptions.complete(),
            examined=page.examined,
            skipped=page.skipped,
            cursor=page.cursor,
        )
    if request.where or request.selector or request.since or request.cursor:
        raise PreconditionFailed("both ids and conditions; expected one of them")
    if len(request.ids) > MAX_EXPORTED_IDS:
        raise PreconditionFailed(f"{len(request.ids)} ids; expected at most {MAX_EXPORTED_IDS}")
    missing = 0
    for number in request.ids:
        found = await find_in_place(context, queue, number)
        if found is None:
            missing += 1
        else:
            descriptions.add(found, request, None)
    return Exported(
        queue_id=queue.id, messages=await descriptions.complete(), examined=len(request.ids), skipped=0, missing=missing
    )


OPERATIONS: Final[Operations] = {"messages.export": Operation(export, Export, Exported, EACH)}
