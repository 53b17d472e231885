"""The examples for Node.js, Go and Java, run with their own toolchains."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker
from tests.support.npm import install

DIRECTORY = ROOT / "examples" / "frameworks"
TIMEOUT = 280

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("everything")]


def run(command: list[str | Path], directory: Path, broker: Broker, **variables: str) -> str:
    """Return the output of a command for the broker of AMQP_URL. Raises AssertionError if it fails."""
    ran = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"AMQP_URL": broker.url(vhost="/")} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
    return ran.stdout


def test_amqplib(broker: Broker, tmp_path: Path) -> None:
    modules = install(DIRECTORY / "amqplib", "example-amqplib")
    output = run(["node", "--test", "--test-reporter=spec"], DIRECTORY / "amqplib", broker, NODE_PATH=str(modules))
    assert "ℹ pass 5" in output
