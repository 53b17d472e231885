"""Compacts many copies of a table and kills each compaction with SIGKILL at another point; prints the number of copies.

    python -m tests.spark.pipeline.kill_compaction FORMAT TABLE COPIES

A compaction of a Parquet table is killed before each of its steps: calls that change or open a file in the table's
directory. The last copy is the first one whose compaction has ended. That of another table, whose libraries' steps cannot
be seen, is killed after different times.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from leveret.spark.pipeline.compaction.compact import compact
from leveret.spark.pipeline.model import TableOutput

EVENTS = frozenset({"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"})
# Points in time, and seconds between them.
TIMES = 12
INTERVAL = 0.03


def kill_before_step(root: str, step: int) -> None:
    """Kill this process before a step."""
    steps = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if event in EVENTS and any(isinstance(one, str | os.PathLike) and str(one).startswith(root) for one in arguments):
            steps += 1
            if steps > step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def start(output: TableOutput, prepare: Callable[[], None]) -> int:
    """Compact a table in a new process and return its id."""
    process = os.fork()
    if process == 0:
        try:
            prepare()
            compact(output, min_age=0)
        finally:
            os._exit(0)
    return process


def kill_at_steps(table: str, copies: Path) -> int:
    step = 0
    while True:
        copy = copies / str(step)
        shutil.copytree(table, copy)
        process = start(TableOutput(path=str(copy)), partial(kill_before_step, str(copy), step))
        step += 1
        if not os.WIFSIGNALED(os.waitpid(process, 0)[1]):
            return step


def kill_at_times(format: Any, table: str, copies: Path) -> int:
    for number in range(TIMES):
        shutil.copytree(table, copies / str(number))
        process = start(TableOutput(path=str(copies / str(number)), format=format, table="leveret.table"), lambda: None)
        time.sleep(number * INTERVAL)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return TIMES


if __name__ == "__main__":
    import deltalake
    import pyiceberg.catalog
    import pyiceberg.io.pyarrow

    kind, of, to = sys.argv[1:]
    assert deltalake and pyiceberg.catalog
    print(kill_at_steps(of, Path(to)) if kind == "parquet" else kill_at_times(kind, of, Path(to)))
