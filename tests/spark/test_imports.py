"""Spark imports the data source in several processes for each query, so it imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest

_MODULES = """
import sys
import {imported}
print(*sorted(sys.modules))
"""


def modules(imported: str) -> set[str]:
    """Return the modules that a process has after an import."""
    command = [sys.executable, "-c", _MODULES.format(imported=imported)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("imported", ["pyspark_amqp", "leveret.spark.source.stream_reader"])
def test_what_only_tasks_need_is_not_imported(imported: str) -> None:
    found = modules(imported)
    assert imported in found
    assert not found & {"leveret.segments.columns", "leveret.segments.reader", "pyarrow.parquet", "fsspec"}


@pytest.mark.parametrize("imported", ["pyspark_amqp", "leveret.spark.sink.writer", "leveret.spark.finish"])
def test_processes_that_read_nothing_do_not_import_arrow(imported: str) -> None:
    found = modules(imported)
    assert imported in found
    assert "pyarrow" not in found


def test_processes_that_look_up_the_data_source_do_not_import_the_client() -> None:
    found = modules("pyspark_amqp")
    assert "leveret.spark.options" in found
    assert "leveret.client" not in found


def test_all_public_names_can_be_imported() -> None:
    import pyspark_amqp

    assert all(callable(getattr(pyspark_amqp, name)) for name in pyspark_amqp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'write'"):
        pyspark_amqp.write  # noqa: B018
