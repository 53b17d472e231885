"""A query on a cluster of two workers: executors that are lost, tasks that run twice at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret import blocking
from tests.spark.cluster import Cluster
from tests.spark.sinks import bodies, drain, eventually
from tests.spark.support import publish
from tests.spark.test_sink_kills import ROWS, App
from tests.support.broker import LeveretProcess


@pytest.fixture(scope="module")
def cluster(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def app(cluster: Cluster, broker: LeveretProcess, connection: blocking.Connection, name: str,
        tmp_path: Path) -> Iterator[App]:
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-in", durable=True)
        channel.declare_queue(f"{name}-out", durable=True)
    publish(connection, f"{name}-in", ROWS, persistent=True)
    made = App(broker, tmp_path, name, cluster.url, {
        "spark.executor.memory": "450m", "spark.executor.cores": "1", "spark.speculation": "true",
        "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms"})
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


@pytest.mark.timeout(300)
def test_rows_arrive_once_although_an_executor_is_lost(app: App, cluster: Cluster, name: str,
                                                       connection: blocking.Connection) -> None:
    (app.marker / "hold").touch()
    app.start()
    eventually(lambda: app.running("reading"), "a task reads", 150)
    lost = eventually(cluster.executors, "an executor runs")[0]
    os.kill(lost, signal.SIGKILL)
    (app.marker / "hold").unlink()
    app.finish()
    assert lost not in cluster.executors()
    assert sorted(bodies(drain(connection, f"{name}-out"))) == sorted(row.encode() for row in ROWS)


@pytest.mark.timeout(300)
def test_rows_arrive_once_although_a_slow_task_is_run_twice(app: App, name: str, connection: blocking.Connection) -> None:
    (app.marker / "slow").touch()
    app.start().finish()
    assert (app.marker / "overtaken").exists(), "no task was run a second time beside the first"
    assert sorted(bodies(drain(connection, f"{name}-out"))) == sorted(row.encode() for row in ROWS)
