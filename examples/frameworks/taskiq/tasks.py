"""A shop's background jobs.

taskiq worker tasks:broker --workers 1          in this directory, against the broker of AMQP_URL
"""

import os
from typing import Annotated

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends
from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

broker = AioPikaBroker(
    os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"),
    # The number of unacked messages per worker process.
    qos=10,
    task_queues=[Queue(name="taskiq-jobs", type=QueueType.QUORUM, arguments={"x-delivery-limit": 2})],
    dead_letter_queue=Queue(name="taskiq-failed", type=QueueType.QUORUM),
    # Leveret has the exchange type of RabbitMQ's plugin.
    delayed_message_exchange_plugin=True,
).with_middlewares(SmartRetryMiddleware(default_retry_count=3, default_delay=0.2, use_delay_exponent=True))


@broker.task
async def ship(order: str) -> None:
    print(f"shipped {order}", flush=True)


@broker.task(retry_on_error=True, max_retries=3)
async def charge(order: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    """Reach the bank on the second retry."""
    retries = int(context.message.labels.get("_retries", 0))
    if retries < 2:
        raise ConnectionError("the bank does not answer")
    print(f"charged {order} after {retries} retries", flush=True)


@broker.task
async def crash(order: str) -> None:
    """End the worker in the middle of a task, as the kernel does when memory is short."""
    print(f"crashing with {order}", flush=True)
    os._exit(1)
