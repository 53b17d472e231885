"""Dead letters of a queue in groups: by the reason, the queue and the exchange of their last death, and by a header."""

from __future__ import annotations

from typing import Final, TypeAlias

from leveret.broker.errors import PreconditionFailed
from leveret.management.descriptions import Match
from leveret.management.operations.browsing import STEP, Limited, Selection, find_queue
from leveret.management.operations.message_search import Condition, condition_of
from leveret.management.operations.operation import EACH, Context, Operation, Operations
from leveret.management.structs import Reply

# Maximum number of groups of one request, and number of characters by which values are compared.
MAX_GROUPS: Final = 500
MAX_LENGTH: Final = 200
MAX_HEADER: Final = 255

_DEATH: Final = ("death.reason", "death.queue", "death.exchange")
_Key: TypeAlias = tuple[tuple[str, Match], ...]


class GroupDeadLetters(Limited, kw_only=True):
    """Request to count the ready messages of a queue by their last death.

    Attributes:
        header: The name of a header, such as that of an exception: each of its values is a group of its own.
    """

    header: str = ""


class DeadLetterGroup(Reply, kw_only=True):
    """Messages with the same last death and the same value of the header.

    Attributes:
        reason: Why they died; None for messages that are no dead letters.
        queue: The queue in which they died.
        exchange: The exchange by which they came to that queue.
        header: The value of the header, the first characters of a long one; None for messages without it.
        bytes: The bytes of the messages.
        where: The conditions that these messages meet beside those of the request.
    """

    reason: str | None
    queue: str | None
    exchange: str | None
    header: str | None
    messages: int
    bytes: int
    where: list[Condition]


class DeadLetters(Reply, kw_only=True):
    """Groups of messages, the largest first.

    Attributes:
        queue_id: Identifies the queue.
        others: Messages of more groups than one request returns.
        examined: Number of messages that were looked at.
        skipped: Those in no group because their JSON is too large to be compared with a condition.
        cursor: Where the next request continues; None at the end. Its groups are to be added to these.
    """

    queue_id: int
    groups: list[DeadLetterGroup]
    others: int
    examined: int
    skipped: int
    cursor: str | None


class _Count:
    """The messages of a group."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


async def group_dead_letters(context: Context, request: GroupDeadLetters) -> DeadLetters:
    """Count the ready messages of a queue by their last death."""
    if len(request.header) > MAX_HEADER:
        raise PreconditionFailed(f"the header's name has {len(request.header)} characters; expected at most {MAX_HEADER}")
    queue = find_queue(context, request.vhost, request.queue)
    selection = Selection(context, queue, request)
    fields = [*_DEATH, *([f"headers.{request.header}"] if request.header else [])]
    counts: dict[_Key, _Count] = {}
    others = 0
    async for found in selection.found(STEP):
        for item in found:
            key = tuple(condition_of(field, item.properties, MAX_LENGTH) for field in fields)
            if key in counts or len(counts) < MAX_GROUPS:
                count = counts.setdefault(key, _Count())
                count.messages += 1
                count.bytes += item.entry.message.size
            else:
                others += 1
            await selection.turns.pause()
    groups = [_describe(request, fields, key, count) for key, count in counts.items()]
    return DeadLetters(
        queue_id=queue.id,
        groups=sorted(groups, key=lambda group: -group.messages),
        others=others,
        examined=selection.examined,
        skipped=selection.skipped,
        cursor=selection.cursor,
    )


def _describe(request: GroupDeadLetters, fields: list[str], key: _Key, count: _Count) -> DeadLetterGroup:
    values = [None if match == "missing" else value for value, match in key]
    reason, queue, exchange, header = values if request.header else (*values, None)
    return DeadLetterGroup(
        reason=reason,
        queue=queue,
        exchange=exchange,
        header=header,
        messages=count.messages,
        bytes=count.bytes,
        where=[
            Condition(field=field, match=match, value=value)
            for field, value, (_, match) in zip(fields, values, key, strict=True)
        ],
    )


OPERATIONS: Operations = {
    "messages.dead_letters": Operation(group_dead_letters, GroupDeadLetters, DeadLetters, EACH),
}
