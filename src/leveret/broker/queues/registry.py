"""The queue types, by the name that `x-queue-type` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.arguments import STREAM, QueueSettings
from leveret.broker.queues.queue import Queue
from leveret.broker.streams.queue import StreamQueue

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost


def make_queue(vhost: Vhost, id: int, name: str, durable: bool, exclusive_owner: object | None, auto_delete: bool,
               arguments: dict[str, Any], settings: QueueSettings) -> Queue:
    """A new queue of the type that its settings say."""
    if settings.type == STREAM:
        return StreamQueue(vhost, id, name, durable, exclusive_owner, auto_delete, arguments, settings)
    return Queue(vhost, id, name, durable, exclusive_owner, auto_delete, arguments, settings)
