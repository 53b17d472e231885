"""Errors of segments. Each message names the file, without credentials."""

from __future__ import annotations


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
    """Return the URL without credentials. The secret keys of object stores may have slashes."""
    scheme, separator, rest = url.partition("://")
    credentials, at, location = rest.rpartition("@")
    is_path = "/" in credentials and ":" not in credentials.partition("/")[0]
    return f"{scheme}{separator}***@{location}" if at and not is_path else url
