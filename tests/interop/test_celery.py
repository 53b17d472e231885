"""A real Celery worker: tasks, results over rpc://, retries, delays, remote control, shutdown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, group
from celery.exceptions import TaskRevokedError

from tests.support.broker import ROOT, Broker
from tests.support.polling import wait_until

WITHIN = 120.0


class Worker:
    """A worker process, and the application as a client of it."""

    def __init__(self, broker: Broker, prefix: str, log: Path) -> None:
        self.prefix = prefix
        self.log = log
        environment = os.environ | {
            "LEVERET_CELERY_URL": broker.url(),
            "LEVERET_CELERY_PREFIX": prefix,
            "PYTHONPATH": str(ROOT),
        }
        self.host = f"{prefix}@test"
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.interop.celery_app", "worker", "--loglevel", "INFO",
                 "--concurrency", "2", "--pool", "threads", "--hostname", self.host, "-E"],
                cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)  # fmt: skip
        from tests.interop import celery_app

        self.app: Celery = celery_app.app
        self.tasks: Any = celery_app

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return b" ready." in self.log.read_bytes()

        wait_until(ready, self.log.read_text)

    def stop(self) -> int:
        """Shut down warmly, as supervisors do."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@pytest.fixture(scope="module")
def worker(shared_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    prefix = f"celery-{os.getpid()}"
    os.environ["LEVERET_CELERY_URL"] = shared_broker.url()
    os.environ["LEVERET_CELERY_PREFIX"] = prefix
    worker = Worker(shared_broker, prefix, tmp_path_factory.mktemp("celery") / "worker.log")
    try:
        worker.wait_ready()
        yield worker
        assert worker.process.poll() is None, "the worker died:\n" + worker.log.read_text()
        assert worker.stop() == 0, worker.log.read_text()
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()
        worker.app.close()


@pytest.fixture(autouse=True)
def _watched(broker: Broker) -> None:
    """Check the broker after the test."""


def test_task_and_result(worker: Worker) -> None:
    assert worker.tasks.add.delay(2, 3).get(timeout=WITHIN) == 5


def test_many_tasks(worker: Worker) -> None:
    results = [worker.tasks.add.delay(number, number) for number in range(100)]
    assert [result.get(timeout=WITHIN) for result in results] == [2 * number for number in range(100)]


def test_failure(worker: Worker) -> None:
    with pytest.raises(KeyError):
        worker.tasks.fail.delay().get(timeout=WITHIN)


def test_retries(worker: Worker) -> None:
    assert worker.tasks.flaky.delay(2).get(timeout=WITHIN) == 2


def test_countdown_and_eta(worker: Worker) -> None:
    begun = time.monotonic()
    later = worker.tasks.echo.apply_async(["later"], countdown=1)
    eta = worker.tasks.echo.apply_async(["eta"], eta=datetime.now(UTC) + timedelta(seconds=1))
    assert later.get(timeout=WITHIN) == "later"
    assert eta.get(timeout=WITHIN) == "eta"
    assert time.monotonic() - begun >= 0.9


def test_expired_task_is_not_run(worker: Worker) -> None:
    result = worker.tasks.echo.apply_async(["too late"], countdown=1, expires=0.1)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WITHIN)


def test_large_argument(worker: Worker) -> None:
    text = "größe" * 200_000
    assert worker.tasks.echo.delay(text).get(timeout=WITHIN) == text


def test_group(worker: Worker) -> None:
    result = group(worker.tasks.add.s(number, 1) for number in range(20))()
    assert result.get(timeout=WITHIN) == [number + 1 for number in range(20)]


def test_chain(worker: Worker) -> None:
    chain = worker.tasks.add.s(1, 2) | worker.tasks.add.s(3) | worker.tasks.add.s(4)
    assert chain().get(timeout=WITHIN) == 10


def test_priority_queue(worker: Worker) -> None:
    results = [
        worker.tasks.echo.apply_async([number], queue=f"{worker.prefix}.priority", priority=number % 10)
        for number in range(20)
    ]
    assert [result.get(timeout=WITHIN) for result in results] == list(range(20))


def test_inspect(worker: Worker) -> None:
    inspect = worker.app.control.inspect(destination=[worker.host], timeout=WITHIN)
    assert inspect.ping() == {worker.host: {"ok": "pong"}}
    queues = {queue["name"] for queue in inspect.active_queues()[worker.host]}
    assert queues == {f"{worker.prefix}.default", f"{worker.prefix}.priority"}
    assert inspect.stats()[worker.host]["pool"]["max-concurrency"] == 2


def test_inspect_by_command_line(worker: Worker, broker: Broker) -> None:
    environment = os.environ | {"LEVERET_CELERY_URL": broker.url(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.interop.celery_app", "inspect", "ping", "--timeout", f"{WITHIN:g}",
         "--destination", worker.host],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pong" in done.stdout


def test_revoke(worker: Worker) -> None:
    result = worker.tasks.echo.apply_async(["never"], countdown=5)
    worker.app.control.revoke(result.id, destination=[worker.host], reply=True, timeout=WITHIN)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WITHIN)


def test_cancel_and_add_consumer(worker: Worker) -> None:
    control = worker.app.control
    queue = f"{worker.prefix}.extra"
    assert control.add_consumer(queue, destination=[worker.host], reply=True, timeout=WITHIN)
    assert worker.tasks.echo.apply_async(["extra"], queue=queue).get(timeout=WITHIN) == "extra"
    assert control.cancel_consumer(queue, destination=[worker.host], reply=True, timeout=WITHIN)


def test_events(worker: Worker) -> None:
    """The worker's heartbeats come over a topic exchange."""
    seen: list[str] = []
    with worker.app.connection() as connection:

        def heard(event: dict[str, Any]) -> None:
            seen.append(event["hostname"])
            receiver.should_stop = True

        receiver = worker.app.events.Receiver(connection, handlers={"worker-heartbeat": heard})
        receiver.capture(limit=None, timeout=WITHIN, wakeup=True)
    assert worker.host in seen
