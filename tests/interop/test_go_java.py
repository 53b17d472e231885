"""RabbitMQ's clients for Go and Java: a small program each, run against the broker."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.interop.programs import build_directory, java, prepare, run
from tests.support.broker import Broker

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_go(broker: Broker) -> None:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        pytest.skip("Go is not installed")
    directory = build_directory("go", *(HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")))
    program = directory / "interop"
    if not program.exists():
        environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        prepare([go, "build", "-o", str(program), "."], "the Go client cannot be built", cwd=HERE / "go", env=environment)
    run([str(program)], broker, least=13)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_java(broker: Broker) -> None:
    """The client's calls, and the broker features that its users rely on, in one JVM."""
    run(java(HERE / "java", "Interop", "amqp-client"), broker, least=57, timeout=400)
