"""Queries on a cluster of two workers: a lost executor, a speculative task, a packaged pipeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from click.testing import CliRunner

from leveret import sync
from leveret.cli.app import leveret
from tests.spark.cluster import Cluster
from tests.spark.environment import JAVA_OPTIONS, PYTHONPATH, environment
from tests.spark.sink.test_kills import ROWS, App
from tests.spark.sinks import bodies, drain
from tests.spark.support import declare_stream, publish
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until


@pytest.fixture(scope="module")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def app(cluster: Cluster, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path) -> Iterator[App]:
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-in", durable=True)
        channel.declare_queue(f"{name}-out", durable=True)
    publish(connection, f"{name}-in", ROWS, persistent=True)
    made = App(
        broker,
        tmp_path,
        name,
        cluster.url,
        {
            "spark.executorEnv.PYTHONPATH": PYTHONPATH,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.memory": "450m",
            "spark.executor.cores": "1",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1",
            "spark.speculation.minTaskRuntime": "100ms",
        },
    )
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_arrive_once_despite_a_lost_executor(
    app: App, cluster: Cluster, name: str, connection: sync.Connection
) -> None:
    (app.marker / "hold").touch()
    app.start()
    wait_until(lambda: app.running("reading"), "a task reads", 400)
    lost = wait_until(cluster.executors, "an executor runs")[0]
    os.kill(lost, signal.SIGKILL)
    (app.marker / "hold").unlink()
    app.finish()
    assert lost not in cluster.executors()
    assert sorted(bodies(drain(connection, f"{name}-out"))) == sorted(row.encode() for row in ROWS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_arrive_once_if_a_slow_task_runs_twice(app: App, name: str, connection: sync.Connection) -> None:
    (app.marker / "slow").touch()
    app.start().finish()
    assert (app.marker / "overtaken").exists(), "no task was run a second time beside the first"
    assert sorted(bodies(drain(connection, f"{name}-out"))) == sorted(row.encode() for row in ROWS)


REGISTER = """
import sys
import pyspark_amqp
from pyspark.sql import SparkSession

spark = SparkSession.builder.master(sys.argv[1]).config("spark.executor.memory", "450m").getOrCreate()
pyspark_amqp.register(spark)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_without_leveret_are_refused(cluster: Cluster) -> None:
    result = subprocess.run(
        [sys.executable, "-c", REGISTER, cluster.url],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 1
    # Spark's own log lines may follow.
    (refusal,) = [line for line in result.stderr.splitlines() if "PythonEnvironmentError: " in line]
    assert "PythonEnvironmentError: Spark's Python on the workers" in refusal
    assert "No module named 'leveret'" in refusal and "PYSPARK_PYTHON" in refusal


PIPELINE = """name = "packed"
directory = "{directory}/state"
[broker]
url = "{url}"
[spark.conf]
"spark.executor.memory" = "450m"
"spark.executor.extraJavaOptions" = "{java}"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.memory" = "512m"
"spark.ui.enabled" = false
[flows.orders]
capture = {{ stream = "{name}" }}
decode = {{ format = "json", schema = "id BIGINT", on_error = "fail" }}
transform = {{ function = "doubling:double" }}
tables = [{{ path = "{directory}/table", partition = [] }}]
"""


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_packaged_pipeline_runs_without_an_installation(
    cluster: Cluster, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, [f'{{"id": {number}}}' for number in range(50)])
    (tmp_path / "doubling.py").write_text(
        "def double(messages):\n    return messages.selectExpr('offset', 'data.id * 2 AS twice')\n"
    )
    (tmp_path / "pipeline.toml").write_text(
        PIPELINE.format(directory=tmp_path, url=broker.url(), name=name, java=JAVA_OPTIONS)
    )
    packed = CliRunner().invoke(
        leveret,
        ["pipeline", "package", str(tmp_path / "pipeline.toml"), "--to", str(tmp_path / "out"), "--master", cluster.url],
    )
    assert packed.exit_code == 0, packed.output
    home = Path(pyspark.__file__).parent
    variables = environment(PATH=f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}", SPARK_HOME=str(home))
    del variables["PYTHONPATH"]
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    result = subprocess.run(
        [str(tmp_path / "elsewhere" / "submit.sh"), "--once"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    rows = [row for file in (tmp_path / "table").rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted((row["offset"], row["twice"]) for row in rows) == [(number, 2 * number) for number in range(50)]
