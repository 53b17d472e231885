"""The data source `amqp` for Spark, which discovers it because the module's name begins with `pyspark_`.

Everything here comes from `leveret.spark`.
"""

from __future__ import annotations

from leveret.spark.count import count
from leveret.spark.data_source import AmqpDataSource
from leveret.spark.finish import finish
from leveret.spark.lag import LagListener, QueryLag
from leveret.spark.load import load
from leveret.spark.register import register
from leveret.spark.tables import create_tables

DefaultSource = AmqpDataSource

__all__ = [
    "AmqpDataSource",
    "DefaultSource",
    "LagListener",
    "QueryLag",
    "count",
    "create_tables",
    "finish",
    "load",
    "register",
]
