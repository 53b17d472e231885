"""The Spark session of pipelines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import leveret
from leveret._build import installation
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.python_launcher import select_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings that the pipeline can override. All times are UTC.
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "30s",
    # Starting a Python worker can take longer than Spark's default of 15 s.
    "spark.python.authenticate.socketTimeout": "90s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# For a local master: the driver is only reachable from this machine.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# For a local master, the default is the number of its task slots.
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

# Types of Spark settings.
SettingValue: TypeAlias = str | int | float | bool


def make_session(
    name: str, master: str | None = "local[*]", conf: Mapping[str, SettingValue] | None = None
) -> SparkSession:
    """Return a session configured for pipelines.

    Args:
        name: Name of the application.
        master: None leaves it to spark-submit.
        conf: Additional settings.

    Raises:
        PipelineError: Spark is missing or does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError(f"Spark is not installed: {installation('pipeline')}, and install Java 17") from None
    local = master is not None and master.startswith("local")
    if local:
        # Python workers are children of the JVM and inherit this: the same Python with the same modules.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark starts them with -m, which would put the working directory first in sys.path.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        paths = [
            str(Path(leveret.__file__).parents[1]),
            *(path for path in sys.path if path),
            *os.environ.get("PYTHONPATH", "").split(os.pathsep),
        ]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    builder: Any = SparkSession.builder
    builder = builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**DEFAULTS, **(LOCAL if local else {}), **(conf or {})}.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else error.__class__.__name__
        raise PipelineError(
            f"Spark does not start with master {master!r}: {reason} (it needs Java 17, set JAVA_HOME)"
        ) from None
    if local:
        context = session.sparkContext
        select_python(context)
        if _SHUFFLE_PARTITIONS not in (conf or {}):
            session.conf.set(_SHUFFLE_PARTITIONS, context.defaultParallelism)
    register(session)
    return session


def register(spark: SparkSession) -> None:
    """Register the data source, which Spark does not discover if this package is in a zip file."""
    from leveret.spark.data_source import AmqpDataSource
    from leveret.spark.read_limits import pass_parallelism

    pass_parallelism(spark.sparkContext)
    spark.dataSource.register(AmqpDataSource)
