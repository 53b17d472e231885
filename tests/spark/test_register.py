"""`pyspark_amqp.register` checks Spark's Python processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import SparkContext

import pyspark_amqp
from leveret import sync
from leveret.spark.errors import SparkError
from tests.spark.support import bodies, declare_stream, numbers, publish, read
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def foreign_python(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Make Spark run a Python in which Leveret is not installed, and restore the session afterwards."""
    package = tmp_path / "modules" / "leveret"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'leveret'\")\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    context = spark.sparkContext
    usual, context.pythonExec = context.pythonExec, str(python)
    yield str(python)
    context.pythonExec = usual
    pyspark_amqp.register(spark)


def test_a_python_without_leveret_is_one_short_error(spark: SparkSession, foreign_python: str) -> None:
    with pytest.raises(SparkError) as raised:
        pyspark_amqp.register(spark)
    message = str(raised.value)
    assert foreign_python in message
    assert "No module named 'leveret'" in message
    assert "set the environment variable PYSPARK_PYTHON to a Python in which leveret[spark] is installed" in message
    assert sys.executable in message
    assert "\n" not in message and len(message) < 700


def test_a_local_session_runs_the_python_of_the_program(
    spark: SparkSession,
    broker: LeveretProcess,
    connection: sync.Connection,
    name: str,
    foreign_python: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 3))
    monkeypatch.delenv("PYSPARK_PYTHON")
    pyspark_amqp.register(spark)
    assert bodies(read(spark, broker.url(), stream=name)) == numbers(0, 3)
    python, path = python_of_a_task(spark)
    assert python == sys.executable
    assert "pyspark.zip" not in path, "PySpark is compiled in each process"


def test_large_reads_use_the_default_parallelism_of_the_session(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the number of processors of the driver, which a container or a cluster does not use."""
    parallelism = 3 + (os.cpu_count() or 1)
    declare_stream(connection, name)
    publish(connection, name, [b""] * (50_000 * parallelism))
    with monkeypatch.context() as patch:
        patch.setattr(SparkContext, "defaultParallelism", parallelism)
        pyspark_amqp.register(spark)
    assert read(spark, broker.url(), stream=name, columns="offset").rdd.getNumPartitions() == parallelism
    pyspark_amqp.register(spark)


def python_of_a_task(spark: SparkSession) -> list[str]:
    """Return the Python of a task, and its PYTHONPATH."""

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"text": [sys.executable, os.environ["PYTHONPATH"]]})

    rows = spark.range(0, 1, 1, 1).mapInArrow(found, "text string").collect()
    return [row.text for row in rows]
