"""Counts of the alerts that were sent, which the console and the metrics show."""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec

# Maximum characters of an error, which may be an answer of the receiver.
_MAX_ERROR: Final = 300


def printable(text: str) -> str:
    """Return a text on one line: other characters than printable ones become spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


class Deliveries(msgspec.Struct, kw_only=True):
    """The deliveries to one receiver since the start of the process.

    Attributes:
        kind: How alerts are sent.
        receiver: The URL of a webhook, or the mail server.
        delivered: Number of requests or mails that the receiver accepted.
        failed: Number of those that were given up.
        dropped: Number of alerts that were not sent because too many wait.
        pending: Number of deliveries that wait.
        error: The last failure of an attempt.
        error_at: Its time in milliseconds of Unix time; 0 without one.
    """

    kind: Literal["mail", "webhook"]
    receiver: str
    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    pending: int = 0
    error: str = ""
    error_at: int = 0

    def note_error(self, error: str) -> None:
        """Note the failure of an attempt."""
        self.error = printable(error)[:_MAX_ERROR]
        self.error_at = int(1000 * time.time())
