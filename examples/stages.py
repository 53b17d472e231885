"""Publish batches exactly once: stages are filled, sealed, and promoted together (Leveret only).

Two writers fill a stage each, and a driver promotes both as batch 1. Then everything is done once more, as after a crash
that took the answer: the batch was promoted already, and nothing is published twice.

    python examples/stages.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import sys
import uuid
import zlib
from typing import Any

import msgspec

from leveret import blocking

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
QUEUE = "example.results"
APP = "example.sums"


def ask(channel: blocking.Channel, operation: str, **arguments: Any) -> dict[str, Any]:
    """The answer of the broker to a request."""
    reply = channel.request(msgspec.json.encode({"version": 1, **arguments}), operation, "leveret.control")
    answer: dict[str, Any] = msgspec.json.decode(reply.body)
    if not answer["ok"]:
        raise SystemExit(f"{operation}: {answer['error']['message']}")
    return answer


def write(channel: blocking.Channel, bodies: list[bytes]) -> str:
    """What a writer does; returns the name of its stage."""
    stage = str(uuid.uuid4())
    ask(channel, "stage.open", stage=stage, app=APP, exchanges=[""])
    checksum = 0
    with channel.publisher(f"leveret.stage:{stage}:", QUEUE) as publisher:
        for body in bodies:
            publisher.publish(body, persistent=True)
            checksum = zlib.crc32(body, checksum)
    ask(channel, "stage.seal", stage=stage, count=len(bodies), crc32=checksum)
    return stage


def do_batch(channel: blocking.Channel, batch: int) -> None:
    stages = [write(channel, [b"%d + %d = %d" % (one, two, one + two) for two in (1, 2)]) for one in (3, 4)]
    print(f"staged:   {channel.declare_queue(QUEUE, durable=True).message_count} in the queue")
    answer = ask(channel, "stage.promote", app=APP, batch=batch, stages=stages)
    print(f"promoted: {answer['promoted']}, already: {answer['already']}")


if __name__ == "__main__":
    with blocking.connect(URL) as connection, connection.channel() as channel:
        channel.declare_queue(QUEUE, durable=True)
        last = ask(channel, "stage.last", app=APP)["batch"]
        batch = 1 if last is None else last + 1
        do_batch(channel, batch)
        do_batch(channel, batch)
        while (message := channel.get(QUEUE)) is not None:
            print(message.text())
            message.ack()
        channel.delete_queue(QUEUE)
