"""The coordinator's side of distributed transactions: it decides about branches over the control socket of a broker on this
machine, as the user who runs it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leveret.broker.branch import shown
from leveret.management import control_client
from leveret.management.control_client import CallFailed, NoBroker

__all__ = ["CallFailed", "Coordinator", "NoBroker", "RolledBack", "commit_all"]


class RolledBack(Exception):
    """The branch `identifier` was rolled back, or can only be rolled back; `timed_out` says whether its time has passed."""

    def __init__(self, identifier: str, timed_out: bool) -> None:
        super().__init__(identifier, timed_out)
        self.identifier = identifier
        self.timed_out = timed_out

    def __str__(self) -> str:
        if self.timed_out:
            return f"branch '{self.identifier}' has timed out: it was rolled back"
        return f"branch '{self.identifier}' is rolled back, or can only be rolled back"


class Coordinator:
    """Decides about branches of the broker that runs over `data_dir`. Every call is answered when its decision is on disk;
    it raises `RolledBack`, `CallFailed` for what the broker refuses, and `NoBroker`."""

    def __init__(self, data_dir: str | os.PathLike[str], vhost: str = "/") -> None:
        self.data_dir = Path(data_dir)
        self.vhost = vhost

    def list(self) -> Sequence[dict[str, Any]]:
        """Its branches, as `leveret dtx list --json` shows them."""
        found: list[dict[str, Any]] = control_client.call(self.data_dir, "dtx.list", {"vhost": self.vhost})
        return found

    def prepare(self, identifier: str) -> None:
        """From then on it can be committed whatever happens, and waits for that."""
        self._decide("prepare", identifier, "prepared")

    def commit(self, identifier: str, *, one_phase: bool = False, remember: bool = False) -> None:
        """Let it take effect: one that is prepared, or with `one_phase` one that is not. With `remember` the outcome is
        kept until it is forgotten."""
        self._decide("commit", identifier, "committed", one_phase=one_phase, remember=remember)

    def rollback(self, identifier: str, *, remember: bool = False) -> None:
        """Undo it."""
        self._decide("rollback", identifier, "rolled back", remember=remember)

    def forget(self, identifier: str) -> None:
        """Forget a remembered outcome."""
        control_client.call(self.data_dir, "dtx.forget", {"name": shown(identifier), "vhost": self.vhost})

    def _decide(self, call: str, identifier: str, wanted: str, **arguments: Any) -> None:
        answer = control_client.call(
            self.data_dir, f"dtx.{call}", {"name": shown(identifier), "vhost": self.vhost, **arguments})
        outcome = answer["outcome"]
        if outcome != wanted:
            raise RolledBack(identifier, outcome == "timed out")


def commit_all(branches: Sequence[tuple[Coordinator, str]]) -> None:
    """Commit branches, of as many brokers as there are, or roll all of them back: all are prepared first.

    The one that cannot be prepared raises its error, after everything is rolled back. Who may die in between writes down,
    before and after the preparation, what it is about to do, and decides again when it is back: a prepared branch waits.
    """
    prepared = 0
    try:
        for coordinator, identifier in branches:
            coordinator.prepare(identifier)
            prepared += 1
    except BaseException:
        for coordinator, identifier in branches:
            try:
                coordinator.rollback(identifier)
            except (CallFailed, RolledBack):
                pass  # it is gone already
        raise
    for coordinator, identifier in branches:
        coordinator.commit(identifier)
