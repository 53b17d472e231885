"""Links of Qpid Proton that outlive their connections, against a broker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import Broker

proton = pytest.importorskip("proton")

from proton import Message  # noqa: E402
from proton.reactor import Container, DurableSubscription  # noqa: E402
from proton.utils import BlockingConnection, BlockingReceiver  # noqa: E402

TIMEOUT = 120

Connect = Callable[[], BlockingConnection]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Open connections of one container, like a client that reconnects."""
    if broker.kind != "leveret":
        pytest.skip("RabbitMQ 3 has other addresses")
    made: list[BlockingConnection] = []

    def make() -> BlockingConnection:
        container = Container()
        container.container_id = "proton-links"
        made.append(BlockingConnection(f"amqp://{broker.host}:{broker.port}", timeout=TIMEOUT, container=container))
        return made[-1]

    yield make
    for connection in made:
        if connection.conn is not None:
            connection.close()


def publish(connect: Connect, address: str, *bodies: str) -> None:
    connection = connect()
    sender = connection.create_sender(address)
    for body in bodies:
        sender.send(Message(body, durable=True))
    connection.close()


def subscribe(connection: BlockingConnection, address: str, name: str) -> BlockingReceiver:
    return connection.create_receiver(address, credit=10, name=name, options=DurableSubscription())


def take(receiver: BlockingReceiver, *bodies: str) -> None:
    for body in bodies:
        assert receiver.receive(TIMEOUT).body == body
        receiver.accept()


def test_a_durable_subscription(connect: Connect, name: str) -> None:
    address = f"topic://{name}"
    first = connect()
    receiver = subscribe(first, address, name)
    assert receiver.link.remote_source.durability == proton.Terminus.DELIVERIES
    assert receiver.link.remote_source.expiry_policy == proton.Terminus.EXPIRE_NEVER
    publish(connect, address, "1")
    take(receiver, "1")
    first.close()
    publish(connect, address, "2", "3")
    second = connect()
    receiver = subscribe(second, address, name)
    take(receiver, "2")
    # Detached, not closed: it is still there.
    receiver.link.detach()
    second.close()
    publish(connect, address, "4")
    third = connect()
    receiver = subscribe(third, address, name)
    take(receiver, "3", "4")
    receiver.close()
    publish(connect, address, "5")
    receiver = subscribe(third, address, name)
    with pytest.raises(proton.Timeout):
        receiver.receive(1)
    receiver.close()


def test_messages_of_a_lost_client_are_redelivered(connect: Connect, name: str) -> None:
    """Proton remembers no unsettled deliveries, so they are redelivered as after a failed attempt."""
    publish(connect, name, "1", "2")
    first = connect()
    receiver = subscribe(first, name, name)
    assert receiver.receive(TIMEOUT).body == "1"
    first.close()
    # Other links do not get the link's unsettled messages.
    other = connect().create_receiver(name, credit=10)
    with pytest.raises(proton.Timeout):
        other.receive(1)
    other.close()
    receiver = subscribe(connect(), name, name)
    again = receiver.receive(TIMEOUT)
    assert (again.body, again.first_acquirer, again.delivery_count) == ("1", False, 1)
    receiver.accept()
    take(receiver, "2")
    receiver.close()
