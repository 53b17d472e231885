"""The log records of two processes: their order, what is missing between them, and streams that continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.management.http.control import Control, Row
from leveret.management.http.log_records import MAX_READ, LogPage, Logs, LogStream
from leveret.management.json_values import encode_json
from leveret.management.operations.operation import Operator
from leveret.management.recent_log import MAX_RECORDS, LogEntry, LogFilter, LogRecords
from tests.management.harness import Harness

ALL = LogFilter()


class _Calls(Control):
    """Calls of a broker in this process."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(Path("none"))
        self._harness = harness

    async def call(self, name: str, arguments: Row | None = None, *, user: str | None = None) -> Any:
        return json.loads(encode_json(await self._harness.admin.call(name, arguments, Operator())))


class Processes:
    """The records of both processes, and of their reader."""

    def __init__(self) -> None:
        self._harness = Harness()
        self.broker = self._harness.admin.managed.log = LogRecords()
        self.http = LogRecords()
        self.logs = Logs(_Calls(self._harness), self.http)

    def latest(self, limit: int = MAX_RECORDS) -> LogPage:
        return self._harness.loop.run_until_complete(self.logs.latest(ALL, limit))

    def read(self, stream: LogStream) -> LogPage:
        self.latest(0)  # streams share what was read a moment ago
        return self._harness.loop.run_until_complete(stream.read())

    def close(self) -> None:
        self._harness.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def add(records: LogRecords, *times: int) -> None:
    for time in times:
        records.add(LogEntry(id=records.last + 1, time=time, level="info", logger="leveret", message=str(time)))


def texts(page: LogPage) -> list[str]:
    return [f"{record.process} {record.message}" for record in page.records]


def test_records_are_in_the_order_of_their_times(processes: Processes) -> None:
    add(processes.broker, 10, 30, 50)
    add(processes.http, 20, 40)
    assert texts(processes.latest()) == ["broker 10", "http 20", "broker 30", "http 40", "broker 50"]
    assert texts(processes.latest(2)) == ["http 40", "broker 50"]


def test_what_is_missing_between_records_is_counted(processes: Processes) -> None:
    add(processes.broker, 1)
    processes.broker.skip()
    processes.broker.skip()
    add(processes.broker, 2)
    processes.http.skip()
    assert (texts(processes.latest()), processes.latest().dropped) == (["broker 1", "broker 2"], 3)
    stream = processes.logs.open(ALL, 10, "")
    assert processes.read(stream).dropped == 3
    assert processes.read(stream).dropped == 0
    processes.broker.skip()
    assert processes.read(stream).dropped == 1


def test_records_that_a_stream_has_not_read_in_time_are_counted(processes: Processes) -> None:
    add(processes.broker, 1)
    stream = processes.logs.open(ALL, 10, "")
    assert texts(processes.read(stream)) == ["broker 1"]
    add(processes.broker, *range(2, MAX_RECORDS + 12))
    page = processes.read(stream)
    assert (page.records[0].message, page.dropped) == ("12", 10)


def test_what_was_forgotten_before_a_stream_is_not_missing(processes: Processes) -> None:
    add(processes.broker, *range(10))
    processes.latest()
    add(processes.broker, *range(10, 3000))
    page = processes.latest()
    assert (len(page.records), page.dropped) == (MAX_RECORDS, 0)
    assert processes.read(processes.logs.open(ALL, 0, "")).dropped == 0


def test_a_read_has_a_limited_number_of_records(processes: Processes) -> None:
    stream = processes.logs.open(ALL, 10, "")
    processes.read(stream)
    add(processes.broker, *range(MAX_READ))
    add(processes.http, MAX_READ)
    assert len(processes.read(stream).records) == MAX_READ
    assert texts(processes.read(stream)) == [f"http {MAX_READ}"]


def test_a_stream_continues_after_the_last_event_of_another_one(processes: Processes) -> None:
    add(processes.broker, 1)
    add(processes.http, 2)
    first = processes.logs.open(ALL, 10, "")
    processes.read(first)
    add(processes.broker, 3)
    add(processes.http, 4)
    second = processes.logs.open(ALL, 10, first.id)
    assert texts(processes.read(second)) == ["broker 3", "http 4"]
    assert not second.is_new
    epoch = first.id.partition("-")[0]
    for unknown in ("other-1.1", "x", f"{epoch}-1", f"{epoch}-1.x", f"{epoch}-1.1.1"):
        third = processes.logs.open(ALL, 1, unknown)
        assert texts(processes.read(third)) == ["http 4"]
        assert third.is_new
