"""Types (types part): the rule about composite types, and values with several valid encodings."""

from __future__ import annotations

import pytest

from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.transport import Begin, Open
from tests.conformance.amqp10.conftest import Connect
from tests.support.peers.amqp10 import composite, frame


@pytest.mark.rule("1.0", "types.1.3.multiple-mandatory")
@pytest.mark.parametrize("mechanisms", [b"\x40", b"\xe0\x02\x00\xa3", b""], ids=["null", "empty array", "absent"])
def test_a_mandatory_multiple_field_has_at_least_one_value(mechanisms: bytes) -> None:
    """The only such field in a frame that brokers send is the list of SASL mechanisms."""
    data = composite(0x40, mechanisms) if mechanisms else b"\x00\x53\x40\x45"
    with pytest.raises(DecodeError) as caught:
        decode_composite(data)
    assert "mandatory" in caught.value.text


@pytest.mark.rule("1.0", "section.types.1.2.encodings")
@pytest.mark.parametrize(
    "descriptor",
    [
        b"\x53\x10",
        b"\x80\x00\x00\x00\x00\x00\x00\x00\x10",
        b"\xa3\x0eamqp:open:list",
        b"\xb3\x00\x00\x00\x0eamqp:open:list",
    ],
    ids=["smallulong", "ulong", "sym8", "sym32"],
)
@pytest.mark.parametrize(
    "fields",
    [
        b"\xc0\x04\x01\xa1\x01c",
        b"\xd0\x00\x00\x00\x07\x00\x00\x00\x01\xa1\x01c",
        b"\xc0\x0d\x03\xb1\x00\x00\x00\x01c\x40\x70\x00\x00\x10\x00",
    ],
    ids=["list8", "list32", "str32 and uint"],
)
def test_an_open_in_every_encoding(raw: Connect, descriptor: bytes, fields: bytes) -> None:
    peer = raw().header()
    peer.send_bytes(frame(b"\x00" + descriptor + fields))
    assert isinstance(peer.take(Open), Open)
    peer.send(Begin(0, 1, 1))
    peer.take(Begin)
    peer.close()
