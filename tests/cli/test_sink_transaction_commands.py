"""`leveret sink-transactions` against a running broker."""

from __future__ import annotations

from zlib import crc32

from leveret import sync
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.requests import ask


def test_sink_transactions(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue("q", durable=True)
        for stage in ("one", "two", "three"):
            ask(channel, "stage.open", stage=stage, app="sink")
            channel.publish("body", "q", f"leveret.stage:{stage}:", persistent=True)
        for stage in ("one", "two"):
            ask(channel, "stage.seal", stage=stage, count=1, crc32=crc32(b"body"))
        listed = commands.json("sink-transactions")
        shown = {item["stage"]: (item["app"], item["state"], item["messages"]) for item in listed}
        assert shown == {"one": ("sink", "sealed", 1), "two": ("sink", "sealed", 1), "three": ("sink", "open", 1)}
        assert "three" in commands.ok("sink-transactions", "list")
        assert "aborted 2 sink transactions" in commands.ok("sink-transactions", "abort", "two", "three")
        assert "sink transaction 'two' does not exist" in commands.refused("sink-transactions", "abort", "two")
        assert commands.json("sink-transactions", "apps") == []
        ask(channel, "stage.promote", app="sink", batch=4, stages=["one"])
        [app] = commands.json("sink-transactions", "apps", "--vhost", "/")
        assert (app["app"], app["user"], app["batch"], app["promoting"]) == ("sink", "guest", 4, None)
        assert "sink" in commands.ok("sink-transactions", "apps")
        commands.ok("sink-transactions", "forget", "sink")
        assert "app 'sink' does not exist" in commands.refused("sink-transactions", "forget", "sink")
        assert ask(channel, "stage.last", app="sink")["batch"] is None
