"""Commits batches of Parquet files to an Iceberg table, each batch once.

The files are in the table's directory, and a commit adds those of one batch without rewriting them (pyiceberg's
`add_files`). The summary of a commit names its batch, so that no batch is added twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output.files import Files

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

# Key in the summary of a commit: application and number of the batch.
BATCH = "leveret.batch"


def add_to_table(
    output: TableOutput,
    files: Files,
    batch: DataFrame,
    partitions: dict[str, tuple[str, str]],
    paths: list[str],
    application: str,
    number: int,
) -> None:
    """Add the files of a batch to the table, once, creating the table if necessary.

    Args:
        output: The table.
        files: Access to its directory.
        batch: Source of the schema.
        partitions: Result of `partition_columns`.
        paths: The files, relative to the table's directory.
        application: Name of the writer.
        number: Number of the batch.
    """
    which = f"{application}:{number}"
    table = _table(output, files, batch, partitions)
    if any(
        snapshot.summary is not None and snapshot.summary.additional_properties.get(BATCH) == which
        for snapshot in table.metadata.snapshots
    ):
        return
    table.add_files([files.url(path) for path in paths], snapshot_properties={BATCH: which}, check_duplicate_files=False)


def _table(output: TableOutput, files: Files, batch: DataFrame, partitions: dict[str, tuple[str, str]]) -> Table:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError

    name = output.table or f"leveret.{output.path.rstrip('/').rpartition('/')[2]}".replace("-", "_")
    settings = output.catalog or {
        "type": "sql",
        "uri": f"sqlite:///{_local(output)}/_leveret/catalog.sqlite",
        "warehouse": files.url(),
    }
    catalog = load_catalog("leveret", **settings)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        pass
    else:
        with table.update_schema() as update:
            update.union_by_name(_schema(batch, partitions))
        return table
    try:
        catalog.create_namespace(name.rpartition(".")[0])
    except NamespaceAlreadyExistsError:
        pass
    return _create(catalog, name, output, files, batch, partitions)


def _create(
    catalog: Catalog, name: str, output: TableOutput, files: Files, batch: DataFrame, partitions: dict[str, tuple[str, str]]
) -> Table:
    plain = [name for name in batch.columns if partitions.get(name) == ("", name)]
    if plain:
        raise PipelineError(
            f"table {output.path}: partition {plain[0]!r} is not supported for an Iceberg table; expected "
            "day(COLUMN), hour(COLUMN) or month(COLUMN)"
        )
    table = catalog.create_table(
        name, _schema(batch, partitions), location=files.url(), properties={"write.parquet.compression-codec": "zstd"}
    )
    with table.update_spec() as update:
        for transform, source in partitions.values():
            update.add_field(source, transform, f"{source}_{transform}")
    return catalog.load_table(name)


def _schema(batch: DataFrame, partitions: dict[str, tuple[str, str]]) -> Schema:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark declares every column of its files as nullable.
    columns = [
        field
        for field in to_arrow_schema(batch.schema.toNullable(), timezone="UTC")
        if partitions.get(field.name, ("x", ""))[0] or field.name not in partitions
    ]
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(pa.schema(columns)))


def _local(output: TableOutput) -> str:
    path = output.path.removeprefix("file://")
    if "://" in path:
        raise PipelineError(
            f"table {output.path}: an Iceberg table on another machine needs catalog, such as "
            '{ type = "rest", uri = "..." }'
        )
    Path(path, "_leveret").mkdir(parents=True, exist_ok=True)
    return path
