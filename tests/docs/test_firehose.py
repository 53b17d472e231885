"""The program on the page about the firehose prints what the page shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from leveret.management.control_client import call
from tests.docs.pages import DOCS, at_broker, blocks
from tests.docs.terminals import programs
from tests.support.broker import LeveretProcess

PAGE = DOCS / "firehose.md"
COMMAND = "$ python firehose.py\n"


def test_the_program_prints_what_the_page_shows(broker: LeveretProcess, tmp_path: Path) -> None:
    program = tmp_path / "firehose.py"
    program.write_text(at_broker(programs(PAGE)["firehose.py"], broker), "utf-8")
    (shown,) = [block.text.partition(COMMAND)[2] for block in blocks(PAGE, "console") if COMMAND in block.text]
    call(broker.data_dir, "vhosts.trace", {"name": "/", "on": True})
    try:
        found = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    finally:
        call(broker.data_dir, "vhosts.trace", {"name": "/", "on": False})
    assert (found.stdout, found.stderr) == (shown.partition("$ ")[0], "")
