"""A standalone Spark cluster on loopback: a master, and two workers on separate addresses, which cannot import from this
checkout."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pyspark

from tests.spark.environment import JAVA_OPTIONS, environment
from tests.support.polling import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
TIMEOUT = 180.0


class Cluster:
    """A context manager that runs the cluster. `url` is the URL of the master."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        try:
            master = self._start(
                "master", "org.apache.spark.deploy.master.Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0"
            )
            self.url = self._said(master, r"Starting Spark master at (spark://\S+)")
            for host in HOSTS:
                worker = self._start(
                    f"worker-{host}",
                    "org.apache.spark.deploy.worker.Worker",
                    "--host",
                    host,
                    "--port",
                    "0",
                    "--webui-port",
                    "0",
                    "--cores",
                    "1",
                    "--memory",
                    "700m",
                    "--work-dir",
                    str(self.directory / f"work-{host}"),
                    self.url,
                )
                self._said(worker, r"Successfully registered (with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            # A separate session, so that executors are killed with their worker.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(120)

    def executors(self) -> list[int]:
        """Return the processes of running executors."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_executor(entry)]

    def _is_executor(self, entry: Path) -> bool:
        try:
            command = (entry / "cmdline").read_bytes()
            place = os.readlink(entry / "cwd")
        except OSError:
            return False
        return b"CoarseGrainedExecutorBackend" in command and place.startswith(str(self.directory))

    def _start(self, name: str, main: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        log = self.directory / f"{name}.log"
        variables = environment(
            SPARK_HOME=str(home),
            SPARK_LOCAL_IP=HOSTS[0],
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=JAVA_OPTIONS,
            SPARK_LOCAL_DIRS=str(self.directory / "local"),
        )
        # Applications must ship what they need from this checkout.
        del variables["PYTHONPATH"]
        with open(log, "wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), main, *arguments],
                    cwd=self.directory,
                    env=variables,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return log

    def _said(self, log: Path, pattern: str) -> str:
        def text() -> str:
            return log.read_text(errors="replace")

        def found() -> str | None:
            match = re.search(pattern, text())
            assert match or self._processes[-1].poll() is None, text()[-2000:]
            return match and match[1]

        return wait_until(found, lambda: text()[-2000:], TIMEOUT)
