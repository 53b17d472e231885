"""Replies that wait: for the commit that holds what they report."""

from __future__ import annotations

from functools import partial
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


class DeferredNotices(CommitWaiter):
    """Cancel notifications that follow a deferred reply."""

    def __init__(self, notices: list[tuple[Channel, str]]) -> None:
        self.notices = notices

    def committed(self, batch: int) -> None:
        for channel, tag in self.notices:
            channel.notify_cancel(tag)


def notify_after_reply(channel: Channel, notices: list[tuple[Channel, str]]) -> None:
    """Send cancel notifications once what `reply_when_kept` has just answered is on its way: blocking clients take what
    comes before the answer for the fate of their call."""
    removals = channel.broker.jobs.removals
    if channel.stalled and removals.pending:
        removals.after(partial(DeferredNotices(notices).committed, 0))
    elif channel.stalled:
        channel.log.wait(DeferredNotices(notices))
    else:
        for owner, tag in notices:
            owner.notify_cancel(tag)


def reply_when_removed(channel: Channel, name: str, arguments: dict[str, Any], durable: bool, no_wait: bool) -> None:
    """Answer a method that has removed something, once that is taken apart, and the log has it."""
    removals = channel.broker.jobs.removals
    if no_wait or not removals.pending:
        reply_when_kept(channel, name, arguments, durable, no_wait)
        return
    channel.stall()
    removals.after(partial(_removed, channel, name, arguments, durable))


def _removed(channel: Channel, name: str, arguments: dict[str, Any], durable: bool) -> None:
    reply = DeferredReply(channel, name, arguments)
    if durable and channel.log.has_pending():
        channel.log.wait(reply)
    else:
        reply.committed(0)


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
