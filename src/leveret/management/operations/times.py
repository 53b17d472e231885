"""Times in requests."""

from __future__ import annotations

from datetime import UTC, datetime

from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import interval_of


def milliseconds_of(name: str, text: str, or_else: str = "") -> int:
    """Return a time in milliseconds of Unix time, 0 for an empty text. Raises `PreconditionFailed`.

    Args:
        name: The name of the field.
        text: The time as ISO 8601 or milliseconds of Unix time; without a time zone it is UTC.
        or_else: What else the field may have, for the error.
    """
    if not text:
        return 0
    if text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
        return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise PreconditionFailed(
            f"invalid {name} '{text[:60]}'; expected ISO 8601, as in 2026-11-25T12:00:00Z, milliseconds{or_else}"
        ) from None


def since_of(text: str, now: int) -> int:
    """Return the time from which on messages are wanted, in milliseconds of Unix time; 0 for all of them.

    Args:
        text: A time, or an interval back from now, as in `x-stream-offset`.
        now: The present time.

    Raises:
        PreconditionFailed: The text is neither.
    """
    span = interval_of(text)
    if span is not None:
        return max(now - span, 1)
    return milliseconds_of("since", text, ", or an interval such as 15m, 1h or 7D")
