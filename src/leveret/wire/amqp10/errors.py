"""The exceptions of this package: malformed input, and values that cannot be encoded."""

from __future__ import annotations


class DecodeError(Exception):
    """Malformed input. It never leaves `FrameReader.receive`, which converts it to a `Failure`.

    position    offset of the byte at which decoding stopped
    text        what was expected there
    condition   the error condition for it (transport 2.8.15): `amqp:decode-error`, or `amqp:invalid-field` for a value
                that its field does not allow
    short       whether the octets ended too soon, so that more of them might help
    """

    def __init__(self, position: int, text: str, condition: str = "amqp:decode-error", short: bool = False) -> None:
        super().__init__(f"{text} (at byte {position})")
        self.position = position
        self.text = text
        self.condition = condition
        self.short = short


class EncodeError(ValueError):
    """A value that the wire cannot carry: an unknown type, a number out of range, a frame that is too large. The
    caller's mistake, raised by whatever encodes."""
