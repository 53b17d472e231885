"""Avro payloads, decoded by their schema."""

from __future__ import annotations

import io
import json
from datetime import date, time
from typing import Any, Final, TypeAlias

import fastavro
from fastavro.schema import SchemaParseException

from leveret.management.decoding import framing
from leveret.management.decoding.jobs import Decoded, Framing, Job
from leveret.management.decoding.rows import Rows, count, shorten, text_of

Schema: TypeAlias = str | list[Any] | dict[Any, Any]
_TYPES: Final = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (bytes, "binary"))


def decode(job: Job) -> Decoded:
    """Execute a job. Raises `ValueError`, and further exceptions of the library for damaged payloads."""
    try:
        source = json.loads(job.schema)
        schema = fastavro.parse_schema(source)
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the schema is not a valid Avro schema: {shorten(str(error))}") from None
    types = [schema["name"]] if isinstance(schema, dict) and "name" in schema else []
    if job.payload is None:
        return Decoded(types=types)
    header, body = framing.split(job.payload)
    try:
        value = _read(body, schema)
    except Exception:  # the library does not say what it raises for damaged payloads
        if not header.name:
            raise
        # A payload without a header may begin with the same bytes.
        header, value = Framing(), _read(job.payload, schema)
    rows = Rows()
    _add(rows, "", value, types[0] if types else "")
    return Decoded(types=types, rows=rows.end(), framing=header)


def _read(body: bytes, schema: Schema) -> object:
    """Return the value of a whole body. Raises `ValueError`, and further exceptions of the library."""
    reader = io.BytesIO(body)
    value: object = fastavro.schemaless_reader(reader, schema, None)
    left = len(body) - reader.tell()
    if left:
        raise ValueError(f"{left} bytes are left behind the value; expected none")
    return value


def _add(rows: Rows, name: str, value: object, type: str = "") -> None:
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
        row = rows.add(name, type or "object", count(len(items)))
    elif isinstance(value, list):
        items = [(str(at), item) for at, item in enumerate(value)]
        row = rows.add(name, type or "array", count(len(items)))
    else:
        rows.add(name, _type_of(value), text_of(value))
        return
    if not items:
        return
    with rows.inside(row) as shows:
        for key, item in items if shows else ():
            if rows.is_full:
                return
            _add(rows, key, item)


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, date | time):
        return "timestamp"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), type(value).__name__.lower())
