"""The offset that readers of a stream see among the annotations of a message."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.convert.annotations import encode_annotations
from leveret.protocols.convert.offsets import with_stream_offset
from leveret.wire.amqp10.decode import section_pairs, value_end
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.values import Symbol

PROPERTIES = b"\x00\x53\x73\x45"


def decoded(octets: bytes) -> tuple[dict[Any, Any], bytes]:
    end = value_end(octets, 0, len(octets))
    return dict(section_pairs(octets, 0, end)), octets[end:]


@pytest.mark.parametrize("rest", [b"", PROPERTIES], ids=["alone", "with properties"])
@pytest.mark.parametrize(
    "known",
    [
        {},
        {"x-opt-a": 1},
        {f"x-opt-{number}": number for number in range(12)},
        {"x-opt-long": "l" * 225},
        {f"x-opt-{number}": number for number in range(130)},
        {"x-opt-very": "l" * 70_000},
    ],
    ids=["none", "one", "twelve", "almost 256 octets", "more than 256 values", "large"],
)
def test_the_offset_is_an_additional_annotation(known: dict[str, Any], rest: bytes) -> None:
    section = encode_annotations([(Symbol(name), value) for name, value in known.items()])
    found, left = decoded(with_stream_offset(section + rest, 2**40 + 1))
    assert found == {**known, "x-stream-offset": 2**40 + 1}
    assert left == rest


def test_it_replaces_the_publishers_value() -> None:
    section = encode_annotations([(Symbol("x-stream-offset"), "mine"), (Symbol("x-opt-a"), 1)])
    found, left = decoded(with_stream_offset(section + PROPERTIES, 5))
    assert (found, left) == ({"x-opt-a": 1, "x-stream-offset": 5}, PROPERTIES)


def test_descriptors_may_have_another_form() -> None:
    section = b"\x00\x80" + (0x72).to_bytes(8, "big") + encode_pairs([(Symbol("x-opt-a"), 1)])
    found, left = decoded(with_stream_offset(section + PROPERTIES, 5))
    assert (found, left) == ({"x-opt-a": 1, "x-stream-offset": 5}, PROPERTIES)
