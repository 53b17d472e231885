"""A work queue, which distributes durable tasks among workers.

The publisher waits for the confirm of each task, so the task is on disk before the program reports it. Each worker gets
one task at a time (prefetch 1) and acknowledges it when it is done. One worker fails in the middle of a task, and the
broker redelivers the task to another worker.

    python examples/work_queue.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import logging
import sys
import threading

import pika
from pika.adapters.blocking_connection import BlockingChannel

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
QUEUE = "example.tasks"
TASKS = 6

logger = logging.getLogger("example")


def connect() -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(URL))


def publish() -> None:
    with connect() as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        for number in range(TASKS):
            # With confirms, pika waits for the broker's confirm, and raises if the broker refuses or returns the message.
            channel.basic_publish(
                "", QUEUE, f"task {number}".encode(), pika.BasicProperties(delivery_mode=2), mandatory=True
            )
        logger.info(f"{TASKS} tasks are on disk")


def fail() -> None:
    """Run a worker that gets a task and disconnects."""
    connection = connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    _, _, body = next(channel.consume(QUEUE))
    logger.info(f"worker 1 fails with {body.decode()!r}")
    connection.close()  # the unacked task returns to its place in the queue


def work(name: str) -> None:
    with connect() as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=1):
            if method is None:
                break  # the queue is drained
            logger.info(f"{name} does {body.decode()!r}{' (redelivered)' if method.redelivered else ''}")
            channel.basic_ack(method.delivery_tag)


def clean_up(channel: BlockingChannel) -> None:
    left = channel.queue_delete(QUEUE).method.message_count
    logger.info(f"{left} tasks left")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logger.setLevel(logging.INFO)
    publish()
    fail()
    workers = [threading.Thread(target=work, args=(f"worker {number}",)) for number in (2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with connect() as connection:
        clean_up(connection.channel())
