"""The annotations `x-exchange` and `x-routing-key` of deliveries to consumers of AMQP 1.0."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.message import make_address
from leveret.protocols.convert.origins import annotate
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.message import message_annotations
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.values import Symbol

SECTION = b"\x00\x53\x72"
BODY = b"\x00\x53\x75\xa0\x01b"
ADDRESS = make_address("exchange", "key")
ORIGIN = {"x-exchange": "exchange", "x-routing-key": "key"}


def pairs(number: int, text: str = "") -> list[tuple[Any, Any]]:
    return [(Symbol(f"x-opt-{index}"), f"{index} {text}") for index in range(number)]


@pytest.mark.parametrize(
    "known",
    [
        [],
        pairs(1),
        pairs(125),
        pairs(126),
        pairs(127),
        pairs(130),
        pairs(2, "x" * 95),
        pairs(2, "x" * 96),
        pairs(3, "x" * 1000),
    ],
    ids=["none", "one", "125", "126", "127", "130", "190 octets", "192 octets", "long"],
)
def test_they_are_added_to_existing_annotations(known: list[tuple[Any, Any]]) -> None:
    octets = SECTION + encode_pairs(known) + BODY
    annotated = annotate(octets, ADDRESS)
    sections = split(annotated)
    assert message_annotations(sections) == dict(known) | ORIGIN
    assert annotated[sections.body :] == BODY


def test_without_annotations() -> None:
    annotated = annotate(BODY, ADDRESS)
    assert message_annotations(split(annotated)) == ORIGIN
    assert annotated.endswith(BODY)
    assert message_annotations(split(annotate(b"", ADDRESS))) == ORIGIN


@pytest.mark.parametrize(
    "octets",
    [
        SECTION + encode_pairs([(Symbol("x-exchange"), "other"), (Symbol("x-opt-a"), 1), (Symbol("x-routing-key"), None)]),
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x72" + encode_pairs([(Symbol("x-opt-a"), 1)]),
        b"\x00\xa3\x1camqp:message-annotations:map" + encode_pairs([(Symbol("x-opt-a"), 1), (Symbol("x-exchange"), 1)]),
    ],
    ids=["passed on", "number of 8 octets", "name"],
)
def test_those_of_a_broker_before_are_replaced(octets: bytes) -> None:
    annotated = annotate(octets + BODY, ADDRESS)
    assert message_annotations(split(annotated)) == {"x-opt-a": 1} | ORIGIN
    assert annotated.endswith(BODY)


def test_names_that_are_no_text() -> None:
    address = make_address("\udcff", "k" * 255)
    assert message_annotations(split(annotate(BODY, address))) == {"x-exchange": "�", "x-routing-key": "k" * 255}


def test_addresses_are_distinguished() -> None:
    for number in range(3000):
        key = str(number % 1500)
        assert message_annotations(split(annotate(BODY, make_address("x", key))))["x-routing-key"] == key
