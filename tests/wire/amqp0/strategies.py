"""Hypothesis strategies for values, tables and properties."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from leveret.wire.amqp0 import model
from leveret.wire.amqp0.model import FieldSpec
from leveret.wire.amqp0.values import RawTimestamp

short_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
octet_texts = st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))
timestamps = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
decimals = st.builds(
    lambda value, scale: Decimal((int(value < 0), tuple(int(digit) for digit in str(abs(value))), -scale)),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    short_texts,
    octet_texts,
    st.binary(max_size=40),
    timestamps,
    decimals,
    st.none(),
    st.integers(253402300800, 2**64 - 1).map(RawTimestamp),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_texts, inner, max_size=4), max_leaves=12
)
tables = st.dictionaries(short_texts, values, max_size=6)


def field_values(field: FieldSpec) -> st.SearchStrategy[Any]:
    return {
        model.BIT: st.booleans(),
        model.OCTET: st.integers(0, 255),
        model.SHORT: st.integers(0, 2**16 - 1),
        model.LONG: st.integers(0, 2**32 - 1),
        model.LONGLONG: st.integers(0, 2**64 - 1),
        model.TIMESTAMP: st.integers(0, 2**64 - 1),
        model.SHORTSTR: short_texts,
        model.LONGSTR: octet_texts,
        model.TABLE: tables,
        model.CONTENT: st.tuples(st.integers(0, 1), st.binary(max_size=40)),
        model.OCTETS: st.binary(max_size=40),
    }[field.type]


def arguments_of(fields: list[FieldSpec]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={field.name: field_values(field) for field in fields if not field.reserved})
