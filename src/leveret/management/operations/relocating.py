"""Ready messages of a queue that an operator selects: move, copy, delete, and edit and resend.

Messages are processed in batches. One batch is one log commit: even after a crash, a message is in its old place or in its
new one. A message that its target refuses stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

from leveret.broker.bodies import size_of
from leveret.broker.delay import Delay
from leveret.broker.errors import AccessRefused, NotImplementedByBroker, PreconditionFailed, ResourceError
from leveret.broker.log import OK
from leveret.broker.message import Entry, Message, Overlay, make_address
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import is_unroutable, resolve_delayed
from leveret.broker.transactions.relocation import Relocation, moved_overlay, overlay_in, refuses
from leveret.broker.vhost import Vhost
from leveret.management.operations.browsing import (
    Found,
    Limited,
    Selection,
    State,
    Turns,
    check_same,
    describe_entry,
    find_queue,
    next_entries,
)
from leveret.management.operations.message_search import last_death
from leveret.management.operations.messages import MAX_BYTES, Loaded, check_alarm, payload_of, start_of
from leveret.management.operations.operation import EACH, Context, Operation, Operations, check, check_topics
from leveret.management.structs import Reply, Request

# Messages of one log commit; a batch that has lasted for `browsing.TURN` ends earlier.
BATCH: Final = 100
MAX_IDS: Final = 1000
_READY_WHEN: Final = {
    "unacked": "once their consumers have requeued them",
    "delayed": "once they are due (a purge of the queue deletes them)",
}
MOVED: Final = "moved"
DELETED: Final = "deleted"


class Select(Limited, kw_only=True):
    """Request about ready messages: those with these ids, or all that meet the conditions.

    Attributes:
        ids: The ids of messages, as `messages.browse` returns them; None for all that meet the conditions.
        queue_id: The id of the queue that was browsed. If it was declared again since, the request is refused.
        state: The state of the messages. The request is refused unless they are ready.
    """

    state: State = "ready"
    ids: list[int] | None = None
    queue_id: int | None = None


class Target(Select, kw_only=True):
    """Request about ready messages and their target.

    Attributes:
        to_queue: A queue.
        to_exchange: An exchange, which routes the messages.
        routing_key: Their routing key for the exchange; None for that of each message.
        to_origin: The queue in which each dead letter died last, by its header `x-death`.
        to_origin_exchange: The exchange and the first routing key with which each dead letter came to that queue.
    """

    to_queue: str | None = None
    to_exchange: str | None = None
    routing_key: str | None = None
    to_origin: bool = False
    to_origin_exchange: bool = False


class Resend(Request, kw_only=True):
    """Request to publish a changed copy of a message, and to delete the message. None keeps a part as it is.

    Attributes:
        id: The id of the message.
        queue_id: The id of the queue that was browsed.
        exchange: An exchange, `routing_key` its routing key; by default the queue in which the dead letter died last.
        payload: The payload.
        properties: All properties.
    """

    vhost: str = "/"
    queue: str
    id: int
    queue_id: int | None = None
    exchange: str | None = None
    routing_key: str | None = None
    payload: str | None = None
    payload_encoding: Literal["string", "base64"] = "string"
    properties: dict[str, Any] | None = None


class Relocated(Reply, kw_only=True):
    """The result for the selected messages.

    Attributes:
        messages: Messages that were moved, copied or deleted.
        unroutable: Messages that stay because no queue would get them.
        refused: Messages that stay because a queue is full.
        missing: Messages that are not ready any more.
        examined: Number of messages that were looked at.
        skipped: Messages that stay because their JSON is too large to be compared with a condition.
        cursor: Where the next request continues; None at the end.
    """

    messages: int = 0
    unroutable: int = 0
    refused: int = 0
    missing: int = 0
    examined: int = 0
    skipped: int = 0
    cursor: str | None = None


class Way:
    """The way of one message.

    Attributes:
        address: The new address.
        queues: The queues that get it.
        delay: Its delay, None for none.
    """

    def __init__(self, address: bytes, queues: list[Queue], delay: Delay | None = None) -> None:
        self.address = address
        self.queues = queues
        self.delay = delay

    def overlay(self, entry: Entry, queue: Queue) -> Overlay | None:
        """Return a new overlay for an entry that is moved to one of the queues."""
        return overlay_in(queue, entry.message, moved_overlay(entry, self.address), self.delay)


class _Addresses:
    """The target of a request: where a message goes."""

    def __init__(self, context: Context, vhost: Vhost, request: Target) -> None:
        origins = [request.to_origin, request.to_origin_exchange]
        if sum([request.to_queue is not None, request.to_exchange is not None, *origins]) != 1:
            raise PreconditionFailed(
                "no single target; expected one of to_queue, to_exchange, to_origin and to_origin_exchange"
            )
        self._context = context
        self._vhost = vhost
        self._request = request
        self._checked: set[str] = set()
        if request.to_queue is not None:
            self._check_write(request.to_queue)
            vhost.queue(request.to_queue, None)
        elif request.to_exchange is not None:
            check(context, vhost.name, "write", request.to_exchange)
            vhost.exchange(request.to_exchange)

    def _check_write(self, name: str) -> None:
        if name not in self._checked:
            check(self._context, self._vhost.name, "write", name)
            self._checked.add(name)

    def of(self, found: Found) -> Way:
        """Return the way of a message, which has no queues if it is unroutable."""
        request = self._request
        if request.to_exchange is not None:
            key = found.routing_key if request.routing_key is None else request.routing_key
            return route(self._context, self._vhost, request.to_exchange, key, found)
        if request.to_origin_exchange:
            return self._by_origin_exchange(found)
        name = request.to_queue or origin_of(found)
        if not name:
            return Way(found.entry.message.address, [])
        self._check_write(name)
        queue = self._vhost.find_queue(name)
        return Way(_address("", name), [] if queue is None or queue.lifetime.exclusive_owner is not None else [queue])

    def _by_origin_exchange(self, found: Found) -> Way:
        death = last_death(found.properties)
        name, keys = death.get("exchange"), death.get("routing-keys")
        key = keys[0] if isinstance(keys, list) and keys else None
        exchange = self._vhost.exchanges.get(name) if isinstance(name, str) else None
        if exchange is None or exchange.internal or not isinstance(name, str) or not isinstance(key, str):
            return Way(found.entry.message.address, [])
        self._check_write(name)
        return route(self._context, self._vhost, name, key, found)


def route(context: Context, vhost: Vhost, exchange: str, key: str, found: Found) -> Way:
    """Return the way of a message, as if the principal published it. Raises `BrokerError`."""
    address = _address(exchange, key)
    path = vhost.route(address)
    if path.exchange.internal or path.owner or path.request:
        raise AccessRefused(f"cannot publish to exchange '{exchange}' in vhost '{vhost.name}'")
    if path.exchange.has_topics:
        check_topics(context, vhost.name, exchange, [key])
    if not path.depends:
        return Way(address, path.queues)
    headers = found.properties.get("headers")
    # Without deduplication: a message that returns is no duplicate.
    table = headers if isinstance(headers, dict) else {}
    queues, delay = resolve_delayed(vhost, path.exchange, [key], table, found.entry.message, deduplicates=False)
    return Way(address, queues, delay)


def _address(exchange: str, key: str) -> bytes:
    try:
        return make_address(exchange, key)
    except ValueError as error:
        raise PreconditionFailed(str(error)) from None


def origin_of(found: Found) -> str:
    """Return the queue in which a dead letter died last, "" if the message is none."""
    name = last_death(found.properties).get("queue")
    return name if isinstance(name, str) else ""


class _Batches:
    """The batches of one request.

    Attributes:
        result: The counts so far.
    """

    def __init__(self, context: Context, queue: Queue, request: Select) -> None:
        if request.state != "ready":
            raise PreconditionFailed(
                f"{request.state} messages of {queue} cannot be moved, copied or deleted; expected the state 'ready', which"
                f" messages have {_READY_WHEN[request.state]}"
            )
        if request.ids is not None and (request.where or request.selector or request.since or request.cursor):
            raise PreconditionFailed("both ids and conditions; expected one of them")
        if request.ids is not None and len(request.ids) > MAX_IDS:
            raise PreconditionFailed(f"{len(request.ids)} ids; expected at most {MAX_IDS}")
        if request.queue_id is not None:
            check_same(queue, request.queue_id)
        self._context = context
        self._queue = queue
        self._request = request
        self._inspection = queue.inspect()
        self._selection = Selection(context, queue, request)
        self.result = Relocated()

    async def found(self) -> AsyncIterator[list[Found]]:
        """Yield the selected messages, in batches."""
        if self._request.ids is None:
            async for found in self._selection.found(BATCH):
                yield found
            self.result.examined = self._selection.examined
            self.result.skipped = self._selection.skipped
            self.result.cursor = self._selection.cursor
            return
        batch: list[Found] = []
        for number in sorted(set(self._request.ids)):
            found_one = await find_message(self._context, self._queue, number)
            self.result.examined += 1
            if found_one is None:
                self.result.missing += 1
                continue
            batch.append(found_one)
            if len(batch) == BATCH:
                yield batch
                batch = []
            await self._selection.turns.pause()
        if batch:
            yield batch

    async def relocate(self, addresses: _Addresses, keeps: bool) -> None:
        """Move messages, or copy them."""
        async for batch in self.found():
            todo = batch
            while todo:
                check_log(self._context)
                todo = await self._move(todo, addresses, keeps)

    async def _move(self, batch: list[Found], addresses: _Addresses, keeps: bool) -> list[Found]:
        """Move messages in one log commit. Return those that the next commit may move."""
        relocation = Relocation(self._queue)
        turns = Turns(self._context)
        before = self.result.messages
        at = 0
        try:
            while at < len(batch) and not (at and turns.is_over):
                found = batch[at]
                if not keeps and self._inspection.is_arriving(found.entry):
                    break
                at += 1
                way = addresses.of(found)
                if self._stays(way, found.entry.message):
                    continue
                if self._put(relocation, found.entry, way, keeps):
                    self.result.messages += 1
                else:
                    self.result.missing += 1
        finally:  # messages that have left their queue must become visible in the other
            if self.result.messages > before:
                await commit(self._context, relocation)
        if at < len(batch) and self._inspection.is_arriving(batch[at].entry):
            await loaded(self._queue)
        return batch[at:]

    def _stays(self, way: Way, message: Message) -> bool:
        """Return whether a message stays since no queue takes it, and count it."""
        if is_unroutable(way.queues):
            self.result.unroutable += 1
        elif refuses(way.queues, message, way.delay):
            self.result.refused += 1
        else:
            return False
        return True

    async def count(self, addresses: _Addresses) -> None:
        """Count the messages that a move would move now, and those that would stay."""
        async for batch in self.found():
            for found in batch:
                if not self._stays(addresses.of(found), found.entry.message):
                    self.result.messages += 1
                await self._selection.turns.pause()

    def _put(self, relocation: Relocation, entry: Entry, way: Way, keeps: bool) -> bool:
        def overlay(queue: Queue) -> Overlay | None:
            return way.overlay(entry, queue)

        if not keeps:
            return relocation.move(entry, entry.message, way.queues, overlay, MOVED)
        relocation.copy(entry.message, way.queues, overlay)
        return True

    async def delete(self) -> None:
        """Delete messages."""
        async for batch in self.found():
            check_log(self._context)
            for found in batch:
                while self._inspection.is_arriving(found.entry):
                    await loaded(self._queue)
                if self._inspection.withdraw(found.entry, DELETED):
                    self.result.messages += 1
                else:
                    self.result.missing += 1
                await self._selection.turns.pause()


async def find_message(context: Context, queue: Queue, number: int) -> Found | None:
    """Return the ready message with an id; None if it is not ready."""
    walk = queue.inspect().walk()
    seq = number + 1 if queue.replayable else number
    if not walk.find(seq):
        return None
    entries = await next_entries(walk, 1)
    return describe_entry(context, entries[0]) if entries and entries[0].seq == seq else None


async def loaded(queue: Queue) -> None:
    """Wait until entries of a queue were loaded."""
    waiting = Loaded()
    queue.paging.wait_loaded(waiting)
    await waiting.future


async def commit(context: Context, relocation: Relocation) -> None:
    """Wait until messages are on disk, and visible in their new places."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    relocation.commit(lambda: None if future.done() else future.set_result(None))
    context.broker.end_turn()
    await future


def check_log(context: Context) -> None:
    """Raise `ResourceError` if the disk is full."""
    log = context.broker.log
    if log.state != OK:
        raise ResourceError(f"no messages are moved: {log.reason}")


def _check_removable(queue: Queue) -> None:
    if queue.replayable:
        raise NotImplementedByBroker(f"{queue} is a stream, whose messages stay until retention removes them: copy them")


async def move(context: Context, request: Target) -> Relocated:
    """Move messages to a queue or an exchange. Each is removed only if a queue gets it."""
    queue = find_queue(context, request.vhost, request.queue)
    _check_removable(queue)
    batches = _Batches(context, queue, request)
    await batches.relocate(_Addresses(context, queue.vhost, request), False)
    return batches.result


async def preview(context: Context, request: Target) -> Relocated:
    """Count the messages that a move would move, and move none."""
    queue = find_queue(context, request.vhost, request.queue)
    _check_removable(queue)
    batches = _Batches(context, queue, request)
    await batches.count(_Addresses(context, queue.vhost, request))
    return batches.result


async def copy(context: Context, request: Target) -> Relocated:
    """Copy messages to a queue or an exchange."""
    queue = find_queue(context, request.vhost, request.queue)
    check_alarm(context)
    batches = _Batches(context, queue, request)
    await batches.relocate(_Addresses(context, queue.vhost, request), True)
    return batches.result


async def delete(context: Context, request: Select) -> Relocated:
    """Delete messages, which are not dead-lettered."""
    queue = find_queue(context, request.vhost, request.queue)
    _check_removable(queue)
    batches = _Batches(context, queue, request)
    await batches.delete()
    return batches.result


async def resend(context: Context, request: Resend) -> Relocated:
    """Publish a changed copy of a message, and delete the message in the same log commit."""
    queue = find_queue(context, request.vhost, request.queue)
    _check_removable(queue)
    check_alarm(context)
    check_log(context)
    if request.queue_id is not None:
        check_same(queue, request.queue_id)
    found = await find_message(context, queue, request.id)
    if found is None:
        return Relocated(missing=1, examined=1)
    message, way = _edited(context, queue.vhost, request, found)
    if is_unroutable(way.queues):
        return Relocated(unroutable=1, examined=1)
    if refuses(way.queues, message, way.delay):
        return Relocated(refused=1, examined=1)
    inspection = queue.inspect()
    while inspection.is_arriving(found.entry):
        await loaded(queue)
    relocation = Relocation(queue)

    def overlay(target: Queue) -> Overlay | None:
        return overlay_in(target, message, None, way.delay)

    moved = relocation.move(found.entry, message, way.queues, overlay, MOVED)
    await commit(context, relocation)
    return Relocated(messages=int(moved), missing=int(not moved), examined=1)


def _edited(context: Context, vhost: Vhost, request: Resend, found: Found) -> tuple[Message, Way]:
    """Return the changed message and its way."""
    exchange, key = request.exchange, request.routing_key
    if exchange is None:
        exchange, key = "", origin_of(found) if key is None else key
        if not key:
            raise PreconditionFailed("the message is no dead letter; expected an exchange or a routing_key")
    if key is None:
        key = found.routing_key
    check(context, vhost.name, "write", exchange)
    body = _whole_payload(found) if request.payload is None else payload_of(request.payload, request.payload_encoding)
    properties = dict(found.properties if request.properties is None else request.properties)
    if properties.get("user_id") not in (None, context.principal.user):
        del properties["user_id"]  # that of the original publisher
    message = context.managed.codec.encode(_address(exchange, key), body, properties, context.principal.user)
    headers = properties.get("headers")
    changed = Found(Entry(found.entry.queue, message, 0), {"headers": headers or {}}, body)
    return message, route(context, vhost, exchange, key, changed)


def _whole_payload(found: Found) -> bytes:
    size = size_of(found.body)
    if size > MAX_BYTES:
        raise PreconditionFailed(f"the payload has {size} bytes; expected at most {MAX_BYTES}: move or copy the message")
    return start_of(found.body, MAX_BYTES)


OPERATIONS: Operations = {
    "messages.move": Operation(move, Target, Relocated, EACH, changes=True),
    "messages.preview": Operation(preview, Target, Relocated, EACH),
    "messages.copy": Operation(copy, Target, Relocated, EACH, changes=True),
    "messages.delete": Operation(delete, Select, Relocated, EACH, changes=True),
    "messages.resend": Operation(resend, Resend, Relocated, EACH, changes=True),
}
