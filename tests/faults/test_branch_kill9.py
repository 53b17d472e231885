"""SIGKILL of a broker under distributed transactions.

Prepared branches are in doubt after any start until they are decided, and each message is in exactly one place, the one
that the coordinator decided.
"""

from __future__ import annotations

import random
import threading

import pytest

from leveret import sync
from leveret.broker.message import make_address
from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp0.properties import encode_header
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.peers.engine_amqp09 import Client

MESSAGES = 200
ROUNDS = 10
GONE = (OSError, ConnectionError)


def body_of(number: int) -> bytes:
    """Two of the bodies are too large for memory."""
    return b"%d:" % number + b"x" * (2 << 20 if number in (5, 30) else number * 11 % 3000)


def fill(process: LeveretProcess) -> None:
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        for queue in ("from", "to"):
            channel.declare_queue(queue, durable=True)
        with channel.publisher("", "from") as publisher:
            for number in range(MESSAGES):
                publisher.publish(body_of(number), persistent=True)


def counts(process: LeveretProcess) -> tuple[int, int]:
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        one, two = (channel.declare_queue(queue, durable=True).message_count for queue in ("from", "to"))
        return one, two


def contents(process: LeveretProcess, queue: str) -> list[int]:
    """Return the numbers in a queue, and empty the queue."""
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        count = channel.declare_queue(queue, durable=True).message_count
        found = []
        with channel.consume(queue, no_ack=True) as consumer:
            for _ in range(count):
                body = consumer.next(60).body
                number = int(body.split(b":")[0])
                assert body == body_of(number)
                found.append(number)
        return found


def take(client: Client) -> tuple[int, bytes]:
    """Return the delivery tag and the body of the next message to move."""
    client.send("basic.get", queue="from")
    answer = client.expect("basic.get-ok")
    assert isinstance(answer, ContentMethod)
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    return answer.arguments["delivery_tag"], body


def move(client: Client, count: int) -> list[int]:
    """Move messages from one queue to the other. Returns their numbers."""
    moved = []
    for _ in range(count):
        tag, body = take(client)
        client.engine.send_publish(
            1, make_address("", "to"), 0, encode_header(60, len(body), {"delivery_mode": 2}), body, len(body)
        )
        client.engine.send_ack(1, tag, False)
        client.flush()
        moved.append(int(body.split(b":")[0]))
    return moved


class Coordinator:
    """Moves messages in branches until the broker dies.

    `work` is what each branch moves; `committed` is the coordinator's log, written before it sends the decision. Branches
    that are not in the log after a crash are rolled back.
    """

    def __init__(self, process: LeveretProcess, chance: random.Random) -> None:
        self.process = process
        self.chance = chance
        self.work: dict[str, list[int]] = {}
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self.unclear: set[str] = set()
        self.in_doubt = 0
        self.kill: threading.Timer | None = None

    def flags(self, client: Client, what: str, xid: str, **more: bool) -> int:
        """Return the answer to one step; occasionally the broker is killed during it."""
        client.send(f"dtx-{what}", xid=xid, **more)
        if self.kill is not None and "coordination" in what and self.chance.random() < 0.1 and self.kill.ident is None:
            self.kill.start()
        flags: int = client.expect(f"dtx-{what}-ok").arguments["flags"]
        return flags

    def run(self, when_prepared: bool) -> None:
        """Run until the broker dies: within a step, or right after a branch was prepared."""
        self.when_prepared = when_prepared
        self.kill = None if when_prepared else threading.Timer(self.chance.uniform(0, 0.005), self.process.kill)
        try:
            client = Client(self.process)
            client.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
            while True:
                self._branch(client)
        except GONE:
            if self.kill is not None:
                self.kill.join()
            self.kill = None

    def _branch(self, client: Client) -> None:
        xid = f"branch-{len(self.work)}"
        self.work[xid] = []
        assert self.flags(client, "demarcation.start", xid) == 8
        self.work[xid] = move(client, self.chance.randint(1, 5))
        assert self.flags(client, "demarcation.end", xid) == 8
        kind = self.chance.random()
        if kind < 0.2:
            self.unclear.add(xid)
            assert self.flags(client, "coordination.commit", xid, one_phase=True) == 8
            self.unclear.discard(xid)
            self.committed.add(xid)
        else:
            assert self.flags(client, "coordination.prepare", xid) == 8
            if self.when_prepared and len(self.work) % 3 == 0:
                self.process.kill()
            # A rollback keeps the messages for the next branch, so that there are enough.
            if kind < 0.6:
                self.rolled_back.add(xid)
                assert self.flags(client, "coordination.rollback", xid) == 8
            else:
                self.committed.add(xid)
                assert self.flags(client, "coordination.commit", xid) == 8

    def recover(self) -> None:
        """Decide the branches in doubt."""
        client = Client(self.process)
        for xid in self.list(client):
            self.in_doubt += 1
            assert xid not in self.unclear, "a commit in one phase was never prepared"
            what = "commit" if xid in self.committed else "rollback"
            if what == "rollback":
                self.rolled_back.add(xid)
            assert self.flags(client, f"coordination.{what}", xid) == 8
        assert self.list(client) == []
        client.close()

    def list(self, client: Client) -> list[str]:
        table = client.call("dtx-coordination.recover", "dtx-coordination.recover-ok")["xids"]
        octets = table["xids"].encode()
        found = []
        while octets:
            found.append(octets[1 : 1 + octets[0]].decode())
            octets = octets[1 + octets[0] :]
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_message_is_where_the_coordinator_decided(process: LeveretProcess, seed: int) -> None:
    chance = random.Random(seed)
    coordinator = Coordinator(process, chance)
    process.start()
    fill(process)
    for number in range(ROUNDS):
        coordinator.run(number % 3 == 0)
        process.start()
        coordinator.recover()
        assert sum(counts(process)) == MESSAGES
        assert counts(process)[0], "nothing is left to move"
    assert coordinator.in_doubt
    left, moved = contents(process, "from"), contents(process, "to")
    assert sorted(left + moved) == list(range(MESSAGES))
    for xid in coordinator.committed:
        assert set(coordinator.work[xid]) <= set(moved), f"{xid} was committed"
    wanted = [number for xid in coordinator.committed for number in coordinator.work[xid]]
    assert len(set(wanted)) == len(wanted)
    for number in set(moved) - set(wanted):
        [xid] = [xid for xid in coordinator.unclear if number in coordinator.work[xid]]
        assert set(coordinator.work[xid]) <= set(moved), f"a part of {xid} was committed"


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_killed_between_prepare_and_decision(process: LeveretProcess, decision: str) -> None:
    """Class dtx, with the command line as coordinator, and two crashes while the branch is in doubt."""
    commands = Commands(process.data_dir)
    process.start()
    fill(process)
    client = Client(process)
    client.call("dtx.select", "dtx.select-ok")
    client.call("dtx.start", "dtx.start-ok", dtx_identifier="order-17")
    moved = move(client, 10)
    client.send("channel.ping")
    client.expect("channel.ok")
    client.expect("channel.pong")
    assert "prepared branch 'order-17'" in commands.ok("dtx", "prepare", "order-17")
    for _ in range(2):
        process.kill()
        process.start()
        [branch] = commands.json("dtx")
        assert (branch["branch"], branch["state"], branch["user"]) == ("order-17", "prepared", "guest")
        assert counts(process) == (MESSAGES - 10, 0)
    commands.ok("dtx", decision, "order-17")
    process.kill()
    process.start()
    assert commands.json("dtx") == []
    left, there = contents(process, "from"), contents(process, "to")
    if decision == "commit":
        assert there == moved
        assert left == [number for number in range(MESSAGES) if number not in moved]
    else:
        assert there == []
        assert left == list(range(MESSAGES))


def test_unprepared_branches_are_rolled_back(process: LeveretProcess) -> None:
    commands = Commands(process.data_dir)
    process.start()
    fill(process)
    client = Client(process)
    client.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
    client.call("dtx-demarcation.start", "dtx-demarcation.start-ok", xid="x")
    move(client, 10)
    client.call("dtx-demarcation.end", "dtx-demarcation.end-ok", xid="x")
    assert counts(process) == (MESSAGES - 10, 0)
    process.kill()
    process.start()
    assert commands.json("dtx") == []
    assert contents(process, "from") == list(range(MESSAGES))
