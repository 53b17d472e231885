"""Publish batches exactly once with sink transactions, which are prepared and then committed together (Leveret only).

Two writers fill one transaction each, and a driver commits both as batch 1. Then all of it is repeated, as after a crash
that lost the reply: the batch is already committed, so nothing is published twice.

    python examples/sink_transactions.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import sys
import uuid
import zlib
from typing import Any

import msgspec

from leveret import sync

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
QUEUE = "example.results"
APP = "example.sums"


def request(channel: sync.Channel, operation: str, **arguments: Any) -> dict[str, Any]:
    """Send a control request and return the reply."""
    message = channel.request(msgspec.json.encode({"version": 1, **arguments}), operation, "leveret.control")
    reply: dict[str, Any] = msgspec.json.decode(message.body)
    if not reply["ok"]:
        raise SystemExit(f"{operation}: {reply['error']['message']}")
    return reply


def write(channel: sync.Channel, bodies: list[bytes]) -> str:
    """Publish to a new sink transaction, prepare it, and return its name."""
    transaction = str(uuid.uuid4())
    request(channel, "stage.open", stage=transaction, app=APP, exchanges=[""])
    checksum = 0
    with channel.publisher(f"leveret.stage:{transaction}:", QUEUE) as publisher:
        for body in bodies:
            publisher.publish(body, persistent=True)
            checksum = zlib.crc32(body, checksum)
    request(channel, "stage.seal", stage=transaction, count=len(bodies), crc32=checksum)
    return transaction


def do_batch(channel: sync.Channel, batch: int) -> None:
    transactions = [write(channel, [b"%d + %d = %d" % (one, two, one + two) for two in (1, 2)]) for one in (3, 4)]
    print(f"prepared:  {channel.declare_queue(QUEUE, durable=True).message_count} in the queue")
    reply = request(channel, "stage.promote", app=APP, batch=batch, stages=transactions)
    print(f"committed: {reply['promoted']}, already: {reply['already']}")


if __name__ == "__main__":
    with sync.connect(URL) as connection, connection.channel() as channel:
        channel.declare_queue(QUEUE, durable=True)
        last = request(channel, "stage.last", app=APP)["batch"]
        batch = 1 if last is None else last + 1
        do_batch(channel, batch)
        do_batch(channel, batch)
        while (message := channel.get(QUEUE)) is not None:
            print(message.text())
            message.ack()
        channel.delete_queue(QUEUE)
