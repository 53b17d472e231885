"""Operations that declare, bind and delete, and record the topology for recovery.

Each call sends one method and returns a waiter for its reply. The topology is updated when the reply arrives, even if
the caller has stopped waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.engine.common.channel import Operations
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.topology import DeclaredQueue
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.values import Arguments, FieldMapping

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.channel import ChannelCore


class Amqp091Operations(Operations):
    """The operations of one channel."""

    __slots__ = ("_channel",)

    def __init__(self, channel: ChannelCore) -> None:
        self._channel = channel

    def declare_queue(
        self, name: str, durable: bool, exclusive: bool, auto_delete: bool, passive: bool, arguments: FieldMapping | None
    ) -> Waiter:
        """Declare a queue; the result is the `DeclaredQueue`, its message count and its consumer count."""
        sent: Arguments = {
            "queue": name,
            "durable": durable,
            "exclusive": exclusive,
            "auto_delete": auto_delete,
            "passive": passive,
            "arguments": dict(arguments or {}),
        }
        topology = self._channel.connection.topology

        def declared(reply: Method, abandoned: bool) -> tuple[DeclaredQueue, int, int]:
            given: str = reply.arguments["queue"]
            if passive:
                queue = topology.queues.get(given) or DeclaredQueue(given, False, sent)
            else:
                queue = topology.add_queue(given, not name, sent)
            return queue, reply.arguments["message_count"], reply.arguments["consumer_count"]

        return self._channel.call("queue.declare", sent, declared)

    def delete_queue(self, name: str, if_unused: bool = False, if_empty: bool = False) -> Waiter:
        """Delete a queue; the result is the number of deleted messages."""

        def deleted(reply: Method, abandoned: bool) -> int:
            self._channel.connection.topology.remove_queue(name)
            count: int = reply.arguments["message_count"]
            return count

        return self._channel.call("queue.delete", {"queue": name, "if_unused": if_unused, "if_empty": if_empty}, deleted)

    def purge_queue(self, name: str) -> Waiter:
        """Purge a queue; the result is the number of removed messages."""
        return self._channel.call("queue.purge", {"queue": name}, lambda reply, abandoned: reply.arguments["message_count"])

    def declare_exchange(
        self,
        name: str,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: FieldMapping | None,
        passive: bool = False,
    ) -> Waiter:
        """Declare an exchange."""
        sent: Arguments = {
            "exchange": name,
            "type": type,
            "durable": durable,
            "auto_delete": auto_delete,
            "internal": internal,
            "passive": passive,
            "arguments": dict(arguments or {}),
        }

        def declared(reply: Method, abandoned: bool) -> None:
            if not passive:
                self._channel.connection.topology.add_exchange(sent)

        return self._channel.call("exchange.declare", sent, declared)

    def delete_exchange(self, name: str, if_unused: bool = False) -> Waiter:
        """Delete an exchange."""

        def deleted(reply: Method, abandoned: bool) -> None:
            self._channel.connection.topology.remove_exchange(name)

        return self._channel.call("exchange.delete", {"exchange": name, "if_unused": if_unused}, deleted)

    def bind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        """Bind a queue or an exchange."""
        sent = _binding(to_queue, destination, source, routing_key, arguments)

        def bound(reply: Method, abandoned: bool) -> None:
            self._channel.connection.topology.bind(to_queue, sent)

        return self._channel.call("queue.bind" if to_queue else "exchange.bind", sent, bound)

    def unbind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        """Remove a binding."""
        sent = _binding(to_queue, destination, source, routing_key, arguments)

        def unbound(reply: Method, abandoned: bool) -> None:
            self._channel.connection.topology.unbind(to_queue, sent)

        return self._channel.call("queue.unbind" if to_queue else "exchange.unbind", sent, unbound)

    def qos(self, prefetch_count: int, prefetch_size: int, global_: bool) -> Waiter:
        """Set the prefetch limits. With `global_`, they apply to the whole channel, and replace those of its consumers."""
        sent: Arguments = {"prefetch_count": prefetch_count, "prefetch_size": prefetch_size, "global": global_}

        def set_(reply: Method, abandoned: bool) -> None:
            self._channel.qos = sent

        return self._channel.call("basic.qos", sent, set_)


def _binding(to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None) -> Arguments:
    names = ("queue", "exchange") if to_queue else ("destination", "source")
    return {names[0]: destination, names[1]: source, "routing_key": routing_key, "arguments": dict(arguments or {})}
