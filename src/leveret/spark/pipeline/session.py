"""The Spark session that pipelines run in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import leveret
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What counts where the pipeline says nothing else. Times are UTC everywhere.
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "30s",
    # A busy machine takes longer than Spark's 15 s to start a Python worker.
    "spark.python.authenticate.socketTimeout": "90s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# On one machine: nobody else is to reach the driver, and tasks are not many.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def make_session(name: str, master: str | None = "local[*]", conf: Mapping[str, Any] | None = None) -> SparkSession:
    """A session, with what pipelines need. `PipelineError` where Spark is not there or does not start.

    master  None leaves it to spark-submit
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError("there is no Spark: pip install 'leveret[pipeline]', and Java 17") from None
    local = master is not None and master.startswith("local")
    if local:
        # Python workers are children of this process's JVM: they run the same Python, and find the same modules.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark starts them with -m: without this, modules of the working directory would come first.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        paths = [str(Path(leveret.__file__).parents[1]), *(path for path in sys.path if path),
                 *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
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
        told = str(error).strip().splitlines()[0] if str(error).strip() else error.__class__.__name__
        raise PipelineError(f"Spark does not start with master {master!r}: {told} (it needs Java 17: JAVA_HOME)") from None
    register(session)
    return session


def register(spark: SparkSession) -> None:
    """Have the session know the data source, also where this package came as a zip and Spark does not find it itself."""
    from leveret.spark.source import AmqpDataSource

    spark.dataSource.register(AmqpDataSource)
