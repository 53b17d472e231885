"""SIGKILL of a broker during staging: staged bytes survive, the rest follows, and nothing is lost or duplicated."""

from __future__ import annotations

import contextlib
import hashlib
import random
from pathlib import Path

import pytest

from leveret.wire.amqp0.commands import ContentPart, ContentStart, Method
from tests.support.broker import LeveretProcess
from tests.support.peers.engine_amqp09 import Client

MIB = 1 << 20
SIZE = 24 * MIB + 4321
PIECE = 128 << 10


@pytest.fixture
def process(process: LeveretProcess) -> LeveretProcess:
    return process.start()


@pytest.fixture(scope="module")
def body() -> bytes:
    return random.Random(1).randbytes(SIZE)


def stage(client: Client, body: bytes, at: int, until: int) -> None:
    """Stage the bytes from a position up to `until`; the content header announces all of the rest."""
    client.begin_stage(len(body) - at)
    for begin in range(at, until, PIECE):
        client.stage_octets(body[begin : min(begin + PIECE, until)])


def receive(client: Client, have: bytes = b"") -> bytes:
    """Return the next file, part of which the client already has, without acknowledging it."""
    opened = client.expect("file.open").arguments
    client.send("file.open-ok", staged_size=len(have))
    pieces = [have]
    while True:
        command = client.next()
        if isinstance(command, ContentPart):
            pieces.append(command.data)
        elif isinstance(command, Method) and command.name == "file.deliver":
            assert command.arguments["identifier"] == opened["identifier"]
            return b"".join(pieces)
        else:
            assert isinstance(command, ContentStart) or (isinstance(command, Method) and command.name == "file.stage")


def staged_files(process: LeveretProcess) -> list[Path]:
    return list((process.data_dir / "staged").iterdir())


@pytest.mark.slow
def test_staging_resumes_after_each_kill(process: LeveretProcess, body: bytes) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="files", durable=True)
    confirmed = 0
    chance = random.Random(2)
    for _ in range(4):
        there = client.open_file("one", SIZE)
        assert there >= confirmed, "bytes confirmed by an open-ok are lost"
        confirmed = there
        with contextlib.suppress(ConnectionError):
            stage(client, body, there, min(there + chance.randrange(2, 6) * MIB, SIZE - 1))
        # The reply on another connection says how much the broker has; the first connection is within its content.
        client.close()
        client = Client(process)
        confirmed = client.open_file("one", SIZE)
        assert confirmed >= there
        stage(client, body, confirmed, min(confirmed + MIB, SIZE - 1))
        process.kill()
        process.start()
        client = Client(process)
    there = client.open_file("one", SIZE)
    assert confirmed <= there < SIZE
    stage(client, body, there, SIZE)
    client.call("tx.select", "tx.select-ok")
    client.send("file.publish", routing_key="files", identifier="one")
    client.call("tx.commit", "tx.commit-ok")
    process.kill()
    process.start()
    assert staged_files(process) == []
    client = Client(process)
    client.call("file.consume", "file.consume-ok", queue="files")
    received = receive(client)
    assert hashlib.sha256(received).digest() == hashlib.sha256(body).digest()
    # Unacked files are redelivered after a crash with the same identifier; the client answers that it has the file.
    process.kill()
    process.start()
    client = Client(process)
    client.call("file.consume", "file.consume-ok", queue="files")
    assert receive(client, body[: SIZE - 100])[-100:] == body[-100:]
    client.send("file.ack", delivery_tag=1)
    client.call("channel.close", "channel.close-ok", reply_code=200)
    client.call("channel.open", "channel.open-ok")
    assert client.call("queue.delete", "queue.delete-ok", queue="files")["message_count"] == 0


def test_staged_files_wait_for_their_publish(process: LeveretProcess, body: bytes) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="files", durable=True)
    client.open_file("one", MIB)
    stage(client, body[:MIB], 0, MIB)
    client.call("tx.select", "tx.select-ok")
    client.send("file.publish", routing_key="files", identifier="one")
    client.call("tx.rollback", "tx.rollback-ok")
    client.close()
    # The sender does not know yet that all of it is on disk. A reply on another channel says so.
    assert Client(process).open_file("one", MIB) == MIB
    process.kill()
    process.start()
    client = Client(process)
    client.call("tx.select", "tx.select-ok")
    client.send("file.publish", routing_key="files", identifier="one")
    client.call("tx.commit", "tx.commit-ok")
    client.call("file.consume", "file.consume-ok", queue="files")
    assert receive(client) == body[:MIB]
