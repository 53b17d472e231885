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
    from pyspark.sql.types import StructType

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
    if _directories(paths[0]) == list(partitions):  # otherwise the batch was planned before the partitions were changed
        _evolve_partitions(table, partitions)
    table.add_files([files.url(path) for path in paths], snapshot_properties={BATCH: which}, check_duplicate_files=False)


def open_table(output: TableOutput) -> Table:
    """Return an existing table. Raises PipelineError if there is none."""
    from pyiceberg.exceptions import NoSuchTableError

    if not output.catalog and not _catalog_file(output).exists():
        raise PipelineError(
            f"table {output.path}: does not exist, or has another catalog; expected {_catalog_file(output)}"
        )
    name = _name(output)
    try:
        return _catalog(output).load_table(name)
    except NoSuchTableError:
        raise PipelineError(f"table {output.path}: the catalog has no table {name}") from None


def schema_of(output: TableOutput) -> StructType | None:
    """Return the columns of a table, None if it does not exist."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyspark.sql.pandas.types import from_arrow_schema

    if not output.catalog and not _catalog_file(output).exists():
        return None
    try:
        table = _catalog(output).load_table(_name(output))
    except NoSuchTableError:
        return None
    return from_arrow_schema(table.schema().as_arrow())


def check_partitions(output: TableOutput, partitions: dict[str, tuple[str, str]]) -> None:
    """Raise PipelineError for partitions by plain columns, which files of an Iceberg table would lack."""
    plain = [name for name, (transform, _) in partitions.items() if not transform]
    if plain:
        raise PipelineError(
            f"table {output.path}: partition {plain[0]!r} is not supported for an Iceberg table; expected "
            "day(COLUMN), hour(COLUMN) or month(COLUMN)"
        )


def _table(output: TableOutput, files: Files, batch: DataFrame, partitions: dict[str, tuple[str, str]]) -> Table:
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError

    name = _name(output)
    check_partitions(output, partitions)
    if not output.catalog:
        _catalog_file(output).parent.mkdir(parents=True, exist_ok=True)
    catalog = _catalog(output)
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
    return catalog.create_table(
        name, _schema(batch, partitions), location=files.url(), properties={"write.parquet.compression-codec": "zstd"}
    )


def _evolve_partitions(table: Table, partitions: dict[str, tuple[str, str]]) -> None:
    """Give the table's new files other partitions; the files that it has keep theirs."""
    wanted = {f"{source}_{transform}": (source, transform) for transform, source in partitions.values()}
    existing = [field.name for field in table.spec().fields]
    if existing == list(wanted):
        return
    with table.update_spec() as update:
        for name in existing:
            if name not in wanted:
                update.remove_field(name)
        for name, (source, transform) in wanted.items():
            if name not in existing:
                update.add_field(source, transform, name)


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


def _directories(path: str) -> list[str]:
    """Return the names of the partitions in the path of a file."""
    return [directory.partition("=")[0] for directory in path.split("/")[:-1]]


def _name(output: TableOutput) -> str:
    return output.table or f"leveret.{output.path.rstrip('/').rpartition('/')[2]}".replace("-", "_")


def _catalog(output: TableOutput) -> Catalog:
    from pyiceberg.catalog import load_catalog

    return load_catalog("leveret", **(output.catalog or {"type": "sql", "uri": f"sqlite:///{_catalog_file(output)}"}))


def _catalog_file(output: TableOutput) -> Path:
    """Return the file of the catalog in the table's directory. Raises PipelineError if that is on another machine."""
    path = output.path.removeprefix("file://")
    if "://" in path:
        raise PipelineError(
            f"table {output.path}: an Iceberg table on another machine needs catalog, such as "
            '{ type = "rest", uri = "..." }'
        )
    return Path(path, "_leveret", "catalog.sqlite")
