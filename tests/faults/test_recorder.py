"""The recorder of `preload.c` against the files that a killed process leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.crash.power import between_records, build_library, recorded
from tests.faults.power.points import Taken, unrecorded

pytestmark = pytest.mark.faults

KILLS = 40
WRITER = """
import itertools, os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in itertools.count():
    os.write(file, b"%d " % number)
    if number == 0:
        print("writing", flush=True)
"""


def test_a_kill_between_records_leaves_no_write_unrecorded(tmp_path: Path) -> None:
    """A write lasts about as long as its record, so that many of the kills would otherwise come between the two."""
    library = build_library(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    for number in range(KILLS):
        disk, log = tmp_path / f"disk-{number}", tmp_path / f"recording-{number}.log"
        disk.mkdir()
        environment = os.environ | recorded(library, disk, log)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(disk / "file")], env=environment, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with between_records(log):
                process.kill()
                process.wait()
        assert (disk / "file").stat().st_size > 0
        assert unrecorded(Taken(log, disk, [])) == []
