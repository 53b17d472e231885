"""Shared parts of the workloads: the journal of their clients, and the brokers to check afterwards."""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.crash.disk import marker
from tests.support.broker import Broker, LeveretProcess, basic_config

Event = list[Any]


class Journal:
    """Writes the actions of clients into the recording of file operations, in their common order.

    A client records an operation before it starts it, and a reply before it does anything
    else.

    ending  whether the broker is about to be killed or stopped
    """

    def __init__(self, log: Path) -> None:
        self.ending = False
        self._file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, *event: Any) -> None:
        os.write(self._file, marker(json.dumps(event).encode()))

    def close(self) -> None:
        os.close(self._file)


class Survivor(Broker):
    """A broker that was started on the files that a power cut left, and its operators' calls."""

    def __init__(self, host: str, port: int, call: Callable[..., Any]) -> None:
        super().__init__(host, port)
        self.call = call


class Workload(ABC):
    """Clients of one kind.

    The seed determines their actions, except for timing; `check` knows only the events of the journal.
    """

    # Whether the broker seals streams.
    sealing = False
    config = basic_config()

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        """Work until the broker has died. Returns what went wrong while it ran.

        started: called when the work begins; the broker is killed some time after it.
        """

    @abstractmethod
    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        """Return what is wrong with a broker whose clients have recorded these events."""


def in_threads(journal: Journal, *clients: Callable[[], None]) -> list[str]:
    """Run clients until their broker ends. Returns the errors that they ended with before."""
    wrong: list[str] = []

    def run(client: Callable[[], None]) -> None:
        try:
            client()
        except Exception as error:
            if not journal.ending:
                wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong
