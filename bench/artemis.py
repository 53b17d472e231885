"""Apache ActiveMQ Artemis, embedded in a small program (`bench/artemis/`), if Java and Maven are installed."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path

from bench import maven
from bench.generator import BENCH
from bench.java_process import JavaProcess
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
    """Artemis on a free loopback port. It speaks AMQP 1.0 only; links create its queues.

    Args:
        directory: Its data and its output.
        keep: Whether queues and their messages outlive their links.
    """

    kind = "artemis"

    def __init__(self, directory: Path, keep: bool = False) -> None:
        super().__init__(port=free_port())
        self.directory = directory
        self._keep = keep
        self._process = JavaProcess("Artemis", directory, self.port)

    def start(self, timeout: float = 90.0) -> ArtemisProcess:
        """Start Artemis and wait until it listens. Raises RuntimeError with its output if it does not."""
        classes = program()
        assert classes is not None, "Artemis is not available"
        self._process.start(
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
                *(["keep"] if self._keep else []),
            ],
            timeout,
        )
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        self._process.stop()
