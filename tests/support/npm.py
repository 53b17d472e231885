"""Packages of npm, pinned by a lock file and installed once under `build`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT
from tests.support.locks import locked


def install(sources: Path, name: str) -> Path:
    """Return the `node_modules` of the lock file in a directory. Skips the test if npm cannot install the packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed")
    lock = (sources / "package-lock.json").read_bytes()
    directory = ROOT / "build" / "npm" / f"{name}-{hashlib.sha256(lock).hexdigest()[:16]}"
    done = directory / "installed"
    with locked(directory):
        if not done.exists():
            for file in ("package.json", "package-lock.json"):
                shutil.copy(sources / file, directory / file)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                pytest.skip(f"npm cannot install the packages: {ran.stderr[-500:]}")
            done.touch()
    return directory / "node_modules"
