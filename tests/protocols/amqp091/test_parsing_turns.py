"""The input of one read is parsed and processed over several turns if it is large."""

from __future__ import annotations

from typing import Any

import pytest

import leveret
from leveret.protocols.amqp091.connection.base import MAX_OWN_WORK, MAX_PARSED, METHOD_WORK, OPEN_WORK
from leveret.wire.amqp0.engine import FRAME_COST, SIZE_SHIFT
from tests.protocols.support import Channel, Site


@pytest.fixture
def channel() -> Channel:
    return Site().channel()


def test_many_small_methods_are_parsed_over_several_turns(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = channel.client.session.engine
    compiled = leveret.build_info().compiled  # then a method cannot be replaced
    costs: list[int] = []
    receive = type(engine).receive

    def counted(self: Any, data: bytes) -> Any:
        commands = receive(self, data)
        if self is engine:
            costs.append(len(commands))
        return commands

    if not compiled:
        monkeypatch.setattr(type(engine), "receive", counted)
    many = 3 * MAX_PARSED // FRAME_COST
    for _ in range(many):
        channel.send("channel.flow-ok", active=True)
    channel.client.flush()
    assert engine.more
    assert compiled or costs == [MAX_PARSED // FRAME_COST + 1]
    assert not channel.client.peer.reading
    channel.run()
    assert compiled or (sum(costs) == many and len(costs) > 2)
    assert channel.client.peer.reading and not engine.more
    channel.declare("after")


def test_large_tables_are_parsed_one_per_turn(channel: Channel) -> None:
    table = {f"argument {number:05}": number for number in range((MAX_PARSED << SIZE_SHIFT) // 20)}
    for name in ("one", "two", "three"):
        channel.send("queue.declare", queue=name, arguments=table)
    queues = channel.client.site.vhost.queues
    channel.client.flush()
    assert list(queues) in ([], ["one"])
    channel.run()
    assert list(queues) == ["one", "two", "three"]


def test_order_is_kept_when_more_arrives_before_all_is_parsed(channel: Channel) -> None:
    names = [f"q{number}" for number in range(MAX_PARSED // FRAME_COST // 2)]
    for name in names:
        channel.send("queue.declare", queue=name, no_wait=True)
    channel.client.flush()
    assert channel.client.session.engine.more or channel.client.session.rest
    for name in names:
        channel.send("queue.delete", queue=name, no_wait=True)
    channel.send("queue.declare", queue="last", no_wait=True)
    channel.client.flush()
    channel.run()
    assert list(channel.client.site.vhost.queues) == ["last"]


def test_channels_are_opened_over_several_turns() -> None:
    client = Site(channel_max=5000).connect()
    many = 2 * MAX_OWN_WORK // OPEN_WORK
    for number in range(1, many + 1):
        client.engine.send(number, "channel.open", {})
    client.flush()
    assert 0 < len(client.session.channels) <= MAX_OWN_WORK // OPEN_WORK + 1
    client.run()
    assert len(client.session.channels) == many


def test_small_messages_are_published_over_several_turns(channel: Channel) -> None:
    channel.declare("q")
    many = 2 * MAX_OWN_WORK + 10
    for _ in range(many):
        channel.publish("q")
    channel.client.flush()
    queue = channel.client.site.vhost.queues["q"]
    assert 0 < queue.ready_count <= MAX_OWN_WORK + 1
    channel.run()
    assert queue.ready_count == many


def test_methods_of_one_connection_are_executed_over_several_turns(channel: Channel) -> None:
    many = 2 * MAX_OWN_WORK // METHOD_WORK
    for number in range(many):
        channel.send("queue.declare", queue=f"q{number}", no_wait=True)
    channel.client.flush()
    queues = channel.client.site.vhost.queues
    assert 0 < len(queues) <= MAX_OWN_WORK // METHOD_WORK + 1
    channel.run()
    assert len(queues) == many
