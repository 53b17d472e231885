"""Messages that any thread may settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client import delivery, message
from leveret.client.files import FileContent

if TYPE_CHECKING:
    from leveret.client.message import AnyTransaction
    from leveret.wire.amqp10.composite import Composite


class Message(message.Message):
    """A message received over the sync API; `respond` waits for the confirm."""

    __slots__ = ()

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge the message; with `multiple`, also all earlier ones of its channel."""
        self._channel.api_channel.connection.driver.call(super().ack, multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Requeue the message, or drop or dead-letter it; with `multiple`, also all earlier ones of its channel."""
        self._channel.api_channel.connection.driver.call(super().nack, requeue, multiple)

    def reject(self, requeue: bool = False) -> None:
        """Reject the message: drop or dead-letter it, or requeue it."""
        self._channel.api_channel.connection.driver.call(super().reject, requeue)


class FileMessage(Message, FileContent):
    """A file received over the sync API."""

    __slots__ = ()


class Delivery(delivery.Delivery):
    """A delivery received over the sync API; `respond` waits for the confirm."""

    __slots__ = ()

    def settle_as(self, state: Composite, transaction: AnyTransaction | None) -> None:
        """Settle the delivery with an outcome, as part of a transaction if one is given."""
        self._channel.api_channel.connection.driver.call(super().settle_as, state, transaction)

    def _settle_each(self, multiple: bool, state: Composite) -> None:
        self._channel.api_channel.connection.driver.call(super()._settle_each, multiple, state)
