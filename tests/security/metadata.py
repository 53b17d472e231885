"""Stored metadata in memory."""

from __future__ import annotations


class Metadata(dict[tuple[str, str], bytes]):
    """The entries of a store of users, by kind and key."""

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""
        if value is None:
            del self[kind, key]
        else:
            self[kind, key] = value
