"""The restart of one node after another, under load."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import leveret
from leveret.client.errors import Error
from leveret.client.events import Connected, Event
from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, dsn, owners
from tests.support.broker import CONNECT_TIMEOUT
from tests.support.polling import wait_until

__all__ = ["dsn"]


class Publisher(threading.Thread):
    """Publishes numbers to a queue, through the node of the first URL, and then through any."""

    def __init__(self, urls: list[str], queue: str) -> None:
        super().__init__(daemon=True)
        self.urls = urls
        self.queue = queue
        self.confirmed: list[int] = []
        self.failed: set[int] = set()
        self.connected = 0
        self.ended = threading.Event()

    def _note(self, event: Event) -> None:
        self.connected += isinstance(event, Connected)

    def run(self) -> None:
        number = 0
        with (
            leveret.sync.connect(self.urls, connect_timeout=CONNECT_TIMEOUT, on_event=self._note) as connection,
            connection.channel() as channel,
        ):
            channel.declare_queue(self.queue, durable=True)
            while not self.ended.wait(0.002):
                number += 1
                try:
                    channel.publish(b"%d" % number, self.queue, persistent=True)
                except Error:
                    self.failed.add(number)
                    continue
                self.confirmed.append(number)

    def continues(self) -> None:
        """Wait for another confirm."""
        count = len(self.confirmed)
        wait_until(lambda: len(self.confirmed) > count + 1, lambda: f"no confirm after {count}")


@pytest.mark.slow
def test_each_client_reconnects_twice_at_most(tmp_path: Path, dsn: str) -> None:
    """Each begins at another node, two of which relay, and gets to the node of its shard when that has moved."""
    names = ("first", "second", "third")
    nodes = [
        # A take-over on a busy machine would be one more reconnect.
        Node(tmp_path / name, dsn, LEVERET_CLUSTER__REFERRAL_TIME="300", LEVERET_CLUSTER__LEASE="10")
        for name in names
    ]
    with running(nodes[0]), running(nodes[1]), running(nodes[2]):
        assert owners(dsn)[0] == "first"
        urls = [node.url() for node in nodes]
        publishers = [Publisher(urls[at:] + urls[:at], f"q{at}") for at in range(len(nodes))]
        for publisher in publishers:
            publisher.start()
            publisher.continues()
        for node in nodes:
            node.ask("nodes.drain", name=node.directory.name)
            for publisher in publishers:
                publisher.continues()
            node.stop()
            for publisher in publishers:
                publisher.continues()
            node.start()
        for publisher in publishers:
            publisher.ended.set()
            publisher.join()
            found = [int(body) for body in nodes[0].bodies("/", publisher.queue)]
            # A publish whose confirm was lost with its connection is repeated, directly before the following ones; if it
            # fails then, the message may be there.
            assert sorted({*found} - publisher.failed) == publisher.confirmed
        assert [publisher.connected for publisher in publishers] == [3, 3, 3]
