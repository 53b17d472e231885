"""Committing the last batch of a query that has ended.

Spark tells a source that a batch is done when it makes the next one. After a run over what is there (`availableNow`) that
is at the next start, and until then the broker keeps what was read: a lease shows as held, a consumer lags, a spool has its
last files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.spark.errors import SparkError
from leveret.spark.source import DIRECT, DIRECT_TASK, AmqpDataSource

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def finish(query: StreamingQuery) -> int:
    """Tell each source of the query that has format `amqp` how far the query has come by its checkpoint: leases are
    settled, consumers of streams move on, files of a spool are removed. What was not committed by the query stays as it is.

    Returns how many sources that were. Doing it twice does no harm. `SparkError` for a query that runs, or that is not of
    this process (Spark Connect).
    """
    if query.isActive:
        raise SparkError(f"query {query.name or query.id} is running; expected one that has ended (awaitTermination, stop)")
    execution = getattr(query, "_jsq", None)
    if execution is None:
        raise SparkError("the query is one of Spark Connect, whose plan and checkpoint are elsewhere; expected one of a "
                         "session in this process")
    execution = execution.streamingQuery()
    latest = execution.commitLog().getLatestBatchId()
    if not latest.isDefined():
        return 0
    logged = execution.offsetLog().get(latest.get())
    if not logged.isDefined():
        raise SparkError(f"the checkpoint of query {query.name or query.id} has no offsets of its last batch, "
                         f"{latest.get()}")
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
    """The sources of this format, or of archives, and their options."""
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


def _commit(options: dict[str, str], offset: dict[str, Any]) -> None:
    source = AmqpDataSource(options)
    reader = source.streamReader(source.schema())
    try:
        reader.commit(offset)
    finally:
        reader.stop()
