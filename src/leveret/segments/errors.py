"""Errors of segments. Each message names the file, without credentials."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@]*@")


class SegmentError(Exception):
    """A segment cannot be read or written. `url` is the file with credentials masked."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = masked(url)
        self.reason = reason
        super().__init__(f"segment {self.url}: {reason}")


class SegmentMissing(SegmentError):
    """The file does not exist or cannot be reached."""


class SegmentDamaged(SegmentError):
    """The file is not the one in the manifest, or cannot be decoded."""


class SegmentTooNew(SegmentError):
    """The schema version of the file is newer than this reader supports."""


def masked(url: str) -> str:
    """Return the URL without credentials."""
    return _CREDENTIALS.sub("***@", url)
