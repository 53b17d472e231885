"""Base classes of composite types."""

from __future__ import annotations


class Composite:
    """A value of a composite type. `kind` is its numeric descriptor, for dispatch without `isinstance`."""

    __slots__ = ("kind",)

    def __init__(self, kind: int) -> None:
        self.kind = kind


class Performative(Composite):
    """A composite that can be the body of a frame. The channel of a SASL frame is 0."""

    __slots__ = ("channel",)

    def __init__(self, kind: int, channel: int) -> None:
        self.kind = kind
        self.channel = channel
