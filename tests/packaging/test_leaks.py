"""A run of tests that leaves something behind fails, and names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leaks

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.support import leaks

leaks.ENDED_WITHIN = 0.0


def pytest_configure(config):
    leaks.watch(config)
"""
LEAVES = {
    "nothing": "",
    "a process": "import subprocess\n    subprocess.Popen(['sleep', '600'])",
    "a directory": "import tempfile\n    tempfile.mkdtemp(prefix='forgotten-')",
}


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("left", LEAVES)
def test_what_a_run_leaves_behind(tmp_path: Path, left: str, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {LEAVES[left] or 'pass'}\n")
    environment = {name: value for name, value in os.environ.items() if name not in (leaks.OUTER, "PYTEST_ADDOPTS")}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            workers,
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            "-c",
            "/dev/null",
            tmp_path,
        ],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    found = [line for line in run.stdout.splitlines() if line.startswith("LEFT BEHIND")]
    try:
        assert (run.returncode, len(found)) == ((0, 0) if left == "nothing" else (1, 1)), run.stdout + run.stderr
        assert left != "a process" or "sleep 600" in found[0]
        assert left != "a directory" or "/forgotten-" in found[0]
    finally:
        if left == "a process":
            os.kill(int(found[0].split()[3].rstrip(":")), 9)
