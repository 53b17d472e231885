"""A large file, and a large message by reference, through a broker process in both directions: its memory stays small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.wire.amqp0.commands import ContentPart, Method
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.engine_amqp09 import Client

MIB = 1 << 20
SIZE = 200 * MIB + 7
PIECE = bytes(range(256)) * 400


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("the memory of its process is measured")
    process = LeveretProcess(tmp_path).start()
    yield process
    process.stop()
    process.check_log()


def test_a_file_takes_no_memory(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="files", durable=True)
    before = peak = process.memory()
    assert client.open_file("large", SIZE) == 0
    client.begin_stage(SIZE)
    left = SIZE
    while left:
        client.stage_octets(PIECE[:left])
        left -= min(len(PIECE), left)
        peak = max(peak, process.memory())
    client.call("tx.select", "tx.select-ok")
    client.send("file.publish", routing_key="files", identifier="large")
    client.call("tx.commit", "tx.commit-ok")
    peak = max(peak, process.memory())
    client.call("file.consume", "file.consume-ok", queue="files", no_ack=True)
    assert client.expect("file.open").arguments["content_size"] == SIZE
    client.send("file.open-ok")
    received = 0
    while True:
        command = client.next()
        if isinstance(command, ContentPart):
            at = received % len(PIECE)
            assert command.data == (PIECE + PIECE + PIECE)[at : at + len(command.data)]
            received += len(command.data)
            peak = max(peak, process.memory())
        elif isinstance(command, Method) and command.name == "file.deliver":
            break
    assert received == SIZE
    assert peak - before < 100 * MIB
    client.call("queue.delete", "queue.delete-ok", queue="files")
    assert list((process.data_dir / "staged").iterdir()) == []


def test_a_message_by_reference_takes_no_memory(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="messages", durable=True)
    before = peak = process.memory()
    client.call("message.open", "message.ok", reference="r")
    client.send("message.transfer", routing_key="messages", delivery_mode=2, body=(1, b"r"))
    left = SIZE
    while left:
        piece = PIECE[:left]
        client.call("message.append", "message.ok", reference="r", bytes=piece)
        left -= len(piece)
        peak = max(peak, process.memory())
    client.call("message.close", "message.ok", reference="r")
    client.expect("message.ok")
    client.call("message.get", "message.ok", queue="messages")
    client.expect("message.open")
    assert client.expect("message.transfer").arguments["body"][0] == 1
    received = 0
    while True:
        command = client.next()
        assert isinstance(command, Method)
        if command.name == "message.close":
            break
        octets = command.arguments["bytes"]
        at = received % len(PIECE)
        assert octets == (PIECE + PIECE + PIECE)[at : at + len(octets)]
        received += len(octets)
        peak = max(peak, process.memory())
    assert received == SIZE
    assert peak - before < 100 * MIB
    client.send("message.ok")
    client.call("queue.delete", "queue.delete-ok", queue="messages")
    assert list((process.data_dir / "staged").iterdir()) == []
