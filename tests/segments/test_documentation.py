"""docs/segments.md lists all columns with their ids and types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from leveret.segments import schema
from tests.docs.pages import DOCS, table_rows

ROWS = {
    row[1].strip("`"): (int(row[0]), row[2])
    for row in table_rows(DOCS / "segments.md")
    if len(row) == 4 and row[0].isdigit()
}


def name_of(field: pa.Field) -> str:
    """Return the type as the page writes it."""
    kind = field.type
    if pa.types.is_map(kind):
        name = f"map<{kind.key_type}, {kind.item_type}>"
    elif pa.types.is_list(kind):
        name = "list<struct>" if pa.types.is_struct(kind.value_type) else f"list<{kind.value_type}>"
    elif pa.types.is_timestamp(kind):
        name = "timestamp[us, UTC]"
    else:
        name = "struct" if pa.types.is_struct(kind) else {"bool": "boolean"}.get(str(kind), str(kind))
    return name if field.nullable else f"{name}, not null"


def fields(inner: list[pa.Field], path: str = "") -> list[tuple[str, pa.Field]]:
    found: list[tuple[str, pa.Field]] = []
    for field in inner:
        kind, name = field.type, f"{path}{field.name}"
        found.append((name, field))
        if pa.types.is_struct(kind):
            found += fields([kind.field(at) for at in range(kind.num_fields)], f"{name}.")
        elif pa.types.is_map(kind):
            found += fields([kind.key_field, kind.item_field], f"{name}.")
        elif pa.types.is_list(kind):
            found += fields([kind.value_field], f"{name}.")
    return found


@pytest.mark.parametrize(("name", "field"), fields(list(schema.FILE_SCHEMA)), ids=lambda value: str(value)[:60])
def test_the_page_has_the_column(name: str, field: pa.Field) -> None:
    assert ROWS[name] == (schema.FIELD_IDS[name], name_of(field))
    assert field.metadata[b"PARQUET:field_id"] == str(schema.FIELD_IDS[name]).encode()


def test_the_page_has_no_other_column() -> None:
    assert sorted(ROWS) == sorted(schema.FIELD_IDS)
