"""Operations that declare, bind and delete over AMQP 0-9."""

from __future__ import annotations

from leveret.client.engine.amqp091.operations import Amqp091Operations
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import NotSupported
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.values import Arguments, FieldMapping


class Amqp09Operations(Amqp091Operations):
    """Operations of a 0-9 channel. Operations that 0-9 lacks raise `NotSupported`."""

    __slots__ = ()

    def declare_queue(
        self, name: str, durable: bool, exclusive: bool, auto_delete: bool, passive: bool, arguments: FieldMapping | None
    ) -> Waiter:
        # In 0-9, exclusive implies auto-delete (queue.declare.exclusive).
        return super().declare_queue(name, durable, exclusive, auto_delete or exclusive, passive, arguments)

    def bind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        _check_queue_binding(to_queue)
        return super().bind(to_queue, destination, source, routing_key, arguments)

    def unbind(
        self, to_queue: bool, destination: str, source: str, routing_key: str, arguments: FieldMapping | None
    ) -> Waiter:
        _check_queue_binding(to_queue)
        return super().unbind(to_queue, destination, source, routing_key, arguments)

    def qos(self, prefetch_count: int, prefetch_size: int, global_: bool) -> Waiter:
        """Set the prefetch limits of the channel. The `global` of 0-9 would apply to the whole connection."""
        sent: Arguments = {"prefetch_count": prefetch_count, "prefetch_size": prefetch_size, "global": False}

        def set_(reply: Method, abandoned: bool) -> None:
            self._channel.qos = sent

        return self._channel.call("basic.qos", sent, set_)


def _check_queue_binding(to_queue: bool) -> None:
    if not to_queue:
        raise NotSupported(
            "AMQP 0-9 cannot bind exchanges to exchanges; expected a queue, or a connection of 0-9-1 or 1.0"
            " (option protocol)"
        )
