"""Replies that are sent after the change that they report is on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leveret.broker.log import CommitWaiter
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel

logger = logging.getLogger("leveret.connection")


class DeferredReply(CommitWaiter):
    """A reply that is sent when the batch being filled is on disk.

    The channel is stalled until then. `answered` is called after the reply, or instead of it if the channel has closed.
    """

    def __init__(self, channel: Channel, name: str, arguments: Arguments, answered: Callable[[], None] | None) -> None:
        self.channel = channel
        self.name = name
        self.arguments = arguments
        self.answered = answered

    def committed(self, batch: int) -> None:
        channel = self.channel
        answered = self.answered
        if channel.closing:
            if answered is not None:
                answered()
            return
        channel.connection.engine.send(channel.number, self.name, self.arguments)
        if answered is not None:
            answered()
        channel.connection.mark()
        channel.resume()


def reply_when_removed(
    channel: Channel,
    name: str,
    arguments: Arguments,
    durable: bool,
    no_wait: bool,
    answered: Callable[[], None] | None = None,
) -> None:
    """Send a reply when a removal has finished and is on disk, then call `answered`."""
    removals = channel.broker.jobs.removals
    if no_wait or not removals.pending:
        reply_when_stored(channel, name, arguments, durable, no_wait, answered)
        return
    channel.stall()
    removals.after(partial(_removed, DeferredReply(channel, name, arguments, answered), durable))


def _removed(reply: DeferredReply, durable: bool) -> None:
    channel = reply.channel
    try:
        if durable and channel.log.has_pending():
            channel.log.wait(reply)
        else:
            reply.committed(0)
    except Exception:
        logger.exception("%s: internal error in the reply %s", channel.connection.peer.subject, reply.name)
        channel.fail()


def reply_when_stored(
    channel: Channel,
    name: str,
    arguments: Arguments,
    durable: bool,
    no_wait: bool,
    answered: Callable[[], None] | None = None,
) -> None:
    """Send a reply when changed definitions are on disk, then call `answered`."""
    if no_wait:
        return
    log = channel.log
    if durable and log.has_pending():
        channel.stall()
        log.wait(DeferredReply(channel, name, arguments, answered))
        return
    channel.connection.engine.send(channel.number, name, arguments)
    if answered is not None:
        answered()
