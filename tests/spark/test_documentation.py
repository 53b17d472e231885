"""docs/spark.md and docs/spark-options.md: the tables match the code, and the examples run."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leveret import sync
from leveret.spark.kafka_options import KAFKA_OPTIONS
from leveret.spark.options import OPTIONS, SINK, Option
from leveret.spark.schema import table_schema
from tests.docs.pages import DOCS, blocks, program_name, table_rows
from tests.spark.support import declare_stream, publish
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = DOCS / "spark.md"
LAG_PAGE = DOCS / "spark-lag.md"
OPTIONS_PAGE = DOCS / "spark-options.md"
EVERYWHERE = {"stream", "lease", "spool", "browse", "sink"}


def row_of(option: Option) -> list[str]:
    default = "" if option.default is None else f"`{option.default}`"
    modes = "all" if set(option.modes) == EVERYWHERE else ", ".join(mode for mode in option.modes if mode != SINK)
    return [f"`{option.name}`", option.type, default, modes, option.meaning]


def test_every_option_has_its_row() -> None:
    reading = [option for option in OPTIONS if option.modes != (SINK,)]
    names = {f"`{option.name}`" for option in reading}
    rows = [row for row in table_rows(OPTIONS_PAGE) if row[0] in names and len(row) == 5]
    assert rows == [row_of(option) for option in reading]


def test_every_column_has_its_row() -> None:
    fields = [*table_schema().fields, *table_schema(["kafka"]).fields]
    rows = [row[:2] for row in table_rows(OPTIONS_PAGE) if len(row) == 3 and row[1].startswith("`")]
    assert rows == [[f"`{field.name}`", f"`{field.dataType.simpleString()}`"] for field in fields]


def test_every_option_of_kafka_has_its_row() -> None:
    expected = [[f"`{option.name}`", option.instead] for option in KAFKA_OPTIONS]
    rows = list(table_rows(DOCS / "coming-from-kafka.md"))
    assert rows[rows.index(expected[0]) :] == expected


@pytest.fixture
def orders(connection: sync.Connection) -> None:
    """Create what the examples read."""
    declare_stream(connection, "orders")
    with connection.channel() as channel:
        channel.declare_queue("failed", durable=True)
    publish(connection, "orders", [json.dumps({"id": 1 + number % 2, "amount": 2.5}) for number in range(7)])
    publish(connection, "failed", ["late"])


def test_the_examples_run(
    spark: SparkSession, broker: LeveretProcess, orders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed: dict[str, str] = {}
    for block in [block for page in (PAGE, LAG_PAGE, OPTIONS_PAGE) for block in blocks(page, "python")]:
        source = block.text.replace("amqp://guest:guest@localhost:5672/", broker.url()).replace("port=9095", "port=0")
        source = source.replace('"tables/', f'"{tmp_path}/tables/').replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(source, program_name(block), "exec"), {"__name__": "__docs__"})
        printed[program_name(block)] = output.getvalue()
    assert "|     orders|    7|" in printed["count_orders.py"]
    assert spark.read.parquet(str(tmp_path / "tables" / "orders")).count() == 7
    assert printed["orders_by_minute.py"] == "7 17.5\n"
    assert printed["orders_by_region.py"] == "[('north', 4), ('south', 3)]\n"
    assert "|  NULL|late|" in printed["failed.py"]
    assert "archive is 0 messages, 0 bytes and 0 s behind in orders" in printed["watch_lag.py"]
    assert all(f"|   {row}|\n" in printed["order_totals.py"] for row in (f"1|{10.0:>27}", f"2|{7.5:>27}"))
    # One message was inserted.
    assert "orders" in printed["orders_table.py"] and printed["orders_table.py"].endswith("\n8\n")
    assert printed["recent_orders.py"] == printed["count_messages.py"] == printed["count_history.py"] == "8\n"
    spark.sql("DROP DATABASE leveret CASCADE")
