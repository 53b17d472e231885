"""A broker that runs in a Java process, for comparisons."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


class JavaProcess:
    """The process of a broker.

    Args:
        name: Name of the broker, for messages.
        directory: Its working directory, which gets the file `output`.
        port: The loopback port on which it will listen.
    """

    def __init__(self, name: str, directory: Path, port: int) -> None:
        self._name = name
        self._directory = directory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, command: Sequence[str], timeout: float) -> None:
        """Run a command and wait until it listens. Raises RuntimeError with its output if it does not in these seconds."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "output"
        with open(path, "ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=self._directory
            )
        deadline = time.monotonic() + timeout
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self._name} did not start:\n{path.read_text()[-4000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1):
                return True
        except OSError:
            return False
