"""Compare streams, Spark and the Python client with Kafka, its Spark connector and its producers, on this machine:

    python -m bench.spark_kafka                                    5 million messages of 200 bytes: about an hour
    python -m bench.spark_kafka --messages 500000 --rounds 3
    python -m bench.spark_kafka --only read-sealed --only latency
    python -m bench.spark_kafka --list

Both brokers run side by side on loopback, and take turns: one unmeasured round and more for `--warmup` seconds, then
`--rounds` measured ones. Kafka's server and connector come by Maven (`bench/kafka/`); confluent-kafka is used if it is
installed, and the data source in the JVM if it is built (`make jar`).

Leveret syncs every message to disk before it confirms it. By default Kafka acknowledges messages that only the operating
system's cache has. A second table compares with a Kafka that syncs each batch before it acknowledges it.

Results go to `build/bench/spark_kafka.json` and `.md` after each work. Those of earlier runs with the same messages remain.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import generator, maven
from bench.kafka_server import KafkaProcess, connector, server
from bench.kafka_sides import Figures, KafkaSide, LeveretSide, Messages
from bench.spark import NO_SEALING, session
from leveret import build_info
from tests.spark.environment import JVM_SOURCE
from tests.support.broker import LeveretProcess, basic_config

DURABILITY = {
    "default": "Leveret syncs each message before it confirms it; Kafka, with default settings, does not.",
    "flush": "Leveret syncs each message before it confirms it, and Kafka (`log.flush.interval.messages=1`) each batch.",
}

HEADER = ("| work | Leveret | Kafka | ratio | target | |", "| --- | ---: | ---: | ---: | ---: | --- |")


class Row(NamedTuple):
    """A row of the table. `target` limits the ratio Leveret/Kafka, if there is one: at least, or at most for a `cost`."""

    title: str
    figure: str
    unit: str
    target: float | None
    cost: bool = False

    def reached(self, ratio: float) -> bool | None:
        if self.target is None:
            return None
        return ratio <= self.target if self.cost else ratio >= self.target


class Work(NamedTuple):
    """A measurement of both sides.

    durable: it is repeated with a Kafka that syncs. once: there is one round, without unmeasured ones.
    """

    name: str
    leveret: Callable[[LeveretSide], Figures]
    kafka: Callable[[KafkaSide], Figures]
    rows: tuple[Row, ...]
    durable: bool = False
    once: bool = False


def rate(title: str, target: float) -> tuple[Row]:
    return (Row(title, "rate", "/s", target),)


def seconds(title: str, target: float | None = None) -> tuple[Row]:
    return (Row(title, "seconds", "s", target, cost=True),)


WORKS = (
    Work(
        "start",
        LeveretSide.start,
        KafkaSide.start,
        (
            Row("start of the broker with an empty directory", "seconds", "s", 0.07, cost=True),
            Row("memory of the empty broker", "memory", "MB", 0.12, cost=True),
        ),
    ),
    Work(
        "publish",
        LeveretSide.publish,
        KafkaSide.publish,
        (
            Row("publish from Python, and with Kafka's Java producer", "rate", "/s", 1.0),
            Row("processor time of the broker for a million published", "cpu", "s", 1.2, cost=True),
            Row("peak memory of the broker meanwhile", "peak", "MB", 0.44, cost=True),
        ),
        durable=True,
    ),
    Work(
        "publish-confluent",
        LeveretSide.publish,
        KafkaSide.publish_confluent,
        rate("publish from Python, and with confluent-kafka", 0.6),
        durable=True,
    ),
    Work(
        "disk-random",
        LeveretSide.random_on_disk,
        KafkaSide.random_on_disk,
        (Row("bytes on disk, sealed, random bodies", "bytes", "MB", 1.0, cost=True),),
        once=True,
    ),
    Work(
        "disk-json",
        LeveretSide.json_on_disk,
        KafkaSide.json_on_disk,
        (Row("bytes on disk, sealed, JSON", "bytes", "MB", 0.8, cost=True),),
        once=True,
    ),
    Work("read-sealed", LeveretSide.read_sealed, KafkaSide.read, rate("batch read, sealed, all columns", 1.5)),
    Work(
        "read-sealed-5", LeveretSide.read_sealed_columns, KafkaSide.read_columns, rate("batch read, sealed, 5 columns", 2.5)
    ),
    Work("read-sealed-load", LeveretSide.load_sealed, KafkaSide.read, rate("batch read, sealed, `load`, all columns", 2.5)),
    Work("read-tail", LeveretSide.read_tail, KafkaSide.read, rate("batch read, unsealed, all columns", 1.2)),
    Work(
        "read-tail-5", LeveretSide.read_tail_columns, KafkaSide.read_columns, rate("batch read, unsealed, 5 columns", 1.2)
    ),
    Work(
        "parquet", LeveretSide.to_parquet, KafkaSide.to_parquet, rate("availableNow to Parquet, sealed, all columns", 1.2)
    ),
    Work(
        "parquet-5",
        LeveretSide.to_parquet_columns,
        KafkaSide.to_parquet_columns,
        rate("availableNow to Parquet, sealed, 5 columns", 1.2),
    ),
    Work(
        "archive",
        LeveretSide.archive,
        KafkaSide.to_parquet,
        rate("`archive`, and availableNow to Parquet, all columns", 1.2),
    ),
    Work("count", LeveretSide.count, KafkaSide.count, seconds("`count()`, sealed", 0.85)),
    Work("count-column", LeveretSide.count_column, KafkaSide.count, seconds("`count()`, sealed, one column")),
    Work("count-load", LeveretSide.count_loaded, KafkaSide.count, seconds("`count()` of `load`, sealed")),
    Work(
        "count-manifest",
        LeveretSide.count_from_manifest,
        KafkaSide.count,
        seconds("`pyspark_amqp.count`, and `count()`, sealed", 0.02),
    ),
    Work(
        "write-at-least-once",
        LeveretSide.write_at_least_once,
        KafkaSide.write,
        rate("write rows, both at least once", 1.2),
        durable=True,
    ),
    Work(
        "write-exactly-once",
        LeveretSide.write_exactly_once,
        KafkaSide.write,
        rate("write rows, exactly once, and Kafka at least once", 1.0),
        durable=True,
    ),
    Work(
        "latency",
        LeveretSide.latency,
        KafkaSide.latency,
        (
            Row("latency from publish to driver at 1,000/s, median", "median", "ms", 1.3, cost=True),
            Row("latency from publish to driver at 1,000/s, p99", "p99", "ms", 1.3, cost=True),
        ),
        durable=True,
        once=True,
    ),
    Work(
        "latency-jvm",
        LeveretSide.latency_jvm,
        KafkaSide.latency,
        (
            Row("latency from publish to driver at 1,000/s, format `amqp-jvm`, median", "median", "ms", 1.0, cost=True),
            Row("latency from publish to driver at 1,000/s, format `amqp-jvm`, p99", "p99", "ms", 1.0, cost=True),
        ),
        durable=True,
        once=True,
    ),
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body, at least 32 (default 200)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=float, default=10, help="seconds of unmeasured rounds before those of a work")
    parser.add_argument("--seconds", type=float, default=60, help="measured time of the latency (default 60)")
    parser.add_argument("--only", action="append", choices=[work.name for work in WORKS], help="a work; repeatable")
    parser.add_argument("--table", action="append", choices=list(DURABILITY), help="default, flush; both by default")
    parser.add_argument("--output", type=Path, default=generator.OUTPUT, help="directory of spark_kafka.json and .md")
    parser.add_argument("--list", action="store_true", help="print the names of the works")
    chosen = parser.parse_args()
    if chosen.size < 32:
        parser.error("--size: bodies have at least 32 bytes, which begin with a time")
    if chosen.messages < 1 or chosen.rounds < 1:
        parser.error("--messages and --rounds: expected at least 1")
    return chosen


def say(text: str) -> None:
    print(text, flush=True)


def run_work(
    work: Work, leveret: LeveretSide, kafka: KafkaSide, chosen: argparse.Namespace
) -> list[tuple[Figures, Figures]]:
    """Run both sides in turn. Returns the figures of Leveret and Kafka in each measured round."""
    if not work.once:
        # The first round also publishes what is read.
        run_round(work, "unmeasured", leveret, kafka, leveret_first=False)
        warm = time.monotonic() + chosen.warmup
        while time.monotonic() < warm:
            run_round(work, "unmeasured", leveret, kafka, leveret_first=False)
    rounds = 1 if work.once else chosen.rounds
    return [
        run_round(work, f"round {number + 1} of {rounds}", leveret, kafka, leveret_first=number % 2 == 0)
        for number in range(rounds)
    ]


def run_round(
    work: Work, title: str, leveret: LeveretSide, kafka: KafkaSide, *, leveret_first: bool
) -> tuple[Figures, Figures]:
    ours = work.leveret(leveret) if leveret_first else None
    theirs = work.kafka(kafka)
    if ours is None:
        ours = work.leveret(leveret)
    found = (f"{row.figure} {ours[row.figure]:,.4g} and {theirs[row.figure]:,.4g} {row.unit}" for row in work.rows)
    say(f"{work.name}: {title}: {', '.join(found)}")
    return ours, theirs


def compare(work: Work, leveret: LeveretSide, kafka: KafkaSide, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the result of each row, which may be that it failed."""
    try:
        rounds = run_work(work, leveret, kafka, chosen)
    except Exception as error:  # the other rows are measured all the same
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        say(f"{work.name}: failed: {reason}")
        return [result_of(row, failed=reason) for row in work.rows]
    return [
        result_of(
            row,
            leveret=median(ours[row.figure] for ours, _ in rounds),
            kafka=median(theirs[row.figure] for _, theirs in rounds),
            ratio=median(ours[row.figure] / theirs[row.figure] for ours, theirs in rounds),
        )
        for row in work.rows
    ]


def result_of(row: Row, **found: Any) -> dict[str, Any]:
    reached = {"reached": row.reached(found["ratio"])} if "ratio" in found else {}
    return {"title": row.title, "unit": row.unit, "target": row.target, "cost": row.cost, **found, **reached}


class Results:
    """Results of this run, and of earlier ones with the same messages, in a JSON and a Markdown file."""

    def __init__(self, directory: Path, facts: dict[str, Any]) -> None:
        self._json = directory / "spark_kafka.json"
        self._markdown = directory / "spark_kafka.md"
        self._facts = facts
        self._tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
        directory.mkdir(parents=True, exist_ok=True)
        if self._json.exists():
            earlier = json.loads(self._json.read_text())
            if all(earlier["facts"].get(name) == facts[name] for name in ("messages", "size", "machine")):
                self._tables = earlier["tables"]

    def add(self, table: str, work: str, results: list[dict[str, Any]]) -> None:
        """Add the results of a work, and write the files."""
        self._tables.setdefault(table, {})[work] = results
        self._json.write_text(json.dumps({"facts": self._facts, "tables": self._tables}, indent=1) + "\n")
        self._markdown.write_text(markdown(self._facts, self._tables))


def markdown(facts: dict[str, Any], tables: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return the tables in Markdown."""
    texts = [f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in facts.items()]
    lines = [", ".join(texts)]
    for table, durability in DURABILITY.items():
        if table not in tables:
            continue
        lines += ["", durability, "", *HEADER]
        for work in WORKS:
            lines += [markdown_row(result) for result in tables[table].get(work.name, [])]
    return "\n".join(lines) + "\n"


def markdown_row(result: dict[str, Any]) -> str:
    target = "" if result["target"] is None else f"{'<=' if result['cost'] else '>='} {result['target']:g}"
    if "failed" in result:
        return f"| {result['title']} | | | | {target} | failed: {result['failed']} |"
    ours, theirs = (f"{result[side]:,.{decimals(result[side])}f} {result['unit']}" for side in ("leveret", "kafka"))
    verdict = {True: "yes", False: "no", None: ""}[result["reached"]]
    return f"| {result['title']} | {ours} | {theirs} | {result['ratio']:.2f} | {target} | {verdict} |"


def decimals(value: float) -> int:
    """Return the decimals that leave about three digits of a value."""
    return next((places for limit, places in ((100, 0), (10, 1), (1, 2)) if value >= limit), 3)


def machine_facts(chosen: argparse.Namespace, spark: str) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "messages": chosen.messages,
        "size": chosen.size,
        "rounds": chosen.rounds,
        "Leveret": str(build_info()),
        "Python": platform.python_version(),
        "Spark": spark,
        "Kafka": next(server().glob("kafka-server-[0-9]*.jar")).stem.rpartition("-")[2],
        "connector": connector()[-1].stem.rpartition("-")[2],
    }


def main() -> int:
    chosen = options()
    if chosen.list:
        say("\n".join(work.name for work in WORKS))
        return 0
    try:
        server()
        jars = connector()
    except maven.Unavailable as error:
        say(str(error))
        return 1
    # The brokers are stopped when the program is terminated.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    if os.getloadavg()[0] > 0.5:
        say(f"The machine is busy (load {os.getloadavg()[0]:.1f}): the figures will be imprecise.")
    works = [work for work in WORKS if not chosen.only or work.name in chosen.only]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leveret-kafka-")))
        broker = LeveretProcess(directory / "leveret", config=basic_config() + NO_SEALING, log_level="error")
        stack.callback(broker.stop)
        broker.start()
        spark = session(directory, [*jars, *filter(Path.exists, [JVM_SOURCE])])
        stack.callback(spark.stop)
        messages = Messages(directory, chosen.messages, chosen.size, chosen.seconds)
        leveret = LeveretSide(messages, spark, broker)
        results = Results(chosen.output, machine_facts(chosen, spark.version))
        for table, kafka in kafkas(chosen.table or list(DURABILITY), messages, spark, stack):
            say(DURABILITY[table])
            for work in works:
                if table == "default" or work.durable:
                    results.add(table, work.name, compare(work, leveret, kafka, chosen))
    say((chosen.output / "spark_kafka.md").read_text())
    return 0


def kafkas(tables: list[str], messages: Messages, spark: Any, stack: ExitStack) -> Iterator[tuple[str, KafkaSide]]:
    """Yield the Kafka of each table; only one runs at a time."""
    for table in tables:
        process = KafkaProcess(messages.directory / f"kafka-{table}", flush=table == "flush")
        process.format()
        stack.callback(process.stop)
        process.start()
        yield table, KafkaSide(messages, spark, process)
        process.stop()


if __name__ == "__main__":
    sys.exit(main())
