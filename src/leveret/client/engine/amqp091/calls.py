"""Methods of a channel and their replies, in order."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.results import Result
from leveret.client.errors import Error, InvalidMessage, copy_error, protocol_error
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.methods import encode_arguments
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.connection import ConnectionCore

# Converts a reply to a result. Arguments: the reply, and whether the caller has stopped waiting.
OnReply = Callable[[Method, bool], Result]

GET_EMPTY: Final = "basic.get-empty"


class _NullWaiter:
    """Waiter for a reply without a waiting caller."""

    def done(self) -> bool:
        return True

    def set_result(self, result: Result, /) -> None:
        raise AssertionError("no caller waits for this reply")

    def set_exception(self, exception: BaseException, /) -> None:
        raise AssertionError("no caller waits for this reply")


NULL_WAITER: Final = _NullWaiter()


class Call:
    """A method with a pending reply. `tag` is the consumer tag of the reply, if any."""

    __slots__ = ("name", "on_reply", "tag", "waiter")

    def __init__(self, name: str, waiter: Waiter, on_reply: OnReply | None, tag: str = "") -> None:
        self.name = name
        self.waiter = waiter
        self.on_reply = on_reply
        self.tag = tag

    def is_answered_by(self, reply: Method) -> bool:
        """Return whether `reply` is the reply to this call."""
        return reply.name.startswith(self.name) and (not self.tag or self.tag == reply.arguments.get("consumer_tag"))


class CallingChannel(BaseChannelCore):
    """Base class of a channel that sends methods and matches their replies.

    Attributes:
        opened: The channel is open on the wire.
        error: Cause of the close, if the channel is closed for good.
    """

    __slots__ = ("_calls", "_deferred", "connection")

    connection: ConnectionCore

    def __init__(self, connection: ConnectionCore, number: int) -> None:
        self.connection = connection
        self.number = number
        self.opened = False
        self.error = None
        self._calls: deque[Call] = deque()
        # Sends deferred until the pending tx.commit is answered; None if no commit is pending.
        self._deferred: list[Callable[[], None]] | None = None

    def call(self, name: str, arguments: Arguments | None = None, on_reply: OnReply | None = None) -> Waiter:
        """Send a method and return a waiter for its reply.

        The result is the reply's `arguments`, or the result of `on_reply`.

        Raises:
            Error: The channel is not open.
            InvalidMessage: The arguments cannot be encoded.
        """
        self._check_open()
        self.send(name, arguments)
        waiter: Waiter = self.connection.frontend.new_waiter()
        self._calls.append(Call(name, waiter, on_reply, (arguments or {}).get("consumer_tag", "")))
        self.connection.ensure_reading()
        return waiter

    def cast(self, name: str, arguments: Arguments | None = None, on_reply: OnReply | None = None) -> None:
        """Send a method without waiting for its reply."""
        self._check_open()
        self.send(name, arguments)
        self._calls.append(Call(name, NULL_WAITER, on_reply, (arguments or {}).get("consumer_tag", "")))

    def send(self, name: str, arguments: Arguments | None = None) -> None:
        """Send a method that has no reply."""
        engine = self.connection.engine
        try:
            if self._deferred is not None and not name.startswith("channel.close"):
                encode_arguments(engine.version.by_name[name], arguments or {}, engine.dialect)
                self._deferred.append(partial(self.send, name, arguments))
                return
            engine.send(self.number, name, arguments)
            if name == "tx.commit":
                # RabbitMQ closes the connection if another method arrives before its answer.
                self._deferred = []
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise InvalidMessage(f"{name}: {error}") from error
        self.connection.frontend.flush_soon()

    def _check_open(self) -> None:
        if not self.opened:
            raise copy_error(self.not_open_error())

    def not_open_error(self) -> Error:
        """Return the error for a call on a channel that is not open."""
        return self.error or self.connection.not_open_error()

    def _reply(self, command: Method) -> None:
        calls = self._calls
        # Replies arrive in the order of the calls, except that others may overtake RabbitMQ's basic.consume-ok.
        for index, call in enumerate(calls):
            if call.is_answered_by(command):
                del calls[index]
                break
        else:
            self.connection.fail(protocol_error(503, f"unexpected {command.name}: no such reply is pending"))
            return
        abandoned = call.waiter.done()
        result = command.arguments if call.on_reply is None else call.on_reply(command, abandoned)
        if not abandoned:
            call.waiter.set_result(result)

    def _fail_calls(self, error: Error) -> None:
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.waiter.done():
                call.waiter.set_exception(error)
