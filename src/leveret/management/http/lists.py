"""Parameters of lists: pages, filters by name, sorting and columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from leveret.management.http.control import Row
from leveret.management.http.errors import HttpError, bad_request
from leveret.management.json_values import Json
from leveret.security.patterns import Pattern

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 500
T = TypeVar("T")
# Wanted keys, each with the wanted keys below it, or None for the whole value.
Columns: TypeAlias = "dict[str, Columns | None]"
# Keys by which lists are ordered unless the query says otherwise.
_ORDER: Final = ("vhost", "component", "name", "user", "exchange", "source", "destination", "properties_key")
# Maximum CPU time in seconds for the names that an expression must match, and names between two looks at the clock.
_MAX_FILTER_TIME: Final = 0.5
_FILTER_STEP: Final = 64
# A prefix of patterns: RabbitMQ ignores case.
_IGNORE_CASE: Final = "(?i)"


class RowStream:
    """Rows that are built one by one while they are sent, since all of a long list take much memory."""

    def __init__(self, rows: Callable[[], Iterator[Row]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Row]:
        return self._rows()


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """Objects that become rows only if an answer has them.

    Attributes:
        objects: The objects.
        show: Returns the row of an object.
        name: Returns the name of an object.
        value: Returns the value of a row at a path of keys, without building the row.
        order: Returns the key by which objects are ordered unless the query says otherwise; None leaves them as they are.
    """

    objects: Sequence[T]
    show: Callable[[T], Row]
    name: Callable[[T], str]
    value: Callable[[T, list[str]], Json]
    order: Callable[[T], list[str] | tuple[str, ...]] | None = None


def select(rows: Sequence[Row], query: Mapping[str, str], *, is_ordered: bool = False) -> list[Row] | Row:
    """Return the rows or the page of rows that a query asks for. Raises `HttpError` (400) for invalid parameters.

    Args:
        rows: The rows.
        query: The parameters of the query.
        is_ordered: Whether the rows have an order of their own. Others are ordered by vhost and name.
    """
    order = None if is_ordered else _default_order
    found = select_from(Source(rows, lambda row: row, lambda row: str(row.get("name", "")), value_at, order), query)
    return list(found) if isinstance(found, RowStream) else found


def _default_order(row: Row) -> list[str]:
    return [str(row.get(key, "")) for key in _ORDER]


@dataclass(frozen=True, slots=True)
class Chosen(Generic[T]):
    """The objects that a query asks for, in their order, and the other keys of the answer if they are a page."""

    objects: Sequence[T]
    page: Row | None


def select_from(source: Source[T], query: Mapping[str, str]) -> RowStream | Row:
    """Return the rows or the page of rows that a query asks for. Raises `HttpError` (400) for invalid parameters."""
    return show_chosen(source, choose(source, query), query)


def show_chosen(source: Source[T], chosen: Chosen[T], query: Mapping[str, str]) -> RowStream | Row:
    """Return the rows of chosen objects, or the page."""
    wanted = _wanted(query)

    def shown() -> Iterator[Row]:
        if wanted is None:
            return map(source.show, chosen.objects)
        return (_extract(source.show(item), wanted) for item in chosen.objects)

    return RowStream(shown) if chosen.page is None else {**chosen.page, "items": list(shown())}


def choose(source: Source[T], query: Mapping[str, str]) -> Chosen[T]:
    """Return the objects that a query asks for. Raises `HttpError` (400) for invalid parameters."""
    page = _number(query, "page")
    if page is None:
        return Chosen(_sorted(source, source.objects, query), None)
    size = _number(query, "page_size")
    if size is None:
        size = DEFAULT_PAGE_SIZE
    if page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        raise HttpError(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {page}, page size {size}",
        )
    found = _sorted(source, _filtered(source, query), query)
    pages = (len(found) + size - 1) // size
    if page > max(pages, 1):
        raise HttpError(400, "page_out_of_range", f"Page out of range, page: {page} page size: {size}, len: {len(found)}")
    items = found[(page - 1) * size : page * size]
    keys = {
        "filtered_count": len(found),
        "item_count": len(items),
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": len(source.objects),
    }
    return Chosen(items, keys)


def columns_of(row: Row, query: Mapping[str, str]) -> Row:
    """Return an object with only the columns that a query asks for."""
    wanted = _wanted(query)
    return row if wanted is None else _extract(row, wanted)


def _wanted(query: Mapping[str, str]) -> Columns | None:
    text = query.get("columns")
    if text is None:
        return None
    wanted: Columns = {}
    for name in text.split(","):
        level = wanted
        *path, last = name.split(".")
        for key in path:
            below = level.setdefault(key, {})
            if below is None:
                break  # the whole value is wanted
            level = below
        else:
            level[last] = None
    return wanted


def _extract(row: Row, wanted: Columns) -> Row:
    result: Row = {}
    for key, value in row.items():
        if key in wanted:
            below = wanted[key]
            result[key] = value if below is None else _extract_from(value, below)
    return result


def _extract_from(value: Json, wanted: Columns) -> Json:
    if isinstance(value, list):
        return [_extract_from(item, wanted) for item in value]
    return _extract(value, wanted) if isinstance(value, dict) else value


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"Invalid pagination parameters: '{name}' is not a number") from None


def _filtered(source: Source[T], query: Mapping[str, str]) -> Sequence[T]:
    text = query.get("name", "")
    if not text:
        return source.objects
    if query.get("use_regex") != "true":
        wanted = text.lower()
        return [item for item in source.objects if wanted in source.name(item).lower()]
    try:
        pattern = Pattern(_IGNORE_CASE + text)
    except ValueError as error:
        raise bad_request(f"regular expression '{text[:80]}' {error}") from None
    return _matching(source, pattern, text)


def _matching(source: Source[T], pattern: Pattern, text: str) -> list[T]:
    """Return the objects whose names match. Raises `HttpError` (400) if that takes too long, since other clients wait."""
    objects = source.objects
    found: list[T] = []
    until = time.thread_time() + _MAX_FILTER_TIME
    for at in range(0, len(objects), _FILTER_STEP):
        found += [item for item in objects[at : at + _FILTER_STEP] if pattern.matches(source.name(item))]
        if time.thread_time() > until:
            raise bad_request(
                f"regular expression '{text[:80]}' takes too long for {len(objects)} names; expected one with fewer"
                " repetitions, or a list of one vhost"
            )
    return found


def _sorted(source: Source[T], objects: Sequence[T], query: Mapping[str, str]) -> Sequence[T]:
    path = query.get("sort")
    if not path:
        return objects if source.order is None else sorted(objects, key=source.order)
    keys = path.split(".")
    value = source.value
    return sorted(objects, key=lambda item: _order(value(item, keys)), reverse=query.get("sort_reverse") == "true")


def value_at(row: Json, keys: list[str]) -> Json:
    """Return the value of a row at a path of keys, None if there is none."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _order(value: Json) -> tuple[int, float | str]:
    """Return the sort key of a value: missing values first, then numbers, then texts."""
    if value is None:
        return 0, 0
    if isinstance(value, (int, float)):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, str(value))
