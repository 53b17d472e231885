"""Distributed transactions of AMQP 0-9: each message is in exactly one place, the one that the coordinator decided."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from leveret.broker.message import make_address
from leveret.wire.amqp0.commands import ContentMethod, Method
from leveret.wire.amqp0.properties import encode_header
from tests.faults.power.workload import Event, Journal, Survivor, Workload, in_threads
from tests.support.broker import Broker, LeveretProcess
from tests.support.peers.engine_amqp09 import Client

MESSAGES = 60
QUEUES = ("from", "to")
# The flags of a step that succeeded.
OK = 8


def body_of(number: int) -> bytes:
    return b"%d:" % number + b"x" * (300_000 if number == 5 else number * 11 % 3000)


def publish(client: Client, queue: str, body: bytes) -> None:
    client.engine.send_publish(
        1, make_address("", queue), 0, encode_header(60, len(body), {"delivery_mode": 2}), body, len(body)
    )


def get(client: Client, queue: str) -> tuple[int, int, bytes] | None:
    """Return the delivery tag, the number and the body of the next message."""
    client.send("basic.get", queue=queue)
    answer = client.next()
    if not isinstance(answer, ContentMethod):
        assert isinstance(answer, Method) and answer.name == "basic.get-empty", answer
        return None
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    return answer.arguments["delivery_tag"], int(body.split(b":")[0]), body


class Coordinator:
    """The coordinator's knowledge of each branch: what it moves, and its progress."""

    def __init__(self) -> None:
        self.filled = False
        self.work: dict[str, list[int]] = {}
        self.state: dict[str, str] = {}

    def note(self, event: Event) -> None:
        match event:
            case ["filled"]:
                self.filled = True
            case ["work", xid, moved]:
                self.work[xid] = moved
            case [state, xid]:
                self.state[xid] = state


def in_doubt(client: Client) -> list[str]:
    table = client.call("dtx-coordination.recover", "dtx-coordination.recover-ok")["xids"]
    data = table["xids"].encode()
    found = []
    while data:
        found.append(data[1 : 1 + data[0]].decode())
        data = data[1 + data[0] :]
    return found


def step(client: Client, name: str, xid: str, **more: Any) -> int:
    client.send(f"dtx-{name}", xid=xid, **more)
    flags: int = client.expect(f"dtx-{name}-ok").arguments["flags"]
    return flags


class Branches(Workload):
    """A coordinator that moves messages between two queues in branches of one and of two phases."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.known = Coordinator()
        self.chance = random.Random(seed)

    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        def note(*event: Any) -> None:
            journal(*event)
            self.known.note(list(event))

        if not self.known.filled:
            self._fill(process)
            note("filled")
        else:
            client = Client(process)
            for xid in in_doubt(client):
                self._decide(client, note, xid)
            client.close()
        started()
        return in_threads(journal, lambda: self._work(process, note))

    def _fill(self, process: LeveretProcess) -> None:
        client = Client(process)
        for queue in QUEUES:
            client.call("queue.declare", "queue.declare-ok", queue=queue, durable=True)
        client.call("tx.select", "tx.select-ok")
        for number in range(MESSAGES):
            publish(client, "from", body_of(number))
        client.call("tx.commit", "tx.commit-ok")
        client.close()

    def _decide(self, client: Client, note: Callable[..., None], xid: str) -> None:
        """Decide a prepared branch: as decided before, or now."""
        decided = self.known.state[xid] in ("committing", "rolling back")
        commit = self.known.state[xid] == "committing" if decided else self.chance.random() < 0.5
        note("committing" if commit else "rolling back", xid)
        assert step(client, f"coordination.{'commit' if commit else 'rollback'}", xid) == OK
        note("committed" if commit else "rolled back", xid)

    def _work(self, process: LeveretProcess, note: Callable[..., None]) -> None:
        client = Client(process)
        client.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
        source, target = QUEUES
        while True:
            xid = f"branch-{len(self.known.state)}"
            note("started", xid)
            assert step(client, "demarcation.start", xid) == OK
            moved = []
            for _ in range(self.chance.randint(1, 5)):
                found = get(client, source)
                if found is None:
                    # All have moved: now move them back.
                    source, target = target, source
                    break
                tag, number, body = found
                publish(client, target, body)
                client.engine.send_ack(1, tag, False)
                client.flush()
                moved.append(number)
            note("work", xid, moved)
            assert step(client, "demarcation.end", xid) == OK
            if self.chance.random() < 0.2:
                note("committing in one phase", xid)
                assert step(client, "coordination.commit", xid, one_phase=True) == OK
                note("committed", xid)
            else:
                note("preparing", xid)
                assert step(client, "coordination.prepare", xid) == OK
                note("prepared", xid)
                self._decide(client, note, xid)

    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        known = Coordinator()
        places = dict.fromkeys(range(MESSAGES), "from")
        moves: dict[str, list[int]] = {}
        for event in events:
            known.note(event)
            if event[0] == "work":
                moves[event[1]] = event[2]
            elif event[0] == "committed":
                _move(places, moves[event[1]])
        if not known.filled:
            return []
        client = Client(broker)
        doubtful = in_doubt(client)
        wrong = [
            f"{xid} is in doubt, but was {known.state.get(xid, 'never begun')}"
            for xid in doubtful
            if known.state.get(xid) not in ("preparing", "prepared", "committing", "rolling back")
        ]
        # A branch without a reported outcome took effect completely or not at all.
        unclear: list[str] = []
        for xid, state in known.state.items():
            if state == "prepared" and xid not in doubtful:
                wrong.append(f"{xid} was prepared, but is forgotten")
            elif state == "committing" and xid not in doubtful:
                _move(places, known.work[xid])
            elif state == "committing in one phase":
                unclear.append(xid)
        chance = random.Random(len(events))
        for xid in doubtful:
            commit = known.state.get(xid) == "committing" or (
                known.state.get(xid) != "rolling back" and chance.random() < 0.5
            )
            flags = step(client, f"coordination.{'commit' if commit else 'rollback'}", xid)
            if flags != OK:
                wrong.append(f"{xid} cannot be decided: {flags}")
            if commit:
                _move(places, known.work.get(xid, []))
        client.close()
        found, damaged = contents(broker)
        wrong += damaged
        for xid in unclear:
            moved = known.work[xid]
            if moved and found.get(moved[0]) != places[moved[0]]:
                _move(places, moved)
        wrong += [
            f"message {number} is in '{found.get(number)}', not in '{place}'"
            for number, place in places.items()
            if found.get(number) != place
        ]
        return wrong


def _move(places: dict[int, str], numbers: list[int]) -> None:
    for number in numbers:
        places[number] = QUEUES[1 - QUEUES.index(places[number])]


def contents(broker: Broker) -> tuple[dict[int, str], list[str]]:
    """Return the place of each message, and what is wrong with the contents."""
    found: dict[int, str] = {}
    wrong: list[str] = []
    client = Client(broker)
    for queue in QUEUES:
        while (message := get(client, queue)) is not None:
            _, number, body = message
            if not 0 <= number < MESSAGES or body != body_of(number):
                wrong.append(f"damaged or invented: a message in '{queue}'")
            if number in found:
                wrong.append(f"message {number} exists twice, in '{found[number]}' and '{queue}'")
            found[number] = queue
    client.close()
    return found, wrong
