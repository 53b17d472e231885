"""Arguments that are neither names nor properties are refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.client.errors import Error, InvalidMessage
from tests.client.sync.conftest import Open


def test_invalid_names(connect: Open, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    nothing: Any
    for nothing in (None, 5, b"x", object()):
        for call in (
            lambda given: channel.publish("x", name, given),
            lambda given: channel.publish("x", given),
            lambda given: channel.delete_queue(given),
            lambda given: channel.purge_queue(given),
            lambda given: channel.bind_queue(given, "amq.fanout"),
            lambda given: channel.bind_queue(name, given),
            lambda given: channel.bind_exchange(given, "amq.fanout"),
            lambda given: channel.delete_exchange(given),
            lambda given: channel.get(given),
            lambda given: next(channel.consume(given)),
            lambda given: channel.declare_queue(given),
            lambda given: channel.declare_exchange(given),
        ):
            with pytest.raises(InvalidMessage):
                call(nothing)
    properties: Any = {"priority": 1}
    with pytest.raises(InvalidMessage, match=r"expected leveret\.Properties, not dict"):
        channel.publish("x", name, properties=properties)
    with pytest.raises(InvalidMessage, match="not dict"):
        channel.publisher(properties=properties)
    secret: Any = None
    with pytest.raises(Error, match="password"):
        connection.update_secret(secret)
    assert channel.is_open and channel.declare_queue(name, exclusive=True).message_count == 0
