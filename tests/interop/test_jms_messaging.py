"""Qpid JMS: messages of all kinds, sessions in every mode, transactions, topics, temporary destinations, logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.programs import java, run
from tests.support.broker import Broker


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_messaging(broker: Broker) -> None:
    if broker.kind != "leveret":
        pytest.skip("RabbitMQ 3 lacks most of what JMS asks of a broker")
    run(java(Path(__file__).parent / "jms", "Messaging", "qpid-jms-client"), broker, least=45, timeout=400)
