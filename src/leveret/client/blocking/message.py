"""A message whose settlement is safe from any thread."""

from __future__ import annotations

from leveret.client.message import Message


class BlockingMessage(Message):
    """As `Message`; `respond` waits for the confirm."""

    __slots__ = ()

    def ack(self, multiple: bool = False) -> None:
        with self._channel.face.lock:
            super().ack(multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        with self._channel.face.lock:
            super().nack(requeue, multiple)

    def reject(self, requeue: bool = False) -> None:
        with self._channel.face.lock:
            super().reject(requeue)
