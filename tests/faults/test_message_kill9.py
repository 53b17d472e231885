"""SIGKILL of a broker during references of class message: checkpointed bytes survive, the rest follows, and nothing is lost
or duplicated.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from leveret.wire.amqp0.commands import Method
from tests.support.broker import LeveretProcess
from tests.support.peers.engine_amqp09 import Client

MIB = 1 << 20
SIZE = 20 * MIB + 4321
PIECE = 100_000


@pytest.fixture
def process(process: LeveretProcess) -> LeveretProcess:
    return process.start()


@pytest.fixture(scope="module")
def body() -> bytes:
    return random.Random(1).randbytes(SIZE)


def restart(process: LeveretProcess) -> Client:
    process.kill()
    process.start()
    return Client(process)


def resume(client: Client) -> int:
    offset: int = client.call("message.resume", "message.offset", reference="r", identifier="one")["value"]
    return offset


def append(client: Client, body: bytes, at: int, until: int) -> None:
    """Append the bytes between two positions, and wait for the response."""
    pieces = 0
    for begin in range(at, until, PIECE):
        client.send("message.append", reference="r", bytes=body[begin : min(begin + PIECE, until)])
        pieces += 1
    for _ in range(pieces):
        client.expect("message.ok")


def checkpoint(client: Client) -> None:
    client.call("message.checkpoint", "message.ok", reference="r", identifier="one")


def receive(client: Client) -> bytes:
    """Return the bytes of a message after its start, up to its close."""
    client.expect("message.transfer")
    pieces = []
    while True:
        command = client.next()
        assert isinstance(command, Method)
        if command.name == "message.append":
            pieces.append(command.arguments["bytes"])
        elif command.name == "message.close":
            return b"".join(pieces)
        else:
            assert command.name == "message.checkpoint"


def count(client: Client) -> int:
    messages: int = client.call("queue.declare", "queue.declare-ok", queue="q", durable=True)["message_count"]
    return messages


def staged_files(process: LeveretProcess) -> list[Path]:
    return list((process.data_dir / "staged").iterdir())


@pytest.mark.slow
def test_a_reference_resumes_after_each_kill(process: LeveretProcess, body: bytes) -> None:
    client = Client(process)
    count(client)
    confirmed = 0
    chance = random.Random(2)
    for _ in range(4):
        there = resume(client)
        assert there == confirmed, "bytes confirmed by a checkpoint are lost"
        confirmed += chance.randrange(1, 4) * MIB
        append(client, body, there, confirmed)
        checkpoint(client)
        # And more bytes, which may or may not survive.
        for _ in range(chance.randrange(5)):
            client.send("message.append", reference="r", bytes=bytes(PIECE))
        client = restart(process)
    # Bytes after the last checkpoint are not part of it.
    there = resume(client)
    assert there == confirmed < SIZE
    client.send("message.transfer", routing_key="q", delivery_mode=2, body=(1, b"r"))
    append(client, body, there, SIZE)
    client.call("message.close", "message.ok", reference="r")
    client.expect("message.ok")
    client = restart(process)
    assert staged_files(process) == [] and resume(client) == 0
    client.call("message.consume", "message.ok", queue="q", destination="d", filter={"x-resume": True})
    identifier = client.expect("message.resume").arguments["identifier"]
    client.send("message.offset", value=0)
    assert hashlib.sha256(receive(client)).digest() == hashlib.sha256(body).digest()
    # Unanswered messages are redelivered after a crash with the same identifier; the client answers that it has most of it.
    client = restart(process)
    client.call("message.consume", "message.ok", queue="q", destination="d", filter={"x-resume": True})
    assert client.expect("message.resume").arguments["identifier"] == identifier
    client.send("message.offset", value=SIZE - 100)
    assert receive(client) == body[-100:]
    client.send("message.ok")
    client.call("message.cancel", "message.ok", destination="d")
    assert count(client) == 0
    assert client.call("queue.delete", "queue.delete-ok", queue="q")["message_count"] == 0


def test_a_message_is_published_or_can_be_resumed(process: LeveretProcess, body: bytes) -> None:
    client = Client(process)
    count(client)
    size = 2 * MIB
    published = 0
    outcomes = set()
    for wait in ("nothing", "close", "transfer", "nothing"):
        there = resume(client)
        client.send("message.transfer", routing_key="q", delivery_mode=2, body=(1, b"r"))
        append(client, body, there, size)
        checkpoint(client)
        client.send("message.close", reference="r")
        for _ in range(("nothing", "close", "transfer").index(wait)):
            client.expect("message.ok")
        client = restart(process)
        found = count(client) - published
        there = resume(client)
        assert (found, there) in ((1, 0), (0, size)), "expected either a message or a resumable upload"
        assert found or wait != "transfer", "an answered message is lost"
        outcomes.add(found)
        published += found
        client.call("message.close", "message.ok", reference="r")  # nothing refers to it
    client.call("message.consume", "message.ok", queue="q", destination="d")
    for _ in range(published):
        client.expect("message.open")
        assert receive(client) == body[:size]
        client.send("message.ok")
    assert 1 in outcomes


def test_references_without_a_checkpoint_do_not_survive(process: LeveretProcess, body: bytes) -> None:
    client = Client(process)
    client.call("message.open", "message.ok", reference="r")
    append(client, body, 0, MIB)
    assert len(staged_files(process)) == 1
    client = restart(process)
    assert staged_files(process) == []
    assert resume(client) == 0
