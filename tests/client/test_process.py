"""`Message.process`: how a message is settled at the end of the block."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.client.errors import NotFound
from leveret.client.message import Message
from leveret.wire.amqp0.commands import Deliver


class Settled:
    """Records the calls of a channel."""

    generation = 1
    connection = SimpleNamespace(tracing=None)

    def __init__(self) -> None:
        self.done: list[Any] = []

    def ack(self, message: Message, multiple: bool) -> None:
        self.done.append("acknowledged")

    def nack(self, message: Message, multiple: bool, requeue: bool) -> None:
        self.done.append("given back" if requeue else "rejected")

    def reject(self, message: Message, requeue: bool) -> None:
        self.done.append("given back" if requeue else "rejected")


@pytest.fixture
def channel() -> Settled:
    return Settled()


@pytest.fixture
def message(channel: Settled) -> Message:
    return Message(channel, Deliver(1, b"tag", 7, False, b"\0\0", b"", 4, b"body"))  # type: ignore[arg-type]


def test_end_of_the_block_acks(channel: Settled, message: Message) -> None:
    with message.process() as processed:
        assert processed is message
        assert channel.done == []
    assert channel.done == ["acknowledged"]


@pytest.mark.parametrize(("requeue", "done"), [(False, "rejected"), (True, "given back")])
def test_error_rejects(channel: Settled, message: Message, requeue: bool, done: str) -> None:
    with pytest.raises(ZeroDivisionError), message.process(requeue=requeue):
        1 / 0  # noqa: B018
    assert channel.done == [done]


@pytest.mark.parametrize("interruption", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("requeue", [False, True])
def test_interruption_requeues(
    channel: Settled, message: Message, requeue: bool, interruption: type[BaseException]
) -> None:
    """A worker that is stopped has not failed at its task."""
    with pytest.raises(interruption), message.process(requeue=requeue):
        raise interruption
    assert channel.done == ["given back"]


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt])
def test_settled_message_is_left_alone(channel: Settled, message: Message, error: type[BaseException] | None) -> None:
    try:
        with message.process():
            message.nack(requeue=True)
            if error is not None:
                raise error
    except (ZeroDivisionError, KeyboardInterrupt):
        pass
    assert channel.done == ["given back"]


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
def test_closed_channel_does_not_hide_the_error(
    channel: Settled, message: Message, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def closed(message: Message, requeue: bool) -> None:
        raise NotFound("the channel is closed")

    monkeypatch.setattr(channel, "reject", closed)
    with pytest.raises(error), message.process():
        raise error
