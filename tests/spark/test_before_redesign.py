"""Queries of the last commit before the redesign resume from their checkpoints: each message arrives exactly once.

`data/make_before_redesign.py` made `data/before-redesign.tar.xz`, and describes the queries. Each of them died in batch 1,
of messages 3 to 5. Messages 6 and 7 are left, and the test publishes message 8 before it resumes a query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_amqp
from leveret import sync
from leveret.spark.connection import ControlClient, endpoint_of
from tests.spark.sinks import drain, settings_of
from tests.spark.support import TIMEOUT, publish
from tests.storage.test_formats import extract
from tests.support.broker import LeveretProcess, leveret_only

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE = Path(__file__).with_name("data") / "before-redesign.tar.xz"
# As in make_before_redesign.py.
SOURCES = {
    "stream": {"stream": "stream-in", "consumerName": "archive", "startingOffsets": "earliest"},
    "lease": {"queue": "lease-in", "lease": "billing"},
    "spool": {"queue": "spool-in", "mode": "spool"},
    "sink": {"stream": "sink-in", "startingOffsets": "earliest"},
}


@pytest.fixture(scope="module")
def old_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker over the old data directory; `checkpoints` and `spool` are beside that."""
    leveret_only("it starts on an existing data directory")
    directory = tmp_path_factory.mktemp("before-redesign")
    with LeveretProcess(directory, data_dir=extract(ARCHIVE, directory)).start() as process:
        yield process
        process.check_log()


def resume(spark: SparkSession, broker: LeveretProcess, name: str) -> None:
    """Run a query from its checkpoint to the end of its source: the interrupted batch, and one more."""
    options = {"url": broker.url(), "maxMessagesPerTrigger": "3", **SOURCES[name]}
    if name == "spool":
        options["spoolDir"] = str(broker.directory / "spool")
    out = {"url": broker.url(), "routingKey": f"{name}-out"}

    def write(frame: DataFrame, batch: int) -> None:
        transaction: dict[str, str | int] = {"txnAppId": f"{name}-copy", "txnVersion": batch}
        frame.write.format("amqp").mode("append").options(**out, **transaction).save()

    rows = spark.readStream.format("amqp").options(**options).load().select("message_id", "body")
    writer = rows.writeStream.format("amqp").options(**out) if name == "sink" else rows.writeStream.foreachBatch(write)
    checkpoint = str(broker.directory / "checkpoints" / name)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT)
    batches = [(progress.batchId, progress.numInputRows) for progress in query.recentProgress]
    assert [batch for batch in batches if batch[1]] == [(1, 3), (2, 3)]
    if name in ("stream", "lease"):
        pyspark_amqp.finish(query)


@pytest.mark.parametrize("name", SOURCES)
def test_each_message_arrives_once(spark: SparkSession, old_broker: LeveretProcess, name: str) -> None:
    if name == "spool":
        # The broker has another port, which is to be edited in this file.
        state = old_broker.directory / "spool" / "spool.json"
        document = json.loads(state.read_text())
        document["source"]["broker"] = f"{old_broker.host}:{old_broker.port}"
        state.write_text(json.dumps(document))
    with sync.connect(old_broker.url()) as connection:
        with connection.channel() as channel:
            written = channel.declare_queue(f"{name}-out", durable=True).message_count
        assert written == (6 if name == "sink" else 3)
        publish(connection, f"{name}-in", ["8"], persistent=True, message_id=f"{name} 8")
        resume(spark, old_broker, name)
        found = drain(connection, f"{name}-out")
    assert [message.body for message in found] == [b"%d" % number for number in range(9)]
    assert [message.properties.message_id for message in found] == [f"{name} {number}" for number in range(9)]
    control = ControlClient(endpoint_of(settings_of(old_broker.url())))
    if name == "stream":
        assert control.request("stream.lag", stream="stream-in", consumer="archive")["next_offset"] == 9
    elif name == "lease":
        [lease] = control.request("lease.list", queue="lease-in")["leases"]
        assert (lease["lease"], lease["committed"], lease["messages"]) == ("billing", 3, 0)
