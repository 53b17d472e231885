"""A range of the payload of a message in its place, so that large payloads are read in parts. Nothing is acquired."""

from __future__ import annotations

import base64
from typing import Final

from leveret.broker.bodies import Body, StoredBody, size_of
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.queues.queue import Queue
from leveret.management.operations.browsing import (
    Found,
    Turns,
    check_same,
    describe_entry,
    find_queue,
    first_unacked,
    next_entries,
)
from leveret.management.operations.operation import EACH, Context, Operation, Operations
from leveret.management.operations.relocating import find_message
from leveret.management.structs import Reply, Request

# Maximum bytes of one range.
MAX_RANGE: Final = 1 << 20


class PayloadRange(Request, kw_only=True):
    """Request for a range of a payload.

    Attributes:
        id: The id of the message, as `messages.browse` returns it.
        queue_id: The id of the queue that was browsed. If it was declared again since, the request is refused.
        first: Position of the first byte.
        length: Maximum number of bytes.
    """

    vhost: str = "/"
    queue: str
    id: int
    queue_id: int | None = None
    first: int = 0
    length: int = 64 << 10


class Payload(Reply, kw_only=True):
    """A range of a payload.

    Attributes:
        first: Position of the first byte.
        payload: The bytes in base64; fewer than requested at the end.
        payload_bytes: Size of the whole payload.
    """

    first: int
    payload: str
    payload_bytes: int


async def read_payload(context: Context, request: PayloadRange) -> Payload:
    """Return a range of the payload of a ready, unacked or delayed message."""
    if request.first < 0 or not 0 < request.length <= MAX_RANGE:
        raise PreconditionFailed(f"invalid first or length; expected at least 0, and 1 to {MAX_RANGE}")
    queue = find_queue(context, request.vhost, request.queue)
    if request.queue_id is not None:
        check_same(queue, request.queue_id)
    found = await find_in_place(context, queue, request.id)
    if found is None:
        raise NotFound(f"{queue} has no message {request.id} any more")
    return Payload(
        first=request.first,
        payload=base64.b64encode(range_of(found.body, request.first, request.length)).decode(),
        payload_bytes=size_of(found.body),
    )


async def find_in_place(context: Context, queue: Queue, number: int) -> Found | None:
    """Return the ready, unacked or delayed message with an id; None if there is none."""
    return (
        await find_message(context, queue, number)
        or await _find_unacked(context, queue, number)
        or await _find_delayed(context, queue, number)
    )


async def _find_unacked(context: Context, queue: Queue, number: int) -> Found | None:
    entries = await first_unacked(context, queue, number - 1, Turns(context), 1)
    return describe_entry(context, entries[0]) if entries and entries[0].seq == number else None


async def _find_delayed(context: Context, queue: Queue, number: int) -> Found | None:
    walk, turns = queue.inspect().walk_delayed(), Turns(context)
    walk.find(number)
    while not walk.ended:
        entries = await next_entries(walk, 1)
        if entries:
            return describe_entry(context, entries[0])
        await turns.pause()
    return None


def range_of(body: Body, first: int, length: int) -> bytes:
    """Return up to `length` bytes of a body from position `first`."""
    if isinstance(body, StoredBody):
        return body.read(first, length)
    pieces: list[bytes] = []
    for piece in [body] if isinstance(body, bytes) else body:
        taken = piece[first : first + length]
        pieces.append(taken)
        length -= len(taken)
        first = max(0, first - len(piece))
    return b"".join(pieces)


OPERATIONS: Final[Operations] = {"messages.payload": Operation(read_payload, PayloadRange, Payload, EACH)}
