"""Airflow with the Celery executor: scheduler, DAG processor, API server and a worker, as processes over SQLite."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker, free_port
from tests.support.polling import wait_until

EXAMPLE = ROOT / "examples" / "frameworks" / "airflow"
PYTHON = ROOT / "build" / "airflow" / "bin" / "python"
COMPONENTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler"],
    "dag-processor": ["dag-processor"],
    "worker": ["celery", "worker", "--queues", "default,reports", "--skip-serve-logs"],
}
# Five large programs start at the same time.
TIMEOUT = 500.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("everything"), pytest.mark.timeout(900)]


class Airflow:
    """An installation in a directory of its own."""

    def __init__(self, directory: Path, broker: Broker) -> None:
        if not PYTHON.exists():
            pytest.skip("Airflow is not installed: make test-frameworks installs it")
        self.directory = directory
        self.report = directory / "report.txt"
        port = str(free_port())
        example = dict(re.findall(r"^(\w+)=(.*)$", (EXAMPLE / "airflow.env").read_text("utf-8"), re.MULTILINE))
        self.environment = os.environ | example | {
            "PYTHONPATH": "",
            "AIRFLOW_HOME": str(directory),
            "AIRFLOW__CELERY__BROKER_URL": broker.url(vhost="/"),
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "1",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{directory}/results.db",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{directory}/airflow.db",
            "_AIRFLOW__SKIP_DATABASE_EXECUTOR_COMPATIBILITY_CHECK": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLE / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": port,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789" * 7,
            "REPORT": str(self.report),
        }  # fmt: skip
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        migrate: list[str | Path] = [PYTHON, "-m", "airflow", "db", "migrate"]
        ran = subprocess.run(migrate, env=self.environment, capture_output=True, text=True, timeout=200, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        for name, command in COMPONENTS.items():
            with open(self.directory / f"{name}.log", "wb") as output:
                self.processes[name] = subprocess.Popen(
                    [PYTHON, "-m", "airflow", *command],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text("utf-8", "replace")

    def finished(self) -> bool:
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} ended:\n{self.log(name)[-4000:]}"
        return self.report.exists()

    def kill(self) -> None:
        for process in self.processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def airflow(tmp_path: Path, broker: Broker) -> Iterator[Airflow]:
    airflow = Airflow(tmp_path, broker)
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.kill()


def test_airflow(airflow: Airflow) -> None:
    """A DAG of three tasks in two queues, of which the first is retried."""
    wait_until(airflow.finished, lambda: airflow.log("worker")[-8000:], within=TIMEOUT)
    assert airflow.report.read_text() == "total 7\n"
    received = re.findall(r"Task execute_workload\[([\w-]+)\] received", airflow.log("worker"))
    assert len(set(received)) == 4
