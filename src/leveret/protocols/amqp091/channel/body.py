"""Bodies of contents that a channel receives in parts."""

from __future__ import annotations

from leveret.broker.bodies import Body, StoredBody


class BodyReceiver:
    """The body being received, in memory, in the spool or in an upload."""

    def __init__(self) -> None:
        self._parts: list[bytes] | StoredBody = []

    def begin(self, body: list[bytes] | StoredBody) -> None:
        """Begin a body, to which the parts are appended."""
        self._parts = body

    def add(self, data: bytes) -> None:
        self._parts.append(data)

    def take(self) -> Body:
        """Return the complete body."""
        body = self._parts
        self._parts = []
        return body

    def drop(self) -> None:
        """Drop an incomplete body, or one that was stored elsewhere."""
        self._parts = []
