"""The same calls for every content class: basic, file, stream and message."""

from __future__ import annotations

from typing import Any

from tests.support.peers.amqp09 import Channel
from tests.support.peers.codec09 import INLINE, Body

KINDS = ("basic", "file", "stream", "message")


class Got:
    """A delivery of any class. `tag` is 0 for those of class message, which are settled in order by ok and reject."""

    def __init__(self, body: bytes, tag: int, redelivered: bool, consumer: str, properties: dict[str, Any]) -> None:
        self.body = body
        self.tag = tag
        self.redelivered = redelivered
        self.consumer = consumer
        self.properties = properties


def publish(channel: Channel, kind: str, body: bytes, routing_key: str = "", exchange: str = "", **fields: Any) -> None:
    """Publish a content that the broker accepts."""
    if kind == "file":
        identifier = fields.pop("identifier", f"{channel.peer.local_port}.{routing_key}.{exchange}.{body[:64]!r}"[:255])
        channel.publish_file(body, routing_key, exchange, identifier=identifier, **fields)
    elif kind == "message":
        channel.send("message.transfer", destination=exchange, routing_key=routing_key, body=Body(INLINE, body), **fields)
        channel.peer.pick(channel.number, "message.ok")
    else:
        channel.publish(body, routing_key, exchange, kind=kind, **fields)


def consume_method(kind: str) -> tuple[str, str]:
    """Return the names of the cancel method and of its field with the consumer's name."""
    return f"{kind}.consume", "destination" if kind == "message" else "consumer_tag"


def consume(channel: Channel, kind: str, queue: str, tag: str, **fields: Any) -> None:
    method, name = consume_method(kind)
    if kind == "stream":
        fields.pop("no_ack", None)  # streams are never acknowledged
    channel.call(method, "message.ok" if kind == "message" else "", queue=queue, **{name: tag}, **fields)


def cancel(channel: Channel, kind: str, tag: str) -> None:
    if kind == "message":
        channel.call("message.cancel", "message.ok", destination=tag)
    else:
        channel.cancel(tag, kind)


def receive(channel: Channel, kind: str) -> Got:
    """Return the next delivery of that class."""
    if kind == "file":
        file = channel.file()
        return Got(file.body, file.tag, file.redelivered, file.method.consumer_tag, file.properties)
    if kind == "message":
        transfer = channel.peer.pick(channel.number, "message.transfer")
        assert transfer.body.kind == INLINE
        return Got(transfer.body.data, 0, transfer.redelivered, transfer.destination, transfer.fields)
    content = channel.delivery(kind)
    return Got(
        content.body, content.tag, kind == "basic" and content.redelivered, content.method.consumer_tag, content.properties
    )


def receive_all(channel: Channel, kind: str, count: int) -> list[bytes]:
    return [receive(channel, kind).body for _ in range(count)]


def ack(channel: Channel, kind: str, got: Got) -> None:
    """Acknowledge a delivery; of class message the oldest one."""
    if kind == "message":
        channel.send("message.ok")
    else:
        channel.ack(got.tag, kind=kind)


def reject(channel: Channel, kind: str, got: Got, *, requeue: bool) -> None:
    channel.reject(got.tag, requeue=requeue, kind=kind)


def persistent(kind: str, yes: bool = True) -> dict[str, Any]:
    """Return the property for persistence; files are always persistent, streams never."""
    return {"delivery_mode": 2 if yes else 1} if kind in ("basic", "message") else {}
