"""Pipeline demo: a shop's messages pass through the broker and a pipeline, and every message is accounted for.

Clients publish orders, payments and stock levels over AMQP 0-9-1 and 1.0 to one exchange. A worker consumes the orders and
rejects some. A pipeline archives all messages as typed rows, quarantines bodies that are not JSON, publishes large orders
to a queue, and aggregates broker events in time windows. Meanwhile the demo kills first the broker and then the pipeline
with SIGKILL. At the end it reads the input from the stream with a plain client, and compares it with the output, message
by message.

    make demo
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from demo import ROOT, Broker, console, step
from rich.box import SIMPLE_HEAD
from rich.table import Table

from leveret import sync
from leveret.client import Error, Timeout

WORK = Path(os.environ.get("LEVERET_DEMO_DIRECTORY", str(ROOT / "build" / "demo")))
EXCHANGE = "shop"
LOG = "shop.log"
PUBLISHERS = (("web", "0-9-1"), ("app", "1.0"), ("till", "0-9-1"), ("partner", "1.0"))
# Messages per burst that a publisher sends before it waits for confirms, before and after Spark's warm-up, and bursts per
# second.
FEW, BURST = 2, 25
BURSTS = 8
LARGE = 900
# Seconds of publishing before the broker is killed, before the pipeline is killed, and afterwards.
PHASES = tuple(float(text) for text in os.environ.get("LEVERET_DEMO_SECONDS", "6,6,4").split(","))
TIMEOUT = 600.0

PIPELINE = """
name = "shop"
directory = "state"

[broker]
url = "{url}"

[supervision]
progress = 2

[flows.archive]
kind = "archive"
capture = {{ stream = "{log}" }}
trigger = 2.0
table = {{ path = "archive" }}

[flows.archive.decode]
format = "json"
schema = "id STRING NOT NULL, event STRING NOT NULL, customer STRUCT<id: BIGINT, country: STRING>, amount DOUBLE, \
items ARRAY<STRUCT<sku: STRING, count: INT>>, at TIMESTAMP"
quarantine = "quarantine"

[flows.large]
capture = {{ stream = "{log}" }}
trigger = 1.0
decode = {{ format = "json", schema = "id STRING, event STRING, amount DOUBLE", on_error = "drop" }}
exchanges = [{{ exchange = "", routing_key = "large-orders" }}]

[flows.large.transform]
sql = '''
SELECT to_json(struct(data.id, data.amount)) AS body, message_id, 'application/json' AS content_type
FROM messages WHERE data.event = 'order.created' AND data.amount >= {large}
'''

[flows.traffic]
kind = "traffic"
capture = {{ stream = "shop.events" }}
window = 2.0
late = 2.0
trigger = 2.0
table = {{ path = "traffic" }}
exchange = {{ exchange = "stats" }}
report = "traffic.html"
"""


class Client(threading.Thread):
    """A client thread that reconnects after the broker is killed."""

    def __init__(self, broker: Broker, protocol: str = "0-9-1") -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.protocol = protocol
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                with sync.connect(self.broker.url, protocol=self.protocol, reconnect=False) as connection:
                    self.work(connection)
            except (Error, OSError):
                self.ending.wait(0.2)

    def work(self, connection: sync.BaseConnection) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.ending.set()
        self.join(20)


class Publisher(Client):
    """Publisher of a shop's events, which records the confirmed ones."""

    def __init__(self, broker: Broker, name: str, protocol: str) -> None:
        super().__init__(broker, protocol)
        self.source = name
        self.random = random.Random(name)
        self.number = 0
        self.size = FEW
        self.confirmed: list[bytes] = []

    def work(self, connection: sync.BaseConnection) -> None:
        with connection.open_channel() as channel, channel.publisher(EXCHANGE, "", window=BURST) as publisher:
            while not self.ending.wait(1 / BURSTS):
                burst = []
                for _ in range(self.size):
                    key, body = self.message()
                    publisher.publish(
                        body,
                        key,
                        persistent=True,
                        content_type="application/json",
                        message_id=f"{self.source}-{self.number}",
                        app_id=self.source,
                        headers={"source": self.source, "attempt": 1},
                    )
                    burst.append(body)
                publisher.flush()
                # Unconfirmed messages may or may not have survived a kill. A real publisher would publish them again.
                self.confirmed += burst

    def message(self) -> tuple[str, bytes]:
        self.number += 1
        chance = self.random
        id = f"{self.source}-{self.number:06}"
        country = chance.choice(("de", "fr", "it", "pl"))
        event = chance.choices(
            ("order.created", "order.paid", "order.cancelled", "stock.low", "parcel.sent"), (40, 30, 5, 10, 15)
        )[0]
        if chance.random() < 0.01:
            return f"{event}.{country}", f'<order id="{id}"/>'.encode()  # from a legacy system
        body: dict[str, Any] = {
            "id": id,
            "event": event,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "customer": {"id": chance.randrange(5000), "country": country},
            "amount": round(chance.paretovariate(1.2) * 20, 2),
        }
        if event.startswith("order"):
            body["items"] = [
                {"sku": f"sku-{chance.randrange(300)}", "count": chance.randint(1, 4)} for _ in range(chance.randint(1, 6))
            ]
        return f"{event}.{country}", json.dumps(body).encode()


class Worker(Client):
    """Worker that consumes orders and rejects every fiftieth, which becomes a dead letter."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.done: set[bytes] = set()
        self.taken = 0

    def work(self, connection: sync.BaseConnection) -> None:
        with connection.open_channel() as channel, channel.consume("orders", prefetch=200) as consumer:
            while not self.ending.is_set():
                try:
                    message = consumer.next(0.2)
                except Timeout:
                    continue
                self.taken += 1
                if self.taken % 50:
                    message.ack()
                else:
                    message.reject()
                self.done.add(bytes(message.body))


class Pipeline:
    """A `leveret pipeline run` process with its JVM."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path))}
        with (self.directory / "pipeline.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "leveret", "pipeline", "run", str(self.directory / "pipeline.toml")],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Send SIGKILL to Python, the JVM and the workers."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Stop gracefully and return the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def rows(self, flow: str) -> int:
        """Return the number of rows that a flow has read since its start."""
        try:
            state = json.loads((self.directory / "state" / "status.json").read_text())
        except (OSError, ValueError):
            return 0
        if self.process is None or state["pid"] != self.process.pid:
            return 0
        return int(state["flows"][flow]["rows"])

    def check(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            tail = (self.directory / "pipeline.log").read_text().splitlines()[-15:]
            raise SystemExit("the pipeline has ended:\n" + "\n".join(tail))


def until(what: str, true: Callable[[], bool], pipeline: Pipeline) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + TIMEOUT
    while not true():
        pipeline.check()
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {TIMEOUT:g} s waiting for {what}")
        time.sleep(0.2)


def declare(broker: Broker) -> None:
    """Declare an exchange, a queue of orders with dead-lettering, and streams of all messages and all events."""
    with sync.connect(broker.url) as connection, connection.channel() as channel:
        for name in (EXCHANGE, "stats"):
            channel.declare_exchange(name, "topic", durable=True)
        channel.declare_queue("dead", durable=True)
        channel.declare_queue(
            "orders", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        ).bind(EXCHANGE, "order.#")
        channel.declare_queue("large-orders", durable=True)
        channel.declare_queue("stats", durable=True).bind("stats", "traffic.published.#")
        stream = {"x-queue-type": "stream"}
        channel.declare_queue(LOG, durable=True, arguments=stream).bind(EXCHANGE, "#")
        channel.declare_queue("shop.events", durable=True, arguments=stream).bind("amq.leveret.events", "#")


def bodies_of_stream(broker: Broker) -> Iterator[bytes]:
    """Read the whole stream with a plain client."""
    first = {"x-stream-offset": "first"}
    with (
        sync.connect(broker.url) as connection,
        connection.channel() as channel,
        channel.consume(LOG, prefetch=500, arguments=first) as consumer,
    ):
        while True:
            try:
                message = consumer.next(5.0)
            except Timeout:
                return
            message.ack()
            yield bytes(message.body)


def bodies_of_queue(broker: Broker, name: str) -> list[bytes]:
    with sync.connect(broker.url) as connection, connection.channel() as channel:
        found = []
        while (message := channel.get(name, no_ack=True)) is not None:
            found.append(bytes(message.body))
        return found


def files_of_table(path: Path) -> list[Path]:
    """Return the files of a table. Uncommitted files are in another directory."""
    return sorted(path.glob("day=*/*.parquet"))


def rows_of_table(path: Path, column: str) -> list[Any]:
    """Return a column of all files, read with a Parquet reader."""
    return [
        value for file in files_of_table(path) for value in pq.ParquetFile(file).read([column]).column(column).to_pylist()
    ]


def table_count(path: Path) -> int:
    return sum(pq.ParquetFile(file).metadata.num_rows for file in files_of_table(path))


def id_of(body: bytes) -> str:
    found = re.search(rb'id=?":? ?"([\w-]+)"|id="([\w-]+)"', body)
    assert found is not None, body
    return (found[1] or found[2]).decode()


class Verdict:
    """Table of comparisons."""

    def __init__(self) -> None:
        self.good = True
        self.table = Table(title="input and output", box=SIMPLE_HEAD)
        for heading in ("", "expected", "found", "missing", "twice", "foreign", "good"):
            self.table.add_column(heading, justify="right" if heading else "left")

    def compare(self, name: str, expected: Counter[Any], found: Counter[Any]) -> None:
        """Check that expected and found messages are equal."""
        missing = sum((Counter(set(expected)) - Counter(set(found))).values())
        foreign = sum((Counter(set(found)) - Counter(set(expected))).values())
        twice = sum(count - 1 for count in found.values())
        good = expected == found
        self._add(name, sum(expected.values()), sum(found.values()), missing, twice, foreign, good)

    def contains(self, name: str, expected: set[Any], found: Counter[Any], upper: set[Any]) -> None:
        """Check that all expected ids were found, and no id outside `upper`."""
        missing, foreign = len(expected - found.keys()), len(found.keys() - upper)
        self._add(name, len(expected), len(found), missing, 0, foreign, not missing and not foreign)

    def note(self, name: str, found: int) -> None:
        self.table.add_row(name, "", f"{found:,}")

    def _add(self, name: str, expected: int, found: int, missing: int, twice: int, foreign: int, good: bool) -> None:
        self.good = self.good and good
        self.table.add_row(
            name,
            *(f"{figure:,}" for figure in (expected, found, missing, twice, foreign)),
            "[green]yes[/green]" if good else "[red]NO[/red]",
        )


def verify(broker: Broker, publishers: list[Publisher], worker: Worker, directory: Path, came: Counter[bytes]) -> bool:
    confirmed = {body for publisher in publishers for body in publisher.confirmed}
    sent = {f"{publisher.source}-{number:06}" for publisher in publishers for number in range(1, publisher.number + 1)}
    verdict = Verdict()
    verdict.contains(
        "confirmed, in the stream", {id_of(body) for body in confirmed}, Counter(id_of(body) for body in came), sent
    )
    archived = Counter(rows_of_table(directory / "archive", "body"))
    aside = Counter(rows_of_table(directory / "quarantine", "body"))
    whole = Counter({body: count for body, count in came.items() if body.startswith(b"{")})
    verdict.compare("archived, as typed rows", whole, archived)
    verdict.compare("quarantined: not JSON", came - whole, aside)
    parsed = {body: json.loads(body) for body in whole}
    large = Counter(
        value["id"] for value in parsed.values() if value["event"] == "order.created" and value["amount"] >= LARGE
    )
    verdict.compare(
        f"orders of at least {LARGE}, in a queue",
        large,
        Counter(json.loads(body)["id"] for body in bodies_of_queue(broker, "large-orders")),
    )
    dead = bodies_of_queue(broker, "dead")
    # A worker may get a message shortly before it is on disk. The kill may lose such an unconfirmed message.
    orders = worker.done | set(bodies_of_queue(broker, "orders")) | set(dead)
    ordered = {id_of(body) for body in whole if b'"event": "order.' in body}
    verdict.contains("orders, processed or queued", ordered, Counter(map(id_of, orders)), sent)
    verdict.note("dead letters of the worker", len(dead))
    counted = sum(
        count
        for event, exchange, count in zip(
            rows_of_table(directory / "traffic", "event"),
            rows_of_table(directory / "traffic", "exchange"),
            rows_of_table(directory / "traffic", "messages"),
            strict=True,
        )
        if event == "published" and exchange == EXCHANGE
    )
    verdict.note("published, by events (which a kill loses)", counted)
    verdict.note("windows published to exchange stats", len(bodies_of_queue(broker, "stats")))
    console.print(verdict.table)
    return verdict.good


def main() -> int:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        console.print(
            "[red]The demo requires Java 17 or later[/red] for Spark: java was not found, and JAVA_HOME is not set."
        )
        return 1
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    began = time.monotonic()
    broker, pipeline = Broker(WORK), Pipeline(WORK)
    publishers = [Publisher(broker, name, protocol) for name, protocol in PUBLISHERS]
    worker = Worker(broker)
    try:
        with step("start a broker") as result:
            result.append(f"{broker.start():.2f} s, {broker.url}")
        with step("declare an exchange, queues and streams"):
            declare(broker)
        (WORK / "pipeline.toml").write_text(PIPELINE.format(url=broker.url, log=LOG, large=LARGE))
        with step("start the pipeline on Spark: archive, large, traffic"):
            pipeline.start()
            until("the first status", lambda: (WORK / "state" / "status.json").exists(), pipeline)
        with step(f"publish from {len(publishers)} clients over AMQP 0-9-1 and 1.0") as result:
            for client in (*publishers, worker):
                client.start()
            until("the first archived rows", lambda: pipeline.rows("archive") > 0, pipeline)
            for publisher in publishers:
                publisher.size = BURST
            time.sleep(PHASES[0])
            result.append(f"{sum(len(publisher.confirmed) for publisher in publishers):,} confirmed")
        with step("kill -9 the broker and restart it") as result:
            broker.kill()
            result.append(f"{broker.start():.2f} s")
        with step("continue publishing") as result:
            time.sleep(PHASES[1])
            result.append(f"{sum(len(publisher.confirmed) for publisher in publishers):,} confirmed")
        with step("kill -9 the pipeline with its JVM and restart it"):
            pipeline.check()
            pipeline.kill()
            pipeline.start()
        with step("finish publishing") as result:
            time.sleep(PHASES[2])
            for publisher in publishers:
                publisher.end()
            until("an empty queue of orders", lambda: ready(broker, "orders") == 0, pipeline)
            worker.end()
            result.append(f"{sum(len(publisher.confirmed) for publisher in publishers):,} confirmed")
        with step("read the input") as result:
            came = Counter(bodies_of_stream(broker))
            result.append(f"{sum(came.values()):,} messages in the stream")
        with step("wait for the pipeline to catch up"):
            until(
                "all messages in the archive",
                lambda: table_count(WORK / "archive") + table_count(WORK / "quarantine") >= sum(came.values()),
                pipeline,
            )
            finish_windows(broker, pipeline)
        with step("stop the pipeline gracefully") as result:
            code = pipeline.stop()
            result.append(f"exit code {code}")
        good = verify(broker, publishers, worker, WORK, came) and code == 0
    finally:
        if pipeline.process is not None and pipeline.process.poll() is None:
            pipeline.kill()
        broker.stop()
    for what, name in (("Traffic report", "traffic.html"), ("Archive", "archive"), ("Log of the pipeline", "pipeline.log")):
        console.print(f"{what}: [bold]{WORK / name}[/bold]", soft_wrap=True)
    if good:
        console.print(f"[green]Every message is accounted for[/green], in {time.monotonic() - began:.0f} s.")
    else:
        console.print("[red]Some messages are not accounted for.[/red]")
    return 0 if good else 1


def ready(broker: Broker, queue: str) -> int:
    with sync.connect(broker.url) as connection, connection.channel() as channel:
        return int(channel.declare_queue(queue, passive=True).message_count)


def finish_windows(broker: Broker, pipeline: Pipeline) -> None:
    """Publish events periodically, so that event time advances until the windows of all messages are closed."""
    last = time.time()
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with sync.connect(broker.url) as connection, connection.channel() as channel:
            channel.publish(b"tick", "tick", "stats")
        ends = rows_of_table(WORK / "traffic", "window_end") if (WORK / "traffic").exists() else []
        if ends and max(end.timestamp() for end in ends) >= last and (WORK / "traffic.html").exists():
            return
        pipeline.check()
        time.sleep(0.5)
    raise SystemExit("the traffic windows were not closed in time")


if __name__ == "__main__":
    raise SystemExit(main())
