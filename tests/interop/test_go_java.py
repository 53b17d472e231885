"""RabbitMQ's clients for Go and Java: a small program each, run against the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.programs import go, java, run
from tests.support.broker import Broker

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_go(broker: Broker) -> None:
    run(go(HERE / "go", "interop"), broker, least=13)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_java(broker: Broker) -> None:
    """The client's calls, and the broker features that its users rely on, in one JVM."""
    run(java(HERE / "java", "Interop", "amqp-client"), broker, least=57, timeout=400)
