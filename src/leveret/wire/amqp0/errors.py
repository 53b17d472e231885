"""The exceptions of this package: malformed input, and values that cannot be encoded."""

from __future__ import annotations


class WireError(Exception):
    """Malformed input. It never leaves `Engine.receive`, which converts it to an `Error` command.

    code    the reply code for it: 501 frame-error or 502 syntax-error
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class EncodeError(ValueError):
    """A value that cannot be encoded: a string that is too long, an unknown type, or a number out of range.

    Raised by all encoders because of an error of the caller.
    """
