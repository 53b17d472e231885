"""Delays of messages by the header `x-delay`, which exchanges of the type `x-delayed-message` heed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.message import AT_ONCE, Message, Overlay
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

HEADER: Final = "x-delay"
# As in RabbitMQ's plugin, longer delays have no effect: 49 days in milliseconds.
MAX_DELAY: Final = (1 << 32) - 1
# More digits than MAX_DELAY has.
_MAX_DIGITS: Final = 20


class Delay:
    """The delay of one message.

    milliseconds  the delay
    due           when the message becomes visible, in milliseconds of the broker's clock
    queues        the queues that get it then; all others get it at once
    """

    __slots__ = ("due", "milliseconds", "queues")

    def __init__(self, milliseconds: int, due: int, queues: list[Queue]) -> None:
        self.milliseconds = milliseconds
        self.due = due
        self.queues = set(queues)

    def due_in(self, queue: Queue, due: int) -> int:
        """Return the delivery time in a queue, 0 for at once; `due` is the delivery time without the delay."""
        return max(due, self.due) if queue in self.queues else due

    def overlay_in(self, queue: Queue, message: Message, due: int) -> Overlay | None:
        """Return the overlay of the message in one of its queues; None if nothing changes.

        Args:
            queue: The queue.
            message: The message.
            due: The delivery time that the message has without the delay, 0 for at once.
        """
        if queue in self.queues:
            overlay = self.overlay(message)
            overlay.visible_at = max(due, self.due)
            return overlay
        if not due:
            return None
        overlay = Overlay()
        overlay.visible_at = due
        return overlay

    def overlay(self, message: Message) -> Overlay:
        """Return the overlay of the message in the queues that get it later.

        The negated header, as in RabbitMQ's plugin, tells consumers of the delay, and prevents another one. The time to
        live starts at the end of the delay.
        """
        overlay = Overlay()
        self.add_to(overlay, message)
        return overlay

    def add_to(self, overlay: Overlay, message: Message) -> None:
        """Add the delay to an overlay of the message, as in `overlay`."""
        overlay.headers[HEADER] = -self.milliseconds
        overlay.visible_at = self.due
        if overlay.expires_at < 0 and message.expires_at > AT_ONCE:
            overlay.expires_at = message.expires_at + self.milliseconds

    def split(self, queues: list[Queue]) -> tuple[list[Queue], list[Queue]]:
        """Return the queues that get the message later, and those that get it at once."""
        delayed: list[Queue] = []
        at_once: list[Queue] = []
        for queue in queues:
            (delayed if queue in self.queues else at_once).append(queue)
        return delayed, at_once

    def push(self, message: Message, queues: list[Queue], due: int = 0) -> Queue | None:
        """Append the message to queues; return the last one that rejects it. `due` is as in `overlay_in`."""
        full: Queue | None = None
        for queue in queues:
            overlay = self.overlay_in(queue, message, due)
            accepted = queue.push(message) if overlay is None else queue.delay(message, overlay.visible_at, overlay)
            if not accepted:
                full = queue
        if full is not None:
            unpublish(message, queues)
        return full


def unpublish(message: Message, queues: list[Queue]) -> None:
    """Have the queues that observe forget a publish that another queue has rejected, since it may be repeated."""
    for queue in queues:
        queue.unpublish(message)


def recovered_delay(overlay: Overlay, queues: list[Queue]) -> Delay:
    """Return the delay that `Delay.overlay` has stored, of these queues."""
    negated = overlay.headers[HEADER]
    assert isinstance(negated, int)
    return Delay(-negated, overlay.visible_at, queues)


def delay_of(headers: FieldTable) -> int:
    """Return the delay in milliseconds that the headers of a message ask for, 0 for none.

    It is a number, or its digits as text. Other values, negative ones and those above MAX_DELAY mean no delay.
    """
    value = headers.get(HEADER)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < _MAX_DIGITS else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_DELAY:
        return 0
    return int(value)
