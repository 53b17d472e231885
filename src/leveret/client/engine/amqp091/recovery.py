"""Recovery of a lost connection: restores topology, channels, consumers and pending confirms."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.channel import ChannelCore
from leveret.client.engine.common.frontend import Procedure
from leveret.client.engine.common.results import Result
from leveret.client.errors import ChannelClosed, InvalidMessage, ResourceLocked
from leveret.client.events import Recovered, RecoveryFailed
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.connection import ConnectionCore

# Maximum number of consecutive reconnects while an exclusive queue still belongs to the lost connection. Missing
# heartbeats reveal the loss to the server.
MAX_LOCKED_ATTEMPTS: Final = 10


def recover(connection: ConnectionCore) -> Procedure:
    """Restore exchanges, queues, bindings, channels, consumers and pending confirms (a procedure after the handshake).

    A refusal by the server is reported as an event and ends dependent objects, such as the consumer of a missing queue.
    All other objects are restored.
    """
    yield from _TopologyRecovery(connection).run()
    channels = list(connection.channels.values())
    for channel in channels:
        yield from _open(channel)
    channels = [channel for channel in channels if channel.opened]
    consumers = 0
    for channel in channels:
        consumers += yield from _consume(channel)
    connection.ready()
    republished = sum(channel.republish() for channel in channels if channel.opened)
    connection.frontend.emit(Recovered(len(channels), consumers, republished))


def _open(channel: ChannelCore) -> Procedure:
    """Reopen a channel, unless the application has closed it."""
    if channel.error is not None:
        return
    try:
        yield from channel.open()
    except (ChannelClosed, InvalidMessage) as error:
        if channel.connection.engine.is_closing(channel.number):
            # The application has closed it meanwhile. Its number is free after the server's reply.
            return
        # InvalidMessage if its number exceeds this server's limit.
        channel.ended(error if isinstance(error, ChannelClosed) else ChannelClosed(str(error)))
        channel.connection.forget_channel(channel)
        channel.connection.frontend.emit(RecoveryFailed(f"channel {channel.number}", error))


def _consume(channel: ChannelCore) -> Generator[Result, Result, int]:
    """Restart the consumers of a channel and return their number."""
    started = 0
    for consumer in list(channel.consumers.values()):
        if consumer.ended or not channel.opened:
            continue
        try:
            yield channel.consume(consumer)
        except ChannelClosed as error:
            # The channel was closed; its consumers get that error.
            if error.reply_code:
                what = f"consumer '{consumer.tag}' of queue '{consumer.queue}'"
                channel.connection.frontend.emit(RecoveryFailed(what, error))
            return 0
        if consumer is not channel.replies:
            started += 1
    return started


class _TopologyRecovery:
    """Declaration of the topology on a temporary channel, so that a refusal closes no channel of the application."""

    def __init__(self, connection: ConnectionCore) -> None:
        self._connection = connection
        self._channel: ChannelCore | None = None
        self._borrowed: ChannelCore | None = None

    def run(self) -> Procedure:
        connection = self._connection
        if connection.is_full:
            # The application uses all channel numbers. None of its channels is open yet, so borrow a number.
            self._borrowed = next(iter(connection.channels.values()))
            connection.forget_channel(self._borrowed)
        try:
            yield from self._declare_all()
        finally:
            if self._channel is not None:
                connection.forget_channel(self._channel)
            if self._borrowed is not None and self._borrowed.error is None:
                connection.channels[self._borrowed.number] = self._borrowed

    def _declare_all(self) -> Procedure:
        topology = self._connection.topology
        for name, arguments in list(topology.exchanges.items()):
            yield from self._declare(f"exchange '{name}'", "exchange.declare", arguments)
        for queue in list(topology.queues.values()):
            arguments = {**queue.arguments, "queue": "" if queue.server_named else queue.name}
            reply = yield from self._declare(f"queue '{queue.name}'", "queue.declare", arguments)
            if reply is not None and queue.server_named:
                self._queue_renamed(queue.name, reply["queue"])
                topology.rename_queue(queue, reply["queue"])
        for binding in list(topology.bindings.values()):
            what = f"binding of '{binding.destination}' to exchange '{binding.source}'"
            yield from self._declare(what, binding.method, binding.arguments)
        if self._channel is not None:
            yield from self._channel.close()

    def _declare(self, what: str, method: str, arguments: Arguments) -> Generator[Result, Result, Result]:
        connection = self._connection
        channel = self._channel
        if channel is None or not channel.opened:
            channel = self._channel = connection.new_channel(confirms=False, transactional=False)
            yield from channel.open()
        try:
            yield from channel.prepare(arguments)
            return (yield channel.call(method, arguments))
        except ChannelClosed as error:
            if (
                isinstance(error, ResourceLocked)
                and arguments["exclusive"]
                and connection.locked_attempts < MAX_LOCKED_ATTEMPTS
            ):
                connection.locked_attempts += 1
                raise
            connection.frontend.emit(RecoveryFailed(what, error))
            return None

    def _queue_renamed(self, before: str, after: str) -> None:
        """Point the consumers of a server-named queue to the queue that replaces it."""
        channels = list(self._connection.channels.values())
        if self._borrowed is not None:
            channels.append(self._borrowed)
        for channel in channels:
            for consumer in channel.consumers.values():
                if consumer.queue == before:
                    consumer.queue = after
