"""Requests to the management node that have no answer yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leveret.client.core.frontend import Waiter

# What an answer becomes: its status, its body, and whether the caller has given up.
OnAnswer = Callable[[int, Any, bool], Any]
# What an answer becomes that another request follows for the same caller.
PENDING: Final = object()


class Request:
    """`name` is for messages of errors, such as "queue.declare"."""

    __slots__ = ("answered", "name", "waiter")

    def __init__(self, name: str, waiter: Waiter, answered: OnAnswer) -> None:
        self.name = name
        self.waiter = waiter
        self.answered = answered
