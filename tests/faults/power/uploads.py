"""Uploads of AMQP 0-9: confirmed bytes of a staged file or a reference survive, and the upload resumes after them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.faults.power.workload import Event, Journal, Survivor, Workload, in_threads
from tests.support.broker import Broker, LeveretProcess
from tests.support.peers.async_amqp091 import Connection
from tests.support.peers.engine_amqp09 import Client

QUEUES = {"file": "files", "message": "messages"}
PIECE = 20_000


def body_of(identifier: str) -> bytes:
    chance = random.Random(identifier)
    return identifier.encode() + b":" + chance.randbytes(chance.randint(1, 200_000))


def stage(client: Client, body: bytes, at: int, until: int) -> None:
    """Stage the bytes from a position up to `until`; the content header announces all of the rest."""
    client.begin_stage(len(body) - at)
    for begin in range(at, until, PIECE):
        client.stage_octets(body[begin : min(begin + PIECE, until)])


def resume(client: Client, identifier: str) -> int:
    """Return the number of bytes of a message that the broker has."""
    offset: int = client.call("message.resume", "message.offset", reference="r", identifier=identifier)["value"]
    return offset


def append(client: Client, body: bytes, at: int, until: int) -> None:
    pieces = range(at, until, PIECE)
    for begin in pieces:
        client.send("message.append", reference="r", bytes=body[begin : min(begin + PIECE, until)])
    for _ in pieces:
        client.expect("message.ok")


class Known:
    """A client's knowledge of its uploads."""

    def __init__(self, events: list[Event]) -> None:
        self.confirmed: dict[str, int] = {}
        self.state: dict[str, str] = {}
        self.declared = False
        for event in events:
            self.note(*event)

    def note(self, name: str, *values: Any) -> None:
        match name:
            case "declared":
                self.declared = True
            case "there":
                self.confirmed[values[0]] = values[1]
            case _:
                self.state[values[0]] = name


class Uploads(Workload):
    """One client of class file and one of class message.

    They publish one body after the other, in pieces and with interruptions.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.known = Known([])

    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        def note(*event: Any) -> None:
            journal(*event)
            self.known.note(*event)

        client = Client(process)
        for queue in QUEUES.values():
            client.call("queue.declare", "queue.declare-ok", queue=queue, durable=True)
        note("declared")
        client.close()
        started()
        return in_threads(journal, lambda: self._files(process, note), lambda: self._messages(process, note))

    def _next(self, kind: str, note: Callable[..., None]) -> str:
        """Return the upload to resume."""
        mine = [identifier for identifier in self.known.state if identifier.startswith(kind)]
        # An upload whose publish had no reply is not touched again: it may have been published.
        if mine and self.known.state[mine[-1]] == "begun":
            return mine[-1]
        identifier = f"{kind}-{len(mine)}"
        note("begun", identifier)
        return identifier

    def _files(self, process: LeveretProcess, note: Callable[..., None]) -> None:
        chance = random.Random(self.seed)
        client = Client(process)
        while True:
            identifier = self._next("file", note)
            body = body_of(identifier)
            there = client.open_file(identifier, len(body))
            note("there", identifier, there)
            if there < len(body) and chance.random() < 0.5:
                # Interrupted in the middle, on purpose.
                stage(client, body, there, min(there + chance.randrange(PIECE * 3), len(body) - 1))
                client.close()
                client = Client(process)
                continue
            stage(client, body, there, len(body))
            client.call("tx.select", "tx.select-ok")
            note("publishing", identifier)
            client.send("file.publish", routing_key=QUEUES["file"], identifier=identifier)
            client.call("tx.commit", "tx.commit-ok")
            note("published", identifier)

    def _messages(self, process: LeveretProcess, note: Callable[..., None]) -> None:
        chance = random.Random(self.seed + 1)
        client = Client(process)
        while True:
            identifier = self._next("message", note)
            body = body_of(identifier)
            there = resume(client, identifier)
            while there < len(body):
                until = min(there + chance.randrange(1, PIECE * 3), len(body))
                append(client, body, there, until)
                client.call("message.checkpoint", "message.ok", reference="r", identifier=identifier)
                there = until
                note("there", identifier, there)
                if chance.random() < 0.2:
                    client.close()
                    client = Client(process)
                    there = resume(client, identifier)
            note("publishing", identifier)
            client.send("message.transfer", routing_key=QUEUES["message"], delivery_mode=2, body=(1, b"r"))
            client.call("message.close", "message.ok", reference="r")
            client.expect("message.ok")
            note("published", identifier)

    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        known = Known(events)
        if not known.declared:
            return []
        wrong: list[str] = []
        client = Client(broker)
        found = {kind: self._taken(broker, kind, wrong) for kind in QUEUES}
        for identifier, state in known.state.items():
            count = found[identifier.split("-")[0]].pop(identifier, 0)
            if count > 1:
                wrong.append(f"{identifier} exists {count} times")
            if count and state == "begun":
                wrong.append(f"{identifier} exists, but was never published")
            if not count and state == "published":
                wrong.append(f"{identifier} was published and is lost")
            elif not count:
                wrong += self._resumed(client, identifier, known.confirmed.get(identifier, 0))
        wrong += [f"{identifier} was invented" for left in found.values() for identifier in left]
        for kind in QUEUES:
            self._taken(broker, kind, wrong)
        client.close()
        return wrong

    def _taken(self, broker: Broker, kind: str, wrong: list[str]) -> Counter[str]:
        """Return the identifiers of the messages in a queue, and empty the queue."""
        found: Counter[str] = Counter()
        for body in asyncio.run(_bodies(broker, QUEUES[kind])):
            identifier = body.split(b":", 1)[0].decode("ascii", "replace")
            if body != body_of(identifier):
                wrong.append(f"{kind}: a body is damaged: {body[:30]!r}, {len(body)} bytes")
            found[identifier] += 1
        return found

    def _resumed(self, client: Client, identifier: str, confirmed: int) -> list[str]:
        """Resume an upload that has not been published, and publish it."""
        body = body_of(identifier)
        if identifier.startswith("file"):
            there = client.open_file(identifier, len(body))
            stage(client, body, there, len(body))
            client.call("tx.select", "tx.select-ok")
            client.send("file.publish", routing_key=QUEUES["file"], identifier=identifier)
            client.call("tx.commit", "tx.commit-ok")
        else:
            there = resume(client, identifier)
            append(client, body, there, len(body))
            client.send("message.transfer", routing_key=QUEUES["message"], delivery_mode=2, body=(1, b"r"))
            client.call("message.close", "message.ok", reference="r")
            client.expect("message.ok")
        return [f"{identifier}: {there} bytes exist, confirmed were {confirmed}"] if there < confirmed else []


async def _bodies(broker: Broker, queue: str) -> list[bytes]:
    """Consume the bodies of a queue over AMQP 0-9-1."""
    connection = await Connection.open(broker)
    channel = await connection.channel()
    found = []
    while (delivery := await channel.get(queue, no_ack=True)) is not None:
        found.append(delivery.body)
    await connection.close()
    return found
