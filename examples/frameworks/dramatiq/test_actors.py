"""A worker process runs the actors. Messages that failed for good wait in `dramatiq-jobs.XQ` for a week."""

from __future__ import annotations

import time

import pytest

TIMEOUT = 60.0
WORKER = ("dramatiq", "actors", "--processes", "1", "--threads", "4")


@pytest.fixture(scope="module")
def actors(url):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMQP_URL", url)
        import actors
    yield actors
    actors.broker.close()


@pytest.fixture(scope="module")
def worker(actors, start):
    process = start(*WORKER)
    process.wait_for("is ready for action")
    return process


def failed(actors) -> int:
    return actors.broker.get_queue_message_counts("dramatiq-jobs")[2]


def wait_for_failed(actors, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while failed(actors) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_actor_runs(actors, worker):
    actors.charge.send("order 1", 20)
    worker.wait_for("charged order 1")


def test_a_delayed_message(actors, worker):
    actors.ship.send_with_options(args=("order 2",), delay=500)
    worker.wait_for("shipped order 2")


def test_retries_with_backoff_end_in_the_dead_letter_queue(actors, worker):
    before = failed(actors)
    actors.charge.send("order 3", 5000)
    worker.wait_for("the bank does not answer for order 3", times=3)
    wait_for_failed(actors, before + 1)


def test_an_expected_exception_is_not_retried(actors, worker):
    before = failed(actors)
    actors.charge.send("order 4", 0)
    wait_for_failed(actors, before + 1)
    assert "order 4" in worker.log.read_text()


def test_messages_wait_for_the_next_worker(actors, worker, start):
    """In the order of their priorities."""
    worker.stop()
    for order, priority in (("low", 1), ("high", 9)):
        actors.ship.send_with_options(args=(order,), broker_priority=priority)
    other = start("dramatiq", "actors", "--processes", "1", "--threads", "1")
    other.wait_for("shipped low")
    log = other.log.read_text()
    assert log.index("shipped high") < log.index("shipped low")
