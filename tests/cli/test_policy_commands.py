"""Policies and parameters by the commands: clients see the effect, which survives a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, leveret_only


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("commands talk to its control socket")
    process = LeveretProcess(tmp_path / "broker")
    process.start()
    yield process
    process.stop()


def test_policies(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("dead", durable=True)
    for number in range(5):
        channel.basic_publish("", "orders", str(number).encode(), pika.BasicProperties(delivery_mode=2))
    definition = '{"max-length": 3, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}'
    assert "set policy 'short'" in commands.ok("policies", "set", "short", "^orders", definition, "--apply-to", "queues")
    assert channel.queue_declare("orders", durable=True).method.message_count == 3
    assert channel.queue_declare("dead", durable=True).method.message_count == 2
    commands.ok("operator-policies", "set", "cap", ".*", '{"max-length": 1}', "--priority", "4")
    assert channel.queue_declare("orders", durable=True).method.message_count == 1
    commands.ok("parameters", "set", "vhost-limits", "limits", '{"max-queues": 2}')
    commands.ok("global-parameters", "set", "cluster_name", '"here"')
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="reached its limit of 2 queues"):
        channel.queue_declare("third")
    connection.close()

    broker.kill()
    broker.start()
    [policy] = commands.json("policies")
    assert (policy["name"], policy["pattern"], policy["apply-to"], policy["priority"]) == ("short", "^orders", "queues", 0)
    [cap] = commands.json("operator-policies", "list")
    assert (cap["definition"], cap["priority"], cap["apply-to"]) == ({"max-length": 1}, 4, "queues")
    shown = {item["name"]: item for item in commands.json("queues")}["orders"]
    assert (shown["policy"], shown["operator_policy"], shown["ready"]) == ("short", "cap", 1)
    assert [item["name"] for item in commands.json("parameters", "--component", "vhost-limits")] == ["limits"]
    assert commands.json("global-parameters") == [{"name": "cluster_name", "value": "here"}]

    commands.ok("policies", "delete", "short")
    commands.ok("operator-policies", "delete", "cap")
    commands.ok("parameters", "delete", "vhost-limits", "limits")
    commands.ok("global-parameters", "delete", "cluster_name")
    assert commands.json("policies") == commands.json("parameters") == commands.json("global-parameters") == []
    assert "no policy 'short' in vhost '/'" in commands.refused("policies", "delete", "short")
    assert "key 'ttl' is unknown" in commands.refused("policies", "set", "p", ".*", '{"ttl": 1}')
    assert "expected a JSON object" in commands.mistaken("policies", "set", "p", ".*", "[]")
    assert "expected a JSON value" in commands.mistaken("global-parameters", "set", "p", "{")
