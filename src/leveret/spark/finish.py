"""Commits the last batch of a query that has ended.

Spark commits a batch to its sources when it plans the next one. After a run with `availableNow`, that is the next start.
Until then the last batch is uncommitted: a lease stays active, a consumer lags, a spool keeps its last files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.segments.typed_json import Document
from leveret.spark.data_source import DIRECT, DIRECT_TASK, AmqpDataSource
from leveret.spark.errors import SparkError

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
            "the query runs in Spark Connect, which does not expose its plan and checkpoint; expected a "
            "query of a session in this process"
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
    for stream, options in _sources(execution):
        sources = execution.sources()
        for index in range(sources.size()):
            if sources.apply(index).equals(stream) and offsets.apply(index).isDefined():
                _commit(options, json.loads(offsets.apply(index).get().json()))
                finished += 1
    return finished


def _sources(execution: Any) -> list[tuple[Any, dict[str, str]]]:
    """Return the sources of this package in the query, with their options."""
    found = []
    leaves = execution.logicalPlan().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.getClass().getSimpleName().startswith("StreamingDataSourceV2"):
            continue
        relation = leaf.relation()
        if relation.table().name() in (AmqpDataSource.name(), DIRECT):
            options = dict(relation.options().asCaseSensitiveMap())
            options.pop(DIRECT_TASK, None)
            found.append((leaf.stream(), options))
    return found


def _commit(options: dict[str, str], offset: dict[str, Document]) -> None:
    source = AmqpDataSource(options)
    reader = source.streamReader(source.schema())
    try:
        reader.commit(offset)
    finally:
        reader.stop()
