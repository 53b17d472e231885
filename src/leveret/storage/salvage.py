"""Which losses an operator accepts for one start of a broker."""

from __future__ import annotations

from typing import Final


class Salvage:
    """What may be given up so that a broker starts.

    accept_missing  files of the data directory that should be there and are not
    drop_damaged    rows, chunks and definitions that are not what was written
    """

    __slots__ = ("accept_missing", "drop_damaged")

    def __init__(self, accept_missing: bool = False, drop_damaged: bool = False) -> None:
        self.accept_missing = accept_missing
        self.drop_damaged = drop_damaged


NOTHING_LOST: Final = Salvage()
