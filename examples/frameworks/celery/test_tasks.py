"""A worker process runs the tasks; `celery-failed` gets those that it rejects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import tasks
from kombu import Queue

TIMEOUT = 60.0
WORKER = ("celery", "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "INFO")


@pytest.fixture(scope="module", autouse=True)
def app(url):
    """The application as a client of the same broker."""
    tasks.app.conf.broker_url = url
    with tasks.app.connection_for_write() as connection, connection.channel() as channel:
        Queue("celery-failed", durable=True)(channel).declare()
    yield tasks.app
    tasks.app.close()


@pytest.fixture(scope="module")
def worker(app, start):
    process = start(*WORKER)
    process.wait_for(" ready.")
    return process


def test_a_result(worker):
    assert tasks.total.delay([3, 4]).get(timeout=TIMEOUT) == 7


def test_a_task_without_a_result(worker):
    tasks.ship.delay("order 1")
    worker.wait_for("shipped order 1")


def test_retries_with_backoff(worker):
    assert tasks.charge.delay("order 2").get(timeout=TIMEOUT) == 2


def test_a_rejected_task_is_dead_lettered(app, worker):
    tasks.audit.delay("order 3")
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(Queue("celery-failed", durable=True))
        message = queue.get(timeout=TIMEOUT)
        assert message.headers["argsrepr"] == "('order 3',)"
        assert message.headers["x-death"][0]["reason"] == "rejected"
        message.ack()


def test_a_delayed_task_waits_in_the_broker(app, worker):
    tasks.ship.apply_async(["order 4"], countdown=3600)
    with app.connection_for_read() as connection, connection.channel() as channel:
        # The queue of the highest bit of 3600.
        assert channel.queue_declare("celery_delayed_11", passive=True).message_count == 1


def test_a_killed_worker_and_a_delayed_task(worker, start):
    """Other workers get the task of a killed one, and a delayed task that none of them has seen."""
    tasks.pack.delay("order 5", 0.5)
    worker.wait_for("packing order 5")
    worker.kill()
    tasks.ship.apply_async(["order 6"], eta=datetime.now(UTC) + timedelta(seconds=3))
    other = start(*WORKER)
    other.wait_for("packed order 5")
    other.wait_for("shipped order 6")
    assert "shipped order 6" not in worker.log.read_text()
    # A warm shutdown.
    other.stop()
