"""Qpid's old JMS client (qpid-client 6, and 0.10 of 2011) over AMQP 0-9, alone and with clients of 0-9-1 and 1.0."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.helpers import get
from tests.interop.programs import java, run
from tests.support.broker import Broker, leveret_only

HERE = Path(__file__).parent / "qpid09"
LIBRARY = "qpid-client"


@pytest.fixture(autouse=True)
def only_here() -> None:
    leveret_only("no other broker speaks AMQP 0-9")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_jms_over_0_9(broker: Broker) -> None:
    run(java(HERE, "Legacy", LIBRARY), broker, least=24, timeout=900)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_client_of_2011(broker: Broker) -> None:
    """It has no addresses for 0-9, and supports only ASCII text."""
    subjects = [
        "speaks 0-9",
        "mechanisms",
        "virtual hosts",
        "temporary queues",
        "queues",
        "depth and bindings",
        "topics",
        "no-local",
        "selectors",
        "transactions",
        "recovery",
        "acknowledgement",
        "browsing",
        "large messages",
        "kinds of messages",
        "expiry",
        "durable subscriptions",
        "listeners",
        "competing consumers",
        "unroutable messages",
    ]
    run([*java(HERE, "Legacy", LIBRARY, "pom-0.10.xml"), *subjects], broker, least=len(subjects), timeout=900)


def proton(broker: Broker) -> Any:
    """A blocking connection of Qpid Proton's."""
    utils = pytest.importorskip("proton.utils")
    return utils.BlockingConnection(
        f"amqp://{broker.host}:{broker.port}", user=broker.user, password=broker.password, timeout=60
    )


def cross(broker: Broker, *arguments: str) -> list[str]:
    ran = subprocess.run(
        [*java(HERE, "Cross", LIBRARY), *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | {"LEVERET_URL": broker.url(vhost="/")},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_0_9_to_0_9_1(broker: Broker, channel: BlockingChannel, name: str) -> None:
    cross(broker, "send", name)
    text = get(channel, name)
    assert text.body.decode() == "grüße"
    properties = text.properties
    assert (properties.content_type, properties.priority, properties.delivery_mode) == ("text/plain", 7, 2)
    assert properties.correlation_id == "correlation"
    assert (properties.headers["colour"], properties.headers["size"]) == ("red", 3)
    binary = get(channel, name)
    assert (binary.body, binary.properties.delivery_mode) == (b"\0\1\xfe", 1)
    assert binary.properties.content_type == "application/octet-stream"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_0_9_to_1_0(broker: Broker, name: str) -> None:
    cross(broker, "send", name)
    connection = proton(broker)
    try:
        receiver = connection.create_receiver(f"/queues/{name}")
        text = receiver.receive(timeout=60)
        receiver.accept()
        binary = receiver.receive(timeout=60)
        receiver.accept()
    finally:
        connection.close()
    body = text.body if isinstance(text.body, str) else bytes(text.body).decode()
    assert (body, text.priority, text.durable, text.correlation_id) == ("grüße", 7, True, "correlation")
    assert text.properties["colour"] == "red" and text.properties["size"] == 3
    assert (bytes(binary.body), binary.durable) == (b"\0\1\xfe", False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_0_9_1_and_1_0_to_0_9(broker: Broker, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.basic_publish(
        "",
        name,
        "grüße".encode(),
        pika.BasicProperties(
            content_type="text/plain", headers={"colour": "red"}, correlation_id="1", priority=7, delivery_mode=2
        ),
    )
    channel.basic_publish("", name, b"\0\xfe")
    channel.queue_declare(name, passive=True)
    connection = proton(broker)
    try:
        sender = connection.create_sender(f"/queues/{name}")
        message = pytest.importorskip("proton").Message
        sender.send(
            message(
                body="von 1.0",
                content_type="text/plain",
                properties={"colour": "blue"},
                correlation_id="2",
                priority=5,
                durable=True,
            )
        )
        sender.send(message(body=b"\1\2", inferred=True))
    finally:
        connection.close()
    # By priority. Messages without delivery mode and priority show none.
    assert cross(broker, "receive", name, "4") == [
        "JMSTextMessage grüße; colour red; correlation 1; priority 7; mode 2",
        "JMSTextMessage von 1.0; colour blue; correlation 2; priority 5; mode 2",
        "JMSBytesMessage 0 254; colour null; correlation null; priority 0; mode 0",
        "JMSBytesMessage 1 2; colour null; correlation null; priority 0; mode 1",
    ]
