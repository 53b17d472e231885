"""The queue types by the name that `x-queue-type` gives them. A new type is one file and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import (
    CLASSIC,
    INTERVAL,
    SHARED_QUEUE_ARGUMENTS,
    STREAM,
    TEXT,
    WHOLE,
    Argument,
    QueueSettings,
    declared_by_name,
    parse_arguments,
)
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import last_value
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.classic.quorum import QuorumQueue
from leveret.broker.queues.queue import Queue
from leveret.broker.streams.queue import StreamQueue
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost


class QueueType:
    """A queue type: its class and its argument schema.

    make      the class
    own       arguments that only this type has
    defaults  values of arguments that a declaration leaves out
    refused   shared arguments that it refuses, and `because` why: what follows the name of the type in the error
    durable   its queues are durable, and neither exclusive nor auto-delete
    """

    __slots__ = ("because", "defaults", "durable", "make", "own", "refused")

    def __init__(
        self,
        make: type[Queue],
        own: tuple[Argument, ...] = (),
        *,
        defaults: FieldTable | None = None,
        durable: bool = False,
        refused: tuple[str, ...] = (),
        because: str = "",
    ) -> None:
        self.make = make
        self.own = own
        self.defaults = defaults or {}
        self.durable = durable
        self.refused = refused
        self.because = because


STREAM_TYPE: Final = QueueType(
    StreamQueue,
    (
        Argument("x-max-age", INTERVAL, hint="; 'x-message-ttl' is that of other queues"),
        Argument("x-stream-max-segments", WHOLE, 1, unit="segments"),
    ),
    durable=True,
    refused=(
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-priority",
        "x-delivery-limit",
        "x-single-active-consumer",
        "x-queue-mode",
    ),
    because="whose messages leave it by 'x-max-length-bytes', 'x-max-age' and 'x-stream-max-segments' only",
)

TYPES: Final[dict[str, QueueType]] = {
    CLASSIC: QueueType(ClassicQueue),
    "quorum": QueueType(QuorumQueue, defaults={"x-delivery-limit": 20}, durable=True),
    STREAM: STREAM_TYPE,
    last_value.LAST_VALUE: QueueType(last_value.LastValueQueue, last_value.ARGUMENTS),
}

# All arguments of queue.declare; which of them the queue type takes is checked afterwards.
QUEUE_ARGUMENTS: Final = declared_by_name(
    Argument("x-queue-type", TEXT, choices=tuple(TYPES), default=CLASSIC),
    *SHARED_QUEUE_ARGUMENTS,
    *[argument for queue_type in TYPES.values() for argument in queue_type.own],
)


def parse_queue_arguments(
    arguments: FieldTable, *, durable: bool, exclusive: bool, auto_delete: bool, strict: bool
) -> QueueSettings:
    """Validate the arguments of queue.declare.

    Raises PreconditionFailed for a known argument with a bad value, for arguments and properties that the queue type does
    not have, and with `strict` for an unknown argument.
    """
    known, unknown = parse_arguments(QUEUE_ARGUMENTS, arguments, strict)
    queue_type = TYPES[known.get("x-queue-type", CLASSIC)]
    settings = QueueSettings({**queue_type.defaults, **known}, unknown)
    if queue_type.durable:
        bad = (
            "durable=false" if not durable else "exclusive=true" if exclusive else "auto-delete=true" if auto_delete else ""
        )
        if bad:
            raise PreconditionFailed(
                f"invalid property {bad} with 'x-queue-type' '{settings.type}', expected a durable "
                "queue that is neither exclusive nor auto-delete"
            )
    for name in queue_type.refused:
        if name in known:
            raise PreconditionFailed(
                f"invalid arg '{name}': received with 'x-queue-type' '{settings.type}', {queue_type.because}"
            )
    for other, its_type in TYPES.items():
        if its_type is not queue_type:
            for argument in its_type.own:
                if argument.name in known:
                    raise PreconditionFailed(
                        f"invalid arg '{argument.name}': received without 'x-queue-type' '{other}',"
                        f" expected together with it{argument.hint}"
                    )
    return settings


def make_queue(
    vhost: Vhost,
    id: int,
    name: str,
    durable: bool,
    exclusive_owner: object | None,
    auto_delete: bool,
    arguments: FieldTable,
    settings: QueueSettings,
) -> Queue:
    """Make a queue of the type in its settings."""
    return TYPES[settings.type].make(vhost, id, name, durable, exclusive_owner, auto_delete, arguments, settings)
