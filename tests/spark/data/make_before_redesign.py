"""Make `before-redesign.tar.xz`: checkpoints of Spark queries of the last commit before the redesign, 1844557c.

    git worktree add --detach /tmp/before 1844557c
    python tests/spark/data/make_before_redesign.py /tmp/before

The archive contains the data directory of a killed broker, a checkpoint of each of four queries over it, and a spool. Each
query copies a source with messages 0 to 7 to a queue of its own, three a batch, and its driver dies in batch 1:

stream  reads a sealed stream, and dies before the batch is written (foreachBatch)
lease   reads a queue with a lease, and dies before the batch is written (foreachBatch)
spool   reads a queue through a spool, and dies before the batch is written (foreachBatch)
sink    reads a stream, and dies after its sink has committed the batch and before Spark's commit log has it (writeStream)

The first three get SIGKILL. For the last one, whose batches no code of ours interrupts, the entry of the commit log is
deleted. The interpreter needs the packages of requirements/core.txt, segments.txt, dev.txt and spark.txt, and Java.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).with_name("before-redesign.tar.xz")
SHARED = Path(__file__).resolve().parents[2] / "storage" / "data"
COUNT = 8
BATCH = 3
SOURCES: dict[str, dict[str, str]] = {
    "stream": {"stream": "stream-in", "consumerName": "archive", "startingOffsets": "earliest"},
    "lease": {"queue": "lease-in", "lease": "billing"},
    "spool": {"queue": "spool-in", "mode": "spool"},
    "sink": {"stream": "sink-in", "startingOffsets": "earliest"},
}


def make(directory: Path) -> None:
    process = import_module("tests.support.broker").LeveretProcess(directory)
    process.start()
    try:
        fill(process)
        for name, source in SOURCES.items():
            options = {"url": process.url(), "maxMessagesPerTrigger": str(BATCH), **source}
            if name == "spool":
                options["spoolDir"] = str(directory / "spool")
            code = drive({"name": name, "options": options, "directory": str(directory)})
            assert code == (0 if name == "sink" else -signal.SIGKILL), (name, code)
        for entry in (directory / "checkpoints" / "sink" / "commits").glob("*1*"):
            entry.unlink()
        check(process, directory)
    finally:
        process.kill()
    process.check_log()


def fill(process: Any) -> None:
    with import_module("leveret.blocking").connect(process.url()) as connection, connection.channel() as channel:
        for name in SOURCES:
            stream = "stream" in SOURCES[name]
            channel.declare_queue(f"{name}-in", durable=True, arguments={"x-queue-type": "stream"} if stream else None)
            channel.declare_queue(f"{name}-out", durable=True)
            # The sink's query ends after two batches.
            with channel.publisher("", f"{name}-in") as publisher:
                for number in range(2 * BATCH if name == "sink" else COUNT):
                    publisher.publish(b"%d" % number, persistent=True, message_id=f"{name} {number}")
    import_module("tests.cli.runner").Commands(process.data_dir).ok("streams", "seal", "stream-in")


def check(process: Any, directory: Path) -> None:
    """Check that each query died where it should, and publish the messages that the sink's query has not seen."""
    with import_module("leveret.blocking").connect(process.url()) as connection, connection.channel() as channel:
        for name in SOURCES:
            checkpoint = directory / "checkpoints" / name
            logs = [sorted(path.name for path in (checkpoint / log).glob("[0-9]")) for log in ("offsets", "commits")]
            assert logs == [["0", "1"], ["0"]], (name, logs)
            written = channel.declare_queue(f"{name}-out", passive=True).message_count
            assert written == BATCH * (2 if name == "sink" else 1), (name, written)
        # The other messages are in the spool, and acked.
        left = channel.declare_queue("spool-in", passive=True).message_count
        assert left == COUNT - 2 * BATCH, left
        with channel.publisher("", "sink-in") as publisher:
            for number in range(2 * BATCH, COUNT):
                publisher.publish(b"%d" % number, persistent=True, message_id=f"sink {number}")


def drive(job: dict[str, Any]) -> int:
    """Run a query in a process of its own; return the exit code."""
    environment = import_module("tests.spark.environment").environment()
    return subprocess.run([sys.executable, __file__, "--drive", json.dumps(job)], env=environment, check=False).returncode


def query(name: str, options: dict[str, str], directory: str) -> None:
    from pyspark.sql import DataFrame, SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", f"{directory}/local")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    out = {"url": options["url"], "routingKey": f"{name}-out"}

    def write(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        transaction: dict[str, str | int] = {"txnAppId": f"{name}-copy", "txnVersion": batch}
        frame.write.format("amqp").mode("append").options(**out, **transaction).save()

    rows = session.readStream.format("amqp").options(**options).load().select("message_id", "body")
    writer = rows.writeStream.format("amqp").options(**out) if name == "sink" else rows.writeStream.foreachBatch(write)
    started = writer.option("checkpointLocation", f"{directory}/checkpoints/{name}").trigger(availableNow=True).start()
    started.awaitTermination()
    session.stop()


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        query(**json.loads(sys.argv[2]))
        return
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} CHECKOUT")
    sys.path.insert(0, str(SHARED))
    shared = import_module("make_before_redesign")
    shared.use(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory))
        shared.pack(ARCHIVE, Path(directory), "data", "checkpoints", "spool")
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
