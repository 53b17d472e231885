"""Making everything as it was before the connection was lost."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from leveret.client.core.channel import ChannelCore
from leveret.client.core.frontend import Procedure
from leveret.client.errors import ChannelClosed, InvalidMessage, ResourceLocked
from leveret.client.events import Recovered, RecoveryFailed

if TYPE_CHECKING:
    from leveret.client.core.connection import ConnectionCore

# How often in a row the connection is tried again because an exclusive queue still belongs to the one that was lost:
# a server that does not know of the loss yet learns of it by its heartbeats.
MAX_LOCKED_ATTEMPTS: Final = 10


def recover(connection: ConnectionCore) -> Procedure:
    """Procedure, after the handshake: exchanges, queues, bindings, channels, consumers, unconfirmed publishes.

    What the server refuses is shown as an event, and ends what depends on it (a consumer whose queue is gone); the rest
    goes on.
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
    """Open a channel again, unless the application has closed it."""
    if channel.error is not None:
        return
    try:
        yield from channel.open()
    except (ChannelClosed, InvalidMessage) as error:
        if channel.connection.engine.is_closing(channel.number):
            # The application has closed it meanwhile; its number is free when the server has answered.
            return
        # The latter where its number is above what this server allows.
        channel.ended(error if isinstance(error, ChannelClosed) else ChannelClosed(str(error)))
        channel.connection.forget_channel(channel)
        channel.connection.frontend.emit(RecoveryFailed(f"channel {channel.number}", error))


def _consume(channel: ChannelCore) -> Generator[Any, Any, int]:
    """Start the consumers of a channel again; how many there are."""
    started = 0
    for consumer in list(channel.consumers.values()):
        if consumer.ended or not channel.opened:
            continue
        try:
            yield channel.consume(consumer)
        except ChannelClosed as error:
            # The channel is closed with all that is on it: by its own error, which its users get.
            if error.reply_code:
                what = f"consumer '{consumer.tag}' of queue '{consumer.queue}'"
                channel.connection.frontend.emit(RecoveryFailed(what, error))
            return 0
        if consumer is not channel.replies:
            started += 1
    return started


class _TopologyRecovery:
    """Declares on a channel of its own, so that a refusal costs the application none of its channels."""

    def __init__(self, connection: ConnectionCore) -> None:
        self._connection = connection
        self._channel: ChannelCore | None = None
        self._borrowed: ChannelCore | None = None

    def run(self) -> Procedure:
        connection = self._connection
        if connection.is_full:
            # The application has all numbers. None of its channels is open yet, so that one's can be used.
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

    def _declare(self, what: str, method: str, arguments: dict[str, Any]) -> Generator[Any, Any, Any]:
        connection = self._connection
        channel = self._channel
        if channel is None or not channel.opened:
            channel = self._channel = connection.new_channel(confirms=False, transactional=False)
            yield from channel.open()
        try:
            yield from channel.prepare(arguments)
            return (yield channel.call(method, arguments))
        except ChannelClosed as error:
            if (isinstance(error, ResourceLocked) and arguments["exclusive"]
                    and connection.locked_attempts < MAX_LOCKED_ATTEMPTS):
                connection.locked_attempts += 1
                raise
            connection.frontend.emit(RecoveryFailed(what, error))
            return None

    def _queue_renamed(self, before: str, after: str) -> None:
        """Consumers of a server-named queue consume from the one that stands in for it."""
        channels = list(self._connection.channels.values())
        if self._borrowed is not None:
            channels.append(self._borrowed)
        for channel in channels:
            for consumer in channel.consumers.values():
                if consumer.queue == before:
                    consumer.queue = after
