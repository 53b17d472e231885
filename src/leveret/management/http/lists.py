"""Parameters of lists: pages, filters by name, sorting and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leveret.management.http.control import Row
from leveret.management.http.errors import HttpError
from leveret.security.patterns import Pattern

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 500
# A prefix of patterns: RabbitMQ ignores case.
_IGNORE_CASE: Final = "(?i)"


def select(rows: Sequence[Row], query: Mapping[str, str]) -> list[Row] | Row:
    """Return the rows or the page of rows that a query asks for. Raises `HttpError` (400) for invalid parameters."""
    page = _number(query, "page")
    if page is None:
        return columns(_sorted(rows, query), query)
    size = _number(query, "page_size")
    if size is None:
        size = DEFAULT_PAGE_SIZE
    if page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        raise HttpError(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {page}, page size {size}",
        )
    found = _sorted(_filtered(rows, query), query)
    pages = (len(found) + size - 1) // size
    if page > max(pages, 1):
        raise HttpError(400, "page_out_of_range", f"Page out of range, page: {page} page size: {size}, len: {len(found)}")
    items = found[(page - 1) * size : page * size]
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": columns(items, query),
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": len(rows),
    }


def columns(rows: list[Row], query: Mapping[str, str]) -> list[Row]:
    """Return the rows with only the columns that a query asks for."""
    wanted = _wanted(query)
    return rows if wanted is None else [_extract(row, wanted) for row in rows]


def columns_of(row: Row, query: Mapping[str, str]) -> Row:
    """Return an object with only the columns that a query asks for."""
    wanted = _wanted(query)
    return row if wanted is None else _extract(row, wanted)


def _wanted(query: Mapping[str, str]) -> list[list[str]] | None:
    text = query.get("columns")
    return None if text is None else [name.split(".") for name in text.split(",") if name]


def _extract(value: Any, wanted: list[list[str]]) -> Any:
    if isinstance(value, list):
        return [_extract(item, wanted) for item in value]
    if not isinstance(value, dict):
        return value
    result: Row = {}
    for key, inner in value.items():
        below = [path[1:] for path in wanted if path[0] == key]
        if below:
            result[key] = inner if [] in below else _extract(inner, below)
    return result


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None or not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise HttpError(
            400, "invalid_pagination_parameters", f"Invalid pagination parameters: '{name}' is not a number"
        ) from None


def _filtered(rows: Sequence[Row], query: Mapping[str, str]) -> Sequence[Row]:
    text = query.get("name", "")
    if not text:
        return rows
    if query.get("use_regex") != "true":
        wanted = text.lower()
        return [row for row in rows if wanted in str(row.get("name", "")).lower()]
    try:
        pattern = Pattern(_IGNORE_CASE + text)
    except ValueError as error:
        raise HttpError(400, "bad_request", f"regular expression '{text[:80]}' {error}") from None
    return [row for row in rows if pattern.matches(str(row.get("name", "")))]


def _sorted(rows: Sequence[Row], query: Mapping[str, str]) -> list[Row]:
    path = query.get("sort")
    if not path:
        return list(rows)
    keys = path.split(".")
    return sorted(rows, key=lambda row: _order(row, keys), reverse=query.get("sort_reverse") == "true")


def _order(row: Row, keys: list[str]) -> tuple[int, Any]:
    """Return the sort key of a row: missing values first, then numbers, then texts."""
    value: Any = row
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return 0, 0
    if isinstance(value, (int, float)):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, str(value))
