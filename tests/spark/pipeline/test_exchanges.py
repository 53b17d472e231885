"""Ready-made pipelines that publish, and re-drives of dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leveret import sync
from leveret.client.message import Message
from leveret.spark.connection import ControlClient
from leveret.spark.pipeline import (
    Broker,
    Capture,
    Decode,
    ExchangeOutput,
    PipelineError,
    Rule,
    StaticTable,
    TableOutput,
    archive,
    deadletters,
    enrich,
    redrive,
    replay,
    scrub,
    traffic,
    write_traffic_report,
)
from tests.spark.pipeline.support import orders, publish, run_to_end
from tests.spark.pipeline.test_flows import plain_files
from tests.support.broker import LeveretProcess

STREAM = {"x-queue-type": "stream"}


def taken(connection: sync.Connection, queue: str) -> list[Message]:
    with connection.channel() as channel:
        found = []
        while (message := channel.get(queue, no_ack=True)) is not None:
            found.append(message)
        return found


@pytest.mark.slow
def test_enriched(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments=STREAM)
        channel.declare_queue(f"{name}-out", durable=True)
    # c1 has two rows, but its messages are not duplicated.
    customers = [("c0", "Ada", 1), ("c1", "Bob", 2), ("c1", "Bob", 2)]
    spark.createDataFrame(customers, "code STRING, who STRING, level INT").write.parquet(str(tmp_path / "customers"))
    publish(connection, "", orders(9), name, message_id="m", headers={"kept": 1}, type="t")

    def run() -> None:
        run_to_end(
            enrich(
                spark,
                Broker(url=broker.url()),
                Capture(stream=name),
                Decode(format="json", schema="id BIGINT, customer STRING", quarantine=str(tmp_path / "bad")),
                StaticTable(path=str(tmp_path / "customers")),
                {"customer": "code"},
                ExchangeOutput(exchange="", routing_key=f"{name}-out"),
                checkpoint=str(tmp_path / "checkpoint"),
                add=["who"],
                unmatched="quarantine",
                name=name,
                once=True,
            )
        )

    run()
    run()
    found = taken(connection, f"{name}-out")
    assert sorted((json.loads(message.body) for message in found), key=lambda body: body["id"]) == [
        {"id": number, "customer": f"c{number % 3}", "who": ("Ada", "Bob")[number % 3]}
        for number in range(9)
        if number % 3 < 2
    ]
    assert {
        (message.properties.message_id, message.properties.type, (message.properties.headers or {}).get("kept"))
        for message in found
    } == {("m", "t", 1)}
    reasons = [row["decode_error"] for row in plain_files(tmp_path / "bad")]
    assert reasons == ["no row of the table with code = customer"] * 3


@pytest.mark.slow
def test_scrubbed(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments=STREAM)
        channel.declare_queue(f"{name}-out", durable=True)
    publish(connection, "", [b'{"mail": "a@b", "n": 1}', b"no json"], name, headers={"who": "Jo", "n": 1}, app_id="app")
    run_to_end(
        scrub(
            spark,
            Broker(url=broker.url()),
            Capture(stream=name),
            [
                Rule(field="mail"),
                Rule(header="who", action="replace", replacement="?"),
                Rule(property="app_id", action="drop"),
            ],
            exchanges=[ExchangeOutput(exchange="", routing_key=f"{name}-out")],
            quarantine=str(tmp_path / "bad"),
            checkpoint=str(tmp_path / "checkpoint"),
            name=name,
            once=True,
        )
    )
    (message,) = taken(connection, f"{name}-out")
    assert json.loads(message.body) == {"mail": "*@*", "n": 1}
    assert (message.properties.headers, message.properties.app_id) == ({"who": "?", "n": 1}, None)
    assert [row["body"] for row in plain_files(tmp_path / "bad")] == [b"no json"]


def test_an_archive_is_replayed_in_order_and_once(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments=STREAM)
        channel.declare_exchange(name, "topic", durable=True)
        channel.bind_queue(name, name, "#")
        channel.declare_queue(f"{name}-again", durable=True).bind(name, "order.#")
    taken(connection, f"{name}-again")
    publish(
        connection,
        name,
        orders(250),
        "order.new",
        message_id="m",
        headers={"n": 7},
        priority=3,
        type="t",
        content_type="application/json",
        correlation_id="c",
    )
    publish(connection, name, [b"other"], "invoice.new")
    where = Broker(url=broker.url())
    run_to_end(
        archive(
            spark,
            where,
            Capture(stream=name),
            TableOutput(path=str(tmp_path / "table")),
            checkpoint=str(tmp_path / "checkpoint"),
            name=name,
            once=True,
        )
    )
    taken(connection, f"{name}-again")
    lines: list[str] = []
    for _ in range(2):
        count = replay(
            spark,
            where,
            str(tmp_path / "table"),
            ExchangeOutput(exchange="", routing_key=f"{name}-again"),
            name=name,
            where="routing_key = 'order.new'",
            rate=125,
            echo=lines.append,
        )
        assert count == 250
    # The second replay published nothing.
    assert lines[0].startswith("125 messages, until ") and lines[-1].startswith("250 messages, until ")
    assert sum(line.startswith("250 ") for line in lines) == 1
    found = taken(connection, f"{name}-again")
    assert [json.loads(message.body)["id"] for message in found] == list(range(250))
    properties = found[0].properties
    assert (
        properties.message_id,
        properties.headers,
        properties.priority,
        properties.type,
        properties.content_type,
        properties.correlation_id,
        properties.delivery_mode,
    ) == ("m", {"n": 7}, 3, "t", "application/json", "c", 2)
    assert replay(spark, where, str(tmp_path / "table"), ExchangeOutput(), name=f"{name}-2", where="offset < 10") == 10
    assert len(taken(connection, f"{name}-again")) == 10
    with pytest.raises(PipelineError, match="replay: where, since or until"):
        replay(spark, where, str(tmp_path / "table"), ExchangeOutput(), name="x", where="colour = 1")


@pytest.mark.slow
def test_a_name_belongs_to_one_replay(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments=STREAM)
        channel.declare_queue(f"{name}-again", durable=True)
    where = Broker(url=broker.url())

    def archived(first: int, count: int) -> None:
        publish(connection, "", orders(count, first), name)
        run_to_end(
            archive(
                spark,
                where,
                Capture(stream=name),
                TableOutput(path=str(tmp_path / "table")),
                checkpoint=str(tmp_path / "checkpoint"),
                name=name,
                once=True,
            )
        )

    def replayed(**options: Any) -> int:
        to = ExchangeOutput(exchange="", routing_key=options.pop("key", f"{name}-again"))
        return replay(spark, where, str(tmp_path / "table"), to, name=name, **options)

    archived(0, 30)
    assert replayed(where="offset < 30") == 30
    archived(30, 20)
    assert replayed(where="offset < 30") == 30
    for other in ({}, {"where": "offset >= 20"}, {"where": "offset < 20"}, {"where": "offset < 30", "key": "nowhere"}):
        with pytest.raises(PipelineError, match=r"has published 30 messages, which are not the first ones of the"):
            replayed(**other)
    assert len(taken(connection, f"{name}-again")) == 30


def test_an_archive_of_a_queue_is_replayed(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        channel.declare_queue(f"{name}-again", durable=True)
    publish(connection, "", orders(30), name)
    where = Broker(url=broker.url())
    run_to_end(
        archive(
            spark,
            where,
            Capture(queue=name),
            TableOutput(path=str(tmp_path / "table")),
            checkpoint=str(tmp_path / "checkpoint"),
            name=name,
            once=True,
        )
    )
    lines: list[str] = []
    assert (
        replay(
            spark,
            where,
            str(tmp_path / "table"),
            ExchangeOutput(exchange="", routing_key=f"{name}-again"),
            name=name,
            echo=lines.append,
        )
        == 30
    )
    assert lines == ["30 messages"]
    assert [json.loads(message.body)["id"] for message in taken(connection, f"{name}-again")] == list(range(30))


def test_a_missing_archive(spark: SparkSession, broker: LeveretProcess, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"replay: table .*nothing: .*PATH_NOT_FOUND.*; expected the directory of an"):
        replay(spark, Broker(url=broker.url()), str(tmp_path / "nothing"), ExchangeOutput(exchange="x"), name="x")


def bury(connection: sync.Connection, name: str) -> str:
    """Dead-letter thirty orders with one key and ten with another, and publish one message to the same queue."""
    dead = f"{name}-dead"
    with connection.channel() as channel:
        channel.declare_exchange(name, "topic", durable=True)
        channel.declare_queue(dead, durable=True)
        channel.declare_queue(
            name, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        ).bind(name, "order.#")
        publish(connection, name, orders(30), "order.new")
        publish(connection, name, orders(10, 30), "order.old")
        for _ in range(40):
            message = channel.get(name)
            assert message is not None
            message.reject()
        publish(connection, "", [b"by hand"], dead)
    return dead


def test_triage_of_dead_letters(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    dead = bury(connection, name)
    found = deadletters(
        spark, Broker(url=broker.url()), dead, table=str(tmp_path / "dead"), report=str(tmp_path / "dead.html")
    )
    counts = {
        (row["reason"], row["dead_queue"], row["dead_exchange"], row["dead_key"]): row["count"]
        for row in found.groupBy("reason", "dead_queue", "dead_exchange", "dead_key").count().collect()
    }
    assert counts == {
        ("rejected", name, name, "order.new"): 30,
        ("rejected", name, name, "order.old"): 10,
        ("not dead-lettered", None, None, None): 1,
    }
    page = (tmp_path / "dead.html").read_text("utf-8")
    assert "order.new" in page and "<svg" in page and "http://" not in page and "https://" not in page
    assert len(taken(connection, dead)) == 41


def test_a_redrive_publishes_dead_letters_again(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    dead = bury(connection, name)
    where = Broker(url=broker.url())
    lines: list[str] = []
    assert redrive(spark, where, dead, where="dead_key = 'order.new'", echo=lines.append) == (30, 11)
    assert sorted(json.loads(message.body)["id"] for message in taken(connection, name)) == list(range(30))
    assert redrive(spark, where, dead) == (10, 1)
    back = taken(connection, name)
    assert [json.loads(message.body)["id"] for message in back] == list(range(30, 40))
    assert back[0].routing_key == "order.old"
    assert [message.body for message in taken(connection, dead)] == [b"by hand"]
    with pytest.raises(PipelineError, match="was started with another where"):
        redrive(spark, where, dead, where="dead_key = 'x'", resume=lines[0].removeprefix("re-drive "))


def test_an_interrupted_redrive_is_resumed(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = bury(connection, name)
    where = Broker(url=broker.url())
    lines: list[str] = []
    request = ControlClient.request

    def failing(self: ControlClient, operation: str, /, *given: Any, **arguments: Any) -> dict[str, Any]:
        # The worst moment: published, but not committed.
        if operation == "lease.commit":
            raise KeyboardInterrupt
        return request(self, operation, *given, **arguments)

    monkeypatch.setattr(ControlClient, "request", failing)
    with pytest.raises(KeyboardInterrupt):
        redrive(spark, where, dead, where="dead_key = 'order.new'", echo=lines.append)
    monkeypatch.undo()
    begun = lines[0].removeprefix("re-drive ")
    with pytest.raises(PipelineError, match=f"{begun} is not finished"):
        redrive(spark, where, dead)
    assert redrive(spark, where, dead, where="dead_key = 'order.new'", resume=begun) == (30, 11)
    assert sorted(json.loads(message.body)["id"] for message in taken(connection, name)) == list(range(30))
    assert len(taken(connection, dead)) == 11


@pytest.mark.slow
def test_traffic_is_counted_and_published(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    events = f"{name}-events"
    with connection.channel() as channel:
        channel.declare_queue(events, durable=True, arguments=STREAM).bind("amq.leveret.events", f"published.{name}")
        channel.declare_exchange(name, "topic", durable=True)
        channel.declare_exchange(f"{name}-stats", "topic", durable=True)
        channel.declare_queue(f"{name}-published", durable=True).bind(f"{name}-stats", f"traffic.published.{name}")
    publish(connection, name, [b"x" * 100] * 50)
    with connection.channel() as channel:
        # Much later, so that the earlier windows are closed.
        late = json.dumps({"event": "published", "exchange": name, "time": 4_000_000_000_000, "sample": 1, "size": 1})
        channel.publish(late.encode(), events)
    for _ in range(2):
        run_to_end(
            traffic(
                spark,
                Broker(url=broker.url()),
                TableOutput(path=str(tmp_path / "table")),
                ExchangeOutput(exchange=f"{name}-stats"),
                capture=Capture(stream=events),
                window=60,
                late=0,
                checkpoint=str(tmp_path / "checkpoint"),
                name=name,
                once=True,
            )
        )
    rows = plain_files(tmp_path / "table")
    assert sum(row["messages"] for row in rows) == 50
    assert sum(row["octets"] for row in rows) == 5000
    assert {(row["event"], row["exchange"], row["mean_size"]) for row in rows} == {("published", name, 100.0)}
    published = [json.loads(message.body) for message in taken(connection, f"{name}-published")]
    assert sorted(one["messages"] for one in published) == sorted(row["messages"] for row in rows)
    assert write_traffic_report(spark, str(tmp_path / "table"), str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert name in page and "<polyline" in page and "http://" not in page and "https://" not in page
    assert not write_traffic_report(spark, str(tmp_path / "nothing"), str(tmp_path / "none.html"))
