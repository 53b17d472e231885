"""Incremental parser of the sections of a large message (messaging 3.2).

It returns the application data as it arrives, so that the message is never in memory as a whole.
"""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10.descriptors import AMQP_SEQUENCE, DATA, FOOTER
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.sections import MAX_SECTIONS, check_order, check_type, section_at, too_many_sections

# No section has a longer descriptor.
MAX_DESCRIPTOR_SIZE: Final = 4096


class Walk:
    """The parser of one message.

    head, tail  the sections before and after the application data, as `split` expects them
    body_size   size in bytes of the first section of application data, 0 before it
    sections    number of sections that have begun
    pending     bytes that are not classified yet
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

    def buffered(self) -> int:
        """Return the number of bytes in memory."""
        return len(self.head) + len(self.tail) + len(self.pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes and return the application data in them. Raises DecodeError if they are malformed."""
        body: list[bytes] = []
        if not self._left:
            data = self.pending + data
            self.pending = b""
        at = 0
        end = len(data)
        # Sections of application data are contiguous. They are returned in one piece, however small they are.
        begin = -1
        while at < end:
            if not self._left and not self._begin(data, at, end):
                break
            stop = min(at + self._left, end)
            self._left -= stop - at
            self._position += stop - at
            if self._kind < DATA:
                self.head += data[at:stop]
            elif self._kind == FOOTER:
                if begin >= 0:
                    body.append(data[begin:at])
                    begin = -1
                self.tail += data[at:stop]
            elif begin < 0:
                begin = at
            at = stop
        if begin >= 0:
            body.append(data[begin:at])
        return body

    def _begin(self, data: bytes, at: int, end: int) -> bool:
        """Parse the beginning of a section. Return False if too little of it has arrived."""
        try:
            kind, code, size = section_at(data, at, end)
        except DecodeError as error:
            if not error.short or end - at > MAX_DESCRIPTOR_SIZE:
                raise
            self.pending = data[at:end]
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
        """End the message. Raises DecodeError if it is truncated."""
        if self._left or self.pending:
            raise DecodeError(self._position, f"expected {self._left or 'more'} bytes of a section", short=True)
