"""Values of maps, found without decoding the others."""

from __future__ import annotations

import pytest

from leveret.wire.amqp10.annotations import find_application_text
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.values import Symbol, Value

_SECTION = b"\x00\x53\x74"


def find(*pairs: tuple[Value, Value]) -> str:
    data = b"before" + _SECTION + encode_pairs(list(pairs)) + b"after"
    return find_application_text(data, 6, len(data) - 5, b"name")


@pytest.mark.parametrize("text", ["", "x", "x" * 300, "\xe4"])
def test_text_between_other_values(text: str) -> None:
    assert find(("a", [1, {"name": "nested"}]), ("name", text), ("z", "name")) == text


def test_other_keys_and_types() -> None:
    assert find(("name", 7)) == find(("name", b"x")) == find((Symbol("name"), "x")) == find(("names", "x")) == ""
    assert find(("name", Symbol("x"))) == find() == find(("a", "name")) == ""


def test_a_long_key_is_not_confused_with_its_end() -> None:
    assert find(("long name", "x"), ("name", "y")) == "y"


def test_a_truncated_section() -> None:
    data = _SECTION + encode_pairs([("a", "x" * 20), ("name", "y")])
    with pytest.raises(DecodeError):
        find_application_text(data, 0, len(data) - 1, b"name")
