"""Qpid Proton against a broker process, over AMQP 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.docs.pages import at_broker, blocks
from tests.interop.helpers import get
from tests.support.broker import ROOT, Broker

proton = pytest.importorskip("proton")

from proton import Delivery, Message, symbol  # noqa: E402
from proton.handlers import MessagingHandler  # noqa: E402
from proton.reactor import Container, Copy, DynamicNodeProperties  # noqa: E402
from proton.utils import BlockingConnection, LinkDetached, SendException  # noqa: E402

TIMEOUT = 120


@pytest.fixture(autouse=True)
def only_leveret(broker: Broker) -> None:
    if broker.kind != "leveret":
        pytest.skip("RabbitMQ 3 has other addresses")


@pytest.fixture
def url(broker: Broker) -> str:
    return f"amqp://{broker.host}:{broker.port}"


@pytest.fixture
def amqp10(url: str) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(url, timeout=TIMEOUT)
    yield connection
    connection.close()


def body_of(message: Message) -> Any:
    return bytes(message.body) if isinstance(message.body, memoryview) else message.body


BODIES = ["text", b"octets", {"a": [1, 2.5, None, True]}, ["list", 1], None, 7, "", b"", "ü" * 300, b"x" * 300_000]


def test_messages_are_delivered_unchanged(amqp10: BlockingConnection, name: str) -> None:
    sender = amqp10.create_sender(name)
    sent = [
        Message(
            body=body,
            id=f"id-{number}",
            subject="s",
            properties={"n": number},
            durable=True,
            priority=5,
            annotations={symbol("x-opt-a"): number},
            correlation_id=number,
            group_id="g",
            reply_to="r",
        )
        for number, body in enumerate(BODIES)
    ]
    for message in sent:
        sender.send(message)
    receiver = amqp10.create_receiver(name, credit=20)
    for message in sent:
        got = receiver.receive(timeout=TIMEOUT)
        receiver.accept()
        assert body_of(got) == message.body
        assert got.annotations == (message.annotations or {}) | {symbol("x-exchange"): "", symbol("x-routing-key"): name}
        for field in ("id", "subject", "properties", "durable", "priority", "correlation_id", "group_id", "reply_to"):
            assert getattr(got, field) == getattr(message, field), field


def test_outcomes(amqp10: BlockingConnection, name: str) -> None:
    amqp10.create_sender(name).send(Message("m"))
    receiver = amqp10.create_receiver(name, credit=1)
    assert receiver.receive(timeout=TIMEOUT).first_acquirer
    receiver.release(delivered=False)
    receiver.flow(1)
    again = receiver.receive(timeout=TIMEOUT)
    assert (again.delivery_count, again.first_acquirer) == (0, False)
    receiver.release(delivered=True)
    receiver.flow(1)
    # Proton's modified does not say that the delivery failed.
    assert receiver.receive(timeout=TIMEOUT).delivery_count == 0
    receiver.reject()
    receiver.close()
    fetcher = amqp10.create_receiver(name, credit=1).fetcher
    assert fetcher is not None and fetcher.has_message == 0


def test_unroutable_messages_are_released(amqp10: BlockingConnection, name: str) -> None:
    with pytest.raises(SendException) as caught:
        amqp10.create_sender(f"/exchanges/amq.direct/{name}").send(Message("m"))
    assert caught.value.state == Delivery.RELEASED


def test_a_refused_link(amqp10: BlockingConnection, name: str) -> None:
    with pytest.raises(LinkDetached) as caught:
        amqp10.create_receiver(f"/queues/{quote(name, safe='')}")
    assert caught.value.condition == "amqp:not-found"
    amqp10.create_sender(name).send(Message("m"))


def test_plain(broker: Broker, url: str) -> None:
    connection = BlockingConnection(url.replace("//", "//guest:guest@"), timeout=TIMEOUT, allowed_mechs="PLAIN")
    connection.close()
    with pytest.raises(proton.ConnectionException):
        BlockingConnection(url.replace("//", "//guest:wrong@"), timeout=TIMEOUT, allowed_mechs="PLAIN")


def test_without_sasl(url: str, name: str) -> None:
    connection = BlockingConnection(url, timeout=TIMEOUT, sasl_enabled=False)
    connection.create_sender(name).send(Message("m"))
    connection.close()


def test_vhosts(broker: Broker, url: str, name: str) -> None:
    connection = BlockingConnection(url, timeout=TIMEOUT, virtual_host="vhost:interop")
    connection.create_sender(name).send(Message("m"))
    connection.close()
    parameters = pika.URLParameters(broker.url(vhost="interop"))
    other = pika.BlockingConnection(parameters)
    assert get(other.channel(), name).body == b"m"
    other.close()
    with pytest.raises(proton.ConnectionException, match="does not exist"):
        BlockingConnection(url, timeout=TIMEOUT, virtual_host="vhost:none").create_sender(name)


def test_from_and_to_amqp0(amqp10: BlockingConnection, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.basic_publish(
        "",
        name,
        b"to 1.0",
        pika.BasicProperties(message_id="m", content_type="text/plain", delivery_mode=2, headers={"a": 1, "b": "x"}),
    )
    receiver = amqp10.create_receiver(name, credit=1)
    got = receiver.receive(timeout=TIMEOUT)
    receiver.accept()
    receiver.close()
    assert (body_of(got), got.id, str(got.content_type), got.durable) == (b"to 1.0", "m", "text/plain", True)
    assert got.properties == {"a": 1, "b": "x"}
    amqp10.create_sender(name).send(Message(b"to 0-9-1", inferred=True, id="i", durable=True, properties={"c": 2}))
    back = get(channel, name)
    assert (back.body, back.properties.message_id, back.properties.delivery_mode, back.properties.headers["c"]) == (
        b"to 0-9-1",
        "i",
        2,
        2,
    )


def test_request_and_response(url: str, name: str) -> None:
    """A dynamic reply address and an anonymous sender, as in Proton's examples."""

    class Server(MessagingHandler):
        def on_start(self, event: Any) -> None:
            connection = event.container.connect(url)
            event.container.create_receiver(connection, name)
            self.sender = event.container.create_sender(connection, None)

        def on_message(self, event: Any) -> None:
            request = event.message
            self.sender.send(
                Message(address=request.reply_to, body=request.body.upper(), correlation_id=request.correlation_id)
            )

    class Client(Server):
        answers: list[str]

        def on_start(self, event: Any) -> None:
            super().on_start(event)
            self.answers = []
            connection = event.container.connect(url)
            self.requests = event.container.create_sender(connection, name)
            self.replies = event.container.create_receiver(connection, None, dynamic=True)

        def on_link_opened(self, event: Any) -> None:
            if event.receiver == self.replies:
                for word in ("one", "two"):
                    self.requests.send(Message(word, reply_to=self.replies.remote_source.address))

        def on_message(self, event: Any) -> None:
            if event.receiver != self.replies:
                super().on_message(event)
                return
            self.answers.append(event.message.body)
            if len(self.answers) == 2:
                event.container.stop()

    client = Client()
    Container(client).run()
    assert client.answers == ["ONE", "TWO"]


class Pipe(MessagingHandler):
    """Sends `total` messages as credit arrives, and receives them."""

    def __init__(self, url: str, name: str, total: int, size: int) -> None:
        super().__init__(prefetch=100)
        self.url, self.name, self.total, self.size = url, name, total, size
        self.sent = self.accepted = 0
        self.received: list[int] = []

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self.url)
        event.container.create_sender(connection, self.name)
        event.container.create_receiver(connection, self.name)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.sent < self.total:
            event.sender.send(Message(b"x" * self.size, inferred=True, durable=True, properties={"n": self.sent}))
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        self.accepted += 1
        self.check(event)

    def on_message(self, event: Any) -> None:
        self.received.append(event.message.properties["n"])
        self.check(event)

    def check(self, event: Any) -> None:
        if self.accepted == self.total == len(self.received):
            event.container.stop()


@pytest.mark.parametrize(("total", "size"), [(5000, 100), (20, 400_000)])
def test_many_messages(url: str, name: str, total: int, size: int) -> None:
    pipe = Pipe(url, name, total, size)
    Container(pipe).run()
    assert pipe.received == list(range(total))


def test_a_lifetime_policy(amqp10: BlockingConnection) -> None:
    receiver = amqp10.create_receiver(
        None, dynamic=True, options=DynamicNodeProperties({"lifetime-policy": proton.Described(proton.ulong(0x2B), [])})
    )
    address = receiver.link.remote_source.address
    sender = amqp10.create_sender(address)
    sender.send(Message("m"))
    sender.close()  # the end of the node would detach it
    assert receiver.receive(timeout=TIMEOUT).body == "m"
    receiver.close()
    with pytest.raises(LinkDetached):
        amqp10.create_receiver(f"/queues/{quote(address or '', safe='')}")


def test_a_heartbeat(url: str, name: str) -> None:
    connection = BlockingConnection(url, timeout=TIMEOUT, heartbeat=1)
    sender = connection.create_sender(name)
    receiver = connection.create_receiver(name, credit=1)
    with pytest.raises(proton.Timeout):
        receiver.receive(timeout=2.5)
    sender.send(Message("still there"))
    assert receiver.receive(timeout=TIMEOUT).body == "still there"
    connection.close()


class Transacted(MessagingHandler):
    """Sends and receives in transactions of three messages, of which the first is rolled back. After Proton's examples."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.url, self.name = url, name
        self.sent: list[str] = []
        self.received: list[str] = []
        self.current = 0
        self.aborted = self.committed = 0
        self.transaction: Any = None

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = self.container.connect(self.url)
        self.sender = self.container.create_sender(self.connection, self.name)
        self.receiver = self.container.create_receiver(self.connection, self.name)
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        if self.committed:
            self.receiver.flow(3)
            return
        for number in range(3):
            self.transaction.send(self.sender, Message(f"{self.aborted} {number}", durable=True))
        (self.transaction.commit if self.aborted else self.transaction.abort)()

    def on_message(self, event: Any) -> None:
        self.received.append(event.message.body)
        self.transaction.accept(event.delivery)
        if len(self.received) == 3:
            self.transaction.commit()

    def on_transaction_aborted(self, event: Any) -> None:
        self.aborted += 1
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_committed(self, event: Any) -> None:
        self.committed += 1
        if self.committed == 2:
            self.connection.close()
        else:
            self.container.declare_transaction(self.connection, handler=self)


def test_transactions(url: str, name: str, amqp10: BlockingConnection) -> None:
    work = Transacted(url, name)
    Container(work).run()
    assert work.received == ["1 0", "1 1", "1 2"]
    # Proton has settled nothing and closed; nevertheless, there is no redelivery.
    receiver = amqp10.create_receiver(name, credit=5)
    with pytest.raises(proton.Timeout):
        receiver.receive(timeout=0.2)


def test_a_selector(amqp10: BlockingConnection, name: str) -> None:
    from proton.reactor import Selector

    sender = amqp10.create_sender(name)
    for number in range(5):
        sender.send(Message(number, properties={"n": number}))
    receiver = amqp10.create_receiver(name, credit=5, options=Selector("n > 2"))
    assert [receiver.receive(timeout=TIMEOUT).body for _ in range(2)] == [3, 4]


def test_browsing(amqp10: BlockingConnection, name: str) -> None:
    sender = amqp10.create_sender(name)
    for number in range(5):
        sender.send(Message(number))
    browser = amqp10.create_receiver(name, credit=10, options=Copy())
    for number in range(5):
        assert browser.receive(timeout=TIMEOUT).body == number
        browser.accept()
    browser.close()
    receiver = amqp10.create_receiver(name, credit=10)
    for number in range(5):
        got = receiver.receive(timeout=TIMEOUT)
        assert (got.body, got.first_acquirer, got.delivery_count) == (number, True, 0)
        receiver.accept()


def test_the_page_about_the_management_node(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """Not run with the other pages, because Proton is not always installed."""
    [block] = blocks(ROOT / "docs" / "management-node.md", "py")
    exec(compile(at_broker(block.text, broker), "management-node.md", "exec"), {"__name__": "__docs__"})
    assert capsys.readouterr().out == "201 1 orders\n"
