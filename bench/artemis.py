"""Apache ActiveMQ Artemis, embedded in a small program (`bench/artemis/`), if Java and Maven are installed."""

from __future__ import annotations

import functools
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from bench import maven
from bench.generator import BENCH
from tests.support.broker import Broker, free_port


@functools.cache
def program() -> Path | None:
    """Return the directory of its classes and libraries, downloaded and compiled at first use; None if that fails."""
    if any(shutil.which(tool) is None for tool in ("java", "javac", "mvn")):
        return None
    try:
        return maven.build("Artemis", BENCH / "artemis" / "pom.xml", BENCH / "artemis" / "Embedded.java")
    except maven.Unavailable as error:
        print(error, file=sys.stderr)
        return None


class ArtemisProcess(Broker):
    """Artemis on a free loopback port. It speaks AMQP 1.0 only; links create its queues."""

    kind = "artemis"

    def __init__(self, directory: Path) -> None:
        super().__init__(port=free_port())
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 90.0) -> ArtemisProcess:
        """Start Artemis and wait until it listens. Raises RuntimeError with its output if it does not."""
        classes = program()
        assert classes is not None, "Artemis is not available"
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(
                [
                    "java",
                    "-Xms512m",
                    "-Xmx2g",
                    "-XX:+UseParallelGC",
                    "-cp",
                    f"{classes}/*:{classes}",
                    "Embedded",
                    str(self.port),
                    str(self.directory / "data"),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self.directory,
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("Artemis did not start:\n" + (self.directory / "output").read_text()[-4000:])
            time.sleep(0.1)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), 1):
                return True
        except OSError:
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
