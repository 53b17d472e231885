"""Wheels of this checkout, and what pip installs with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.broker import ROOT

LIMIT = 280
CHECKOUT = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE", "hot_modules.txt")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Return the output of a program that does not find the checkout."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", "LEVERET_PURE": "", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def copy_checkout(target: Path) -> None:
    """Copy the files that a wheel is built from."""
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in CHECKOUT:
        shutil.copy(ROOT / name, target / name)


def dependencies(wheel: Path, *extras: str) -> dict[str, metadata.Distribution]:
    """Return what pip installs with a wheel, by name, from the environment of the tests."""
    [info] = [path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info")]
    todo = [(Requirement(text), extras) for text in metadata.PathDistribution(info).requires or ()]
    found: dict[str, metadata.Distribution] = {}
    while todo:
        requirement, wanted = todo.pop()
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found or requirement.extras:
            found[name] = metadata.distribution(name)
            todo += [(Requirement(text), tuple(requirement.extras)) for text in found[name].requires or ()]
    return found


def install(environment: Path, wheel: Path, *extras: str) -> None:
    """Install a wheel in a virtual environment, with links to its dependencies, which are those of the tests."""
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=environment)
    [site] = (environment / "lib").glob("python*/site-packages")
    for distribution in dependencies(wheel, *extras).values():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(str(distribution.locate_file(name)))
