"""Queries over two nodes on PostgreSQL: every row once, although the owner of the vhost is killed, and its shard moves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leveret import sync
from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, Refused, owners
from tests.spark.sinks import bodies, drain
from tests.spark.support import TIMEOUT, declare_stream, publish
from tests.support.polling import wait_until
from tests.support.postgres import require_postgres, shared_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

VHOST = "a"
SHARD = 1
# Rows of a batch, which are more bytes than Spark's processes buffer between each other.
BATCH = 120
ROWS = 3 * BATCH
# Rows that are read from files, if they are sealed in time.
SEALED = 60
PIECES = "spark.sql.execution.arrow.maxRecordsPerBatch"
PADDING = bytes(20_000)
TARGETS = ("from-stream", "from-queue")


def body(number: int) -> bytes:
    return b"%d:%s" % (number, PADDING)


def number_of(body: bytes) -> int:
    return int(body.partition(b":")[0])


def paused(directory: str, target: str) -> Any:
    """Return a function that passes on rows, and waits after half of a batch until a file allows it to continue."""

    def watch(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            number, row = divmod(int(batch.column("body")[0].as_py().partition(b":")[0]), BATCH)
            if row >= BATCH // 2:
                with open(os.path.join(directory, f"{target}-{number}"), "w"):
                    pass
                while not os.path.exists(os.path.join(directory, f"go-{number}")):
                    time.sleep(0.02)
            yield batch

    return watch


class Copy:
    """A query from a stream or queue to a queue, exactly once. It is started again if it fails, as by a supervisor."""

    def __init__(self, spark: SparkSession, directory: Path, target: str, **source: Any) -> None:
        self._spark = spark
        self._directory = directory
        self._target = target
        self._source = source
        self._connection = {"vhost": VHOST, "url": source["url"], "hosts": source["hosts"]}
        self.failures: list[str] = []
        self.query = self._start()

    def _start(self) -> StreamingQuery:
        return (
            self._spark.readStream.format("amqp")
            .options(vhost=VHOST, **self._source)
            .load()
            .select("body")
            .mapInArrow(paused(str(self._directory), self._target), "body BINARY")
            .writeStream.format("amqp")
            .options(**self._connection, routingKey=self._target, guarantee="exactly-once")
            .option("checkpointLocation", str(self._directory / self._target))
            .trigger(processingTime="20 milliseconds")
            .start()
        )

    def keep_running(self) -> None:
        if not self.query.isActive:
            self.failures.append(str(self.query.exception()))
            assert len(self.failures) < 5, self.failures
            self.query = self._start()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    require_postgres()
    dsn = shared_server().database()
    settings: dict[str, Any] = {
        "LEVERET_STREAMS__DIRECTORY": str(tmp_path / "shared"),
        "LEVERET_STREAMS__SHARED": "true",
    }
    first = Node(tmp_path / "first", dsn, VHOST, shards=2, **settings)
    second = Node(tmp_path / "second", dsn, VHOST, shards=2, **settings)
    with running(first), running(second):
        assert owners(dsn) == {0: "first", SHARD: "first"}
        yield first, second


def connect(node: Node) -> Any:
    return sync.connect(node.url(vhost=VHOST))


def waiting(node: Node) -> list[int]:
    """Return the numbers of messages in the targets, 0 while no node has the vhost."""
    try:
        found = {queue["name"]: queue["ready"] for queue in node.ask("queues.list", vhost=VHOST)}
    except Refused:
        found = {}
    return [found.get(target, 0) for target in TARGETS]


@pytest.fixture
def small_pieces(spark: SparkSession) -> Iterator[None]:
    """Have Spark pass on rows in small pieces, so that a task reads and writes at the same time."""
    spark.conf.set(PIECES, "20")
    yield
    spark.conf.unset(PIECES)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_every_row_arrives_once_over_take_overs_and_a_move(
    spark: SparkSession, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    first, second = nodes
    expected = [body(number) for number in range(ROWS)]
    with connect(second) as connection:
        declare_stream(connection, "stream")
        with connection.channel() as channel:
            for queue in ("queue", *TARGETS):
                channel.declare_queue(queue, durable=True)
        publish(connection, "stream", expected[:SEALED], persistent=True)
        second.ask("streams.seal", vhost=VHOST, name="stream")
        publish(connection, "stream", expected[SEALED:], persistent=True)
        publish(connection, "queue", expected, persistent=True)
    address = {"url": second.url(), "hosts": f"{first.host}:{first.port}", "maxMessagesPerTrigger": BATCH}
    copies = [
        Copy(spark, tmp_path, "from-stream", stream="stream", startingOffsets="earliest", **address),
        Copy(spark, tmp_path, "from-queue", queue="queue", lease="spark", **address),
    ]

    def wait_for(condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            for copy in copies:
                copy.keep_running()
            return condition()

        wait_until(holds, lambda: f"{second.log()[-2000:]} {first.log()[-2000:]}", TIMEOUT)

    def kill_first() -> None:
        for process in (first.pid, first.shard_pid(SHARD)):
            os.kill(process, signal.SIGKILL)
        first.kill()

    def move_to_first() -> None:
        first.start()
        second.ask("nodes.move", shard=SHARD, node="first")

    # The last one is the node in the URL, which relays to the owner.
    for number, disturb in enumerate((kill_first, move_to_first, second.kill)):
        wait_for(lambda number=number: all((tmp_path / f"{target}-{number}").exists() for target in TARGETS))  # type: ignore[misc]
        disturb()
        (tmp_path / f"go-{number}").touch()
    wait_for(lambda: waiting(first) == [ROWS, ROWS])
    for copy in copies:
        copy.query.stop()
    with connect(first) as connection:
        for target in TARGETS:
            assert sorted(bodies(drain(connection, target)), key=number_of) == expected
    # Tasks were interrupted.
    assert all(copy.failures for copy in copies)
    second.start()
