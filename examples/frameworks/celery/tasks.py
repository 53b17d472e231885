"""A shop's background jobs.

celery -A tasks worker          in this directory, against the broker of AMQP_URL
"""

import os
import time

from celery import Celery
from celery.exceptions import Reject
from kombu import Exchange, Queue

app = Celery("tasks", broker=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672//"), backend="rpc://")

# Delayed tasks wait in the broker only if the queues are quorum queues of topic exchanges.
app.conf.task_queues = [
    Queue(
        "celery-jobs",
        Exchange("celery-jobs", type="topic"),
        routing_key="celery-jobs",
        queue_arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 5,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "celery-failed",
        },
    ),
]
app.conf.update(
    task_default_queue="celery-jobs",
    task_default_exchange="celery-jobs",
    task_default_exchange_type="topic",
    task_default_routing_key="celery-jobs",
    # Acknowledge after the task, so that another worker runs it if this one dies.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # One task per child process is prefetched: long tasks do not wait behind each other.
    worker_prefetch_multiplier=1,
    # `delay` returns when the task is on disk, and raises if the broker refuses it.
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    # The broker deletes the results of a client that has not used them for this time.
    result_expires=3600,
)


@app.task
def total(prices: list[int]) -> int:
    return sum(prices)


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, retry_backoff=1, retry_jitter=False)
def charge(self, order: str) -> int:
    """Reach the bank on the second retry. The task waits for 1 s and 2 s in the broker."""
    if self.request.retries < 2:
        raise ConnectionError("the bank does not answer")
    return self.request.retries


@app.task(ignore_result=True)
def ship(order: str) -> None:
    print(f"shipped {order}", flush=True)


@app.task(ignore_result=True)
def pack(order: str, seconds: float) -> None:
    print(f"packing {order}", flush=True)
    time.sleep(seconds)
    print(f"packed {order}", flush=True)


@app.task(bind=True, ignore_result=True)
def audit(self, order: str) -> None:
    """Send an order that can never be processed to the queue `celery-failed`."""
    raise Reject(f"{order} has no customer", requeue=False)
