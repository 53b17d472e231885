"""Spark's read limits, from the options."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from leveret.spark.options import Settings


def read_limit(settings: Settings) -> ReadLimit:
    """Return the result of `getDefaultReadLimit`. Spark passes it back and displays it; readers use the options."""
    if settings.max_messages_per_trigger is not None:
        return ReadMaxRows(settings.max_messages_per_trigger)
    if settings.max_bytes_per_trigger is not None:
        return ReadMaxBytes(settings.max_bytes_per_trigger)
    if settings.min_messages_per_trigger is not None:
        return ReadMinRows(settings.min_messages_per_trigger)
    return ReadAllAvailable()
