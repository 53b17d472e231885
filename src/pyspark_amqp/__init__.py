"""The data source `amqp` for Spark, which looks for modules whose names begin with `pyspark_` by itself. What it shows is
`leveret.spark`'s."""

from __future__ import annotations

from leveret.spark.finish import finish
from leveret.spark.history import load
from leveret.spark.source import AmqpDataSource

DefaultSource = AmqpDataSource

__all__ = ["AmqpDataSource", "DefaultSource", "finish", "load"]
