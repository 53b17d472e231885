"""The interface between filters and messages.

The base classes do not derive from `abc.ABC`: instances of compiled classes that do can have weak references, which mypyc
does not clear when the instance is freed.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr

HEADER: Final = 0
MESSAGE_ANNOTATIONS: Final = 1
PROPERTIES: Final = 2
APPLICATION_PROPERTIES: Final = 3


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageView:
    """Access to the fields of a message. The owner of the messages implements it, and decodes fields on demand.

    A view may be reused for other messages; filters keep no reference to it. `work` counts the cost of the filters beyond a
    few comparisons, in units of about 1 µs.
    """

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = 0

    @abstractmethod
    def get(self, section: int, name: str) -> object:
        """Return the value of a field, None if the message does not have it.

        Values are `bool`, `int` (all integers, and timestamps in milliseconds), `float`, `decimal.Decimal`, `str` (strings,
        symbols and characters), `bytes`, `uuid.UUID`, or subclasses of these. Any other value is not equal to anything.
        Defaults of header fields need not be filled in.

        Args:
            section: One of the constants above.
            name: The name of the field in AMQP 1.0 (`message-id`, `delivery-count`), or the key in a map section.
        """

    def now(self) -> int:
        """Return the current time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """A message filter. Filters are stateless, so links and threads can share them."""

    __slots__ = ()

    @abstractmethod
    def matches(self, view: MessageView) -> bool:
        """Return whether the message matches. Never raises, whatever values the message contains."""
