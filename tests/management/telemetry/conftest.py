"""A collector, a broker that exports to it, and a tracer of the clients that does the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.management.telemetry.collector import Collector
from tests.support.broker import LeveretProcess
from tests.support.fixtures import name

__all__ = ["name"]


def start_broker(directory: Path, endpoint: str, **settings: str) -> LeveretProcess:
    environment = {f"LEVERET_TELEMETRY__{key.upper()}": value for key, value in settings.items()}
    # A failed export is repeated for a second.
    defaults = {"LEVERET_TELEMETRY__OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    return LeveretProcess(directory, environment=defaults | environment).start()


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="package")
def shared_broker(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[LeveretProcess]:
    settings = {"metrics_interval": "1", "queue_metrics": "true"}
    with start_broker(tmp_path_factory.mktemp("telemetry"), collector.url, **settings) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: LeveretProcess) -> Iterator[LeveretProcess]:
    yield shared_broker
    shared_broker.check_log()


@pytest.fixture(scope="package")
def tracer(collector: Collector) -> Iterator[trace.Tracer]:
    """A tracer of the provider that is also the global one, which clients use."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")))
    trace.set_tracer_provider(provider)
    yield provider.get_tracer("tests")
    provider.shutdown()
