"""`leveret uploads` against a running broker."""

from __future__ import annotations

from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.peers.engine_amqp09 import Client


def upload(client: Client, identifier: str, size: int, sent: bytes) -> None:
    client.open_file(identifier, size)
    client.begin_stage(len(sent))
    client.stage_octets(sent)
    # The broker has processed the bytes before it answers.
    client.call("channel.ping", "channel.ok")
    client.expect("channel.pong")


def test_uploads(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    assert commands.json("uploads") == []
    client = Client(broker)
    upload(client, "part", 100, b"x" * 40)
    upload(client, "whole", 30, b"y" * 30)
    found = {item["identifier"]: item for item in commands.json("uploads", "list")}
    assert {
        name: (item["state"], item["octets"], item["announced"], item["kind"], item["user"]) for name, item in found.items()
    } == {"part": ("incomplete", 40, 100, "file", "guest"), "whole": ("complete", 30, 30, "file", "guest")}
    assert 86000 < found["part"]["timeout"] <= 86400
    assert 86000 < found["whole"]["timeout"] <= 86400
    shown = commands.ok("uploads", "show", "whole", "--user", "guest", "--kind", "file")
    assert "complete" in shown
    assert commands.json("uploads", "show", "part")["checkpoints"] == {}
    assert "upload 'none' does not exist" in commands.refused("uploads", "show", "none")
    assert "upload 'part' does not exist" in commands.refused("uploads", "discard", "part", "--user", "other")
    assert "discarded upload 'whole' (30 B)" in commands.ok("uploads", "discard", "whole")
    assert [item["identifier"] for item in commands.json("uploads")] == ["part"]
    client.send("file.publish", routing_key="q", identifier="whole")
    assert client.expect("channel.close").arguments["reply_code"] == 404


def test_the_sender_of_a_discarded_upload_gets_an_error(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    client = Client(broker)
    upload(client, "\x00\xe9", 100, b"x" * 40)
    assert [item["identifier"] for item in commands.json("uploads")] == ["hex:00c3a9"]
    assert client.open_file("\x00\xe9", 100) == 40
    client.begin_stage(60)
    [item] = commands.json("uploads")
    assert (item["state"], item["timeout"]) == ("open", None)
    commands.ok("uploads", "discard", "hex:00c3a9")
    assert commands.json("uploads") == []
    client.stage_octets(b"z" * 60)
    assert client.expect("channel.close").arguments["reply_code"] == 405
    assert "not an identifier" in commands.refused("uploads", "discard", "hex:0g")


def test_an_interrupted_upload_is_listed_after_a_restart(broker: LeveretProcess) -> None:
    client = Client(broker)
    upload(client, "later", 100, b"x" * 40)
    client.close()
    broker.stop()
    broker.start()
    [item] = Commands(broker.data_dir).json("uploads", "--vhost", "/")
    assert (item["identifier"], item["state"], item["announced"]) == ("later", "incomplete", 100)
    Commands(broker.data_dir).ok("uploads", "discard", "later")
    assert Client(broker).open_file("later", 100) == 0


def test_a_reference_is_found_by_its_checkpoints(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    client = Client(broker)
    for reference in ("kept", "unnamed"):
        client.call("message.open", "message.ok", reference=reference)
        client.call("message.append", "message.ok", reference=reference, bytes=b"x" * 40)
    for identifier in ("early", "late"):
        client.call("message.checkpoint", "message.ok", reference="kept", identifier=identifier)
    found = sorted(commands.json("uploads"), key=lambda item: -item["checkpoints"])
    assert [(item["kind"], item["state"], item["octets"], item["checkpoints"]) for item in found] == [
        ("message", "open", 40, 2),
        ("message", "open", 40, 0),
    ]
    assert found[0]["identifier"] == "late"
    assert commands.json("uploads", "show", "early")["checkpoints"] == {"early": 40, "late": 40}
    commands.ok("uploads", "discard", "early")
    client.send("message.append", reference="kept", bytes=b"y")
    assert client.expect("channel.close").arguments["reply_code"] == 405
    client = Client(broker)
    assert client.call("message.resume", "message.offset", reference="r", identifier="late") == {"value": 0}
