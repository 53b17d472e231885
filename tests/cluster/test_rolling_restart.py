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
    """Publishes numbers through the node that owns the vhost at first, and then through any."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self.urls = urls
        self.confirmed: list[int] = []
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
            channel.declare_queue("q", durable=True)
            while not self.ended.is_set():
                number += 1
                try:
                    channel.publish(b"%d" % number, "q", persistent=True)
                except Error:
                    continue
                self.confirmed.append(number)

    def continues(self) -> None:
        """Wait for another confirm."""
        count = len(self.confirmed)
        wait_until(lambda: len(self.confirmed) > count + 1, lambda: f"no confirm after {count}")


@pytest.mark.slow
def test_each_client_reconnects_once_for_each_move(tmp_path: Path, dsn: str) -> None:
    nodes = [Node(tmp_path / name, dsn) for name in ("first", "second")]
    with running(nodes[0]), running(nodes[1]):
        assert owners(dsn)[0] == "first"
        publisher = Publisher([node.url() for node in nodes])
        publisher.start()
        publisher.continues()
        for node in nodes:
            node.ask("nodes.drain", name=node.directory.name)
            publisher.continues()
            node.stop()
            publisher.continues()
            node.start()
        publisher.ended.set()
        publisher.join()
        bodies = nodes[0].bodies("/")
        found = [int(body) for body in bodies]
        # A publish whose confirm was lost with its connection is repeated, directly before the following ones.
        assert sorted({*found}) == publisher.confirmed
        assert publisher.connected == 3
