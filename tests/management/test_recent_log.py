"""The latest log records of a process: bounds, conditions, and slices over the control socket."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from leveret.management.operations.log import MAX_SLICE, MAX_TEXT
from leveret.management.recent_log import (
    MAX_BYTES,
    MAX_EXCEPTION,
    MAX_MESSAGE,
    MAX_RATE,
    MAX_RECORDS,
    LogEntry,
    LogFilter,
    LogRecords,
    RecentLog,
)
from tests.management.harness import Harness


def record(message: str, *args: Any, second: float = 0.0, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("leveret.test", logging.WARNING, __file__, 1, message, args, None)
    made.created = 1_700_000_000 + second
    made.__dict__.update(extra)
    return made


def entry(number: int, message: str = "text", **fields: Any) -> LogEntry:
    given: dict[str, Any] = {"level": "info", "logger": "leveret.a.b"} | fields
    return LogEntry(id=number, time=number, message=message, **given)


class Subject:
    """An argument of a message that has fields."""

    log_fields = {"connection": 7, "user": "ann", "peer": "10.0.0.1:5"}

    def __str__(self) -> str:
        return "client"


def test_a_record_has_its_text_and_its_fields() -> None:
    log = RecentLog()
    log.handle(record("%s: %d", Subject(), 5, second=0.25, vhost="/\udcff"))
    (kept,) = log.records.after(0)
    assert (kept.id, kept.time, kept.level, kept.logger) == (1, 1_700_000_000_250, "warning", "leveret.test")
    assert (kept.message, kept.exception) == ("client: 5", "")
    assert (kept.connection, kept.vhost, kept.user, kept.peer) == (7, "/\\xff", "ann", "10.0.0.1:5")


def test_arguments_that_change_later_do_not_change_the_record() -> None:
    log = RecentLog()
    names = ["one"]
    log.handle(record("%s", names))
    names.append("two")
    assert log.records.after(0)[0].message == "['one']"


def test_long_texts_are_cut_off() -> None:
    log = RecentLog()
    failed = record("%s", "x" * 2 * MAX_MESSAGE)
    error = ValueError("y" * 2 * MAX_EXCEPTION)
    failed.exc_info = (ValueError, error, None)
    log.handle(failed)
    (kept,) = log.records.after(0)
    assert (len(kept.message), len(kept.exception)) == (MAX_MESSAGE, MAX_EXCEPTION)
    assert kept.message.endswith("x…") and kept.exception.startswith("ValueError: yyy")


def test_a_record_that_cannot_be_formatted_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    log = RecentLog()
    log.handle(record("%d", "x"))
    log.handle(record("next"))
    assert [(kept.id, kept.message) for kept in log.records.after(0)] == [(2, "next")]


def test_the_number_of_records_is_bounded() -> None:
    records = LogRecords()
    for number in range(1, MAX_RECORDS + 11):
        records.add(entry(number))
    kept = records.after(0)
    assert (len(kept), kept[0].id, records.forgotten, records.last) == (MAX_RECORDS, 11, 10, MAX_RECORDS + 10)
    assert [found.id for found in records.after(MAX_RECORDS + 8)] == [MAX_RECORDS + 9, MAX_RECORDS + 10]


def test_the_bytes_of_records_are_bounded() -> None:
    records = LogRecords()
    for number in range(1, 200):
        records.add(entry(number, exception="x" * MAX_EXCEPTION))
    kept = records.after(0)
    assert sum(len(found.exception) for found in kept) <= MAX_BYTES < 199 * MAX_EXCEPTION
    assert kept[-1].id == 199


class Counted:
    """An argument that counts how often it is formatted."""

    def __init__(self) -> None:
        self.count = 0

    def __str__(self) -> str:
        self.count += 1
        return "text"


def test_records_beyond_the_rate_are_counted_and_not_formatted() -> None:
    log = RecentLog()
    argument = Counted()
    for _ in range(MAX_RATE + 50):
        log.handle(record("%s", argument))
    assert (argument.count, log.records.last) == (MAX_RATE, MAX_RATE + 50)
    log.handle(record("later", second=1))
    assert [found.id for found in log.records.after(MAX_RATE)] == [MAX_RATE + 51]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({}, [1, 2, 3, 4]),
        ({"level": "info"}, [2, 3, 4]),
        ({"level": "error"}, [4]),
        ({"logger": "leveret.a"}, [1, 2]),
        ({"logger": "leveret.a.b"}, [1]),
        ({"text": "LOST"}, [2, 4]),
        ({"connection": 7}, [3]),
        ({"vhost": "v"}, [3, 4]),
        ({"vhost": "v", "connection": 8}, []),
    ],
)
def test_conditions(condition: dict[str, Any], expected: list[int]) -> None:
    records = [
        entry(1, level="debug"),
        entry(2, "connection lost", logger="leveret.a"),
        entry(3, logger="leveret.ab", vhost="v", connection=7),
        entry(4, logger="other", level="critical", vhost="v", exception="Error: Lost"),
    ]
    assert [found.id for found in LogFilter(**condition).matching(records)] == expected


@pytest.fixture
def log() -> RecentLog:
    return RecentLog()


def read_all(harness: Harness, after: int = 0) -> tuple[list[int], list[int]]:
    """Return the numbers of all records after one, and the number of records in each slice."""
    numbers: list[int] = []
    sizes = []
    while True:
        found = harness.call("log.read", after=after)
        numbers += [item["id"] for item in found["records"]]
        sizes.append(len(found["records"]))
        after = found["last"]
        if not found["more"]:
            return numbers, sizes


def test_slices_are_bounded(log: RecentLog) -> None:
    harness = Harness()
    try:
        harness.admin.managed.log = log.records
        assert read_all(harness) == ([], [0])
        for number in range(600):
            log.handle(record("%d", number))
        assert read_all(harness) == (list(range(1, 601)), [MAX_SLICE, MAX_SLICE, 600 - 2 * MAX_SLICE])
        assert read_all(harness, after=599) == ([600], [1])
        for _ in range(40):
            log.handle(record("%s", "x" * MAX_MESSAGE))
        numbers, sizes = read_all(harness, after=600)
        assert (numbers, max(sizes)) == (list(range(601, 641)), MAX_TEXT // MAX_MESSAGE)
        for _ in range(MAX_RATE):
            log.handle(record("flood"))
        assert harness.call("log.read", after=MAX_RATE)["last"] == MAX_RATE + 640
    finally:
        harness.close()
