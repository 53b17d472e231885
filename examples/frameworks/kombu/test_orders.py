"""A worker process gets orders, and the failed ones are dead-lettered."""

from __future__ import annotations

import orders
import pytest
from kombu import pools


@pytest.fixture(scope="module")
def connection(url):
    with orders.connect(url) as connection:
        yield connection
    pools.reset()


@pytest.fixture(scope="module")
def worker(start):
    process = start("worker")
    process.wait_for("ready")
    return process


def test_an_order_is_done(connection, worker):
    orders.place(connection, {"id": 1, "amount": 20})
    worker.wait_for("order 1 done")


def test_a_failing_order_is_tried_three_times(connection, worker):
    orders.place(connection, {"id": 2, "amount": 0})
    failed = connection.SimpleQueue(orders.failed)
    message = failed.get(timeout=60)
    assert message.payload == {"id": 2, "amount": 0}
    assert message.headers["x-death"][0]["reason"] == "delivery_limit"
    message.ack()
    worker.wait_for("order 2 failed: amount 0", times=3)


def test_orders_wait_for_the_next_worker(connection, worker, start):
    worker.stop()
    orders.place(connection, {"id": 3, "amount": 5})
    start("worker").wait_for("order 3 done")


def test_with_the_fixture(leveret_url):
    """Run in a vhost that no other test uses."""
    with orders.connect(leveret_url) as connection:
        orders.place(connection, {"id": 4, "amount": 5})
        with connection.channel() as channel:
            assert orders.orders(channel).get().payload["id"] == 4
