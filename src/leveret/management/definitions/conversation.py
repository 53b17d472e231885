"""Conversations: generators that yield calls of operations and receive the results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

# A reply, an item of a list, or the fields of a request.
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operation: its name and the fields of the request."""

    name: str
    arguments: Row


# None instead of a call is a point at which an event loop may do something else.
Conversation: TypeAlias = Generator[Call | None, Any, T]


def conduct(conversation: Conversation[T], call: Callable[[str, Row], object]) -> T:
    """Conduct a conversation with a blocking `call`, and return its result. Raises what `call` raises."""
    result: object = None
    while True:
        try:
            wanted = conversation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        result = None if wanted is None else call(wanted.name, wanted.arguments)


async def conduct_async(conversation: Conversation[T], call: Callable[[str, Row], Awaitable[object]]) -> T:
    """Conduct a conversation with an asynchronous `call`, and return its result. Raises what `call` raises."""
    result: object = None
    while True:
        try:
            wanted = conversation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        if wanted is None:
            await asyncio.sleep(0)
        result = None if wanted is None else await call(wanted.name, wanted.arguments)
