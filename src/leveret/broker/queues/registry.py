"""The queue types by their names in `x-queue-type`. A new type is one file and one line here."""

from __future__ import annotations

from typing import Final

from leveret.broker.arguments import (
    CLASSIC,
    SHARED_QUEUE_ARGUMENTS,
    TEXT,
    Argument,
    QueueSettings,
    declared_by_name,
    parse_arguments,
)
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import grouped, last_value, sorted_queue
from leveret.broker.queues.classic import queue as classic
from leveret.broker.queues.classic import quorum
from leveret.broker.queues.deduplication_settings import queue_deduplication
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.queue import Queue
from leveret.broker.streams import queue as stream
from leveret.broker.values import FieldTable

_ALL: Final = (classic.TYPE, quorum.TYPE, stream.TYPE, last_value.TYPE, sorted_queue.TYPE, grouped.TYPE)
TYPES: Final = {queue_type.name: queue_type for queue_type in _ALL}

# The types that may be the default of a vhost: without an argument of their own that their queues must have.
DEFAULT_TYPES: Final = tuple(name for name, queue_type in TYPES.items() if not queue_type.needs)

# The types whose queues may be recovered before their entries are indexed.
SERVE_UNINDEXED: Final = frozenset(name for name, queue_type in TYPES.items() if queue_type.serves_unindexed)

# All arguments of queue.declare; `parse_queue_arguments` checks which of them the queue type accepts.
QUEUE_ARGUMENTS: Final = declared_by_name(
    Argument("x-queue-type", TEXT, choices=tuple(TYPES), default=CLASSIC),
    *SHARED_QUEUE_ARGUMENTS,
    *[argument for queue_type in TYPES.values() for argument in queue_type.own],
)


# Settings that all queues without arguments share.
PLAIN: Final = QueueSettings({}, {}, TYPES[CLASSIC].defaults)


def parse_queue_arguments(
    arguments: FieldTable, *, durable: bool, exclusive: bool, auto_delete: bool, strict: bool
) -> QueueSettings:
    """Validate the arguments of queue.declare.

    Raises PreconditionFailed for a known argument with a bad value, for arguments and properties that the queue type does
    not have, and with `strict` for an unknown argument. The result may be shared by queues.
    """
    if not arguments:
        return PLAIN
    known, unknown = parse_arguments(QUEUE_ARGUMENTS, arguments, strict)
    if "x-queue-type" not in known:
        implied = [queue_type for queue_type in TYPES.values() if queue_type.needs in known]
        if len(implied) > 1:
            raise PreconditionFailed(
                f"invalid arg '{implied[1].needs}': received together with '{implied[0].needs}', expected one of them"
            )
        if implied:
            known["x-queue-type"] = implied[0].name
    queue_type = TYPES[known.get("x-queue-type", CLASSIC)]
    if queue_type.needs and queue_type.needs not in known:
        raise PreconditionFailed(
            f"invalid arg 'x-queue-type': received '{queue_type.name}' without '{queue_type.needs}',"
            " expected together with it"
        )
    settings = QueueSettings(known, unknown, queue_type.defaults)
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
    queue_deduplication(known)  # checks its arguments
    return settings


def make_queue(definition: QueueDefinition) -> Queue:
    """Create a queue of the type in its settings."""
    return TYPES[definition.settings.type].make(definition)
