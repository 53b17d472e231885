"""A query from a leased queue to a queue is exactly once despite failed tasks and kills of its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leveret import sync
from tests.spark.environment import environment
from tests.spark.sinks import bodies, drain
from tests.spark.support import publish
from tests.support.broker import ROOT, LeveretProcess
from tests.support.polling import wait_until

ROWS = [f"{number}" for number in range(400)]


class App:
    """`tests.spark.sink.app` as a process."""

    def __init__(
        self,
        broker: LeveretProcess,
        directory: Path,
        name: str,
        master: str = "local[2,3]",
        conf: dict[str, str] | None = None,
    ) -> None:
        self.marker = directory / "marker"
        self.marker.mkdir(exist_ok=True)
        self.log = directory / "app.log"
        self.argument = json.dumps(
            {
                "master": master,
                "conf": conf or {},
                "checkpoint": str(directory / "checkpoint"),
                "marker": str(self.marker),
                "source": {
                    "url": broker.url(),
                    "queue": f"{name}-in",
                    "lease": "test",
                    "minPartitions": "2",
                    "maxMessagesPerTrigger": "150",
                },
                "sink": {"url": broker.url(), "routingKey": f"{name}-out", "guarantee": "exactly-once"},
            }
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> App:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink.app", self.argument],
                cwd=ROOT,
                env=environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers at once."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(120)

    def finish(self) -> None:
        assert self.process is not None
        assert self.process.wait(400) == 0, self.log.read_text(errors="replace")[-4000:]

    def running(self, what: str) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
        return (self.marker / what).exists()


@pytest.fixture
def app(broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path) -> App:
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-in", durable=True)
        channel.declare_queue(f"{name}-out", durable=True)
    publish(connection, f"{name}-in", ROWS, persistent=True)
    return App(broker, tmp_path, name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_arrive_once_despite_failed_tasks_and_a_kill_within_a_batch(
    app: App, name: str, connection: sync.Connection
) -> None:
    (app.marker / "fail").touch()
    (app.marker / "hold").touch()
    app.start()
    try:
        wait_until(lambda: app.running("reading"), "a task reads", 400)
        app.kill()
        assert drain(connection, f"{name}-out") == []
        (app.marker / "hold").unlink()
        (app.marker / "reading").unlink()
        app.start().finish()
    finally:
        if app.process is not None and app.process.poll() is None:
            app.kill()
    assert sorted(bodies(drain(connection, f"{name}-out"))) == sorted(row.encode() for row in ROWS)
    assert "the first attempt fails" in app.log.read_text(errors="replace")
    assert len(list((app.marker.parent / "checkpoint" / "commits").glob("[0-9]*"))) == 3
