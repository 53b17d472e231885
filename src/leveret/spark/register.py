"""Registers the data source in a session, and checks that Spark's Python processes can import it.

Spark finds the data source by itself only if its Python processes run in an environment in which Leveret is installed.
They run the `python3` of their `PATH` unless PYSPARK_PYTHON is set, so a script that runs without its environment
activated otherwise ends with Spark's own error, which does not name the cause.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.spark.data_source import FilteringDataSource
from leveret.spark.errors import SparkError
from leveret.spark.python_launcher import PYTHON_VARIABLE, select_python
from leveret.spark.read_limits import pass_parallelism

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Without this setting, Spark does not tell data sources in Python what a query filters by.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
# The last line of a Python trace, as Spark quotes it.
_RAISED: Final = re.compile(r"^\w+(?:Error|Exception): .+", re.MULTILINE)
_SCHEMA: Final = "version string"


class PythonEnvironmentError(SparkError):
    """Spark's Python processes cannot import Leveret."""


def register(spark: SparkSession) -> None:
    """Register the data source `amqp` in a session, and check that the driver and the workers can import it.

    Enables filter pushdown to data sources in Python (`spark.sql.python.filterPushdown.enabled`), which batch reads use.
    Reads have at most as many tasks by default as the session's default parallelism at the time of the call.
    With a local master, Spark runs the Python of this process from then on, unless PYSPARK_PYTHON names another one, and
    its Python processes start faster if pip installed PySpark.

    Args:
        spark: The session, also one of Spark Connect.

    Raises:
        PythonEnvironmentError: Spark's Python processes cannot import Leveret.
    """
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    local = context is not None and context._jsc.sc().isLocal()
    if context is not None and local:
        select_python(context)
    python = "that of its server" if context is None else repr(context.pythonExec)
    tasks = 1 if context is None or local else context.defaultParallelism
    try:
        spark.range(0, tasks, 1, tasks).mapInArrow(_versions, _SCHEMA).collect()
    except Exception as error:
        raise _environment_error("the workers", python, error) from None
    if context is not None:
        # After the first tasks, because executors register when they have started.
        pass_parallelism(context)
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(FilteringDataSource)
    try:
        _ = spark.read.format(FilteringDataSource.name()).option("stream", "check").load().schema
    except Exception as error:
        raise _environment_error("the driver", python, error) from None


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a task. Spark pickles the function by its name, so that the worker imports this module."""
    import pyarrow as pa

    from leveret import __version__

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"version": [__version__] * batch.num_rows})


def _environment_error(where: str, python: str, error: Exception) -> PythonEnvironmentError:
    raised = _RAISED.findall(str(error))
    reason = raised[-1] if raised else str(error).strip().split("\n", 1)[0]
    return PythonEnvironmentError(
        f"Spark's Python on {where}, {python}, cannot import pyspark_amqp: {reason[:300]}; before the session starts, set "
        f"the environment variable {PYTHON_VARIABLE} to a Python in which leveret[spark] is installed, such as "
        f"{sys.executable}"
    )
