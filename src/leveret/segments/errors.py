"""What goes wrong with a segment. Every message names the file, without credentials."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@]*@")


class SegmentError(Exception):
    """A segment cannot be read or written. `url` is the file, credentials masked."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = masked(url)
        self.reason = reason
        super().__init__(f"segment {self.url}: {reason}")


class SegmentMissing(SegmentError):
    """There is no such file, or it cannot be reached."""


class SegmentDamaged(SegmentError):
    """The file is not the one that the manifest names, or cannot be decoded."""


class SegmentTooNew(SegmentError):
    """The file has a newer schema version than this reader knows."""


def masked(url: str) -> str:
    """The URL without credentials."""
    return _CREDENTIALS.sub("***@", url)
