"""The telemetry process of `leveret serve`, which exports spans and metrics for OpenTelemetry."""

from __future__ import annotations

import importlib.metadata
import logging
from functools import partial
from pathlib import Path
from typing import Final

from leveret._build import __version__, installation
from leveret.broker.broker import Broker
from leveret.broker.node_name import node_name
from leveret.broker.tracing import Tracing
from leveret.config import Config
from leveret.management.telemetry.settings import TelemetrySettings
from leveret.node.child_process import ChildProcess

log = logging.getLogger("leveret.serve")

_MODULE: Final = "leveret.cli.telemetry_main"
_REQUIRED: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")


class TelemetryProcess:
    """The telemetry of a broker. Logs why there is none if it is configured, but not installed."""

    def __init__(self, config: Config, control: Path) -> None:
        self._config = config
        self._control = control
        self._process = ChildProcess("telemetry process", _MODULE)
        self._endpoint = config.telemetry.otlp_endpoint
        missing = [name for name in _REQUIRED if not _is_installed(name)]
        if self._endpoint is not None and missing:
            log.error("no telemetry: %s not installed; %s", ", ".join(missing), installation("otel"))
            self._endpoint = None

    def trace(self, broker: Broker) -> None:
        """Trace the messages of a broker that has not started, unless traces are off."""
        telemetry = self._config.telemetry
        if self._endpoint is not None and telemetry.traces:
            broker.tracing = Tracing(broker, telemetry.sample)

    def start(self) -> None:
        """Start the process unless it runs or there is no telemetry, without waiting for it."""
        if self._endpoint is not None:
            self._process.start(partial(self._settings, self._endpoint))

    async def stop(self) -> None:
        """Have the process export the last spans, and end it."""
        await self._process.stop()

    def _settings(self, endpoint: str) -> TelemetrySettings:
        telemetry = self._config.telemetry
        return TelemetrySettings(
            control=str(self._control),
            endpoint=endpoint,
            traces=telemetry.traces,
            metrics=telemetry.metrics,
            metrics_interval=telemetry.metrics_interval,
            queue_metrics=telemetry.queue_metrics,
            service_name=telemetry.service_name,
            node=node_name(),
            version=__version__,
            log_level=self._config.server.log_level,
            log_format=self._config.server.log_format,
        )


def _is_installed(distribution: str) -> bool:
    """Return whether a package is installed, without importing a part of it."""
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
