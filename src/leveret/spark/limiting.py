"""Read limits of sources, as Spark knows them, made of the options."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from leveret.spark.options import Settings


def limit_of(settings: Settings) -> ReadLimit:
    """What `getDefaultReadLimit` answers. Spark gives it back, and shows it; the options say more than it can."""
    if settings.max_messages_per_trigger is not None:
        return ReadMaxRows(settings.max_messages_per_trigger)
    if settings.max_bytes_per_trigger is not None:
        return ReadMaxBytes(settings.max_bytes_per_trigger)
    if settings.min_messages_per_trigger is not None:
        return ReadMinRows(settings.min_messages_per_trigger)
    return ReadAllAvailable()
