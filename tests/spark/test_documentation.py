"""The pages about Spark: the tables match the code, and the programs and commands run in the order of the pages."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from leveret import sync
from leveret.spark.kafka_options import KAFKA_OPTIONS
from leveret.spark.options import OPTIONS, SINK, Option
from leveret.spark.schema import table_schema
from tests.docs.pages import DOCS, all_blocks, blocks, program_name, table_rows
from tests.spark.conftest import TIMEOUT
from tests.spark.environment import environment
from tests.spark.sinks import drain
from tests.spark.support import publish
from tests.support.broker import Broker, LeveretProcess

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


def run_programs(page: Path, broker: Broker, directory: Path) -> dict[str, str]:
    """Run the programs of a page in its order. Returns what they printed, by name."""
    printed: dict[str, str] = {}
    for block in blocks(page, "python"):
        if program_name(block) == "read_rabbitmq_stream.py":
            continue  # tests/spark/spool/test_streams.py runs it
        source = block.text.replace("amqp://guest:guest@localhost:5672/", broker.url()).replace("port=9095", "port=0")
        # Spark's working directory is that of its JVM.
        source = re.sub(r'"((?:tables|checkpoints|state|spool)/\w+|new(?:/orders\.json)?)"', rf'"{directory}/\1"', source)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(source, program_name(block), "exec"), {"__name__": "__docs__"})
        printed[program_name(block)] = output.getvalue()
    return printed


def test_programs_that_read_streams(spark: SparkSession, broker: LeveretProcess, tmp_path: Path) -> None:
    """The programs of the later pages read what those of the first have published."""
    printed = run_programs(PAGE, broker, tmp_path)
    assert "|     orders|    7|" in printed["count_orders.py"]
    assert spark.read.parquet(str(tmp_path / "tables" / "orders")).count() == 7
    assert printed["orders_by_minute.py"] == "7 17.5\n"
    assert printed["orders_by_region.py"] == "[('north', 4), ('south', 3)]\n"
    assert "|  NULL|late|" in printed["failed.py"]
    # One message was inserted.
    assert "orders" in printed["orders_table.py"] and printed["orders_table.py"].endswith("\n8\n")
    assert printed["recent_orders.py"] == printed["count_messages.py"] == printed["count_history.py"] == "8\n"
    spark.sql("DROP DATABASE leveret CASCADE")
    printed = run_programs(OPTIONS_PAGE, broker, tmp_path)
    assert all(f"|   {row}|\n" in printed["order_totals.py"] for row in (f"1|{10.0:>27}", f"2|{7.5:>27}"))
    printed = run_programs(LAG_PAGE, broker, tmp_path)
    assert "archive is 0 messages, 0 bytes and 0 s behind in orders" in printed["watch_lag.py"]
    printed = run_programs(DOCS / "ready-made-pipelines.md", broker, tmp_path / "pipelines")
    assert printed == {"archive_orders.py": ""}
    assert spark.read.parquet(str(tmp_path / "pipelines" / "tables" / "orders")).count() == 8


def test_programs_that_read_queues(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue("invoices", durable=True)
        publish(connection, "invoices", ["1", "2"])
        printed = run_programs(DOCS / "spark-queues.md", broker, tmp_path)
        assert printed["settle_bills.py"] == "3\n"
        assert channel.declare_queue("bills", passive=True).message_count == 0
    assert spark.read.parquet(str(tmp_path / "tables" / "invoices")).count() == 2


def test_programs_that_publish(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, tmp_path: Path
) -> None:
    run_programs(DOCS / "spark-sinks.md", broker, tmp_path)
    assert [(message.body, message.routing_key) for message in drain(connection, "sales")] == [
        (b'{"id":"1","country":"eu"}', "order.eu"),
        (b'{"id":"2","country":"uk"}', "order.uk"),
        (b"1", "sales"),
        (b"2", "sales"),
    ]


def test_the_commands_of_pipelines(java: None, own_broker: LeveretProcess, tmp_path: Path) -> None:
    """The files and the commands at the beginning of the page."""
    page, share = DOCS / "pipelines.md", tmp_path / ".local" / "share"
    share.mkdir(parents=True)
    (share / "leveret").symlink_to(own_broker.data_dir)
    address = f"localhost:{own_broker.port}"
    for block in [block for block in all_blocks(page) if program_name(block)][:2]:
        (tmp_path / program_name(block)).write_text(block.text.replace("localhost:5672", address))
    command = f'"{sys.executable}" -P -m leveret'
    script = blocks(page, "sh")[0].text.replace("leveret ", f"{command} ")
    script = script.replace("leveret publish", f"leveret publish --url amqp://guest:guest@{address}")
    result = subprocess.run(
        ["sh", "-e"],
        input=script,
        cwd=tmp_path,
        env=environment(HOME=str(tmp_path), COLUMNS="120"),
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert pq.read_table(tmp_path / "tables" / "orders").column("id").to_pylist() == [1]
    with sync.connect(own_broker.url()) as connection:
        assert [json.loads(message.body)["id"] for message in drain(connection, "large-orders")] == [1]
