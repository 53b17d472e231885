"""Arrow decodes JSON bodies exactly like Spark, or leaves them to Spark."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from leveret.spark.pipeline.decoding.arrow_json import JsonDecoder, json_decoder
from leveret.spark.pipeline.decoding.body_format import ERROR
from leveret.spark.pipeline.decoding.decode import decoded
from leveret.spark.pipeline.model import Decode

SCHEMA = (
    "l BIGINT, i INT, h SMALLINT, y TINYINT, d DOUBLE, b BOOLEAN, s STRING, t TIMESTAMP, da DATE, a ARRAY<BIGINT>, "
    "n STRUCT<x: DOUBLE, z: ARRAY<STRING>>"
)
# JSON texts of field values.
VALUES = {
    "l": [
        "1",
        "-1",
        "0",
        "-0",
        "1.0",
        "1e2",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        '"5"',
        "null",
        "true",
        "[1]",
        "{}",
        "01",
        "+1",
        "1.",
        ".5",
        '""',
        "NaN",
    ],
    "i": ["2147483647", "2147483648", "-2147483648", "5", '"5"'],
    "h": ["32767", "32768", "-32769"],
    "y": ["127", "128", "-129", "-128"],
    "d": [
        "1",
        "1.5",
        "-0.0",
        "-0",
        "1e400",
        "-1e400",
        "1e-400",
        "1E5",
        "1e+5",
        "0.1",
        "12345678901234567890",
        "1234567890.123456789012345",
        "4.9e-324",
        "2.2250738585072011e-308",
        "NaN",
        '"NaN"',
        '"Infinity"',
        "Infinity",
        '"1.5"',
        "1.",
        ".5",
        "null",
        "true",
        "179769313486231570000000000000000000000",
        "0.30000000000000004441",
        "9007199254740993",
        "1" * 300,
        "1" * 999,
        "1" * 1100,
    ],
    "b": ["true", "false", '"true"', "1", "null", "TRUE"],
    "s": [
        '"x"',
        '""',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\u0000"',
        "1",
        "1.50",
        "true",
        "null",
        "{}",
        '{"a": 1}',
        "[1,2]",
        '"a\\/b"',
        '"\\x"',
        '"tab\there"',
        '"\\t"',
        '"é"',
        '"\x7f"',
        '"\x80\u2028"',
        '"a\nb"',
    ],
    "t": [
        '"2026-05-01T12:00:00.123Z"',
        '"2026-05-01T12:00:00Z"',
        '"2026-05-01T12:00:00+02:00"',
        '"2026-05-01T12:00:00-17:59"',
        '"2026-05-01T12:00:00+18:00"',
        '"2026-02-30T12:00:00Z"',
        '"0001-01-01T00:00:00Z"',
        '"0000-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59.999999Z"',
        '"2026-05-01T24:00:00Z"',
        '"2026-05-01T23:59:60Z"',
        '"1582-10-10T00:00:00Z"',
        '"1500-02-29T00:00:00Z"',
        '"2026-05-01 12:00:00"',
        '"2026-05-01"',
        '"2026-05-01T12:00:00"',
        '"2026-05-01T12:00:00.1234567Z"',
        '"2026-05-01T12:00:00.1Z"',
        "1234567",
        '"x"',
        '""',
        "null",
        '"2026-05-01T12:00:00.123456789Z"',
        '"2026-05-01 12:00:00.1234567"',
        '"2026-05-01 12:00:00.5+01:00"',
        '"1969-12-31T23:59:59.9999999Z"',
        '"2026-05-01T12:00:00.1234567890Z"',
        '"2026-05-01T12:00:00.999999999"',
        '"2026-05-01  12:00:00"',
        '"2026-05-01t12:00:00Z"',
        '"2026-05-01T12:00:00z"',
        '"2026-05-01T12:00:00.Z"',
        '"1969-12-31T23:59:59.999999Z"',
        '"2026-13-01T12:00:00Z"',
        '"2026-05-01T12:60:00Z"',
        '"2026-05-01T12:00:00+02:60"',
        '"2026-05-01T12:00:00-00:00"',
        '"0001-01-01T00:00:00+17:00"',
        '"2026-05-01T12:00:00Z\\n"',
    ],
    "da": [
        '"2026-05-01"',
        '"2026-02-29"',
        '"2024-02-29"',
        '"0001-01-01"',
        '"1582-10-10"',
        '"0000-01-01"',
        '"2026-5-1"',
        '"2026-05-01T00:00:00Z"',
        "12",
        "null",
        '"9999-12-31"',
        '""',
    ],
    "a": ["[]", "[1,2]", "[null]", '[1,"2"]', "[1.0]", "1", "{}", "null", "[[1]]"],
    "n": [
        "{}",
        '{"x":1}',
        '{"x":1,"q":2}',
        '{"x":"1"}',
        '{"z":["a",null]}',
        '{"z":[1]}',
        "null",
        "[]",
        '{"x":null}',
        '{"z":"a"}',
        '[{"x":1}]',
        '{"x":-0}',
    ],
}
BODIES: list[bytes | None] = [
    None,
    b"",
    b" ",
    b"{}",
    b' {"l":1}',
    b'{"l":1}\n',
    b'\r\n{"l":1} \t',
    b'{"l":1}{"l":2}',
    b'{"l":1}\n{"l":2}',
    b'{"l":1,}',
    b"{'l':1}",
    b"{l:1}",
    b'{"l":1} x',
    b'[{"l":1}]',
    b'"x"',
    b"1",
    b"null",
    b'{"l":1,"l":2}',
    b'{"q":1,"q":2,"l":3}',
    b'{"\\u006c":7}',
    b'{"L":1}',
    b'\xef\xbb\xbf{"l":1}',
    b'\xff{"l":1}',
    b'{"s":"\xff"}',
    b'{"q":"\x01","l":1}',
    b'{"q":01,"l":1}',
    b'{"q":NaN,"l":1}',
    b'{"q":tru,"l":1}',
    b'{"l":1//c\n}',
    b'/*c*/{"l":1}',
    b'{"l":1}/*c*/',
    b'{"q":' + b"[" * 900 + b"]" * 900 + b',"l":1}',
    b'{"q":' + b"[" * 5000 + b"]" * 5000 + b',"l":1}',
    b'{"s":"\xed\xa0\x80"}',
    b'{"s":"\xf4\x90\x80\x80"}',
    b'{"q":"\\ud800","l":1}',
    b'{"q":"\\x","l":1}',
    b'{"q":1e999999,"l":1}',
    b'{"q":' + b"1" * 2000 + b',"l":1}',
    b'{"l":1}\x00',
    b"{\x00}",
    b'{"l":1}\x0b',
    b'{"' + b"k" * 60_000 + b'":1,"l":1}',
    b'{"l":"',
    b"}",
    b'{"s":"}',
    b'{"a":[{}',
    b'{"n":{}',
    b"{",
    b'{"":1,"l":2}',
    b'{"l" :\n 1\r\n}',
    b'{"b":true,"l":null,"s":"x","n":{"x":1,"z":[]}}',
    b'{"s":"' + b"x" * 4000 + b'"}',
]
# Ordinary values, none of which is left to Spark.
PLAIN: list[bytes | None] = [
    b"{}",
    b'{"l": 1}',
    b'\n{"l":-7} ',
    b'{"d":1.5,"b":true}',
    b'{"d":7}',
    b'{"s":"\xc3\xa9\\n\\u00e9"}',
    b'{"q":{"l":5},"i":2}',
    b'{"t":"2026-05-01T12:00:00.123Z"}',
    b'{"t":"2026-05-01T12:00:00+02:00","s":"x"}',
    b'{"da":"2024-02-29"}',
    b'{"a":[1,null]}',
    b'{"t":"2026-05-01 12:00:00"}',
    b'{"t":"2026-05-01T12:00:00.123456"}',
    b'{"t":"2026-05-01T12:00:00.123456789Z"}',
    b'{"n":{"x":0.25,"z":["a"]}}',
    b'{\n  "l": 1,\n  "s": "pretty"\n}',
    b'{"s":"' + b"x" * 4000 + b'"}',
    b'{"t":null,"l":null}',
]


@pytest.fixture(scope="module")
def odd() -> list[bytes | None]:
    return [*BODIES, *(f'{{"{name}": {value}}}'.encode() for name, values in VALUES.items() for value in values)]


def struct_of(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def decoder(schema: str = SCHEMA, timezone: str = "UTC") -> JsonDecoder:
    found = json_decoder(struct_of(schema), timezone)
    assert found is not None
    return found


def plain(array: pa.Array) -> list[Any]:
    """Convert to Python values, with times as numbers: Python has no year 0. Signed zeros are equal."""
    if pa.types.is_struct(array.type):
        fields = [field.name for field in array.type]
        columns = [plain(pc.struct_field(array, name)) for name in fields]
        return [
            dict(zip(fields, row, strict=True)) if valid else None
            for valid, *row in zip(array.is_valid().to_pylist(), *columns, strict=True)
        ]
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        return list(array.cast(pa.int64() if pa.types.is_timestamp(array.type) else pa.int32()).to_pylist())
    return [repr(value) for value in array.to_pylist()]


def by_arrow(bodies: list[bytes | None], schema: str = SCHEMA, **columns: list[str | None]) -> list[Any]:
    """Return the decoded bodies, or "undecided"."""
    arrays = {"body": pa.array(bodies, pa.binary()), **{name: pa.array(column) for name, column in columns.items()}}
    values, decided = decoder(schema).decode(pa.RecordBatch.from_pydict(arrays))
    flags = [True] * len(bodies) if decided is None else decided.to_pylist()
    return [value if flag else "undecided" for value, flag in zip(plain(values), flags, strict=True)]


def by_spark(spark: SparkSession, bodies: list[bytes | None]) -> list[Any]:
    """Return the decoded bodies, or "bad"."""
    rows = [(number, None if body is None else bytearray(body)) for number, body in enumerate(bodies)]
    frame = spark.createDataFrame(rows, "number INT, body BINARY")
    found = decoded(frame, Decode(format="json", schema=SCHEMA, quarantine="-")).toArrow().sort_by("number")
    values = plain(found["data"].combine_chunks())
    return [value if error is None else "bad" for value, error in zip(values, found[ERROR].to_pylist(), strict=True)]


def test_each_body_is_decoded_like_spark_or_left_to_it(spark: SparkSession, odd: list[bytes | None]) -> None:
    expected = by_spark(spark, odd)
    found = [by_arrow([body])[0] for body in odd]
    wrong = [
        (body, got, wanted)
        for body, got, wanted in zip(odd, found, expected, strict=True)
        if got not in ("undecided", wanted)
    ]
    assert not wrong
    assert sum(got != "undecided" for got in found) > 70


def test_bodies_do_not_affect_each_other(spark: SparkSession, odd: list[bytes | None]) -> None:
    chance = random.Random(7)
    for share in (1, 4, 60):
        bodies = [*odd, *PLAIN * share]
        chance.shuffle(bodies)
        found, expected = by_arrow(bodies), by_spark(spark, bodies)
        assert not [
            (body, got, wanted)
            for body, got, wanted in zip(bodies, found, expected, strict=True)
            if got not in ("undecided", wanted)
        ]
    # One undecided body in a thousand does not affect the others.
    many = PLAIN * 66 + [b"{broken"] + PLAIN * 66
    assert 0 < by_arrow(many).count("undecided") <= 16


def test_ordinary_bodies_are_not_left_to_spark(spark: SparkSession) -> None:
    assert by_arrow(PLAIN) == by_spark(spark, PLAIN)


def test_undecided_bodies() -> None:
    good = b'{"l":1}'
    assert (
        by_arrow([good] * 5, "l BIGINT NOT NULL, s STRING", content_encoding=[None, "", "UTF-8", "identity", "gzip"])[-1]
        == "undecided"
    )
    assert by_arrow([good, b"{}", good], "l BIGINT NOT NULL").count("undecided") == 1
    assert by_arrow([good, b"{}", good], "l BIGINT NOT NULL")[1] == "undecided"
    assert by_arrow([b'{"t":"x"}', b'{"t":null}', b'{"t":"2026-05-01T12:00:00Z"}'], "t TIMESTAMP") == [
        "undecided",
        {"t": None},
        {"t": 1_777_636_800_000_000},
    ]
    assert by_arrow([]) == []
    # A time without an offset is in the session's time zone.
    times = pa.RecordBatch.from_pydict({"body": pa.array([b'{"t":"2026-05-01T12:00:00"}'], pa.binary())})
    assert decoder("t TIMESTAMP").decode(times)[1] is None
    decided = decoder("t TIMESTAMP", "Europe/Berlin").decode(times)[1]
    assert decided is not None
    assert decided.to_pylist() == [False]


@pytest.mark.parametrize(
    "schema",
    [
        "f FLOAT",
        "d DECIMAL(9,2)",
        "m MAP<STRING, INT>",
        "b BINARY",
        "a ARRAY<TIMESTAMP>",
        "n STRUCT<at: DATE>",
        "v VARCHAR(5)",
        "t TIMESTAMP_NTZ",
        "n STRUCT<x: INT NOT NULL>",
        "i INTERVAL DAY",
    ],
)
def test_types_that_are_left_to_spark(schema: str) -> None:
    assert json_decoder(struct_of(f"good BIGINT, {schema}")) is None


def test_a_schema_from_json() -> None:
    schema = StructType.fromDDL("id BIGINT NOT NULL, a ARRAY<STRUCT<x: INT>>")
    again = json_decoder(StructType.fromJson(json.loads(schema.json())))
    assert again is not None
    values, decided = again.decode(pa.RecordBatch.from_pydict({"body": pa.array([b'{"id":1,"a":[{"x":2}]}'], pa.binary())}))
    assert decided is None and values.to_pylist() == [{"id": 1, "a": [{"x": 2}]}]
