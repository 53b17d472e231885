"""queue.describe."""

from __future__ import annotations

from leveret.management.requests.operation import Arguments, Asked, Fields, Operation


class Queue(Arguments, kw_only=True):
    queue: str


def describe(asked: Asked, arguments: Queue) -> Fields:
    """Return the type of a queue, its `messages` (those that a stream retains), and those that are `leased`."""
    asked.check("read", arguments.queue)
    queue = asked.vhost.queue(arguments.queue, asked.session)
    return {"type": queue.settings.type, "durable": queue.durable,
            "messages": queue.ready_count + queue.delayed_count + queue.unacked, "leased": queue.leased_count}


OPERATIONS = {"queue.describe": Operation(describe, Queue)}
