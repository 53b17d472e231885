"""Parameters of lists."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.management.http.errors import HttpError
from leveret.management.http.lists import Source, columns_of, select, select_from

ROWS: list[dict[str, Any]] = [
    {"name": "b", "messages": 2, "message_stats": {"publish": 5, "publish_details": {"rate": 1.0}}},
    {"name": "A", "messages": 10},
    {"name": "ab", "messages": None},
]


def names(query: dict[str, str]) -> list[str]:
    found = select(ROWS, query)
    rows = found["items"] if isinstance(found, dict) else found
    return [row["name"] for row in rows]


def test_sorting() -> None:
    assert names({"sort": "name"}) == ["A", "ab", "b"]
    assert names({"sort": "messages"}) == ["ab", "b", "A"]
    assert names({"sort": "messages", "sort_reverse": "true"}) == ["A", "b", "ab"]
    assert names({"sort": "message_stats.publish_details.rate", "sort_reverse": "true"})[0] == "b"
    assert names({"sort": "missing.deeper"}) == ["b", "A", "ab"]
    assert [row["name"] for row in ROWS] == ["b", "A", "ab"]


def test_lists_are_ordered_by_vhost_and_name() -> None:
    rows = [{"vhost": vhost, "name": name} for vhost, name in (("/", "b"), ("x", "a"), ("/", "a"))]
    assert select(rows, {}) == [rows[2], rows[0], rows[1]]
    assert select(rows, {}, is_ordered=True) == rows


def test_filters_apply_to_pages_only() -> None:
    assert names({"name": "a"}) == ["A", "ab", "b"]
    assert names({"page": "1", "name": "a"}) == ["A", "ab"]
    assert names({"page": "1", "name": "^A$", "use_regex": "true"}) == ["A"]
    assert names({"page": "1", "name": ".", "use_regex": "false"}) == []


def test_columns() -> None:
    assert select(ROWS[:1], {"columns": "name,message_stats.publish"}) == [{"name": "b", "message_stats": {"publish": 5}}]
    assert columns_of(ROWS[0], {"columns": "message_stats"}) == {"message_stats": ROWS[0]["message_stats"]}
    assert columns_of(ROWS[0], {}) is ROWS[0]
    assert columns_of({"a": [{"b": 1, "c": 2}]}, {"columns": "a.b"}) == {"a": [{"b": 1}]}
    whole = {"a": {"b": 1, "c": 2}}
    for columns in ("a,a.b", "a.b,a", "a.c,a.b", "a,a"):
        assert columns_of(whole, {"columns": columns}) == whole
    assert columns_of(whole, {"columns": ""}) == columns_of(whole, {"columns": ".,..,b"}) == {}


def test_many_columns() -> None:
    """The columns are looked up by the keys of a row, not the other way around."""
    columns = {"columns": ",".join(f"missing{number}" for number in range(100_000)) + ",name"}
    assert select([{"name": "a", **dict.fromkeys(map(str, range(1000)), 0)}] * 200, columns) == [{"name": "a"}] * 200
    assert columns_of({"a": 1}, {"columns": ".".join("a" * 100_000)}) == {"a": 1}


def test_pages() -> None:
    page = select(ROWS, {"page": "2", "page_size": "2"})
    assert isinstance(page, dict)
    assert page["items"] == ROWS[:1]
    assert (page["total_count"], page["filtered_count"], page["item_count"], page["page_count"]) == (3, 3, 1, 2)
    empty = select([], {"page": "1"})
    assert isinstance(empty, dict)
    assert (empty["items"], empty["page_count"], empty["page_size"]) == ([], 0, 100)


def test_a_page_builds_only_its_rows() -> None:
    built = []

    def show(number: int) -> dict[str, Any]:
        built.append(number)
        return {"number": number}

    source = Source(range(1000), show, str, lambda number, keys: number if keys == ["number"] else None)
    page = select_from(source, {"page": "1", "page_size": "3", "sort": "number", "sort_reverse": "true"})
    assert isinstance(page, dict)
    assert page["items"] == [{"number": 999}, {"number": 998}, {"number": 997}]
    assert built == [999, 998, 997]


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0"},
        {"page": "-1"},
        {"page": "3", "page_size": "2"},
        {"page": "1", "page_size": "0"},
        {"page": "1", "page_size": "501"},
        {"page": "one"},
        {"page": ""},
        {"page": "1", "name": "(", "use_regex": "true"},
        {"page": "1", "name": "a" * 2000, "use_regex": "true"},
    ],
)
def test_invalid_parameters(query: dict[str, str]) -> None:
    with pytest.raises(HttpError) as caught:
        select(ROWS, query)
    assert caught.value.status == 400


def test_an_expensive_expression_is_refused_for_many_names() -> None:
    """RE2 takes time in proportion to the names, but 150 times as long as usual for such an expression."""
    rows = [{"name": "a" * 240 + str(number)} for number in range(10_000)]
    query = {"page": "1", "page_size": "1", "use_regex": "true"}
    for usual in ("^a+9$", "a[0-9]+$", "(?:a{1,8}){1,10}1"):
        found = select(rows, {**query, "name": usual})
        assert isinstance(found, dict) and found["total_count"] == 10_000
    with pytest.raises(HttpError, match="takes too long for 10000 names"):
        select(rows, {**query, "name": "(a{1,30}){1,5}b"})
    few = select(rows[:10], {**query, "name": "(a{1,30}){1,5}0"})
    assert isinstance(few, dict) and few["filtered_count"] == 1
