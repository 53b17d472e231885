"""Positions of `received` states in messages, in memory and outside of it (messaging section 3.4.1)."""

from __future__ import annotations

import pytest

from leveret.broker.bodies import StoredBody
from leveret.protocols.amqp10.link import section_offsets
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Header
from tests.protocols.amqp10.support import message

HEAD = message(header=Header(True, ttl=5))[: -len(message())]
LONG = message(b"l" * 300)
SHORT = b"\x00\x53\x75\xa0\x03abc"
VALUE = b"\x00\x53\x77\xa1\x05value"
SEQUENCE = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x76\x45"
FOOTER = b"\x00\x53\x78\xc1\x01\x00"


class Stored(StoredBody):
    def __init__(self, octets: bytes) -> None:
        super().__init__()
        self.octets = octets
        self.size = len(octets)

    def read(self, at: int, length: int) -> bytes:
        return self.octets[at : at + length]


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "stored"])
@pytest.mark.parametrize(
    "sections", [[LONG], [SHORT, LONG, SHORT], [VALUE], [SEQUENCE, SEQUENCE]], ids=["long", "mixed", "value", "sequences"]
)
def test_offsets(sections: list[bytes], stored: bool) -> None:
    octets = b"".join(sections)
    body = Stored(octets) if stored else octets
    begin = 0
    for number, section in enumerate([HEAD, *sections, FOOTER]):
        for offset in (0, 1, len(section)):
            assert section_offsets.offset_of(HEAD, body, FOOTER, number, offset) == begin + offset
        begin += len(section)
    whole = len(HEAD) + len(octets) + len(FOOTER)
    assert section_offsets.offset_of(HEAD, body, FOOTER, 99, 0) == whole
    # An invalid position in the section is its end.
    assert section_offsets.offset_of(HEAD, body, FOOTER, 0, 999) == len(HEAD)


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "stored"])
def test_a_body_whose_section_begins_in_the_head(stored: bool) -> None:
    """Of a message that was converted."""
    head, octets = HEAD + LONG[:8], LONG[8:]
    assert section_offsets.offset_of(head, Stored(octets) if stored else octets, b"", 1, 100) == len(HEAD) + 100


def test_received_parts() -> None:
    whole = HEAD + SHORT + LONG
    assert section_offsets.end_of(b"") == (0, 0)
    assert section_offsets.end_of(HEAD) == (0, len(HEAD))
    assert section_offsets.end_of(HEAD + SHORT[:2]) == (1, 2)
    assert section_offsets.end_of(whole[:-1]) == (2, len(LONG) - 1)
    for length in range(len(whole)):
        section, offset = section_offsets.end_of(whole[:length])
        assert section_offsets.offset_in(whole[:length], section, offset) == length
    # The same place, as the start of a section that has not arrived.
    assert section_offsets.offset_in(HEAD + SHORT, 2, 0) == len(HEAD + SHORT)
    assert section_offsets.offset_in(HEAD + SHORT, 2, 1) > len(HEAD + SHORT)
    assert section_offsets.offset_in(HEAD, 5, 0) > len(HEAD)
    with pytest.raises(DecodeError):
        section_offsets.end_of(b"no message")
