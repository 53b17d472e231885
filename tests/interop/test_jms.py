"""Qpid JMS: durable and shared subscriptions, browsers, transactions, temporary destinations, selectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.programs import java, run
from tests.support.broker import LeveretProcess, leveret_only

HERE = Path(__file__).parent


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A separate broker, because topics belong to the whole vhost."""
    leveret_only("RabbitMQ has no shared subscriptions")
    with LeveretProcess(tmp_path) as broker:
        broker.start()
        yield broker
        broker.check_log()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_subscriptions(own_broker: LeveretProcess) -> None:
    run(java(HERE / "jms", "Subscriptions", "qpid-jms-client"), own_broker, least=21)
