"""What a filter sees of a message.

The base classes here are plain ones: an instance of a compiled class that derives from `abc.ABC` can be the target of a
weak reference, which mypyc does not clear when the instance goes.
"""

from __future__ import annotations

import time
from typing import Final

from mypy_extensions import mypyc_attr

HEADER: Final = 0
MESSAGE_ANNOTATIONS: Final = 1
PROPERTIES: Final = 2
APPLICATION_PROPERTIES: Final = 3


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageView:
    """A message whose fields can be asked for. Whoever owns the messages implements it, decoding what is asked for.

    A view may be used for one message after another; filters keep nothing of it. `work` counts what the filters have cost,
    beyond a few comparisons, in units of about 1 µs.
    """

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = 0

    def get(self, section: int, name: str) -> object:
        """The value of a field, or None if the message has none.

        `section` is one of the constants above. `name` is the name of the field in the specification of AMQP 1.0
        (`message-id`, `delivery-count`), or the key in a map section. Values are `bool`, `int` (all integers, and
        timestamps in milliseconds), `float`, `decimal.Decimal`, `str` (strings, symbols and characters), `bytes`,
        `uuid.UUID`, or subclasses of them; anything else is a value that compares with nothing. The defaults of the
        header's fields need not be filled in.
        """
        raise NotImplementedError

    def now(self) -> int:
        """The present time, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """Says of a message whether it is wanted. Filters keep no state, so one may serve many links and threads."""

    __slots__ = ()

    def matches(self, view: MessageView) -> bool:
        """Whether the message passes. Never raises, whatever values the message holds."""
        raise NotImplementedError
