"""The broker's request to a publisher to pause (0-9-1 channel.flow)."""

from __future__ import annotations

from typing import Final

# Milliseconds after channel.flow in which publishes are accepted: they may have been sent before it arrived.
FLOW_GRACE: Final = 5000


class PublisherPause:
    """A pause that a channel was asked for. `now` is in milliseconds."""

    def __init__(self, now: int) -> None:
        self._until = now + FLOW_GRACE
        self._confirmed = False

    def replied(self, active: bool) -> None:
        """Note the client's channel.flow-ok. After one that is not active, publishing violates the pause."""
        self._confirmed = not active

    def is_violated(self, now: int) -> bool:
        """Return whether a publish violates the pause."""
        return self._confirmed or now > self._until
