"""A consumer: the messages that have come and were not taken, and who waits for the next one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from leveret.client.core.frontend import Waiter
from leveret.client.core.waiters import Waiters
from leveret.client.errors import Error
from leveret.client.message import Message
from leveret.wire.amqp0.commands import Deliver

if TYPE_CHECKING:
    from leveret.client.core.channel import ChannelCore


class ConsumerCore:
    """One `basic.consume`. `queue` follows the new name of a server-named queue; `arguments` are the other ones of
    `basic.consume`. `prefetch` is set by `basic.qos` before it, 0 is no limit.

    kind        its content class: the methods are those of it
    active      the server has begun, and it has not ended; also while the connection is lost
    cancelling  it is being cancelled: what comes goes back
    ended       no more messages will come; `error` says why, None where it was cancelled by us
    """

    __slots__ = ("_counted", "_message_class", "_no_ack", "_waiters", "active", "arguments", "cancelling", "channel",
                 "ended", "error", "messages", "prefetch", "queue", "tag")

    kind: ClassVar[str] = "basic"

    def __init__(self, channel: ChannelCore, queue: str, prefetch: int, arguments: dict[str, Any],
                 message_class: type[Message]) -> None:
        self.channel = channel
        self.queue = queue
        self.prefetch = prefetch
        self.arguments = arguments
        self.tag = ""
        self.messages: deque[Message] = deque()
        self.active = False
        self.cancelling = False
        self.ended = False
        self.error: Error | None = None
        self._waiters = Waiters(channel.connection.frontend)
        self._no_ack = bool(arguments.get("no_ack"))
        # Where no prefetch limits what comes, the octets that wait count for the connection.
        self._counted = prefetch == 0 or self._no_ack
        self._message_class = message_class

    @property
    def key(self) -> bytes:
        """The tag, as it comes with deliveries."""
        return self.tag.encode("utf-8", "surrogateescape")

    def clone(self) -> ConsumerCore:
        """One that is the same and has not begun, without a tag."""
        return ConsumerCore(self.channel, self.queue, self.prefetch, self.arguments, self._message_class)

    def begin(self) -> Waiter:
        """`ChannelCore.consume`."""
        return self.channel.consume(self)

    def withdraw(self) -> Waiter:
        """`ChannelCore.cancel`."""
        return self.channel.cancel(self)

    def abandon(self) -> None:
        """`ChannelCore.cancel_nowait`."""
        self.channel.cancel_nowait(self)

    def delivered(self, command: Deliver) -> None:
        if (self.cancelling or self.channel.recovering) and self._unwanted(command):
            return
        self.messages.append(self._message_class(self.channel, command, self._no_ack))
        if self._counted:
            self.channel.connection.buffered(command.size)
        if self._waiters.waiting:
            self._waiters.wake()

    def _unwanted(self, command: Deliver) -> bool:
        """Nobody will take it any more, or it comes once more: it goes back, where it is not lost anyway."""
        if not self.channel.recovering:
            if not self._no_ack:
                self._message_class(self.channel, command).nack(requeue=True)
            return True
        return self.cancelling or not self._no_ack

    def take(self) -> Message:
        """The next message; IndexError when there is none."""
        message = self.messages.popleft()
        if self._counted:
            self.channel.connection.taken(message.size)
        return message

    def message_waiter(self) -> Waiter:
        """Until a message has come or there will be no more."""
        return self._waiters.new()

    def drop_messages(self) -> list[Message]:
        """Let go of the messages that nobody has taken."""
        forgotten = list(self.messages)
        self.messages.clear()
        if self._counted:
            for message in forgotten:
                self.channel.connection.taken(message.size)
        return forgotten

    def lost(self) -> None:
        """The connection is lost: what was to be acknowledged is delivered copy_error, the rest is ours."""
        if not self._no_ack:
            self.drop_messages()

    def end(self, error: Error | None) -> None:
        """No more messages will come. Those that are here can be taken before `error` is raised."""
        if self.ended:
            return
        self.active = False
        self.ended = True
        self.error = error
        self._waiters.wake()
