"""Sessions of 0-9 under sequences of frames that no client should send, by seeds.

The output is well-formed, closes use reply codes of the specification, no internal error is logged, and no state outlives
the connections. LEVERET_FUZZ_EXAMPLES sets the number of connections.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest

from leveret.protocols.amqp09.connection.connection import Connection
from leveret.protocols.amqp09.realms import RIGHTS, Realm, Realms
from leveret.protocols.amqp09.settings import Amqp09Settings
from tests.protocols.census import census
from tests.protocols.support import FuzzedPeer, Site
from tests.support.fuzz09 import Fuzzer

EXAMPLES = int(os.environ.get("LEVERET_FUZZ_EXAMPLES", "80"))
STEPS = 60
KINDS = (
    "Connection",
    "Channel",
    "ChannelConsumer",
    "BasicConsumer",
    "FileConsumer",
    "StreamConsumer",
    "MessageConsumer",
    "Engine",
    "WireChannel",
    "Entry",
    "Message",
    "PendingPublish",
    "Files",
    "Open",
    "Incoming",
    "Upload",
    "Tickets",
    "Ticket",
    "Branch",
    "DtxSession",
    "Pace",
)


class Socket(FuzzedPeer):
    """The broker's side of a socket; its output goes to a fuzzer."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Line:
    """A fuzzer and its session."""

    def __init__(self, site: Site, seed: int, ids: list[bytes]) -> None:
        self.site = site
        self.fuzzer = Fuzzer(seed, ids)
        self.socket = Socket(site)
        self.session = Connection(self.socket, site.protocols.amqp09)
        self.run()
        for data in self.fuzzer.start():
            self.send(data)

    @property
    def over(self) -> bool:
        return self.socket.closed or self.fuzzer.done

    def send(self, data: bytes) -> None:
        if not self.socket.closed:
            self.session.data_received(data)
        self.run()

    def run(self) -> None:
        self.site.run()
        data = b"".join(self.socket.written)
        self.socket.written.clear()
        self.fuzzer.received(data)

    def drop(self) -> None:
        self.socket.closed = True
        self.session.connection_lost()
        self.site.run()


def play(site: Site, seed: int) -> list[int]:
    """Run two random connections, cut in the middle; return the reply codes that they got."""
    ids: list[bytes] = []
    lines = [Line(site, seed * 2, ids), Line(site, seed * 2 + 1, ids)]
    for _ in range(STEPS):
        for line in lines:
            if not line.over:
                line.send(line.fuzzer.step())
        for line in lines:
            line.run()
        site.broker.timers.run(site.broker.timers.now() + lines[0].fuzzer.random.choice((0, 10, 200)))
        for line in lines:
            line.run()
    for line in lines:
        line.drop()
    return lines[0].fuzzer.codes + lines[1].fuzzer.codes


def clear(site: Site) -> None:
    """Remove state that may outlive connections: interrupted channels, queues, uploads, and branches waiting for their
    coordinator."""
    vhost = site.vhost
    site.protocols.amqp09.interrupted.vhost_removed(vhost)
    vhost.branches.clear()
    for staged in list(site.broker.uploads.by_key.values()):
        staged.discard()
    for queue in list(vhost.queues.values()):
        vhost.remove_queue(queue)
    site.run()


def make_site(kind: str) -> Site:
    """`realms` has tickets, `resume` channels that wait for their resumption."""
    made = Site(spool_threshold=2000, max_message_size=100_000, max_transaction=50_000)
    if kind == "realms":
        made.protocols.amqp09.realms["/"] = Realms(
            {"/open": Realm("/open", ".*", {"user": frozenset(RIGHTS)}), "/closed": Realm("/closed", ".*", {})}
        )
    if kind == "resume":
        made.protocols.amqp09.settings = Amqp09Settings(resume_timeout=60, resume_channels=5)
    return made


def check_nothing_is_left(site: Site, kind: str) -> None:
    assert not site.services.sessions, "a session is left"
    if kind == "resume":
        assert len(site.protocols.amqp09.interrupted.kept) <= 5
        return
    assert all(staged.owner is None and not staged.taken for staged in site.broker.uploads.by_key.values()), "an upload"
    assert not any(queue.consumers for queue in site.vhost.queues.values()), "a consumer is left"
    in_branches = Counter(
        entry.queue.name for branch in site.vhost.branches.by_name.values() for entry, _ in branch.settlements
    )
    for name, queue in site.vhost.queues.items():
        assert queue.unacked == in_branches[name], f"queue {name}: {queue.unacked} unacked entries have no owner"
    realms = site.protocols.amqp09.realms.get("/")
    assert realms is None or not realms.active, "a ticket is left"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "realms", "resume"])
@pytest.mark.parametrize("batch", range(4))
def test_whatever_is_sent(kind: str, batch: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    site = make_site(kind)
    before = census(site, KINDS)
    for number in range(EXAMPLES // 4):
        seed = batch * 1_000_000 + number
        try:
            play(site, seed)
            check_nothing_is_left(site, kind)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert not caplog.records, f"seed {seed}: {caplog.records[0].getMessage()}\n{caplog.text[-3000:]}"
    clear(site)
    assert census(site, KINDS) == before
