"""`leveret pipeline run` as a process: kills, restarts, graceful stops, and its status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from leveret import sync
from leveret.cli.app import leveret
from leveret.spark.pipeline.state import FlowState
from tests.spark.environment import environment
from tests.spark.pipeline.support import orders, publish
from tests.spark.pipeline.test_flows import plain_files
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until

PIPELINE = """
name = "{name}"
directory = "state"

[broker]
url = "{url}"

[supervision]
progress = 1
backoff = 0.1

[spark]
master = "local[2]"
conf = {{ "spark.driver.memory" = "512m" }}

[flows.orders]
capture = {{ stream = "{name}", options = {{ maxMessagesPerTrigger = 400 }} }}
trigger = 0
decode = {{ format = "json", schema = "id BIGINT NOT NULL", quarantine = "bad" }}
tables = [{{ path = "table" }}, {{ path = "delta", format = "delta" }}]

[flows.orders.transform]
function = "functions:doubled"
"""

FUNCTIONS = """
def doubled(messages):
    return messages.selectExpr("append_time", "data.id", "data.id * 2 AS twice")
"""


class Run:
    """The process and its JVM, in a separate session."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "leveret", "pipeline", "run", str(directory / "pipeline.toml")],
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(120)

    def until(self, true: Callable[[], bool]) -> None:
        def reached() -> bool:
            if true():
                return True
            assert self.process.poll() is None, self.log.read_text()
            return False

        wait_until(reached, self.log.read_text, within=400)

    def state(self) -> dict[str, Any]:
        result = CliRunner().invoke(leveret, ["pipeline", "status", str(self.directory / "pipeline.toml"), "--json"])
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.output))


@pytest.fixture
def project(broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path) -> Iterator[Path]:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(name=name, url=broker.url()))
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    yield tmp_path


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_killed_pipeline_resumes_and_stops_gracefully(
    java: None, connection: sync.Connection, name: str, project: Path
) -> None:
    publish(connection, "", [*orders(1000), b"nonsense"], name)
    run = Run(project)
    try:
        # Some batches are in the table, others are not.
        run.until(lambda: bool(plain_files(project / "table")))
        run.kill()
        assert not run.state()["alive"]
        assert len(plain_files(project / "table")) < 1000 or not plain_files(project / "bad")
        publish(connection, "", orders(500, 1000), name)
        run = Run(project)
        run.until(lambda: len(plain_files(project / "table")) >= 1500 and run.state()["flows"]["orders"]["lag"] == 0)
        state = run.state()
        assert state["alive"] and state["pid"] == run.process.pid
        flow = state["flows"]["orders"]
        assert (flow["state"], flow["error"], flow["restarts"]) == ("running", None, 0)
        assert flow["batch"] >= 3 and flow["batch_ms"] > 0 and flow["rows"] > 0
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(300) == 0, run.log.read_text()
        assert run.state()["state"] == "stopped" and not run.state()["alive"]
        assert "orders: stopped, batch" in run.log.read_text()
    finally:
        run.kill()
    rows = plain_files(project / "table")
    assert Counter(row["id"] for row in rows) == Counter(range(1500))
    assert all(row["twice"] == 2 * row["id"] for row in rows)
    committed = DeltaTable(project / "delta").to_pyarrow_table().column("id").to_pylist()
    assert Counter(committed) == Counter(range(1500))
    assert [row["body"] for row in plain_files(project / "bad")] == [b"nonsense"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flow_that_cannot_run_ends_the_application(
    java: None, connection: sync.Connection, project: Path, name: str
) -> None:
    path = project / "pipeline.toml"
    path.write_text(path.read_text().replace("backoff = 0.1", "backoff = 0.1\nrestarts = 1"))
    (project / "functions.py").write_text(
        "def doubled(messages):\n    return messages.selectExpr('append_time', 'raise_error(\"a fault of ours\") AS x')\n"
    )
    publish(connection, "", orders(3), name)
    result = subprocess.run(
        [sys.executable, "-m", "leveret", "pipeline", "run", str(path)],
        env=environment(),
        timeout=580,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "orders: failed, restarting in 0.1 s (1 of 1): " in result.stdout
    assert "a fault of ours" in result.stdout
    assert result.stderr.strip().endswith("Error: a flow failed too often")


def test_a_batch_that_is_reported_twice_is_counted_once() -> None:
    progress = {
        "batchId": 4,
        "numInputRows": 10,
        "processedRowsPerSecond": 5.0,
        "batchDuration": 3,
        "durationMs": {},
        "eventTime": {},
        "sources": [{"endOffset": '{"streams": {"s": {"next": 10}}}', "latestOffset": '{"streams": {"s": 12}, "lag": 2}'}],
    }
    state = FlowState()
    state.update(progress)
    state.update(progress)
    assert (state.rows, state.batch, state.lag) == (10, 4, 2)
    state.update({**progress, "numInputRows": 0, "sources": [{"endOffset": None, "latestOffset": None}]})
    assert (state.rows, state.lag) == (10, 0)
