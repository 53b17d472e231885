"""The segments' disk runs full, but not the log's: the stream continues unsealed, and is sealed later."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_sealing_kill9 import check, describe, files_in, manifest, publish
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until

DISK = 64 << 10
ROOM = 16 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    leveret_only("its segments lie on a small file system")
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode(errors='replace')}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.slow
def test_segments_without_space(tmp_path: Path, small_disk: Path) -> None:
    config = (
        basic_config()
        + f"""
[streams]
directory = "{small_disk}/streams"
segment_size = 20000
segment_age = "200ms"
merge_below = 0
"""
    )
    with LeveretProcess(tmp_path, config=config).start() as process:
        confirmed: list[bytes] = []

        def said() -> bool:
            text = process.log_path.read_text("utf-8", "replace")
            return "remain unsealed: " in text and "No space left" in text

        number = publish(process, confirmed, 0, lambda: said() or len(confirmed) > 20_000)
        assert said(), "the disk was not full"
        number = publish(process, confirmed, number, lambda: len(confirmed) >= number + 300)
        check(process, confirmed, {}, 0)
        assert describe(process)["unsealed"] > 0
        wait_until(
            lambda: files_in(small_disk) == {segment["path"] for segment in manifest(process)}, "unfinished files are left"
        )
        subprocess.run(["mount", "-o", f"remount,size={ROOM}", str(small_disk)], check=True)
        publish(process, confirmed, number, lambda: len(confirmed) >= number + 10)
        wait_until(lambda: describe(process)["unsealed"] < 50, "nothing was sealed when there was room again")
        check(process, confirmed, {}, 0)
        process.check_log()
