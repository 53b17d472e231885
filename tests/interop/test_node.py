"""amqplib (its promise and callback APIs) and rhea on Node.js, run by Node's own test runner."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker

SOURCES = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def modules() -> Path:
    """The installed packages, kept under build/ by the hash of the lock file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed")
    lock = (SOURCES / "package-lock.json").read_bytes()
    directory = ROOT / "build" / "interop" / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    done = directory / "installed"
    if not done.exists():
        directory.mkdir(parents=True, exist_ok=True)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(SOURCES / file, directory / file)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
        if ran.returncode:
            pytest.skip(f"npm cannot install the clients: {ran.stderr[-500:]}")
        done.touch()
    return directory / "node_modules"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["promises.test.js", "connections.test.js"])
def test_amqplib(broker: Broker, modules: Path, file: str) -> None:
    run(broker, modules, file)


@pytest.mark.slow
def test_rhea(broker: Broker, modules: Path) -> None:
    if broker.kind != "leveret":
        pytest.skip("RabbitMQ 3 has other addresses")
    run(broker, modules, "rhea.test.js")


def run(broker: Broker, modules: Path, file: str) -> None:
    environment = os.environ | {"LEVERET_URL": broker.url(vhost="/"), "NODE_PATH": str(modules)}
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(SOURCES / file)],
        env=environment, capture_output=True, text=True, timeout=110, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "ℹ fail 0" in ran.stdout
    assert "ℹ pass 0" not in ran.stdout
