"""Parsing with a quantum gives the same result as parsing everything at once."""

from __future__ import annotations

import random

import pytest

from leveret.wire.amqp0.commands import Command, Error
from leveret.wire.amqp0.constants import CLIENT, SERVER
from leveret.wire.amqp0.engine import FRAME_COST, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9_1


def opened(role: int = SERVER) -> tuple[Engine, Engine]:
    """A client and a server whose connection is open, with two channels."""
    client, server = Engine(CLIENT, V0_9_1), Engine(SERVER, V0_9_1)
    for sender, name, arguments in (
        (
            server,
            "connection.start",
            {"version_major": 0, "version_minor": 9, "server_properties": {}, "mechanisms": "PLAIN", "locales": "en_US"},
        ),
        (
            client,
            "connection.start-ok",
            {"client_properties": {}, "mechanism": "PLAIN", "response": "r", "locale": "en_US"},
        ),
        (server, "connection.tune", {"channel_max": 10, "frame_max": 131072, "heartbeat": 0}),
        (client, "connection.tune-ok", {"channel_max": 10, "frame_max": 131072, "heartbeat": 0}),
        (client, "connection.open", {"virtual_host": "/"}),
        (server, "connection.open-ok", {}),
    ):
        sender.send(0, name, arguments)
        (client if sender is server else server).receive(sender.to_send())
    for number in (1, 2):
        client.send(number, "channel.open", {})
        server.receive(client.to_send())
        server.send(number, "channel.open-ok", {})
        client.receive(server.to_send())
    return client, server


def script(seed: int) -> bytes:
    client, _ = opened()
    chance = random.Random(seed)
    for _ in range(60):
        number = chance.randrange(1, 3)
        what = chance.randrange(4)
        if what == 0:
            body = bytes(chance.randrange(20))
            client.send_publish(
                number, b"\x00\x01q", 0, encode_header(60, len(body), {"priority": chance.randrange(9)}), body, len(body)
            )
        elif what == 1:
            client.send_ack(number, chance.randrange(1, 99), False)
        elif what == 2:
            client.send(number, "queue.declare", {"queue": "q", "arguments": {"a": "x" * chance.randrange(200)}})
        else:
            client.send(number, "channel.flow-ok", {"active": True})
    return client.to_send()


def shown(commands: list[Command]) -> list[str]:
    assert not any(isinstance(command, Error) for command in commands)
    return [
        repr(
            [
                getattr(command, name)
                for name in ("channel", "name", "arguments", "delivery_tag", "body", "priority")
                if hasattr(command, name)
            ]
        )
        for command in commands
    ]


@pytest.mark.parametrize("seed", range(20))
def test_in_pieces_and_with_a_quantum(seed: int) -> None:
    data = script(seed)
    whole = shown(opened()[1].receive(data))
    chance = random.Random(seed)
    server = opened()[1]
    server.max_cost = chance.choice((0, FRAME_COST, 5 * FRAME_COST))
    found: list[Command] = []
    at = 0
    while at < len(data) or server.more:
        size = chance.choice((0, 3, 50, 400))
        if not size and not server.more:
            continue
        commands = server.receive(data[at : at + size])
        assert len([item for item in shown(commands) if "queue.declare" in item]) <= server.max_cost // FRAME_COST + 1
        found.extend(commands)
        at += size
    assert shown(found) == whole
    assert server.is_between_frames
