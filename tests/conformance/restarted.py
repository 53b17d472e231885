"""A broker that the tests of a module stop, kill and start, each beginning with empty virtual hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator

from leveret.management.control_client import call
from tests.support.broker import LeveretProcess


def in_turn(process: LeveretProcess) -> Iterator[LeveretProcess]:
    """What a fixture yields: the process, running and empty, whose log is checked after the test."""
    if not process.alive():
        process.kill()
        process.start()
    empty(process)
    yield process
    try:
        process.check_log()
    finally:
        os.truncate(process.log_path, 0)


def empty(process: LeveretProcess) -> None:
    """Remove the queues and exchanges that clients have declared, and all messages."""
    for vhost in call(process.data_dir, "vhosts.list"):
        at = {"vhost": vhost["name"]}
        for kind in ("queues", "exchanges"):
            for found in call(process.data_dir, f"{kind}.list", at):
                if found["name"].startswith(("amq.", "leveret.")):
                    if kind == "queues":
                        call(process.data_dir, "queues.purge", at | {"name": found["name"]})
                elif found["name"]:
                    call(process.data_dir, f"{kind}.delete", at | {"name": found["name"]})
