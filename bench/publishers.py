"""Publishers in Python for `bench.spark_kafka`, each in a process of its own:

    python -m bench.publishers leveret URL STREAM FILE SIZE COUNT RATE
    python -m bench.publishers confluent-kafka HOST:PORT TOPIC FILE SIZE COUNT RATE

They publish COUNT bodies of SIZE bytes from a file, as fast as possible (RATE 0) or at a rate per second; then each body
begins with the time at which it is sent, in nanoseconds. They print the seconds from the first publish to the last confirm,
and COUNT.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leveret import sync

WINDOW = 4000


def stamped(bodies: list[bytes], count: int, rate: int) -> Iterator[bytes]:
    """Yield the bodies when they are due, with the time of their publish."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(began + number / rate - time.monotonic(), 0))
        stamp = b"%d " % time.time_ns()
        yield stamp + bodies[number % len(bodies)][len(stamp) :]


def paced(bodies: list[bytes], count: int, rate: int) -> Iterator[bytes]:
    """Yield `count` bodies, from the start again after the last one."""
    if rate:
        yield from stamped(bodies, count, rate)
        return
    for start in range(0, count, len(bodies)):
        yield from bodies[: count - start]


def publish_leveret(url: str, stream: str, bodies: list[bytes], count: int, rate: int) -> float:
    """Publish to a stream, persistent, until all messages are confirmed; without a rate, in record batches."""
    with sync.connect(url) as connection, connection.channel() as channel:
        channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})
        began = time.perf_counter()
        if not rate:
            channel.publish_batch(list(paced(bodies, count, rate)), stream, persistent=True)
            return time.perf_counter() - began
        with channel.publisher(routing_key=stream, window=WINDOW, persistent=True) as publisher:
            for body in stamped(bodies, count, rate):
                publisher.publish(body)
            publisher.flush()
            return time.perf_counter() - began


def publish_confluent(address: str, topic: str, bodies: list[bytes], count: int, rate: int) -> float:
    """Publish with confluent-kafka's default settings (acks=all) until all messages are acknowledged."""
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise SystemExit("confluent-kafka is not installed (pip install confluent-kafka)") from None
    failed: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({"bootstrap.servers": address})
    # The first message creates the topic.
    producer.produce(topic, bodies[0], on_delivery=delivered)
    producer.flush()
    began = time.perf_counter()
    for body in paced(bodies, count, rate):
        while True:
            try:
                producer.produce(topic, body, on_delivery=delivered)
            except BufferError:  # the producer's queue is full
                producer.poll(0.01)
            else:
                break
        producer.poll(0)
    producer.flush()
    took = time.perf_counter() - began
    if failed:
        raise SystemExit(f"confluent-kafka: {len(failed)} messages failed: {failed[0]}")
    return took


PUBLISHERS = {"leveret": publish_leveret, "confluent-kafka": publish_confluent}


def main() -> None:
    name, address, target, file, size, count, rate = sys.argv[1:]
    pool, length = Path(file).read_bytes(), int(size)
    bodies = [pool[start : start + length] for start in range(0, len(pool), length)]
    print(PUBLISHERS[name](address, target, bodies, int(count), int(rate)), count)


if __name__ == "__main__":
    main()
