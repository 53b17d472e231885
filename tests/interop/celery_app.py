"""The Celery application of `test_celery`, which the worker imports. LEVERET_TEST_URL_CELERY is the broker's URL."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task
from kombu import Queue

PREFIX = os.environ.get("LEVERET_CELERY_PREFIX", "celery-test")

app = Celery("leveret-interop", broker=os.environ.get("LEVERET_CELERY_URL", "amqp://"), backend="rpc://")
app.conf.update(
    task_default_queue=f"{PREFIX}.default",
    task_queues=[
        Queue(f"{PREFIX}.default", routing_key=f"{PREFIX}.default"),
        Queue(f"{PREFIX}.priority", routing_key=f"{PREFIX}.priority", queue_arguments={"x-max-priority": 10}),
    ],
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_heartbeat=10,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_expires=600,
    task_track_started=True,
    control_queue_expires=60,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def echo(value: Any) -> Any:
    return value


@app.task
def fail() -> None:
    raise KeyError("on purpose")


@app.task(bind=True, max_retries=3, default_retry_delay=0.1)
def flaky(self: Task, times: int) -> int:
    if self.request.retries < times:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)
