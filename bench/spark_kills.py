"""Kill processes at random moments, for each guarantee between Leveret and Spark.

    python bench/spark_kills.py [--kills 50] [--rows lease sink ...] [--messages 20000] [--seed 1] [--cluster]

For each row of the table below, a broker receives numbered messages, and a query moves them in small batches. Meanwhile the
program repeatedly kills with SIGKILL, at random moments, the query with its JVM and its workers, a Python worker, or the
broker, which restarts; sometimes it deletes the last commit of the checkpoint while the query is down. Finally the query
runs undisturbed, and the program compares the messages that arrived with those that were sent, including how often each
arrived.

With `--cluster` the query runs on a standalone cluster of two workers on loopback, executors are killed instead of Python
workers, and Spark runs a second attempt of slow tasks (speculation); every third task is slow.

| row | from | to | required |
| --- | --- | --- | --- |
| stream | stream | table | each once |
| lease | classic queue | table | each once |
| spool | classic queue, by a spool | table | each at least once; once unless the broker or the driver was killed |
| sink | stream | queue, exactly once | each once |
| leased-sink | classic queue | queue, exactly once | each once |
| stream-sink | stream | stream, exactly once | each once |
| confirms | stream | queue, at least once | each at least once |
| archive | stream | table, whose files the tasks write | each once |
| delta | stream | Delta table | each once |
| rabbitmq-stream | stream of RabbitMQ, by a spool | table | each once |
| rabbitmq-queue | classic queue of RabbitMQ, by a spool | table | as `spool` |
| rabbitmq-sink | stream of RabbitMQ, by a spool | queue of RabbitMQ, at least once | each at least once |
| artemis | queue of Artemis, by a spool | queue of Artemis, at least once | each at least once |

The rows of other brokers run only if they are named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench.artemis import ArtemisProcess  # noqa: E402
from leveret import sync  # noqa: E402
from leveret.client.errors import Timeout  # noqa: E402
from tests.spark.cluster import Cluster  # noqa: E402
from tests.support.broker import LeveretProcess  # noqa: E402
from tests.support.rabbitmq import RabbitProcess  # noqa: E402

# Timeout of an undisturbed run in seconds.
PATIENCE = 600.0
KINDS = ("query", "worker", "broker", "commit")
STREAM = {"x-queue-type": "stream"}
ON_A_CLUSTER = {
    "spark.executor.memory": "450m",
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


class Row(NamedTuple):
    """A row of the table. `once`: each message must arrive once, otherwise at least once. `arguments`: of the queue."""

    source: dict[str, str]
    to_queue: bool
    sink: dict[str, str]
    once: bool
    arguments: dict[str, str] | None = None
    broker: str = "leveret"

    @property
    def protocol(self) -> str:
        return "1.0" if self.broker == "artemis" else "0-9-1"


AnyProcess = LeveretProcess | RabbitProcess | ArtemisProcess


def process_of(broker: str, directory: Path) -> AnyProcess:
    if broker == "rabbitmq":
        return RabbitProcess(directory)
    return ArtemisProcess(directory, keep=True) if broker == "artemis" else LeveretProcess(directory)


def row_of(name: str, directory: Path) -> Row:
    lease = {"queue": "in", "lease": "kills"}
    stream = {"stream": "in", "startingOffsets": "earliest", "consumerName": "kills"}
    table = {"format": "parquet", "path": str(directory / "table")}
    once = {"format": "amqp", "exchange": "", "routingKey": "out", "guarantee": "exactly-once"}
    confirmed = {**once, "guarantee": "at-least-once"}
    spool = {"mode": "spool", "spoolDir": str(directory / "spool")}
    return {
        "stream": Row(stream, False, table, True),
        "lease": Row(lease, False, table, True),
        "spool": Row({"queue": "in", **spool}, False, table, False),
        "sink": Row(stream, True, once, True),
        "leased-sink": Row(lease, True, once, True),
        "stream-sink": Row(stream, True, once, True, STREAM),
        "confirms": Row(stream, True, confirmed, False),
        "archive": Row(stream, False, {**table, "format": "archive"}, True),
        "delta": Row(stream, False, {**table, "format": "archive", "table": "delta"}, True),
        "rabbitmq-stream": Row({"stream": "in", **spool}, False, table, True, broker="rabbitmq"),
        "rabbitmq-queue": Row({"queue": "in", **spool}, False, table, False, broker="rabbitmq"),
        "rabbitmq-sink": Row({"stream": "in", **spool}, True, confirmed, False, broker="rabbitmq"),
        "artemis": Row({"queue": "in", **spool}, True, confirmed, False, broker="artemis"),
    }[name]


ROWS = ("stream", "lease", "spool", "sink", "leased-sink", "stream-sink", "confirms", "archive", "delta")
OTHER_BROKERS = ("rabbitmq-stream", "rabbitmq-queue", "rabbitmq-sink", "artemis")


class Query:
    """The process of `spark_query.py`, in a separate session."""

    def __init__(self, directory: Path, argument: dict[str, Any]) -> None:
        self.directory = directory
        self.argument = argument
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path[:2]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with open(self.directory / "query.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "bench" / "spark_query.py"), json.dumps(self.argument)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def members(self, word: str = "") -> list[int]:
        """Return the processes of the query whose command lines contain the word."""
        assert self.process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                    if session == self.process.pid and word in (entry / "cmdline").read_text():
                        found.append(int(entry.name))
                except (OSError, ValueError, IndexError):
                    pass
        return found

    def kill(self) -> None:
        """Kill all processes of the query at once."""
        for member in self.members():
            _kill(member)
        if self.process is not None:
            self.process.wait()

    def finish(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            return -1


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


def feed(broker: AnyProcess, protocol: str, first: int, count: int) -> list[str]:
    """Publish numbered messages with confirms. Without a kill meanwhile, each arrives once."""
    sent = [str(number) for number in range(first, first + count)]
    with (
        sync.connect(broker.url(), protocol=protocol) as connection,
        connection.open_channel() as channel,
        channel.publisher(routing_key="in", window=1000, persistent=True) as publisher,
    ):
        for body in sent:
            publisher.publish(body, message_id=body)
    return sent


def run(name: str, kills: int, messages: int, chance: random.Random, cluster: Cluster | None) -> bool:
    with tempfile.TemporaryDirectory(prefix=f"spark-kills-{name}-") as made:
        directory = Path(made)
        row = row_of(name, directory)
        broker = process_of(row.broker, directory / "broker").start()
        query = Query(
            directory,
            {
                "directory": made,
                "checkpoint": str(directory / "checkpoint"),
                "source": {
                    "url": broker.url(),
                    "protocol": row.protocol,
                    "maxMessagesPerTrigger": str(max(messages // 40, 1)),
                    **row.source,
                },
                "sink": {**row.sink, **({"url": broker.url(), "protocol": row.protocol} if row.to_queue else {})},
                "dump": "" if row.to_queue else str(directory / "dump"),
            },
        )
        if "minPartitions" not in row.source and "spoolDir" not in row.source:
            query.argument["source"]["minPartitions"] = "2"
        if cluster is not None:
            slow = directory / "slow"
            slow.mkdir()
            query.argument |= {"master": cluster.url, "conf": ON_A_CLUSTER, "slow": str(slow)}
        try:
            return _run(name, row, kills, messages, chance, broker, query, directory, cluster)
        finally:
            if query.running:
                query.kill()
            broker.stop()


def _run(
    name: str,
    row: Row,
    kills: int,
    messages: int,
    chance: random.Random,
    broker: AnyProcess,
    query: Query,
    directory: Path,
    cluster: Cluster | None,
) -> bool:
    began = time.monotonic()
    if row.broker != "artemis":  # whose queues are created by links
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue("in", durable=True, arguments=STREAM if "stream" in row.source else None)
            channel.declare_queue("out", durable=True, arguments=row.arguments)
    sent = feed(broker, row.protocol, 0, messages)
    done: Counter[str] = Counter()
    failed = 0
    while sum(done.values()) < kills:
        if not query.running:
            if query.process is not None and query.process.poll() == 0:
                sent += feed(broker, row.protocol, len(sent), messages)
            elif query.process is not None and query.process.poll() is not None and query.process.returncode > 0:
                failed += 1  # the broker was down, or a worker was killed too often: restart the query
            query.start()
            _until_reading(query, directory)
        time.sleep(chance.uniform(0.0, 3.0))
        kind = chance.choice(KINDS)
        if not query.running:
            continue
        if kind == "worker" and cluster is not None:
            executors = cluster.executors()
            if not executors:
                continue
            _kill(chance.choice(executors))
            kind = "executor"
        elif kind == "worker":
            workers = query.members("pyspark")
            if not workers:
                continue
            workers.remove(min(workers))
            if workers:
                _kill(chance.choice(workers))
        elif kind == "broker":
            broker.kill()
            time.sleep(chance.uniform(0.0, 0.3))
            broker.start()
        else:
            query.kill()
            if kind == "commit" and not _delete_last_commit(directory / "checkpoint"):
                kind = "query"
        done[kind] += 1
    for _ in range(5):
        if not query.running:
            query.start()
        if query.finish() == 0:
            break
    else:
        print(f"{name}: the query did not end:\n{(directory / 'query.log').read_text(errors='replace')[-4000:]}")
        return False
    query.start()
    query.finish()
    found = Counter(
        drained(broker, row.protocol, streamed=row.arguments is not None)
        if row.to_queue
        else (directory / "dump").read_text().split()
    )
    lost = [body for body in sent if not found[body]]
    invented = [body for body in found if not body.isdigit() or int(body) >= len(sent)]
    twice = {body: count for body, count in found.items() if count > 1}
    twice_at_a_time = len(list((directory / "slow").glob("twice-*")))
    good = not lost and not invented and not (twice and row.once)
    print(
        f"{name}: {'good' if good else 'WRONG'}: {len(sent)} messages, {sum(found.values())} arrived, {len(lost)} lost, "
        f"{len(invented)} invented, {len(twice)} more than once (required: {'once' if row.once else 'at least once'}); "
        f"kills {dict(done)}, {twice_at_a_time} tasks run twice at a time, {failed} runs ended by themselves, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    if not good:
        print(f"  lost {lost[:20]}, invented {invented[:20]}, twice {dict(list(twice.items())[:20])}")
    return good


def _until_reading(query: Query, directory: Path) -> None:
    """Wait until a batch of this run is planned, or the run has ended: a JVM starts more slowly than a batch runs."""
    offsets = directory / "checkpoint" / "offsets"
    before = set(offsets.glob("[0-9]*")) if offsets.exists() else set()
    deadline = time.monotonic() + 120
    while query.running and time.monotonic() < deadline:
        if offsets.exists() and set(offsets.glob("[0-9]*")) - before:
            return
        time.sleep(0.05)


def _delete_last_commit(checkpoint: Path) -> bool:
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    if not commits:
        return False
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    return True


def drained(broker: AnyProcess, protocol: str, *, streamed: bool = False) -> list[str]:
    found = []
    options: dict[str, Any] = {"arguments": {"x-stream-offset": "first"}} if streamed else {}
    with sync.connect(broker.url(), protocol=protocol) as connection, connection.open_channel() as channel:
        consumer = channel.consume("out", prefetch=1000, **options).start()
        try:
            while True:
                message = consumer.next(2.0)
                found.append(message.body.decode())
                message.ack()
        except Timeout:
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=50, help="kills per row")
    parser.add_argument("--rows", nargs="+", choices=(*ROWS, *OTHER_BROKERS), default=ROWS)
    parser.add_argument("--messages", type=int, default=20000, help="number of messages before the query starts")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--cluster", action="store_true", help="run the query on a cluster of two workers")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with ExitStack() as stack:
        cluster = None
        if given.cluster:
            cluster = stack.enter_context(Cluster(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        results = [
            run(name, given.kills, given.messages, random.Random(f"{given.seed} {name}"), cluster) for name in given.rows
        ]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
