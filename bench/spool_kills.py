"""Kill the driver's part of a query from another broker, and the broker, at random moments; without Spark, so much faster.

    python -m bench.spool_kills [--kills 50] [--rows rabbitmq-stream rabbitmq-queue artemis] [--messages 20000] [--seed 1]

For each row, a process does what Spark's driver does with a spool and a sink: it stores the end of a batch, reads the batch
from the spool, writes its rows to a file and publishes them with confirms to a queue of the same broker, and commits the
batch. It is killed with SIGKILL and started again; sometimes the broker is. Finally the files and the queue are compared
with the messages that were sent. Rows of `spark_kills.py` do the same with Spark.

| row | from | files | queue |
| --- | --- | --- | --- |
| rabbitmq-stream | stream of RabbitMQ | each once | each at least once |
| rabbitmq-queue | classic queue of RabbitMQ | each at least once | each at least once |
| artemis | queue of Artemis | each at least once | each at least once |
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.spark_kills import AnyProcess, drained, feed, process_of
from leveret import sync
from leveret.spark.options import read_options
from leveret.spark.sink.plan import plan_sink
from leveret.spark.sink.task import write_task
from leveret.spark.spool.reader import SpoolReader

ROWS = ("rabbitmq-stream", "rabbitmq-queue", "artemis")
# Probability that a kill is one of the broker, which takes long to start again.
BROKER = 0.2
PATIENCE = 120.0


def save(path: Path, state: object) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(state))
    temporary.rename(path)


def move(directory: Path, source: dict[str, str], kind: str) -> None:
    """Move all available messages, resuming from the state in the directory."""
    state_file = directory / "state.json"
    state: dict[str, Any] = json.loads(state_file.read_text()) if state_file.exists() else {"batch": 0}
    reader = SpoolReader(read_options({**source, "spoolDir": str(directory / "spool")}), "in", kind)
    sink = {name: source[name] for name in ("url", "protocol")} | {"exchange": "", "routingKey": "out"}
    plan = plan_sink(read_options(sink), False, False)
    state.setdefault("start", reader.initialOffset())
    print("ready", flush=True)
    if "end" not in state:
        reader.prepareForTriggerAvailableNow()
    while True:
        if "end" not in state:
            end = reader.latestOffset(state["start"], reader.getDefaultReadLimit())
            if end == state["start"]:
                break
            state["end"] = end
            save(state_file, state)
        batches = [batch for part in reader.partitions(state["start"], state["end"]) for batch in reader.read(part)]
        rows = [batch.select(["message_id", "body"]) for batch in batches]
        save(directory / "files" / str(state["batch"]), [body.decode() for row in rows for body in row["body"].to_pylist()])
        write_task(plan, iter(rows))
        state = {"batch": state["batch"] + 1, "start": state["end"]}
        save(state_file, state)
        reader.commit(state["start"])
    reader.stop()


class Mover:
    """The process that moves messages."""

    def __init__(self, directory: Path, source: dict[str, str], kind: str) -> None:
        self._arguments = ["--move", json.dumps([str(directory), source, kind])]
        self._log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it moves messages, or has ended."""
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.spool_kills", *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ},
            )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def finish(self) -> bool:
        assert self.process is not None
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.returncode == 0

    def error(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def run(row: str, kills: int, messages: int, chance: random.Random) -> bool:
    name, _, kind = row.partition("-")
    kind = kind or "queue"
    with tempfile.TemporaryDirectory(prefix=f"spool-kills-{row}-") as made:
        directory = Path(made)
        (directory / "files").mkdir()
        broker = process_of(name, directory / "broker").start()
        protocol = "1.0" if name == "artemis" else "0-9-1"
        source = {
            "url": broker.url(),
            "protocol": protocol,
            kind: "in",
            "mode": "spool",
            "maxMessagesPerTrigger": str(max(messages // 40, 1)),
        }
        mover = Mover(directory, source, kind)
        try:
            return _run(row, kills, messages, chance, broker, protocol, kind, mover, directory)
        finally:
            mover.kill()
            broker.stop()


def _run(
    row: str,
    kills: int,
    messages: int,
    chance: random.Random,
    broker: AnyProcess,
    protocol: str,
    kind: str,
    mover: Mover,
    directory: Path,
) -> bool:
    began = time.monotonic()
    if protocol == "0-9-1":  # links create queues of Artemis
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue("in", durable=True, arguments={"x-queue-type": "stream"} if kind == "stream" else None)
            channel.declare_queue("out", durable=True)
    sent: list[str] = []
    done: Counter[str] = Counter()
    while done.total() < kills:
        if mover.process is None or mover.process.poll() is not None:
            if mover.process is None or mover.process.returncode == 0:
                sent += feed(broker, protocol, len(sent), messages)
            mover.start()
        time.sleep(chance.uniform(0.0, 1.5))
        assert mover.process is not None
        if mover.process.poll() is not None:
            continue
        if chance.random() < BROKER:
            broker.kill()
            broker.start()
            done["broker"] += 1
        else:
            mover.kill()
            done["driver"] += 1
    for _ in range(5):
        mover.start()
        if mover.finish():
            break
    else:
        print(f"{row}: the messages were not moved:\n{mover.error()}")
        return False
    files = Counter(body for path in (directory / "files").iterdir() for body in json.loads(path.read_text()))
    queue = Counter(drained(broker, protocol))
    once = kind == "stream"
    lost = [body for body in sent if not files[body] or not queue[body]]
    invented = (files.keys() | queue.keys()) - set(sent)
    twice = sum(count > 1 for count in files.values())
    good = not lost and not invented and not (once and twice)
    print(
        f"{row}: {'good' if good else 'WRONG'}: {len(sent)} messages, {len(lost)} lost, {len(invented)} invented, "
        f"{twice} more than once in files (required: {'once' if once else 'at least once'}), "
        f"{sum(count > 1 for count in queue.values())} more than once in the queue; kills {dict(done)}, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    if not good:
        print(f"  lost {lost[:20]}, invented {sorted(invented)[:20]}\n{mover.error()}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=50, help="kills per row")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--messages", type=int, default=20000, help="number of messages to send at a time")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--move", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.move is not None:
        place, source, kind = json.loads(given.move)
        move(Path(place), source, kind)
        return
    print(f"seed {given.seed}", flush=True)
    results = [run(row, given.kills, given.messages, random.Random(f"{given.seed} {row}")) for row in given.rows]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
