"""Fixtures of all examples: the broker's URL, and processes that end with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TIMEOUT = 60.0


class Process:
    """A running program and its log."""

    def __init__(self, command: list[str], log: Path, url: str, directory: Path) -> None:
        self.log = log
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=directory,
                env=os.environ | {"AMQP_URL": url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # So that `kill` ends its children, too.
                start_new_session=True,
            )

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the log contains a text this number of times."""
        deadline = time.monotonic() + TIMEOUT
        while self.log.read_text().count(text) < times:
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def stop(self, expected: int = 0) -> None:
        """Ask the program to end, as a supervisor does, and check its exit status."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(TIMEOUT) == expected, self.log.read_text()

    def kill(self) -> None:
        """Kill the program with its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture(scope="module")
def url(leveret_broker) -> str:
    """The broker's URL. Modules share the broker, and use queues of their own."""
    return leveret_broker.url


@pytest.fixture(scope="module")
def start(
    request: pytest.FixtureRequest, url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Process]]:
    """Start `python -m COMMAND` in the directory of the test; AMQP_URL is the broker's."""
    started: list[Process] = []

    def start_process(*command: str) -> Process:
        log = tmp_path_factory.mktemp(command[0]) / "log"
        started.append(Process(list(command), log, url, request.path.parent))
        return started[-1]

    yield start_process
    for process in started:
        process.kill()
