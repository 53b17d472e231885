"""The sections of a message that comes in pieces (messaging 3.2): which octets belong to what, without the message as a
whole. It is for large messages: the application data is handed on as it comes."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10.descriptors import AMQP_SEQUENCE, DATA, FOOTER
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.sections import MAX_SECTIONS, check_order, check_type, section_at, too_many_sections

# A descriptor that is longer than this is none of a section.
MAX_DESCRIPTOR_SIZE: Final = 4096


class Walk:
    """Takes the octets of one message.

    head, tail  the sections before the application data, and those behind it: what `split` wants
    body_size   octets that the section of application data has which came first, 0 before
    sections    how many have begun
    pending     octets of which it is not known yet what they are
    """

    __slots__ = ("_kind", "_last", "_left", "_position", "body_size", "head", "pending", "sections", "tail")

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.pending = b""
        self.body_size = 0
        self.sections = 0
        self._kind = 0
        self._last = 0
        self._left = 0
        self._position = 0

    def held(self) -> int:
        """Octets that are kept here."""
        return len(self.head) + len(self.tail) + len(self.pending)

    def feed(self, octets: bytes) -> list[bytes]:
        """The application data among the octets that come next. DecodeError for what is no message."""
        body: list[bytes] = []
        if not self._left:
            octets = self.pending + octets
            self.pending = b""
        at = 0
        end = len(octets)
        # Sections of application data follow each other: they are handed on in one piece, however small they are.
        begin = -1
        while at < end:
            if not self._left and not self._begin(octets, at, end):
                break
            stop = min(at + self._left, end)
            self._left -= stop - at
            self._position += stop - at
            if self._kind < DATA:
                self.head += octets[at:stop]
            elif self._kind == FOOTER:
                if begin >= 0:
                    body.append(octets[begin:at])
                    begin = -1
                self.tail += octets[at:stop]
            elif begin < 0:
                begin = at
            at = stop
        if begin >= 0:
            body.append(octets[begin:at])
        return body

    def _begin(self, octets: bytes, at: int, end: int) -> bool:
        """The beginning of a section; False where too little of it has come."""
        try:
            kind, code, size = section_at(octets, at, end)
        except DecodeError as error:
            if not error.short or end - at > MAX_DESCRIPTOR_SIZE:
                raise
            self.pending = octets[at:end]
            return False
        check_order(kind, self._last, self._position)
        if self.sections > MAX_SECTIONS:
            raise too_many_sections(self._position)
        if kind in (DATA, AMQP_SEQUENCE):
            check_type(kind, self._position, code)
        if kind >= DATA and not self.body_size and kind != FOOTER:
            self.body_size = size
        self.sections += 1
        self._kind = self._last = kind
        self._left = size
        return True

    def finish(self) -> None:
        """That was all of the message. DecodeError where it is cut off."""
        if self._left or self.pending:
            raise DecodeError(self._position, f"expected {self._left or 'more'} bytes of a section", short=True)
