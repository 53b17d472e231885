"""A finding of a check of `leveret doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result.

    Attributes:
        check: What was checked.
        level: OK, WARNING, or ERROR if something must change.
        found: What was found.
        expected: What was expected; empty if it was found.
        change: The setting or command that changes it; empty if nothing must change.
    """

    check: str
    level: str
    found: str
    expected: str = ""
    change: str = ""
