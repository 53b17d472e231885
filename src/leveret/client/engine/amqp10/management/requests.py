"""Pending requests to the management node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.results import Result
from leveret.wire.amqp10.values import Checked

# Converts an answer to a result. Arguments: status, body, and whether the caller has stopped waiting.
OnAnswer = Callable[[int, Checked, bool], Result]
# Result of an answer that leads to another request for the same caller.
PENDING: Final = object()


class Request:
    """A pending request. `name` is the operation for error messages, such as "queue.declare"."""

    __slots__ = ("answered", "name", "waiter")

    def __init__(self, name: str, waiter: Waiter, answered: OnAnswer) -> None:
        self.name = name
        self.waiter = waiter
        self.answered = answered
