"""Settings of the telemetry process, which the broker's process sends as JSON."""

from __future__ import annotations

import msgspec


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the telemetry process.

    Attributes:
        control: The path of the control socket.
        endpoint: The base URL of the collector.
        traces: Whether to export spans.
        metrics: Whether to export metrics.
        metrics_interval: Seconds between two exports of metrics.
        queue_metrics: Whether to export metrics of each queue, and of exchanges with deduplication.
        service_name: The name of the service in spans and metrics.
        node: The name of the node, which identifies this instance of the service.
        version: Leveret's version.
        log_level: `server.log_level`.
        log_format: `server.log_format`.
    """

    control: str
    endpoint: str
    traces: bool
    metrics: bool
    metrics_interval: float
    queue_metrics: bool
    service_name: str
    node: str
    version: str
    log_level: str
    log_format: str
