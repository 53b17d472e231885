"""The exceptions of this package: malformed input, and values that cannot be encoded."""

from __future__ import annotations


class DecodeError(Exception):
    """Malformed input. It never leaves `FrameReader.receive`, which converts it to a `Failure`.

    position    offset of the byte at which decoding stopped
    text        description of the error
    condition   the error condition for it (transport 2.8.15): `amqp:decode-error`, or `amqp:invalid-field` for a value
                that its field does not allow
    short       whether the data was truncated, so that decoding may succeed with more of it
    """

    def __init__(self, position: int, text: str, condition: str = "amqp:decode-error", short: bool = False) -> None:
        super().__init__(f"{text} (at byte {position})")
        self.position = position
        self.text = text
        self.condition = condition
        self.short = short


class EncodeError(ValueError):
    """A value that cannot be encoded: an unknown type, a number out of range, or a frame that is too large.

    Any encoder may raise it. It is an error of the caller.
    """
