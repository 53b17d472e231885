"""Priorities: urgent messages overtake others in the queue.

A queue without `x-max-priority` has the ten priorities of the AMQP specification, and a message without a priority has
priority 4. With `x-max-priority`, RabbitMQ's rules apply: no priority means 0, and higher priorities are capped at the
maximum. Messages with the same priority keep their order.

    python examples/priorities.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import sys

import pika
from pika.adapters.blocking_connection import BlockingChannel

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
MESSAGES = (("first", None), ("second", 9), ("third", 0), ("fourth", 9), ("fifth", None))


def order(channel: BlockingChannel, queue: str) -> list[str]:
    """Publish the messages to a queue without consumers, then get them back."""
    for text, priority in MESSAGES:
        channel.basic_publish("", queue, text.encode(), pika.BasicProperties(priority=priority))
    return [channel.basic_get(queue, auto_ack=True)[2].decode() for _ in MESSAGES]


if __name__ == "__main__":
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        plain = channel.queue_declare("", exclusive=True).method.queue
        print("ten levels:        ", ", ".join(order(channel, plain)))
        limited = channel.queue_declare("", exclusive=True, arguments={"x-max-priority": 5}).method.queue
        print("x-max-priority = 5:", ", ".join(order(channel, limited)))
