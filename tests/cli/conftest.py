"""A server for the client commands: Leveret, and RabbitMQ if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.cli.program import Program
from tests.cli.runner import Commands
from tests.support.broker import Broker, LeveretProcess, leveret_only, start_broker
from tests.support.fixtures import name
from tests.support.rabbitmq import RabbitProcess, available

__all__ = ["name"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker for one test."""
    leveret_only("commands talk to its control socket")
    with LeveretProcess(tmp_path).start() as process:
        yield process
        process.check_log()


@pytest.fixture
def commands(broker: LeveretProcess) -> Commands:
    return Commands(broker.data_dir)


@pytest.fixture(scope="session", params=["leveret", "rabbitmq"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Both in turn."""
    if request.param == "rabbitmq":
        if not available():
            pytest.skip("rabbitmq-server is not installed")
        broker: Broker = RabbitProcess(tmp_path_factory.mktemp("rabbitmq")).start()
    else:
        broker = start_broker(tmp_path_factory.mktemp("leveret"))
    yield broker
    broker.stop()
    if isinstance(broker, LeveretProcess):
        broker.check_log()


@pytest.fixture
def program(server: Broker) -> Program:
    return Program(server)


@pytest.fixture
def channel(server: Broker) -> Iterator[BlockingChannel]:
    """Another client, which checks what the commands did."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url()))
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> Iterator[str]:
    """A durable queue for one test."""
    channel.queue_declare(name, durable=True)
    yield name
    if channel.is_open:
        channel.queue_delete(name)
