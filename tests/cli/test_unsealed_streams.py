"""`leveret streams` without sealing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from leveret import sync
from tests.support.broker import LeveretProcess, basic_config, leveret_only


def test_the_list_gives_the_reason(tmp_path: Path) -> None:
    leveret_only("its configuration turns sealing off")
    with LeveretProcess(tmp_path, config=basic_config() + "\n[streams]\nsealing = false\n").start() as process:
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        done = subprocess.run(
            [sys.executable, "-m", "leveret", "streams", "--data-dir", str(process.data_dir)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert done.stderr == "streams are not sealed: 'streams.sealing' is false\n"
