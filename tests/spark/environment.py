"""The environment of processes that start Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.broker import ROOT

# Built by `make test`, see tools/spark_classes.py. Without it Spark starts more slowly.
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
# The data source in the JVM, which `make jar` builds.
JVM_SOURCE = ROOT / "build" / "jvm" / "leveret-spark.jar"
# Test applications end before the JVM's second compiler pays off.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1" + (
    f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable -Xlog:all=error:stderr" if CLASSES.exists() else ""
)
# Drivers are as short-lived and small. Executors would need more memory for this garbage collector: Spark refuses less than
# 450 MiB without the part that it reserves.
_DRIVER_OPTIONS = f"{JAVA_OPTIONS} -XX:+UseSerialGC"
PYTHONPATH = os.pathsep.join([str(ROOT / "tests" / "spark" / "workers"), str(ROOT / "src"), str(ROOT)])


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process with variables that make drivers and Python workers run this checkout."""
    return {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": _DRIVER_OPTIONS,
        **variables,
    }
