"""`pyspark_amqp.LagListener` reports how far queries are behind, also while they are busy."""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from leveret import sync
from leveret.spark.errors import BrokerUnreachable, OptionError
from leveret.spark.lag import LagListener, QueryLag
from tests.spark.support import declare_stream, numbers, publish
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Source(NamedTuple):
    """The part of a source's progress that the listener reads."""

    endOffset: str | None


class Event:
    """An event of a query, and its progress."""

    def __init__(self, name: str | None, *offsets: Any, run: str = "run") -> None:
        self.id, self.runId, self.name, self.progress = "id", run, name, self
        self.sources = [
            Source(offset if offset is None or isinstance(offset, str) else json.dumps(offset)) for offset in offsets
        ]


@contextmanager
def listening(broker: LeveretProcess, **options: Any) -> Iterator[LagListener]:
    listener = LagListener(url=broker.url(), **options)
    try:
        yield listener
    finally:
        listener.close()


def at(channel: sync.BaseChannel, name: str, offset: int) -> dict[str, Any]:
    """Return the checkpoint offset of a stream."""
    id = ask(channel, "stream.describe", stream=name)["id"]
    return {"version": 1, "streams": {name: {"id": id, "next": offset}}, "began": {name: 0}}


def scrape(listener: LagListener) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=120) as answer:
        return str(answer.read().decode())


def summary(lags: list[QueryLag]) -> list[tuple[str, int, int, int]]:
    return [(lag.query, lag.source, lag.messages, lag.bytes) for lag in lags]


def test_the_lag_of_queries_follows_their_progress(
    broker: LeveretProcess, connection: sync.Connection, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    declare_stream(connection, name)
    publish(connection, name, [b"x" * 10] * 20)
    reports: list[list[QueryLag]] = []
    with listening(broker, port=0, interval=0.05, callback=reports.append) as listener, connection.channel() as channel:
        caplog.set_level(logging.INFO, "leveret.spark")
        assert listener.lag() == []
        for run, offset in (("one", 4), ("two", 18)):
            listener.onQueryStarted(Event(run, run=run))  # type: ignore[arg-type]
            other = {"topic": {"0": 7}}
            listener.onQueryProgress(Event(run, other, None, "17", at(channel, name, offset), run=run))  # type: ignore[arg-type]
        assert summary(listener.lag()) == [("one", 3, 16, 160), ("two", 3, 2, 20)]
        assert all(lag.seconds is not None and lag.seconds > 0 and lag.queue == name for lag in listener.lag())
        labels = f'{{query="one",query_id="id",queue="{name}",source="3"}}'
        assert f"leveret_spark_lag_messages{labels} 16.0" in scrape(listener)
        assert f"leveret_spark_lag_bytes{labels} 160.0" in scrape(listener)
        assert f"leveret_spark_lag_seconds{labels} " in scrape(listener) and "leveret_spark_lag_known 1.0" in scrape(
            listener
        )
        # A trigger without rows may report no offset.
        listener.onQueryProgress(Event("two", None, None, None, None, run="two"))  # type: ignore[arg-type]
        publish(connection, name, [b"y" * 5])
        assert summary(listener.lag()) == [("one", 3, 17, 165), ("two", 3, 3, 25)]
        listener.onQueryProgress(Event("two", None, None, None, at(channel, name, 21), run="two"))  # type: ignore[arg-type]
        assert [lag.seconds for lag in listener.lag() if lag.query == "two"] == [0.0]
        wait_until(lambda: bool(reports) and summary(reports[-1]) == [("one", 3, 17, 165), ("two", 3, 0, 0)])
        assert f"query one: queue '{name}' has 17 messages (165 bytes) that it has not processed" in caplog.text
        # A stream of another broker, or one that was declared again, is not this one.
        channel.delete_queue(name)
        assert listener.lag() == []
        declare_stream(connection, name)
        assert listener.lag() == []
        for run in ("one", "two"):
            listener.onQueryTerminated(Event(run, run=run))  # type: ignore[arg-type]
        assert "query=" not in scrape(listener)


def test_the_lag_of_a_lease(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    with listening(broker) as listener, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        publish(connection, name, numbers(0, 9), persistent=True)
        epoch = ask(channel, "lease.acquire", queue=name, lease="l")["epoch"]
        for after, count in ((0, 3), (1, 2)):
            ask(channel, "lease.plan", queue=name, lease="l", epoch=epoch, after=after, max_messages=count)
        for batch, left, is_leased in ((0, 9, True), (1, 6, True), (2, 4, False)):
            offset = {"version": 1, "lease": "l", "queue": name, "batch": batch, "count": 3}
            listener.onQueryProgress(Event(None, offset))  # type: ignore[arg-type]
            [lag] = listener.lag()
            assert (lag.query, lag.query_id, lag.queue, lag.messages, lag.bytes) == ("", "id", name, left, left)
            assert (lag.seconds is not None) == is_leased


def test_a_lag_that_is_unknown(own_broker: LeveretProcess, tmp_path: Path) -> None:
    with listening(own_broker, port=0) as listener:
        offset = {"version": 1, "streams": {"s": {"id": "i", "next": 1}}, "began": {}}
        listener.onQueryProgress(Event("q", offset))  # type: ignore[arg-type]
        own_broker.stop()
        listener._control.reconnect_timeout = 0.1
        with pytest.raises(BrokerUnreachable):
            listener.lag()
        assert "leveret_spark_lag_known 0.0" in scrape(listener)
        own_broker.start()
        assert "leveret_spark_lag_known 1.0" in scrape(listener)
    password = tmp_path / "password"
    password.write_text("guest")
    with listening(own_broker, port=0, passwordFile=str(password)) as listener:
        listener.onQueryProgress(Event("q", offset))  # type: ignore[arg-type]
        password.unlink()
        assert "leveret_spark_lag_known 0.0" in scrape(listener)


def test_invalid_arguments() -> None:
    with pytest.raises(OptionError, match="expected seconds"):
        LagListener(interval=0)
    with pytest.raises(OptionError, match="unknown option"):
        LagListener(uri="amqp://localhost")


def test_a_query_that_is_busy(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    release = threading.Event()

    def process(batch: DataFrame, number: int) -> None:
        if number:
            release.wait(120)

    with listening(broker) as listener:
        spark.streams.addListener(listener)
        try:
            query = (
                spark.readStream.format("amqp")
                .options(url=broker.url(), stream=name, startingOffsets="earliest", maxMessagesPerTrigger=4)
                .load()
                .writeStream.foreachBatch(process)
                .queryName("busy")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start()
            )
            try:
                wait_until(lambda: summary(listener.lag()) == [("busy", 0, 6, 6)], "the first batch")
                publish(connection, name, numbers(0, 5))
                assert summary(listener.lag()) == [("busy", 0, 11, 11)]
                release.set()
                wait_until(lambda: summary(listener.lag()) == [("busy", 0, 0, 0)], "the end")
            finally:
                release.set()
                query.stop()
            wait_until(lambda: listener.lag() == [], "the end of the query")
        finally:
            spark.streams.removeListener(listener)
