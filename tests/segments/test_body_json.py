"""The column `body_json`: bodies of all protocols as JSON text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa
import pytest

from leveret.broker.message import FORMAT_AMQP1
from leveret.segments.body_json import body_jsons
from leveret.segments.columns import Rows, make_columns
from leveret.segments.schema import AMQP10
from leveret.wire.amqp10 import message
from leveret.wire.amqp10.values import Array, Char, Float, Map, Short, Symbol, Timestamp, UInt, ULong, Value

MOMENT = datetime(2026, 5, 1, 12, tzinfo=UTC)


def of_bytes(*bodies: bytes) -> list[str | None]:
    found: list[str | None] = body_jsons(pa.array(bodies, pa.binary()), pa.nulls(len(bodies), AMQP10)).to_pylist()
    return found


def of_sections(*bodies: bytes) -> list[str | None]:
    """Return the JSON of AMQP 1.0 messages with these encoded body sections."""
    count = len(bodies)
    rows = Rows(list(range(count)), None, FORMAT_AMQP1, [b"\0\0"] * count, [b""] * count, list(bodies))
    columns = make_columns(rows, ("body", "amqp10"))
    found: list[str | None] = body_jsons(columns["body"], columns["amqp10"]).to_pylist()
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"id": 1, "id": 2}', '{"id": 1, "id": 2}'),
        (b' \r\n[1, "\xc3\xbc"]\n', ' \r\n[1, "\xfc"]\n'),
        (b"{}", "{}"),
        # Text that is not a JSON object or array is a JSON string.
        (b'{"id": 1', '"{\\"id\\": 1"'),
        (b"[NaN]", '"[NaN]"'),
        (b"{} {}", '"{} {}"'),
        (b"12", '"12"'),
        (b"null", '"null"'),
        (b'say "\xc3\xbc"\n', '"say \\"\xfc\\"\\n"'),
        (b"\xff\x00{}", '"/wB7fQ=="'),
        (b"", None),
    ],
)
def test_bytes(body: bytes, expected: str | None) -> None:
    assert of_bytes(body) == [expected]
    if body:
        assert of_sections(message.encode_data(body)) == [expected]


def test_deeply_nested_text_is_a_string() -> None:
    [found] = of_bytes(b"[" * 100_000)
    assert found == json.dumps("[" * 100_000)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ('{"id": 1}', {"id": 1}),
        (b'{"id": 1}', {"id": 1}),
        (b"\xff", "/w=="),
        (None, None),
        (True, True),
        (7, 7),
        (ULong((1 << 64) - 1), (1 << 64) - 1),
        (Short(-3), -3),
        (Float(1.5), 1.5),
        (float("nan"), "nan"),
        (Symbol("s"), "s"),
        (Char("c"), "c"),
        (Timestamp(int(MOMENT.timestamp() * 1000)), "2026-05-01T12:00:00Z"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([UInt(1), None, "x", [b"\x01"]], [1, None, "x", ["AQ=="]]),
        (Array("uint", [UInt(1), UInt(2)]), [1, 2]),
        ({"id": UInt(5), "deep": {"$x": Short(1)}}, {"id": 5, "deep": {"$x": 1}}),
        (Map([(UInt(1), "one"), ("k", Symbol("two"))]), {"1": "one", "k": "two"}),
    ],
)
def test_values_of_amqp_1_0(value: Value, expected: object) -> None:
    [found] = of_sections(message.encode_body_value(value))
    assert found is not None and json.loads(found) == expected


def test_sequences_are_one_array() -> None:
    both = message.encode_sequence([UInt(1), "a"]) + message.encode_sequence([{"k": Short(2)}])
    assert of_sections(both, message.encode_data(b"[1]") + message.encode_data(b""), b"") == [
        '[1,"a",{"k":2}]',
        "[1]",
        None,
    ]


def test_a_damaged_body_is_null() -> None:
    damaged = message.encode_body_value([1, 2, 3])[:-1]
    amqp10 = pa.StructArray.from_arrays(
        [pa.array(["value"]) if field.name == "body_type" else pa.nulls(1, field.type) for field in AMQP10],
        fields=list(AMQP10),
    )
    assert body_jsons(pa.array([damaged], pa.binary()), amqp10).to_pylist() == [None]
    assert body_jsons(pa.chunked_array([pa.array([b"{}"], pa.binary())]), pa.nulls(1, AMQP10)).to_pylist() == ["{}"]
