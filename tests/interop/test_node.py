"""amqplib (its promise and callback APIs) and rhea on Node.js, run by Node's own test runner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.npm import install

SOURCES = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def modules() -> Path:
    return install(SOURCES, "node")


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
        env=environment, capture_output=True, text=True, timeout=280, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "ℹ fail 0" in ran.stdout
    assert "ℹ pass 0" not in ran.stdout
