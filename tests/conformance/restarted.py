"""A broker that the tests of a module stop, kill and start. Each test begins with empty virtual hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator

from leveret.management.control_client import call
from tests.support.broker import LeveretProcess


def in_turn(process: LeveretProcess) -> Iterator[LeveretProcess]:
    """Yield the process, running and empty, for a fixture; check its log after the test."""
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
    """Remove all messages, and the queues and exchanges that clients have declared."""
    for vhost in call(process.data_dir, "vhosts.list"):
        at = {"vhost": vhost["name"]}
        for kind in ("queues", "exchanges"):
            for found in call(process.data_dir, f"{kind}.list", at):
                if found["name"].startswith(("amq.", "leveret.")):
                    if kind == "queues":
                        call(process.data_dir, "queues.purge", at | {"name": found["name"]})
                elif found["name"]:
                    call(process.data_dir, f"{kind}.delete", at | {"name": found["name"]})
