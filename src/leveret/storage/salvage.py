"""The losses that an operator accepts for one start of a broker."""

from __future__ import annotations

from typing import Final


class Salvage:
    """The losses accepted for one start.

    accept_missing  start although files of the data directory are missing
    drop_damaged    drop damaged rows, chunks and definitions
    """

    __slots__ = ("accept_missing", "drop_damaged")

    def __init__(self, accept_missing: bool = False, drop_damaged: bool = False) -> None:
        self.accept_missing = accept_missing
        self.drop_damaged = drop_damaged


NOTHING_LOST: Final = Salvage()
