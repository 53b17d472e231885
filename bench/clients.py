"""Compare the client library with pika and aio-pika, on the same broker in one run.

    make bench-clients                               three rounds of everything, about two minutes
    make bench-clients ARGS="--rounds 1 --seconds 1"

Every client runs in its own process, separate from the broker. Bodies of 256 bytes, transient, a durable queue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import brokers, generator
from leveret import sync

BODY = b"x" * 256
WINDOW = 200
ACK_EVERY = 50
PREFETCH = 500
# The load generator's name for its first queue.
PREFIX = "bench-clients"
QUEUE = PREFIX + "-0"

LEVERET = "leveret"
BLOCKING = "leveret.sync"
PIKA = "pika"
AIO_PIKA = "aio-pika"

# Workloads; and targets: workload, client, the client to compare with, and the ratio.
WINDOWED = "publish, 200 confirms in flight"
AWAITED = "publish, each confirm awaited"
CONSUME = "consume, an ack every 50"
WORKS = (WINDOWED, AWAITED, CONSUME)
CLIENTS = (AIO_PIKA, PIKA, LEVERET, BLOCKING)
TARGETS: list[tuple[str, str, str, float]] = [
    (WINDOWED, LEVERET, AIO_PIKA, 8),
    (WINDOWED, BLOCKING, PIKA, 5),
    (AWAITED, BLOCKING, PIKA, 2),
    (CONSUME, LEVERET, AIO_PIKA, 8),
    (CONSUME, LEVERET, PIKA, 2),
    (CONSUME, BLOCKING, AIO_PIKA, 8),
    (CONSUME, BLOCKING, PIKA, 2),
]


class Clock:
    """Counts items until the time is up, except during the first fifth, which is a warm-up."""

    def __init__(self, seconds: float) -> None:
        now = time.perf_counter()
        self.rate = 0.0
        self.begin = now + seconds / 5
        self.end = now + seconds * 6 / 5
        self.counted = 0
        self._before = 0

    def going(self, number: int) -> bool:
        """Return whether to continue after `number` items. Reads the clock every 50 items."""
        if number % ACK_EVERY:
            return True
        now = time.perf_counter()
        if now < self.begin:
            self._before = number
            return True
        self.counted = number - self._before
        if now < self.end:
            return True
        self.rate = self.counted / (now - self.begin)
        return False


def publish_pika(url: str, seconds: float) -> float:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    clock, number = Clock(seconds), 0
    while clock.going(number):
        channel.basic_publish("", QUEUE, BODY)
        number += 1
    connection.close()
    return clock.rate


def consume_pika(url: str, seconds: float) -> float:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    clock = Clock(seconds)
    for number, (method, _properties, _body) in enumerate(channel.consume(QUEUE), 1):
        if number % ACK_EVERY == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if not clock.going(number):
            break
    connection.close()
    return clock.rate


async def publish_aio_pika(url: str, seconds: float, tasks: int) -> float:
    import aio_pika

    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = channel.default_exchange
        clock, number = Clock(seconds), 0
        stop = False

        async def work() -> None:
            nonlocal number, stop
            while not stop:
                await exchange.publish(aio_pika.Message(BODY), QUEUE)
                number += 1
                stop = stop or not clock.going(number)

        await asyncio.gather(*(work() for _ in range(tasks)))
    return clock.rate


async def consume_aio_pika(url: str, seconds: float) -> float:
    import aio_pika

    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(QUEUE, passive=True)
        clock, number = Clock(seconds), 0
        async with queue.iterator() as messages:
            async for message in messages:
                number += 1
                if number % ACK_EVERY == 0:
                    await message.ack(multiple=True)
                if not clock.going(number):
                    break
    return clock.rate


async def publish_leveret(url: str, seconds: float, windowed: bool) -> float:
    import leveret

    async with leveret.connect(url) as connection, connection.channel() as channel:
        clock, number = Clock(seconds), 0
        if windowed:
            async with channel.publisher(routing_key=QUEUE, window=WINDOW) as publisher:
                while clock.going(number):
                    await publisher.publish(BODY)
                    number += 1
        else:
            while clock.going(number):
                await channel.publish(BODY, QUEUE)
                number += 1
    return clock.rate


async def consume_leveret(url: str, seconds: float) -> float:
    import leveret

    async with leveret.connect(url) as connection, connection.channel() as channel:
        clock, number = Clock(seconds), 0
        async with channel.consume(QUEUE, prefetch=PREFETCH) as messages:
            async for message in messages:
                number += 1
                if number % ACK_EVERY == 0:
                    message.ack(multiple=True)
                if not clock.going(number):
                    break
    return clock.rate


def publish_blocking(url: str, seconds: float, windowed: bool) -> float:
    with sync.connect(url) as connection, connection.channel() as channel:
        clock, number = Clock(seconds), 0
        if windowed:
            with channel.publisher(routing_key=QUEUE, window=WINDOW) as publisher:
                while clock.going(number):
                    publisher.publish(BODY)
                    number += 1
        else:
            while clock.going(number):
                channel.publish(BODY, QUEUE)
                number += 1
    return clock.rate


def consume_blocking(url: str, seconds: float) -> float:
    with sync.connect(url) as connection, connection.channel() as channel:
        clock = Clock(seconds)
        with channel.consume(QUEUE, prefetch=PREFETCH) as messages:
            for number, message in enumerate(messages, 1):
                if number % ACK_EVERY == 0:
                    message.ack(multiple=True)
                if not clock.going(number):
                    break
    return clock.rate


def run_here(work: str, client: str, url: str, seconds: float) -> float:
    """Return the messages per second of one client on one workload, in this process."""
    asynchronous: dict[tuple[str, str], Callable[[], Awaitable[float]]] = {
        (WINDOWED, AIO_PIKA): lambda: publish_aio_pika(url, seconds, WINDOW),
        (AWAITED, AIO_PIKA): lambda: publish_aio_pika(url, seconds, 1),
        (CONSUME, AIO_PIKA): lambda: consume_aio_pika(url, seconds),
        (WINDOWED, LEVERET): lambda: publish_leveret(url, seconds, True),
        (AWAITED, LEVERET): lambda: publish_leveret(url, seconds, False),
        (CONSUME, LEVERET): lambda: consume_leveret(url, seconds),
    }
    threads: dict[tuple[str, str], Callable[[], float]] = {
        # pika has no window: each confirm is awaited.
        (WINDOWED, PIKA): lambda: publish_pika(url, seconds),
        (AWAITED, PIKA): lambda: publish_pika(url, seconds),
        (CONSUME, PIKA): lambda: consume_pika(url, seconds),
        (WINDOWED, BLOCKING): lambda: publish_blocking(url, seconds, True),
        (AWAITED, BLOCKING): lambda: publish_blocking(url, seconds, False),
        (CONSUME, BLOCKING): lambda: consume_blocking(url, seconds),
    }
    if (work, client) in threads:
        return threads[work, client]()

    async def run() -> float:
        return await asynchronous[work, client]()

    return asyncio.run(run())


def measure(work: str, client: str, port: int, seconds: float) -> float:
    """Like `run_here`, in a separate process, with the queue of the workload."""
    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    if work == CONSUME:
        generator.run(
            port,
            "run",
            "--publishers",
            "2",
            "--consumers",
            "0",
            "--keep",
            "--prefix",
            PREFIX,
            "--messages",
            str(round(300_000 * (seconds + 0.5))),
            timeout=300,
        )
    with sync.connect(url) as connection, connection.channel() as channel:
        if work != CONSUME:
            channel.declare_queue(QUEUE, arguments={"x-max-length": 1000})
        worker = [sys.executable, "-m", "bench.clients", "--worker", json.dumps([work, client, url, seconds])]
        done = subprocess.run(worker, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
        channel.delete_queue(QUEUE)
    if done.returncode:
        raise SystemExit(f"{client}, {work}: {done.stderr.strip()}")
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-clients", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--broker", choices=brokers.SPEAK_0_9_1, help="default: compiled if available")
    parser.add_argument("--output", type=Path, default=generator.OUTPUT)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work, client, url, seconds = json.loads(chosen.worker)
        print(json.dumps(run_here(work, client, url, seconds)))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 150)
    compare(console, chosen.rounds, chosen.seconds, chosen.output, chosen.broker)
    return 0


def compare(console: Console, rounds: int, seconds: float, output: Path, broker: str | None = None) -> None:
    """Measure and print everything, and write `clients.json`."""
    name = broker or next(name for name in brokers.names() if name != brokers.RABBIT)
    rates: dict[str, dict[str, list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory,
        brokers.running([name], Path(directory)) as contenders,
    ):
        for number in range(rounds):
            for work in WORKS:
                for client in CLIENTS:
                    rate = measure(work, client, contenders[0].port, seconds)
                    rates.setdefault(work, {}).setdefault(client, []).append(rate)
                    console.print(f"round {number + 1}  {work:32} {client:18} {rate:>9,.0f}/s", highlight=False)
    console.print(table(rates, f"On {brokers.TITLES[name]}; medians of {rounds} rounds, ratios within a round"))
    output.mkdir(parents=True, exist_ok=True)
    (output / "clients.json").write_text(json.dumps({"broker": name, "rates": rates}, indent=1) + "\n")


def table(rates: dict[str, dict[str, list[float]]], caption: str) -> Table:
    shown = Table(title="Clients", caption=caption)
    for heading in ("work", "client", "messages/s", "vs aio-pika", "vs pika", "targets"):
        shown.add_column(heading, justify="left" if heading in ("work", "client", "targets") else "right")
    for work, by_client in rates.items():
        for client, mine in by_client.items():
            ratios = {
                other: statistics.median(one / its for one, its in zip(mine, by_client[other], strict=True))
                for other in (AIO_PIKA, PIKA)
            }
            judged = [
                f">= {least:g} x {other}: {'yes' if ratios[other] >= least else 'NO'}"
                for its_work, its_client, other, least in TARGETS
                if (its_work, its_client) == (work, client)
            ]
            shown.add_row(
                work,
                client,
                f"{statistics.median(mine):,.0f}",
                f"{ratios[AIO_PIKA]:.1f} x",
                f"{ratios[PIKA]:.1f} x",
                "; ".join(judged),
            )
        shown.add_section()
    return shown


if __name__ == "__main__":
    sys.exit(main())
