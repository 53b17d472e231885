"""Durability demo: messages that the broker has confirmed survive kill -9.

The demo starts a broker in a temporary directory and several clients that publish persistent messages with confirms, kills
the broker with SIGKILL while they publish, restarts it on the same directory, and compares the queue with the confirmed
messages. It needs only this checkout and takes a few seconds.

    make demo-kill
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pika
from pika.exceptions import AMQPError
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
QUEUE = "demo"
PUBLISHERS = 4
# Maximum number of unconfirmed messages per publisher, and seconds of publishing before the broker is killed.
WINDOW = 100
SECONDS = 4.0
START_TIMEOUT = 20.0

console = Console(highlight=False)


class Broker:
    """A `leveret serve` process with its data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        # Picked by the first start and reused by later ones, so that clients can reconnect.
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the broker, wait until it listens, and return the elapsed seconds."""
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [
            sys.executable,
            "-P",
            "-m",
            "leveret",
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.directory / "data"),
            "--ready-file",
            str(ready),
        ]
        started = time.monotonic()
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() - started > START_TIMEOUT:
                raise SystemExit("the broker did not start:\n" + (self.directory / "broker.log").read_text())
            time.sleep(0.005)
        took = time.monotonic() - started
        self.port = json.loads(ready.read_text())["port"]
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        return took

    def kill(self) -> None:
        """Send SIGKILL, so that the broker cannot shut down cleanly."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.url))


class Publisher(threading.Thread):
    """Publisher of numbered persistent messages that runs until the broker dies and records the confirmed ones."""

    def __init__(self, number: int, url: str) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.url = url
        self.published = 0
        self.confirmed: set[int] = set()
        self._upto = 0  # all publishes up to this one are confirmed

    def run(self) -> None:
        connection = pika.SelectConnection(
            pika.URLParameters(self.url),
            on_open_callback=self._opened,
            on_close_callback=lambda connection, error: connection.ioloop.stop(),
        )
        connection.ioloop.start()

    def _opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._ready)

    def _ready(self, channel: pika.channel.Channel) -> None:
        self.channel = channel
        channel.confirm_delivery(self._confirmed)
        self._fill()

    def _fill(self) -> None:
        while self.channel.is_open and self.published - len(self.confirmed) < WINDOW:
            self.published += 1
            body = json.dumps({"publisher": self.number, "number": self.published}).encode()
            self.channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2))

    def _confirmed(self, frame: pika.frame.Method) -> None:
        method = frame.method
        if isinstance(method, pika.spec.Basic.Ack):
            if method.multiple:
                self.confirmed.update(range(self._upto + 1, method.delivery_tag + 1))
                self._upto = method.delivery_tag
            else:
                self.confirmed.add(method.delivery_tag)
        self._fill()


@contextmanager
def step(text: str) -> Iterator[list[str]]:
    """Print a line for a step, with the result that the block appends to the list."""
    result: list[str] = []
    with console.status(text):
        yield result
    console.print(f"[green]*[/green] {text}" + (f": {result[0]}" if result else ""))


def collect(broker: Broker) -> dict[int, list[int]]:
    """Consume the whole queue and return the message numbers by publisher, in order of arrival."""
    found: dict[int, list[int]] = {number: [] for number in range(PUBLISHERS)}
    with broker.connect() as connection:
        channel = connection.channel()
        left = channel.queue_declare(QUEUE, passive=True).method.message_count
        if left:
            for method, _, body in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=10):
                if method is None:
                    break
                message = json.loads(body)
                found[message["publisher"]].append(message["number"])
                left -= 1
                if not left:
                    break
    return found


def report(publishers: list[Publisher], found: dict[int, list[int]]) -> bool:
    """Print the table, and return whether every confirmed message was found once and in order."""
    table = Table(title="after the kill and the restart")
    for heading in ("publisher", "published", "confirmed", "found", "lost", "in order"):
        table.add_column(heading, justify="left" if heading == "publisher" else "right")
    good = True
    totals = [0, 0, 0, 0]
    for publisher in publishers:
        numbers = found[publisher.number]
        lost = len(publisher.confirmed.difference(numbers))
        ordered = all(before < after for before, after in pairwise(numbers))
        good = good and not lost and ordered
        figures = [publisher.published, len(publisher.confirmed), len(numbers), lost]
        totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        table.add_row(str(publisher.number), *(f"{figure:,}" for figure in figures), "yes" if ordered else "NO")
    table.add_section()
    table.add_row("all", *(f"{total:,}" for total in totals), "")
    console.print(table)
    return good


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="leveret-demo-") as name:
        broker = Broker(Path(name))
        try:
            with step("start a broker") as result:
                result.append(f"{broker.start():.2f} s, {broker.url}")
            with step(f"declare the durable queue '{QUEUE}'"), broker.connect() as connection:
                connection.channel().queue_declare(QUEUE, durable=True)
            publishers = [Publisher(number, broker.url) for number in range(PUBLISHERS)]
            with step(f"publish persistent messages from {PUBLISHERS} pika clients for {SECONDS:g} s") as result:
                for publisher in publishers:
                    publisher.start()
                time.sleep(SECONDS)
                result.append(f"{sum(len(publisher.confirmed) for publisher in publishers):,} confirmed")
            with step("kill -9 while they publish"):
                broker.kill()
                for publisher in publishers:
                    publisher.join(10)
            with step("restart the broker on the same directory") as result:
                result.append(f"{broker.start():.2f} s")
            with step("consume the whole queue"):
                found = collect(broker)
            good = report(publishers, found)
        except AMQPError as error:
            console.print(f"[red]failed[/red]: {error!r}")
            return 1
        finally:
            broker.stop()
    if good:
        console.print("No confirmed message is lost. Unconfirmed messages may or may not have survived.")
    else:
        console.print("[red]A confirmed message is lost, or the order is wrong.[/red]")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
