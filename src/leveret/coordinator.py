"""Coordinator of distributed transactions.

A coordinator commits and rolls back branches over the control socket of a broker on this machine, as the broker's user.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leveret.broker.transactions.branch import format_identifier
from leveret.management import control_client
from leveret.management.control_client import CallFailed, NoBroker

__all__ = ["CallFailed", "Coordinator", "NoBroker", "RolledBack", "commit_all"]


class RolledBack(Exception):
    """The branch `identifier` was rolled back, or can only be rolled back. `timed_out` says whether it timed out."""

    def __init__(self, identifier: str, timed_out: bool) -> None:
        super().__init__(identifier, timed_out)
        self.identifier = identifier
        self.timed_out = timed_out

    def __str__(self) -> str:
        if self.timed_out:
            return f"branch '{self.identifier}' timed out and was rolled back"
        return f"branch '{self.identifier}' was rolled back, or can only be rolled back"


class Coordinator:
    """Coordinator of the branches in one vhost of a broker on this machine.

    Every call returns when its result is on disk.

    Args:
        data_dir: The data directory of the broker.
        vhost: The vhost of the branches.

    Raises:
        RolledBack: The branch was rolled back, or can only be rolled back.
        CallFailed: The broker refused the call.
        NoBroker: No broker runs on the data directory.
    """

    def __init__(self, data_dir: str | os.PathLike[str], vhost: str = "/") -> None:
        self.data_dir = Path(data_dir)
        self.vhost = vhost

    def list(self) -> Sequence[dict[str, Any]]:
        """Return the branches, as `leveret dtx list --json` shows them."""
        found: list[dict[str, Any]] = control_client.call(self.data_dir, "dtx.list", {"vhost": self.vhost})
        return found

    def prepare(self, identifier: str) -> None:
        """Prepare a branch, so that it survives a crash and waits for its commit or rollback."""
        self._decide("prepare", identifier, "prepared")

    def commit(self, identifier: str, *, one_phase: bool = False, remember: bool = False) -> None:
        """Commit a branch.

        Args:
            identifier: The identifier of the branch.
            one_phase: Commit a branch that is not prepared.
            remember: Keep the outcome until `forget`.
        """
        self._decide("commit", identifier, "committed", one_phase=one_phase, remember=remember)

    def rollback(self, identifier: str, *, remember: bool = False) -> None:
        """Roll back a branch.

        Args:
            identifier: The identifier of the branch.
            remember: Keep the outcome until `forget`.
        """
        self._decide("rollback", identifier, "rolled back", remember=remember)

    def forget(self, identifier: str) -> None:
        """Forget a remembered outcome."""
        control_client.call(self.data_dir, "dtx.forget", {"name": format_identifier(identifier), "vhost": self.vhost})

    def _decide(self, call: str, identifier: str, wanted: str, **arguments: bool) -> None:
        answer = control_client.call(
            self.data_dir, f"dtx.{call}", {"name": format_identifier(identifier), "vhost": self.vhost, **arguments}
        )
        outcome = answer["outcome"]
        if outcome != wanted:
            raise RolledBack(identifier, outcome == "timed out")


def commit_all(branches: Sequence[tuple[Coordinator, str]]) -> None:
    """Commit branches of any number of brokers atomically: prepare all branches, then commit them.

    If a branch cannot be prepared, all branches are rolled back and the error is raised. A program that must survive a
    crash records its decision between preparation and commit, and repeats it after a restart. Prepared branches wait for
    it.

    Args:
        branches: Pairs of a coordinator and the identifier of a branch.
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
                pass  # The branch no longer exists.
        raise
    for coordinator, identifier in branches:
        coordinator.commit(identifier)
