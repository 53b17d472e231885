"""The arguments of queues and exchanges that deduplicate."""

from __future__ import annotations

from typing import Final

from leveret.broker.arguments import (
    CACHE_SIZE,
    CACHE_TTL,
    DEDUPLICATION,
    DEDUPLICATION_HEADER,
    DEDUPLICATION_WINDOW,
    Validated,
)
from leveret.broker.errors import PreconditionFailed

DEFAULT_MAX_KEYS: Final = 1_000_000


class DeduplicationSettings:
    """The settings of a deduplication.

    header    the name of the header with the key
    lifetime  milliseconds that a key lasts, 0 for no such limit
    follows_entries  whether it lasts until its entry leaves the queue instead
    max_keys  the maximum number of keys; above it, the oldest are forgotten
    """

    __slots__ = ("follows_entries", "header", "lifetime", "max_keys")

    def __init__(self, known: Validated, lifetime: int, follows_entries: bool) -> None:
        self.header: str = known.get(DEDUPLICATION_HEADER, DEDUPLICATION_HEADER)
        self.lifetime = lifetime
        self.follows_entries = follows_entries
        self.max_keys: int = known.get(CACHE_SIZE, DEFAULT_MAX_KEYS)


def queue_deduplication(known: Validated) -> DeduplicationSettings | None:
    """Return the settings in the arguments of a queue, None if it does not deduplicate.

    Args:
        known: The validated arguments.

    Raises:
        PreconditionFailed: An argument has no effect without another one.
    """
    lifetime: int = known.get(DEDUPLICATION_WINDOW, 0)
    if lifetime or known.get(DEDUPLICATION, False):
        return DeduplicationSettings(known, lifetime, not lifetime)
    _refuse_without(known, (DEDUPLICATION_HEADER, CACHE_SIZE))
    return None


def exchange_deduplication(type_name: str, known: Validated) -> DeduplicationSettings | None:
    """Return the settings in the arguments of an exchange, None if it does not deduplicate.

    Args:
        type_name: The type of the exchange.
        known: The validated arguments.

    Raises:
        PreconditionFailed: An argument has no effect without another one, or together with it.
    """
    lifetime: int = known.get(DEDUPLICATION_WINDOW, 0)
    if not lifetime and type_name != DEDUPLICATION and not known.get(DEDUPLICATION, False):
        _refuse_without(known, (DEDUPLICATION_HEADER, CACHE_SIZE, CACHE_TTL))
        return None
    if lifetime and CACHE_TTL in known:
        raise PreconditionFailed(
            f"invalid arg '{CACHE_TTL}': received together with '{DEDUPLICATION_WINDOW}', expected one of them"
        )
    return DeduplicationSettings(known, lifetime or known.get(CACHE_TTL, 0), False)


def _refuse_without(known: Validated, names: tuple[str, ...]) -> None:
    """Raise PreconditionFailed for arguments of a deduplication that is not enabled."""
    for name in names:
        if name in known:
            raise PreconditionFailed(
                f"invalid arg '{name}': received without '{DEDUPLICATION_WINDOW}' and '{DEDUPLICATION}', expected together"
                " with one of them"
            )
