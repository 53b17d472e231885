"""RabbitMQ's AMQP 1.0 client for Java, unmodified, against a broker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.programs import java, run
from tests.support.broker import Broker

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_java(broker: Broker) -> None:
    if broker.kind != "leveret":
        pytest.skip("the client wants RabbitMQ 4")
    run(java(HERE / "rabbitmq_amqp", "Client", "amqp-client"), broker, 52)
