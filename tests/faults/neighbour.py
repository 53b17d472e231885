"""A well-behaved connection that must not be affected by other clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.peers.framing import content
from tests.support.peers.rude import RudePeer

_numbers = itertools.count(1)


class Neighbour:
    """A connection with an exclusive queue, which can check that it still works."""

    def __init__(self, broker: Broker) -> None:
        self.peer = RudePeer(broker).reach("channel")
        self.peer.send_method(commands.Queue.Declare(exclusive=True), 1)
        self.queue = self.peer.expect_method("Queue.DeclareOk").queue

    def check(self) -> None:
        """Publish and get a message over the original connection."""
        body = b"neighbour %d" % next(_numbers)
        self.peer.send_bytes(content(1, commands.Basic.Publish(routing_key=self.queue), body))
        while True:
            self.peer.send_method(commands.Basic.Get(queue=self.queue, no_ack=True), 1)
            answer = self.peer.next_method()
            assert answer is not None, "the neighbour's connection was closed"
            if answer.name == "Basic.GetOk":
                break
            assert answer.name == "Basic.GetEmpty", answer
        frames = [self.peer.next_frame(), self.peer.next_frame()]
        assert frames[1] == (3, 1, body)

    def close(self) -> None:
        self.peer.socket.close()


@pytest.fixture
def neighbour(broker: Broker) -> Iterator[Neighbour]:
    """Checked after the test."""
    neighbour = Neighbour(broker)
    yield neighbour
    neighbour.check()
    neighbour.close()
