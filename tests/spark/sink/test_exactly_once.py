"""The sink with sink transactions: the visibility and uniqueness of messages. Tasks run without Spark."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.taskcontext import TaskContext

from leveret import sync
from leveret.client.engine.amqp091.encoding import encode_address
from leveret.segments.columns import split_address
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.errors import OptionError, RequestRefused, SparkError
from leveret.spark.sink.task import PublishError, Written
from leveret.spark.sink.writer import AmqpBatchWriter, batch_writer
from tests.spark.sinks import batch_of, bodies, drain, settings_of, write_and_commit
from tests.spark.support import TIMEOUT
from tests.support.broker import LeveretProcess

PROTOCOLS = ["0-9-1", "1.0"]


@pytest.fixture
def queue(connection: sync.Connection, name: str) -> str:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    return name


def control(broker: LeveretProcess) -> ControlClient:
    return ControlClient(endpoint_of(settings_of(broker.url())))


def writer_of(url: str, batch: Any, **options: Any) -> AmqpBatchWriter:
    return batch_writer(settings_of(url, **options), from_arrow_schema(batch.schema), False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_become_visible_together_and_in_order(
    broker: LeveretProcess, queue: str, protocol: str, connection: sync.Connection
) -> None:
    tasks = [
        [batch_of(body=[b"%d" % (task * 1000 + row) for row in range(start, start + 250)]) for start in (0, 250)]
        for task in range(3)
    ]
    writer = writer_of(broker.url(), tasks[0][0], routingKey=queue, protocol=protocol, txnAppId=queue, txnVersion=0)
    written = [writer.write(iter(task)) for task in tasks]
    for number, one in enumerate(written):
        assert isinstance(one, Written)
        one.partition = number
    assert drain(connection, queue) == []
    # Spark passes the commit messages in any order.
    writer.commit(written[::-1])
    assert bodies(drain(connection, queue)) == [b"%d" % (task * 1000 + row) for task in range(3) for row in range(500)]


def test_committed_messages_are_persistent(own_broker: LeveretProcess, name: str) -> None:
    with sync.connect(own_broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    write_and_commit(
        own_broker.url(),
        [batch_of(body=[b"1", b"2"], message_id=["a", "b"])],
        routingKey=name,
        txnAppId="app",
        txnVersion=7,
    )
    own_broker.kill()
    own_broker.start()
    with sync.connect(own_broker.url()) as connection:
        assert [(message.body, message.properties.message_id) for message in drain(connection, name)] == [
            (b"1", "a"),
            (b"2", "b"),
        ]
    # The broker still knows the last write.
    again = write_and_commit(own_broker.url(), [batch_of(body=[b"1", b"2"])], routingKey=name, txnAppId="app", txnVersion=7)
    assert [one.counts.published for one in again] == [0]


def test_a_repeated_write_takes_effect_once(broker: LeveretProcess, queue: str, connection: sync.Connection) -> None:
    options = {"routingKey": queue, "txnAppId": queue}
    for version in (1, 2, 2, 5):
        write_and_commit(broker.url(), [batch_of(body=[b"%d" % version])], txnVersion=version, **options)
    assert bodies(drain(connection, queue)) == [b"1", b"2", b"5"]
    with pytest.raises(SparkError, match=r"option txnVersion: 4 of txnAppId .* is lower than 5"):
        write_and_commit(broker.url(), [batch_of(body=[b"4"])], txnVersion=4, **options)
    # Two drivers perform the same write: both prepare it, one commits.
    batch = batch_of(body=[b"6"])
    one, other = [writer_of(broker.url(), batch, txnVersion=6, **options) for _ in range(2)]
    first, second = one.write(iter([batch])), other.write(iter([batch]))
    one.commit([first])
    other.commit([second])
    assert bodies(drain(connection, queue)) == [b"6"]


def test_a_task_that_ran_twice_takes_effect_once(broker: LeveretProcess, queue: str, connection: sync.Connection) -> None:
    batch = batch_of(body=[b"1", b"2"])
    writer = writer_of(broker.url(), batch, routingKey=queue, txnAppId=queue, txnVersion=1)
    lost, kept = writer.write(iter([batch])), writer.write(iter([batch]))
    assert isinstance(lost, Written)
    assert isinstance(kept, Written)
    assert lost.transaction != kept.transaction
    writer.commit([kept])
    assert bodies(drain(connection, queue)) == [b"1", b"2"]
    assert lost.transaction is not None
    assert lost.transaction in str(control(broker).request("stage.list"))


def test_a_failed_task_leaves_no_transaction(broker: LeveretProcess, queue: str, connection: sync.Connection) -> None:
    def broken() -> Any:
        yield batch_of(body=[b"1"])
        raise RuntimeError("the task is broken")

    batch = batch_of(body=[b"1"])
    writer = writer_of(broker.url(), batch, routingKey=queue, txnAppId=queue, txnVersion=1)
    with pytest.raises(RuntimeError, match="the task is broken"):
        writer.write(broken())
    good = writer.write(iter([batch]))
    writer.abort([good, None])
    assert queue not in str(control(broker).request("stage.list"))
    assert drain(connection, queue) == []


def test_a_commit_without_a_tasks_message_fails(broker: LeveretProcess, queue: str, connection: sync.Connection) -> None:
    batch = batch_of(body=[b"1"])
    writer = writer_of(broker.url(), batch, routingKey=queue, txnAppId=queue, txnVersion=1)
    with pytest.raises(SparkError, match="nothing was committed"):
        writer.commit([writer.write(iter([batch])), None])
    assert drain(connection, queue) == []


def test_tasks_without_rows_have_no_transaction(broker: LeveretProcess, queue: str) -> None:
    [written] = write_and_commit(broker.url(), [batch_of(body=[])], routingKey=queue, txnAppId=queue, txnVersion=1)
    assert written.transaction is None
    assert queue not in str(control(broker).request("stage.list"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unroutable_rows_fail_the_whole_write(
    broker: LeveretProcess, queue: str, protocol: str, connection: sync.Connection
) -> None:
    options = {"protocol": protocol, "txnAppId": queue, "txnVersion": 1, "exchange": ""}
    rows = batch_of(body=[b"1", b"2", b"3"], routing_key=[queue, f"{queue}-none", queue])
    with pytest.raises(SparkError, match="was not committed, and none of it is visible"):
        write_and_commit(broker.url(), [rows], **options)
    assert drain(connection, queue) == []
    # The same write again, now with a queue for all rows.
    with connection.channel() as channel:
        channel.declare_queue(f"{queue}-none")
    write_and_commit(broker.url(), [rows], **options)
    assert bodies(drain(connection, queue)) == [b"1", b"3"]
    assert bodies(drain(connection, f"{queue}-none")) == [b"2"]


def test_unroutable_rows_are_dropped_or_dead_lettered_with_the_write(
    broker: LeveretProcess, queue: str, connection: sync.Connection
) -> None:
    rows = batch_of(body=[b"1", b"2", b"3"], routing_key=[queue, f"{queue}-none", queue], message_id=["a", "b", "c"])
    write_and_commit(broker.url(), [rows], exchange="", txnAppId=queue, txnVersion=1, onUnroutable="drop")
    assert bodies(drain(connection, queue)) == [b"1", b"3"]
    with connection.channel() as channel:
        channel.declare_queue(f"{queue}-dead")
    write_and_commit(
        broker.url(),
        [rows],
        exchange="",
        txnAppId=queue,
        txnVersion=2,
        onUnroutable="dead-letter",
        deadLetterExchange="",
        deadLetterRoutingKey=f"{queue}-dead",
    )
    assert bodies(drain(connection, queue)) == [b"1", b"3"]
    assert [(message.body, message.properties.message_id) for message in drain(connection, f"{queue}-dead")] == [
        (b"2", "b")
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_that_cannot_be_published_are_dead_lettered_with_the_write(
    broker: LeveretProcess, queue: str, protocol: str, connection: sync.Connection
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(f"{queue}-dead")
    rows = batch_of(body=[b"1", b"2"], routing_key=[queue, "k" * 256])
    writer = writer_of(
        broker.url(),
        rows,
        exchange="",
        protocol=protocol,
        txnAppId=queue,
        txnVersion=1,
        onError="dead-letter",
        deadLetterExchange="",
        deadLetterRoutingKey=f"{queue}-dead",
    )
    written = writer.write(iter([rows]))
    assert isinstance(written, Written)
    assert (written.counts.published, written.counts.failed_dead_lettered) == (1, 1)
    assert drain(connection, f"{queue}-dead") == []
    writer.commit([written])
    assert bodies(drain(connection, queue)) == [b"1"]
    [dead] = drain(connection, f"{queue}-dead")
    assert (dead.body, dead.headers["x-exception-message"]) == (b"2", "routing_key: 256 bytes; expected at most 255")


def test_a_missing_exchange_fails_before_anything_is_published(broker: LeveretProcess, name: str) -> None:
    with pytest.raises(OptionError, match=f"option exchange: no exchange '{name}'"):
        write_and_commit(broker.url(), [batch_of(body=[b"1"])], exchange=name, txnAppId=name, txnVersion=1)
    with pytest.raises(OptionError, match=f"option deadLetterExchange: no exchange '{name}'"):
        write_and_commit(
            broker.url(),
            [batch_of(body=[b"1"])],
            exchange="amq.topic",
            txnAppId=name,
            txnVersion=1,
            onUnroutable="dead-letter",
            deadLetterExchange=name,
        )


def test_a_missing_permission_fails_before_anything_is_published(broker: LeveretProcess, name: str) -> None:
    url = broker.url(user="limited", password="secret", vhost="interop")
    with pytest.raises((RequestRefused, PublishError), match=r"(?i)refused"):
        write_and_commit(url, [batch_of(body=[b"1"])], exchange="amq.topic", txnAppId=name, txnVersion=1)


def test_the_guarantee_of_a_write(broker: LeveretProcess, queue: str) -> None:
    batch = batch_of(body=[b"1"])

    def guarantee(**options: Any) -> str:
        written = writer_of(broker.url(), batch, routingKey=queue, **options).write(iter([batch]))
        assert isinstance(written, Written)
        return written.guarantee

    assert guarantee() == "at-least-once"
    assert guarantee(txnAppId=queue, txnVersion=1) == "exactly-once"
    assert guarantee(txnAppId=queue, txnVersion=1, guarantee="at-least-once") == "at-least-once"
    with pytest.raises(OptionError, match="exactly-once needs txnAppId and txnVersion"):
        guarantee(guarantee="exactly-once")
    with pytest.raises(OptionError, match="option txnVersion: missing"):
        guarantee(txnAppId=queue)
    with pytest.raises(OptionError, match="option txnAppId: missing"):
        guarantee(txnVersion=1)


def test_the_checksum_covers_all_bodies() -> None:
    pieces = [b"a" * 3, b"", b"bc"]
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    assert crc == zlib.crc32(b"".join(pieces))
    assert split_address(encode_address("ex", "key")) == ("ex", "key")


def test_a_broker_that_is_killed_while_it_commits_has_everything_once(own_broker: LeveretProcess, name: str) -> None:
    """The driver repeats the request until there is a reply; the commit is completed if its decision is on disk."""
    with sync.connect(own_broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    expected: list[bytes] = []
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    for version in range(3):
        rows = [b"%d:%d" % (version, number) for number in range(4000)]
        batch = batch_of(body=rows)
        writer = writer_of(own_broker.url(), batch, routingKey=name, txnAppId="app", txnVersion=version)
        written = [writer.write(iter([batch.slice(start, 1000)])) for start in range(0, 4000, 1000)]
        expected += rows
        outcome = _in_thread(partial(writer.commit, written))
        time.sleep(chance.random() * 0.05)
        own_broker.kill()
        own_broker.start()
        outcome()
    with sync.connect(own_broker.url()) as connection:
        assert bodies(drain(connection, name)) == expected, f"seed {seed}"


def _in_thread(work: Callable[[], Any]) -> Callable[[], None]:
    """Run work in a thread. The returned function waits for its end and raises its error."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> None:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    return wait


class _Task:
    """Spark's context of a task."""

    def __init__(self, partition: int) -> None:
        self.partition = partition

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> None:
        return None


def test_too_many_partitions_fail_before_a_row_is_published(
    broker: LeveretProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(body=[b"x"])
    writer = writer_of(broker.url(), batch, routingKey=queue, txnAppId=queue, txnVersion=0)
    monkeypatch.setattr(TaskContext, "get", lambda: _Task(10_000))
    with pytest.raises(OptionError, match=r"at most 10000 partitions.*df\.coalesce"):
        writer.write(iter([batch]))
    assert control(broker).request("stage.list", app=queue)["stages"] == []
    monkeypatch.setattr(TaskContext, "get", lambda: _Task(9_999))
    writer.commit([writer.write(iter([batch]))])
    at_least = writer_of(broker.url(), batch, routingKey=queue, guarantee="at-least-once")
    monkeypatch.setattr(TaskContext, "get", lambda: _Task(10_000))
    at_least.write(iter([batch]))
