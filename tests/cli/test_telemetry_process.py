"""The telemetry process, as the broker's process sees it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.broker.broker import Broker
from leveret.cli.telemetry_process import TelemetryProcess
from leveret.config import Config
from leveret.config.model import TelemetryConfig
from leveret.storage.memory import MemoryLog
from tests.support.broker import ROOT

ENDPOINT = "http://localhost:4318"


def telemetry(settings: TelemetryConfig) -> TelemetryProcess:
    return TelemetryProcess(Config(telemetry=settings), Path("control.sock"))


def test_messages_are_traced_only_with_an_endpoint() -> None:
    for process, traced in (
        (telemetry(TelemetryConfig()), False),
        (telemetry(TelemetryConfig(otlp_endpoint=ENDPOINT)), True),
        (telemetry(TelemetryConfig(otlp_endpoint=ENDPOINT, traces=False)), False),
    ):
        broker = Broker(MemoryLog(), None)
        process.trace(broker)
        assert (broker.tracing is not None) is traced


def test_a_missing_package_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    telemetry(TelemetryConfig())
    assert not caplog.messages
    broker = Broker(MemoryLog(), None)
    telemetry(TelemetryConfig(otlp_endpoint=ENDPOINT)).trace(broker)
    assert broker.tracing is None
    assert caplog.messages == [
        "no telemetry: opentelemetry-sdk, opentelemetry-exporter-otlp-proto-http not installed; make extra-otel"
    ]


def test_the_brokers_process_does_not_import_opentelemetry() -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "import leveret.cli.serving\n"
        "from leveret.cli.telemetry_process import TelemetryProcess\n"
        "from leveret.config import Config\n"
        "from leveret.config.model import TelemetryConfig\n"
        f"TelemetryProcess(Config(telemetry=TelemetryConfig(otlp_endpoint={ENDPOINT!r})), Path('control.sock'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout == "[]\n"
