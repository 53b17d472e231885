"""Marks in charts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.management.http.marks import MAX_MARKS, read_marks
from tests.management.http.client import HttpBroker


@pytest.fixture
def marks(api: HttpBroker) -> Iterator[HttpBroker]:
    _delete_marks(api)
    yield api
    _delete_marks(api)


def _delete_marks(api: HttpBroker) -> None:
    for mark in api.get("/leveret/marks"):
        api("DELETE", f"/leveret/marks/{mark['name']}")


def test_a_mark_is_set_at_the_current_time_unless_it_has_one(marks: HttpBroker) -> None:
    before = int(1000 * time.time())
    assert marks("PUT", "/leveret/marks/new", user="maker").status == 201
    assert marks("PUT", "/leveret/marks/old", {"time": 5000}, user="maker").status == 201
    assert marks("PUT", "/leveret/marks/old", {"time": 6000}, user="maker").status == 204
    old, new = marks.get("/leveret/marks", user="manager")
    assert old == {"name": "old", "time": 6000}
    assert new["name"] == "new" and before <= new["time"] <= 1000 * time.time()
    assert marks("DELETE", "/leveret/marks/old", user="maker").status == 204
    assert marks("DELETE", "/leveret/marks/old", user="maker").status == 404
    assert [mark["name"] for mark in marks.get("/leveret/marks")] == ["new"]


def test_a_mark_requires_a_policymaker(marks: HttpBroker) -> None:
    assert marks("PUT", "/leveret/marks/x", {}, user="manager").status == 401
    assert marks("PUT", "/leveret/marks/x", {}, user="viewer").status == 401
    assert marks.get("/leveret/marks") == []


@pytest.mark.parametrize("body", [{"time": -1}, {"time": "now"}, {"time": 1.5}, {"time": 1 << 60}])
def test_an_invalid_time_is_refused(marks: HttpBroker, body: dict[str, Any]) -> None:
    reply = marks("PUT", "/leveret/marks/x", body)
    assert reply.status == 400 and "invalid mark" in reply.json["reason"]
    assert marks("PUT", f"/leveret/marks/{'x' * 201}", {}).status == 400


def test_a_mark_above_the_limit_replaces_the_oldest(marks: HttpBroker) -> None:
    for number in range(MAX_MARKS + 2):
        assert marks("PUT", f"/leveret/marks/m{number}", {"time": 1000 + number}).status == 201
    found = [mark["name"] for mark in marks.get("/leveret/marks")]
    assert found == [f"m{number}" for number in range(2, MAX_MARKS + 2)]


def test_marks_of_the_user_with_the_most_are_replaced(marks: HttpBroker) -> None:
    assert marks("PUT", "/leveret/marks/release", {"time": 1}, user="operator").status == 201
    for number in range(MAX_MARKS + 1):
        assert marks("PUT", f"/leveret/marks/m{number}", {"time": 1000 + number}, user="maker").status == 201
    found = [mark["name"] for mark in marks.get("/leveret/marks")]
    assert found == ["release", *(f"m{number}" for number in range(2, MAX_MARKS + 1))]


def test_parameters_that_are_no_marks_are_ignored() -> None:
    values: list[tuple[str, Any]] = [
        ("mark.b", {"time": 2}),
        ("mark.a", {"time": 1}),
        ("mark.c", "x"),
        ("mark.d", {}),
        ("x", 1),
    ]
    assert read_marks([{"name": name, "value": value} for name, value in values]) == {"a": 1, "b": 2}
