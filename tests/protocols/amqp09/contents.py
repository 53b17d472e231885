"""A common interface to contents of the classes file, stream and message."""

from __future__ import annotations

from typing import Any

from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.amqp09.support import Channel
from tests.protocols.support import bytes_of

KINDS = ("file", "stream", "message")
_NUMBERS = {"file": 70, "stream": 80}


def put(channel: Channel, kind: str, body: bytes = b"body", key: str = "q", *, exchange: str = "", **fields: Any) -> None:
    """Publish a content, and wait for the broker's reply."""
    if kind == "message":
        channel.send("message.transfer", destination=exchange, routing_key=key, body=(0, body), **fields)
        channel.run()
        assert channel.client.take("message.ok", channel.number) is not None
        return
    header = encode_header(_NUMBERS[kind], len(body), fields, QPID, V0_9)
    if kind == "stream":
        channel.client.engine.send_content(
            channel.number, "stream.publish", {"exchange": exchange, "routing_key": key}, header, body
        )
    else:
        channel.call("file.open", "file.open-ok", identifier="one", content_size=len(body))
        channel.client.engine.send_content(channel.number, "file.stage", {}, header, body)
        channel.send("file.publish", exchange=exchange, routing_key=key, identifier="one")
    channel.run()


def consume(channel: Channel, kind: str, queue: str = "q", **arguments: Any) -> None:
    if kind == "message":
        channel.call("message.consume", "message.ok", queue=queue, destination=queue, **arguments)
    else:
        channel.call(f"{kind}.consume", f"{kind}.consume-ok", queue=queue, **arguments)
    channel.run()


def take(channel: Channel, kind: str) -> tuple[bytes, dict[str, Any]] | None:
    """Return body and fields of the next delivery; for class message, all fields of its transfer."""
    channel.run()
    if kind == "message":
        transfer = channel.client.take("message.transfer", channel.number)
        return None if transfer is None else (transfer.arguments["body"][1], transfer.arguments)
    if kind == "file":
        if channel.client.take("file.open", channel.number) is None:
            return None
        channel.send("file.open-ok")
        channel.run()
        content = channel.client.take("file.stage", channel.number)
        assert channel.client.take("file.deliver", channel.number) is not None
    else:
        content = channel.client.take("stream.deliver", channel.number)
        if content is None:
            return None
    assert isinstance(content, ContentMethod)
    return bytes_of(content.body), decode_header(content.header, QPID, V0_9)[2]


def got(channel: Channel, kind: str) -> tuple[bytes, dict[str, Any]]:
    taken = take(channel, kind)
    assert taken is not None
    return taken
