"""Delayed retries with dead-lettering, without a plugin.

There are three queues. A rejected message moves from `work` to `wait`, where it expires after the delay and returns to
`work`. The broker counts the rounds in the `x-death` header. After three attempts the worker publishes the message to
`failed`.

    python examples/retry.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import sys
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
WORK, WAIT, FAILED = "example.retry.work", "example.retry.wait", "example.retry.failed"
DELAY = 100  # milliseconds
ATTEMPTS = 3


def declare(channel: BlockingChannel) -> None:
    channel.queue_declare(WORK, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": WAIT})
    channel.queue_declare(
        WAIT,
        durable=True,
        arguments={"x-message-ttl": DELAY, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": WORK},
    )
    channel.queue_declare(FAILED, durable=True)


def attempts_before(headers: dict[str, Any] | None) -> int:
    """Return the number of times the message was rejected from `work`."""
    for death in (headers or {}).get("x-death", []):
        if (death["queue"], death["reason"]) == (WORK, "rejected"):
            return int(death["count"])
    return 0


def work(channel: BlockingChannel) -> None:
    for method, properties, body in channel.consume(WORK, inactivity_timeout=10):
        if method is None:
            raise SystemExit("no message within ten seconds")
        attempt = attempts_before(properties.headers) + 1
        if attempt < ATTEMPTS:
            print(f"attempt {attempt} at {body.decode()!r} failed, retrying in {DELAY} ms")
            channel.basic_reject(method.delivery_tag, requeue=False)
            continue
        print(f"attempt {attempt} at {body.decode()!r} failed, giving up")
        # The publish is confirmed before the message is acknowledged, so that it is always in one of the queues.
        channel.basic_publish("", FAILED, body, properties)
        channel.basic_ack(method.delivery_tag)
        break
    channel.cancel()


if __name__ == "__main__":
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=1)
        declare(channel)
        channel.basic_publish("", WORK, b"send the invoice", pika.BasicProperties(delivery_mode=2))
        work(channel)
        _, _, body = channel.basic_get(FAILED, auto_ack=True)
        print(f"in the failed queue: {body.decode()!r}")
        for queue in (WORK, WAIT, FAILED):
            channel.queue_delete(queue)
