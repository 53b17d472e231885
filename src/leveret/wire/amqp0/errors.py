"""The exceptions of this package: malformed input, and values that cannot be encoded."""

from __future__ import annotations


class WireError(Exception):
    """Malformed input. `Engine.receive` never raises it, but converts it to an `Error` command.

    Attributes:
        code: the reply code, 501 frame-error or 502 syntax-error.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class EncodeError(ValueError):
    """A value that cannot be encoded: a string that is too long, an unknown type, or a number out of range.

    Encoders raise it for an error of their caller.
    """
