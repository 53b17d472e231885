"""The size of a batch: Spark's read limits from the options, and the default number of tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from leveret.spark.options import Settings

if TYPE_CHECKING:
    from pyspark import SparkContext

# Messages per task. Planning a task takes Spark about 50 ms, so that more tasks for a small batch take longer than one.
MESSAGES_PER_TASK: Final = 50_000
# Environment variable of Spark's Python processes, which do not know the session.
_PARALLELISM: Final = "LEVERET_SPARK_PARALLELISM"


def read_limit(settings: Settings) -> ReadLimit:
    """Return the result of `getDefaultReadLimit`. Spark passes it back and displays it; readers use the options."""
    if settings.max_messages_per_trigger is not None:
        return ReadMaxRows(settings.max_messages_per_trigger)
    if settings.max_bytes_per_trigger is not None:
        return ReadMaxBytes(settings.max_bytes_per_trigger)
    if settings.min_messages_per_trigger is not None:
        return ReadMinRows(settings.min_messages_per_trigger)
    return ReadAllAvailable()


def pass_parallelism(context: SparkContext) -> None:
    """Pass the session's default parallelism to the Python processes of data sources that are registered from now on."""
    context.environment[_PARALLELISM] = str(context.defaultParallelism)


def default_tasks(count: int, partitions: int = 0) -> int:
    """Return the number of tasks of a batch if no option sets it.

    Args:
        count: Messages in the batch.
        partitions: Partitions of super streams among the streams of the batch. Unless the batch is small, it has at least
            one task for each.
    """
    tasks = -(-count // MESSAGES_PER_TASK)
    parallelism = int(os.environ.get(_PARALLELISM) or os.cpu_count() or 1)
    return tasks if tasks <= 1 else max(min(tasks, parallelism), partitions)
