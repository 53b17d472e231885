"""The data source `amqp` for Spark, which discovers it because the module's name begins with `pyspark_`.

Everything here comes from `leveret.spark`. Spark imports this module in several processes for each query, which only need
the data source, so everything else is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leveret.spark.data_source import AmqpDataSource

if TYPE_CHECKING:
    from leveret.spark.body import from_body
    from leveret.spark.count import count
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
    "from_body",
    "load",
    "register",
]

# Names that are imported on first use, and their modules.
_LATER = {
    "LagListener": "leveret.spark.lag",
    "QueryLag": "leveret.spark.lag",
    "count": "leveret.spark.count",
    "create_tables": "leveret.spark.tables",
    "finish": "leveret.spark.finish",
    "from_body": "leveret.spark.body",
    "load": "leveret.spark.load",
    "register": "leveret.spark.register",
}


def __getattr__(name: str) -> Any:
    """Import a function or class on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found
