"""Commits the last batch of a query that has ended.

Spark commits a batch to its sources when it plans the next one. After a run with `availableNow`, that is the next start.
Until then the last batch is uncommitted: a lease stays active, a consumer lags, a spool keeps its last files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from leveret.segments.typed_json import Document
from leveret.spark.data_source import DIRECT, DIRECT_TASK, AmqpDataSource
from leveret.spark.errors import SparkError
from leveret.spark.tables import source_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def finish(query: StreamingQuery) -> int:
    """Commit the offsets in the query's checkpoint to its sources of format `amqp`.

    Leases are settled, consumer offsets of streams advance, and files of a spool are removed. Batches that the query did
    not commit are not affected. Repeating the call is harmless.

    Returns:
        The number of sources.

    Raises:
        SparkError: The query is running, or belongs to another process (Spark Connect).
    """
    if query.isActive:
        raise SparkError(f"query {query.name or query.id} is running; stop it or wait for its end (awaitTermination)")
    execution = getattr(query, "_jsq", None)
    if execution is None:
        raise SparkError(
            f"query {query.name or query.id} runs in Spark Connect, which does not expose its plan and checkpoint; "
            "expected a query of a session in this process (the next start of the query commits its last batch, too)"
        )
    execution = execution.streamingQuery()
    latest = execution.commitLog().getLatestBatchId()
    if not latest.isDefined():
        return 0
    logged = execution.offsetLog().get(latest.get())
    if not logged.isDefined():
        raise SparkError(
            f"the checkpoint of query {query.name or query.id} has no offsets for its last batch, {latest.get()}"
        )
    offsets = logged.get().offsets()
    finished = 0
    for stream, source, schema in _sources(execution):
        sources = execution.sources()
        for index in range(sources.size()):
            if sources.apply(index).equals(stream) and offsets.apply(index).isDefined():
                _commit(source, schema, json.loads(offsets.apply(index).get().json()))
                finished += 1
    return finished


def _sources(execution: Any) -> list[tuple[Any, AmqpDataSource, StructType]]:
    """Return the streams of this package in the query, with their data sources and schemas."""
    found = []
    leaves = execution.logicalPlan().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.getClass().getSimpleName().startswith("StreamingDataSourceV2"):
            continue
        table = leaf.relation().table()
        name = table.name()
        made = AmqpDataSource if name in (AmqpDataSource.name(), DIRECT) else source_of(name)
        if made is not None:
            options = dict(leaf.relation().options().asCaseSensitiveMap())
            options.pop(DIRECT_TASK, None)
            source = made(options)
            # The schema of a catalog table has its options. That of a direct flow is of what its tasks return.
            schema = source.schema() if name == DIRECT else StructType.fromJson(json.loads(table.schema().json()))
            found.append((leaf.stream(), source, schema))
    return found


def _commit(source: AmqpDataSource, schema: StructType, offset: dict[str, Document]) -> None:
    reader = source.streamReader(schema)
    try:
        reader.commit(offset)
    finally:
        reader.stop()
