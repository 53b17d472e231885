"""SIGKILL of a broker process under Qpid Proton: accepted messages survive, settled ones do not return."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret import sync
from tests.support.broker import LeveretProcess, leveret_only

proton = pytest.importorskip("proton")

from proton import Message, symbol  # noqa: E402
from proton.handlers import MessagingHandler  # noqa: E402
from proton.reactor import Container  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

TOTAL = 300


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it is killed and started")
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


def url(process: LeveretProcess) -> str:
    return f"amqp://{process.host}:{process.port}"


class Sending(MessagingHandler):
    """Sends without end; kills the broker after this many accepted messages."""

    def __init__(self, process: LeveretProcess) -> None:
        super().__init__()
        self.process = process
        self.sent = 0
        self.accepted: set[int] = set()
        self.numbers: dict[Any, int] = {}

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(url(self.process), reconnect=False)
        event.container.create_sender(self.connection, "kept")

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.sent < 5 * TOTAL:
            delivery = event.sender.send(Message(b"x" * 500, inferred=True, durable=True, id=self.sent))
            self.numbers[delivery.tag] = self.sent
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        self.accepted.add(self.numbers[event.delivery.tag])
        if len(self.accepted) == TOTAL:
            self.process.kill()

    def on_disconnected(self, event: Any) -> None:
        self.container.stop()

    def on_transport_error(self, event: Any) -> None:
        self.container.stop()


def number_of(message: Message) -> int:
    assert isinstance(message.id, (str, int))
    return int(message.id)


def content(message: Message) -> bytes:
    assert isinstance(message.body, (bytes, memoryview))
    return bytes(message.body)


def received(process: LeveretProcess, settle: int) -> list[Message]:
    """Return all messages of the queue, in order; the first `settle` messages are accepted."""
    with sync.connect(process.url()) as counting, counting.channel() as channel:
        ready = channel.declare_queue("kept", passive=True).message_count
    connection = BlockingConnection(url(process), timeout=60)
    receiver = connection.create_receiver("kept", credit=10 * TOTAL)
    found: list[Message] = []
    for number in range(ready):
        found.append(receiver.receive(timeout=60))
        if number < settle:
            receiver.accept()
    connection.close()
    return found


def test_accepted_messages_survive(process: LeveretProcess) -> None:
    sending = Sending(process)
    Container(sending).run()
    assert len(sending.accepted) >= TOTAL
    process.start()
    found = received(process, 100)
    numbers = [number_of(message) for message in found]
    assert set(numbers) >= sending.accepted
    assert numbers == sorted(set(numbers))
    assert all(message.durable and content(message) == b"x" * 500 for message in found)
    process.kill()
    process.start()
    again = received(process, 0)
    # The last settlements may not have been on disk yet.
    assert numbers[100:] == [number_of(message) for message in again][-len(numbers[100:]) :]
    assert len(again) <= len(numbers)
    assert not any(message.first_acquirer for message in again)


def test_delayed_messages_survive_and_stay_delayed(process: LeveretProcess) -> None:
    """They are delivered when they are due, not because the broker was killed."""
    connection = BlockingConnection(url(process))
    sender = connection.create_sender("delayed")
    now = int(time.time() * 1000)
    for number, due in enumerate((now + 3000, now + 3_600_000)):
        sender.send(Message(number, durable=True, annotations={symbol("x-opt-delivery-time"): due}))
    sender.send(Message(2, durable=True))
    process.kill()
    with process.start():
        connection = BlockingConnection(url(process), timeout=60)
        receiver = connection.create_receiver("delayed", credit=10)
        got: list[int] = []
        for _ in range(2):
            body = receiver.receive(timeout=60).body
            assert isinstance(body, int)
            got.append(body)
            receiver.accept()
        assert sorted(got) == [0, 2]
        assert time.time() * 1000 >= now + 3000
        assert receiver.fetcher is not None
        assert not receiver.fetcher.has_message
        connection.close()
