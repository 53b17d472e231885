"""`leveret dtx` against a running broker."""

from __future__ import annotations

from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.peers.engine_amqp09 import Client


def test_branches(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    assert commands.json("dtx") == []
    clients = {}
    for name in ("one", "two", "three", "four"):
        client = clients[name] = Client(broker)
        client.call("dtx.select", "dtx.select-ok")
        client.call("dtx.start", "dtx.start-ok", dtx_identifier=name)
    shown = {item["branch"]: (item["state"], item["channels"], item["user"]) for item in commands.json("dtx", "list")}
    assert shown == dict.fromkeys(clients, ("active", 1, "guest"))
    assert "not prepared" in commands.refused("dtx", "commit", "one")
    assert "prepared branch 'one'" in commands.ok("dtx", "prepare", "one")
    assert "prepared" in commands.ok("dtx", "--vhost", "/")
    assert "committed branch 'one'" in commands.ok("dtx", "commit", "one", "--remember")
    [item] = [item for item in commands.json("dtx") if item["branch"] == "one"]
    assert item["state"] == "committed"
    assert "forget it" in commands.refused("dtx", "rollback", "one")
    commands.ok("dtx", "forget", "one")
    assert "committed branch 'two'" in commands.ok("dtx", "commit", "two", "--one-phase")
    assert "is active" in commands.refused("dtx", "forget", "three")
    assert "rolled back branch 'three'" in commands.ok("dtx", "rollback", "three")
    assert clients["three"].expect("channel.close").arguments["reply_code"] == 406
    clients["four"].call("channel.close", "channel.close-ok")
    assert "can only be rolled back" in commands.refused("dtx", "prepare", "four")
    commands.ok("dtx", "rollback", "four")
    assert commands.json("dtx") == []
    assert "branch 'four' does not exist" in commands.refused("dtx", "rollback", "four")


def test_identifiers_that_cannot_be_typed(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    client = Client(broker)
    client.call("dtx.select", "dtx.select-ok")
    client.call("dtx.start", "dtx.start-ok", dtx_identifier="\x00é")
    [item] = commands.json("dtx")
    assert item["branch"] == "hex:00c3a9"
    commands.ok("dtx", "commit", "hex:00c3a9", "--one-phase")
    assert "not a transaction identifier" in commands.refused("dtx", "commit", "hex:0g")
