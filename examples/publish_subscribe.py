"""Publish and subscribe with aio-pika: every subscriber gets its own copy of the messages that match its pattern.

Each subscriber has an exclusive queue, which the broker names and deletes with the connection. A topic exchange matches
routing keys against binding patterns: `*` matches one word, `#` any number of words.

    python examples/publish_subscribe.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import asyncio
import sys

import aio_pika

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
EXCHANGE = "example.events"
PATTERNS = {"audit": "#", "billing": "order.*", "europe": "*.*.eu"}
EVENTS = ("order.created", "order.paid", "order.paid.eu", "stock.low.eu")


async def subscribe(connection: aio_pika.abc.AbstractConnection, pattern: str) -> aio_pika.abc.AbstractQueue:
    channel = await connection.channel()
    exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, auto_delete=True)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, pattern)
    return queue


async def receive(queue: aio_pika.abc.AbstractQueue) -> list[str]:
    """Get all messages of a queue and return their routing keys in order."""
    keys = []
    while (message := await queue.get(fail=False)) is not None:
        await message.ack()
        keys.append(message.routing_key)
    return keys


async def main() -> None:
    async with await aio_pika.connect(URL) as connection:
        queues = {name: await subscribe(connection, pattern) for name, pattern in PATTERNS.items()}
        channel = await connection.channel()  # publisher confirms are on by default in aio-pika
        exchange = await channel.get_exchange(EXCHANGE)
        for event in EVENTS:
            await exchange.publish(aio_pika.Message(b"{}"), routing_key=event)
        for name, queue in queues.items():
            print(f"{name} ({PATTERNS[name]}): {', '.join(await receive(queue))}")


if __name__ == "__main__":
    asyncio.run(main())
