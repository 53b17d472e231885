"""Methods of a channel and their replies, in order."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.client.core.frontend import Waiter
from leveret.client.errors import Error, InvalidMessage, breach_error, copy_error
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.methods import encode_arguments

if TYPE_CHECKING:
    from leveret.client.core.connection import ConnectionCore

# What a reply becomes: the method, and whether the caller has given up.
OnReply = Callable[[Method, bool], Any]

GET_EMPTY: Final = "basic.get-empty"


class _NullWaiter:
    """The waiter of a reply that nobody waits for."""

    def done(self) -> bool:
        return True

    def set_result(self, result: Any, /) -> None:
        raise AssertionError("nobody waits")

    def set_exception(self, exception: BaseException, /) -> None:
        raise AssertionError("nobody waits")


NULL_WAITER: Final = _NullWaiter()


class Call:
    """A method that was sent and whose reply has not come. `tag` is the consumer tag that the reply will name, if any."""

    __slots__ = ("name", "on_reply", "tag", "waiter")

    def __init__(self, name: str, waiter: Waiter, on_reply: OnReply | None, tag: str = "") -> None:
        self.name = name
        self.waiter = waiter
        self.on_reply = on_reply
        self.tag = tag

    def is_answered_by(self, reply: Method) -> bool:
        return reply.name.startswith(self.name) and (not self.tag or self.tag == reply.arguments.get("consumer_tag"))


class CallingChannel:
    """What a channel calls, and what is answered.

    opened       it is open on the wire now
    error        why it is closed for good
    """

    __slots__ = ("_calls", "_deferred", "connection", "error", "number", "opened")

    def __init__(self, connection: ConnectionCore, number: int) -> None:
        self.connection = connection
        self.number = number
        self.opened = False
        self.error: Error | None = None
        self._calls: deque[Call] = deque()
        # What is to be sent once the transaction is committed; None while none is being.
        self._deferred: list[Callable[[], None]] | None = None

    def call(self, name: str, arguments: dict[str, Any] | None = None, on_reply: OnReply | None = None) -> Waiter:
        """Send a method and wait for its reply, whose `arguments`, or what `on_reply` makes of it, are the result.

        Raises the error of a channel that is not open, and `InvalidMessage` for arguments that cannot be encoded.
        """
        self._check_open()
        self.send(name, arguments)
        waiter: Waiter = self.connection.frontend.new_waiter()
        self._calls.append(Call(name, waiter, on_reply, (arguments or {}).get("consumer_tag", "")))
        self.connection.ensure_reading()
        return waiter

    def cast(self, name: str, arguments: dict[str, Any] | None = None, on_reply: OnReply | None = None) -> None:
        """As `call`, where nobody waits for the reply."""
        self._check_open()
        self.send(name, arguments)
        self._calls.append(Call(name, NULL_WAITER, on_reply, (arguments or {}).get("consumer_tag", "")))

    def send(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """A method without a reply."""
        engine = self.connection.engine
        try:
            if self._deferred is not None and not name.startswith("channel.close"):
                encode_arguments(engine.version.by_name[name], arguments or {}, engine.dialect)
                self._deferred.append(partial(self.send, name, arguments))
                return
            engine.send(self.number, name, arguments)
            if name == "tx.commit":
                # RabbitMQ closes the connection over whatever comes before it has answered.
                self._deferred = []
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise InvalidMessage(f"{name}: {error}") from error
        self.connection.frontend.flush_soon()

    def _check_open(self) -> None:
        if not self.opened:
            raise copy_error(self.not_open_error())

    def not_open_error(self) -> Error:
        """What a call on a channel that is not open gets."""
        return self.error or self.connection.not_open_error()

    def _reply(self, command: Method) -> None:
        calls = self._calls
        # In the order of the calls, but that RabbitMQ's basic.consume-ok may be overtaken by what came later.
        for index, call in enumerate(calls):
            if call.is_answered_by(command):
                del calls[index]
                break
        else:
            self.connection.fail(breach_error(503, f"{command.name} came, for which nobody has asked"))
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
