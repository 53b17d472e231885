"""A worker process runs the tasks; the broker keeps the delayed ones."""

from __future__ import annotations

import asyncio
import time

import aio_pika
import pytest
import tasks
from taskiq_aio_pika import AioPikaBroker

WORKER = ("taskiq", "worker", "tasks:broker", "--workers", "1")


@pytest.fixture(scope="module")
def worker(start):
    process = start(*WORKER)
    process.wait_for("Listening started")
    return process


@pytest.fixture
def kick(url):
    """Send a task as another program does, and end the connection."""

    def kick_task(task, *arguments, **labels):
        async def main():
            tasks.broker.url = url
            await tasks.broker.startup()
            await task.kicker().with_labels(**labels).kiq(*arguments)
            await tasks.broker.shutdown()

        asyncio.run(main())

    return kick_task


def test_a_task_runs(worker, kick):
    kick(tasks.ship, "order 1")
    worker.wait_for("shipped order 1")


def test_retries_with_backoff(worker, kick):
    kick(tasks.charge, "order 2")
    worker.wait_for("charged order 2 after 2 retries")


def test_a_shorter_delay_overtakes(worker, kick):
    sent = time.monotonic()
    kick(tasks.ship, "order 3", delay=3600)
    kick(tasks.ship, "order 4", delay=0.5)
    worker.wait_for("shipped order 4")
    assert time.monotonic() - sent >= 0.5
    assert "shipped order 3" not in worker.log.read_text()


def test_a_task_that_kills_its_worker_is_dead_lettered(worker, kick, url):
    """The fourth delivery would exceed the limit. TaskIQ starts a new worker after each crash."""

    async def dead_letter():
        async with await aio_pika.connect(url) as connection:
            queue = await (await connection.channel()).get_queue("taskiq-failed")
            async with queue.iterator(timeout=120) as messages:
                async for message in messages:
                    await message.ack()
                    return message.headers["task_name"], message.headers["x-death"][0]["reason"]

    kick(tasks.crash, "order 5")
    assert asyncio.run(dead_letter()) == ("tasks:crash", "delivery_limit")
    kick(tasks.ship, "order 6")
    worker.wait_for("shipped order 6")
    worker.stop()


def test_with_the_fixture(leveret_url):
    """Run a task in the process of pytest."""

    async def main():
        broker = AioPikaBroker(leveret_url)
        broker.is_worker_process = True

        @broker.task
        async def total(prices: list[int]) -> int:
            return sum(prices)

        await broker.startup()
        messages = broker.listen()
        await total.kiq([3, 4])
        message = await anext(messages)
        assert broker.formatter.loads(message.data).args == [[3, 4]]
        await message.ack()
        await messages.aclose()
        await broker.shutdown()

    asyncio.run(main())
