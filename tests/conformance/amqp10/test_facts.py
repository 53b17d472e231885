"""Facts of the types of AMQP 1.0: fields that are mandatory, what absent fields mean, the values of restricted types."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.model import KIND_NAMES, CompositeSpec, FieldSpec
from leveret.wire.amqp10.specs import TYPES
from leveret.wire.amqp10.transport import Close
from tests.conformance.amqp10.conftest import Connect
from tests.conformance.catalogue import catalogue
from tests.conformance.marks import checks
from tests.support.peers.amqp10 import Peer, composite, frame

NULL: Final = b"\x40"
# A value of each primitive type, and of composite types that mandatory fields have.
VALUES: Final[dict[str, bytes]] = {
    "boolean": b"\x42",
    "ubyte": b"\x50\x00",
    "ushort": b"\x60\x00\x00",
    "uint": b"\x43",
    "ulong": b"\x44",
    "binary": b"\xa0\x01x",
    "string": b"\xa1\x01x",
    "symbol": b"\xa3\x01x",
    "*": b"\xa0\x01x",
}
FACTS: Final = [rule for rule in catalogue() if not rule.keyword]


def of_fields(kind: str) -> list[Any]:
    """Return a parameter for each fact of a kind: the type, and the field."""
    found = []
    for rule in FACTS:
        parts = rule.id.split(".")
        if parts[-1] == kind:
            found.append(pytest.param(parts[-3], parts[-2], id=f"{parts[-3]}.{parts[-2]}", marks=checks("1.0", rule.id)))
    return found


def field_of(type: str, name: str) -> tuple[CompositeSpec, int, FieldSpec]:
    spec = TYPES.composites[type]
    at = next(at for at, field in enumerate(spec.fields) if field.spec_name == name)
    return spec, at, spec.fields[at]


def sample(field: FieldSpec) -> bytes:
    return VALUES[KIND_NAMES[field.kind]] if field.mandatory else NULL


def bytes_of(spec: CompositeSpec, missing: int | None = None) -> bytes:
    """Return a value with its mandatory fields, and null for the missing one."""
    last = max((at for at, field in enumerate(spec.fields) if field.mandatory), default=-1)
    return composite(
        spec.descriptor, *(NULL if at == missing else sample(field) for at, field in enumerate(spec.fields[: last + 1]))
    )


@pytest.mark.parametrize(("type", "name"), of_fields("mandatory"))
def test_without_a_mandatory_field_a_value_is_malformed(type: str, name: str) -> None:
    spec, at, _ = field_of(type, name)
    decode_composite(bytes_of(spec))
    with pytest.raises(DecodeError) as caught:
        decode_composite(bytes_of(spec, at))
    assert "mandatory" in caught.value.text


PERFORMATIVES: Final = ("open", "begin", "attach", "flow", "transfer", "disposition", "detach")


@pytest.mark.parametrize(("type", "name"), [param for param in of_fields("mandatory") if param.values[0] in PERFORMATIVES])
def test_a_performative_without_a_mandatory_field_closes_the_connection(
    raw: Connect, connect: Connect, type: str, name: str
) -> None:
    spec, at, _ = field_of(type, name)
    peer: Peer = raw().header() if type == "open" else connect()
    channel = 0
    if type not in ("open", "begin"):
        channel = peer.begin().channel
    peer.send_bytes(frame(bytes_of(spec, at), channel))
    assert peer.take(Close).error.condition == "amqp:decode-error"  # type: ignore[union-attr]


@pytest.mark.parametrize(("type", "name"), of_fields("default"))
def test_an_absent_field_means_its_default(type: str, name: str) -> None:
    spec, at, field = field_of(type, name)
    fact = next(rule for rule in FACTS if rule.id.endswith(f".{type}.{name}.default")).place.partition(" ")[2]
    choices = next((known.choices for known in TYPES.restricted.values() if known.name == field.type), {})
    expected = choices.get(fact, fact)
    for data in (bytes_of(spec), bytes_of(spec, at)):
        value = getattr(decode_composite(data)[0], field.name)
        assert (str(value).lower() if isinstance(value, bool) else str(value)) == str(expected)


CLOSED: Final = {
    "role": ("attach", 2, b"\x50\x00"),
    "sender-settle-mode": ("attach", 3, b"\x50\x03"),
    "receiver-settle-mode": ("attach", 4, b"\x50\x02"),
    "sasl-code": ("sasl-outcome", 0, b"\x50\x05"),
    "terminus-durability": ("source", 1, b"\x52\x03"),
    "terminus-expiry-policy": ("source", 2, b"\xa3\x01x"),
}


@pytest.mark.parametrize(
    "type",
    [
        pytest.param(
            type, marks=checks("1.0", *(rule.id for rule in FACTS if re.fullmatch(rf"[a-z]+\.{type}\..+\.choice", rule.id)))
        )
        for type in CLOSED
    ],
)
def test_a_restricted_type_has_no_other_values(type: str) -> None:
    known = TYPES.restricted[type]
    owner, at, illegal = CLOSED[type]
    spec = TYPES.composites[owner]
    assert spec.fields[at].type == type
    required = [sample(field) for field in spec.fields[: at + 1]] + [
        sample(field) for field in spec.fields[at + 1 :] if field.mandatory
    ]

    def data(value: bytes) -> bytes:
        return composite(spec.descriptor, *required[:at], value, *required[at + 1 :])

    for value in known.choices.values():
        encoded = {
            "boolean": b"\x41" if value is True else b"\x42",
            "ubyte": b"\x50" + bytes((value,)) if isinstance(value, int) else b"",
            "uint": b"\x52" + bytes((value,)) if isinstance(value, int) else b"",
            "symbol": b"\xa3" + bytes((len(str(value)),)) + str(value).encode(),
        }[known.base]
        assert getattr(decode_composite(data(encoded))[0], spec.fields[at].name) == value
    with pytest.raises(DecodeError):
        decode_composite(data(illegal))


@pytest.mark.rule("1.0", "transport.amqp-error.frame-size-too-small.choice")
def test_output_that_exceeds_the_peers_frame_size_closes_the_connection(connect: Connect, name: str) -> None:
    session = connect(max_frame_size=512).begin()
    session.attach("n" * 600, True)
    assert session.peer.take(Close).error.condition == "amqp:frame-size-too-small"  # type: ignore[union-attr]
