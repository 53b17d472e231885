"""Replies that wait: for the commit that holds what they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.log import CommitWaiter

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.channel import Channel


class DeferredReply(CommitWaiter):
    """A reply to be sent when the batch being filled is on disk. Its channel does nothing else until then."""

    def __init__(self, channel: Channel, name: str, arguments: dict[str, Any]) -> None:
        self.channel = channel
        self.name = name
        self.arguments = arguments

    def committed(self, batch: int) -> None:
        channel = self.channel
        if channel.closing:
            return
        channel.connection.engine.send(channel.number, self.name, self.arguments)
        channel.connection.mark()
        channel.resume()


def reply_when_kept(channel: Channel, name: str, arguments: dict[str, Any], durable: bool, no_wait: bool) -> None:
    """Answer a method that may have changed durable definitions, once the log has them."""
    if no_wait:
        return
    log = channel.log
    if durable and log.has_pending():
        channel.stall()
        log.wait(DeferredReply(channel, name, arguments))
    else:
        channel.connection.engine.send(channel.number, name, arguments)
