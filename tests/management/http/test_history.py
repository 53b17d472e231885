"""The long history: its database, on a clock of the test, and its answers."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.statistics import QUEUE_GAUGES
from leveret.management import control_client
from leveret.management.http import history_store
from leveret.management.http.cache import Cache
from leveret.management.http.control import Control
from leveret.management.http.history_store import (
    BROKER,
    HOUR,
    KEPT,
    MINUTE,
    HistoryDatabase,
    Sample,
    Subject,
    minute_of,
)
from leveret.management.http.history_thread import History
from leveret.management.http.measured import LENGTHS, MESSAGES, Measured, Rates, Statistic, Window
from leveret.management.http.objects import QUEUE, VHOST
from leveret.management.http.samples import OlderSamples
from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until

START = 1_700_000_000 // HOUR * HOUR
QUEUE_Q = Subject("/", "q")


def queue_sample(subject: Subject = QUEUE_Q, ready: int = 0, publish: int = 0) -> Sample:
    values = dict.fromkeys(QUEUE.names, 0) | {"ready": ready, "publish": publish}
    return Sample(subject, tuple(values.values()))


def broker_sample(publish: int) -> Sample:
    return Sample(BROKER, tuple((dict.fromkeys(VHOST.names, 0) | {"publish": publish}).values()))


def read(database: HistoryDatabase, subject: Subject, step: int) -> list[tuple[int, int, int]]:
    """Return time, ready and publish of all samples."""
    publish = subject.layout.names.index("publish")
    return [(time, values[0], values[publish]) for time, values in database.read(subject, step, 0, 1 << 40)]


def test_minutes_and_hours_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    database = HistoryDatabase(path)
    for minute in range(61):
        ready = minute if minute < 60 else 7
        database.add_minute(START + minute * MINUTE, [broker_sample(2), queue_sample(ready=ready, publish=1)])
    database.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    database = HistoryDatabase(path)
    assert read(database, QUEUE_Q, MINUTE)[::60] == [(START, 0, 1), (START + HOUR, 7, 1)]
    assert read(database, QUEUE_Q, HOUR) == [(START, 29, 60)]
    assert read(database, BROKER, HOUR) == [(START, 0, 120)]
    assert read(database, Subject("/", "other"), MINUTE) == []
    # An hour that ended while the process did not run is added up later.
    database.add_minute(START + 3 * HOUR, [broker_sample(1)])
    assert read(database, BROKER, HOUR) == [(START, 0, 120), (START + HOUR, 0, 2)]
    database.close()


def test_the_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_store, "MAX_QUEUES", 2)
    monkeypatch.setattr(history_store, "KEPT", {MINUTE: HOUR, HOUR: 2 * HOUR})
    database = HistoryDatabase(tmp_path / "history.sqlite")
    for minute in range(5 * 60):
        hour = minute // 60
        samples = [queue_sample(Subject("/", f"h{hour}-{number}"), publish=number) for number in range(4)]
        database.add_minute(START + minute * MINUTE, samples)
    last = START + 5 * HOUR - MINUTE
    assert read(database, Subject("/", "h4-3"), MINUTE)[0][0] == last - HOUR + MINUTE
    assert read(database, Subject("/", "h3-3"), HOUR) == [(START + 3 * HOUR, 0, 180)]
    assert read(database, Subject("/", "h3-1"), HOUR) == []  # two others were busier
    database.add_minute(START + 5 * HOUR, [])
    names = {subject.queue for subject in database.subjects()}
    assert "h0-3" not in names and {"h4-0", "h4-3"} <= names
    database.close()


@pytest.mark.parametrize("content", [b"garbage" * 1000, b""])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    database = HistoryDatabase(path)
    database.add_minute(START, [broker_sample(1)])
    assert len(read(database, BROKER, MINUTE)) == 1
    database.close()
    assert bool(caplog.records) == bool(content)


def test_a_file_of_another_version_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    database = HistoryDatabase(path)
    database.add_minute(START, [broker_sample(1)])
    database.close()
    monkeypatch.setattr(history_store, "_VERSION", 99)
    database = HistoryDatabase(path)
    assert database.subjects() == []
    database.close()


def test_a_queue_that_is_declared_again_has_a_history_of_its_own(tmp_path: Path) -> None:
    first, second, third = (Subject("/", "q", id) for id in (1, 5, 9))
    path = tmp_path / "history.sqlite"
    database = HistoryDatabase(path)
    assert database.of_name("/", "q", None, {}) == (Subject("/", "q"), [])
    database.add_minute(START, [queue_sample(first, publish=1)])
    database.note_deleted({first: START + 90, Subject("/", "unknown", 3): START + 91})
    database.add_minute(START + 2 * MINUTE, [queue_sample(second, publish=2)])
    assert read(database, first, MINUTE) == [(START, 0, 1)]
    assert read(database, second, MINUTE) == [(START + 2 * MINUTE, 0, 2)]
    assert database.of_name("/", "q", 5, {}) == (second, [START + 90])
    assert list(database.older([second, third], START, START + HOUR)) == [second]
    database.close()
    database = HistoryDatabase(path)
    # The second one was deleted while the process did not run: its last sample says when, at the latest.
    assert database.of_name("/", "q", 9, {}) == (third, [START + 90, START + 3 * MINUTE])
    assert database.of_name("/", "q", None, {}) == (second, [START + 90, START + 3 * MINUTE])
    assert database.of_name("/", "unknown", None, {})[1] == []
    database.close()


def test_the_cache_notes_deletions() -> None:
    clock = Clock()
    cache = Cache(Control(Path("unused")), clock)
    cache.apply([["begin", None, False], ["queue", 1, queue_item("q")], ["queue", 2, queue_item("other")]])
    clock.now = START + 5.5
    cache.apply([["queue", 3, queue_item("q")], ["queue.gone", 1, None]])
    assert cache.take_deleted() == {("/", "q", 1): START + 5}
    assert cache.take_deleted() == {}
    found = cache.queue("/", "q")
    assert found is not None and found.id == 3


def test_the_time_of_a_deletion_is_known_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    database = HistoryDatabase(path)
    database.add_minute(START - HOUR, [queue_sample(Subject("/", "q", 1), publish=1)])
    database.close()
    clock = Clock()
    cache = Cache(Control(Path("unused")), clock)
    cache.apply([["begin", None, False], ["queue", 1, queue_item("q")]])
    clock.now = START + 5.5
    cache.apply([["queue.gone", 1, None]])

    async def ask() -> list[tuple[Subject, list[int]]]:
        history = History(path)
        await history.open()
        found = [await history.of_name("/", "q", cache)]
        history.ticked(cache)
        found.append(await history.of_name("/", "q", cache))  # before the thread writes it
        await history.close()
        return found

    assert asyncio.run(ask()) == [(Subject("/", "q", 1), [START + 5])] * 2
    database = HistoryDatabase(path)
    assert database.of_name("/", "q", None, {})[1] == [START + 5]
    database.close()


def test_older_samples_are_by_the_hour_and_of_the_last_day_by_the_minute(tmp_path: Path) -> None:
    database = HistoryDatabase(tmp_path / "history.sqlite")
    end = START + 26 * HOUR
    for minute in range(26 * 60):
        database.add_minute(START + minute * MINUTE, [queue_sample(ready=minute, publish=1)])
    found = database.older([QUEUE_Q, Subject("/", "other")], START, end)
    assert list(found) == [QUEUE_Q]
    older = found[QUEUE_Q]
    publish = QUEUE.names.index("publish")
    assert older.until == end
    # The first hours have the average of a gauge, the minutes of the last day its value at their ends.
    assert [older.gauge(0, START + at - 1) for at in (HOUR, 2 * HOUR, 3 * HOUR)] == [29, 89, 179]
    assert older.gauge(0, START) == 29
    ticks = [START + HOUR - 1, end - 10 * MINUTE - 1, end - 10 * MINUTE - 31]
    assert older.increases_since(publish, ticks) == [25 * 60, 10, 10]
    assert database.older([QUEUE_Q], end - 2 * HOUR, end)[QUEUE_Q].increases_since(publish, [START]) == [120]
    # The hour that contains the first time is included.
    first = START + HOUR + 20 * MINUTE
    [increase] = database.older([QUEUE_Q], first, end)[QUEUE_Q].increases_since(publish, [first - 1])
    assert increase == 26 * 60 - 80
    database.close()


def test_windows_go_back_to_before_the_samples_in_memory() -> None:
    now = START + 5 * HOUR - 1
    statistics = {"messages_ready": Statistic((0,), LENGTHS, True), "publish": Statistic((2,), MESSAGES)}
    windows = {family: Window(4 * HOUR, HOUR) for family in (LENGTHS, MESSAGES)}
    busy = Measured()
    others = [0] * (len(QUEUE.counters) - 1)
    busy.measure(QUEUE, now - 100, (5, 0), (1000, *others))
    busy.measure(QUEUE, now, (8, 0), (1030, *others))
    periods = [(START + hour * HOUR - 1, HOUR, (hour, 0, 100 * hour, *others)) for hour in (2, 3, 4)]
    older = OlderSamples(periods, now - HOUR)
    for sources, newest in (([busy], [8, 5]), ([], [8, 8])):
        rates = Rates(sources, statistics, now, windows, older)
        found = [sample["sample"] for sample in rates.details("messages_ready", 8)["samples"]]
        assert found == [*newest, 3, 2, 2]
    found = [
        sample["sample"] for sample in Rates([busy], statistics, now, windows, older).details("publish", 1030)["samples"]
    ]
    assert found == [1030, 1000, 600, 300, 100]
    found = [sample["sample"] for sample in Rates([busy], statistics, now, windows).details("publish", 1030)["samples"]]
    assert found == [1030, 1000, 1000, 1000, 1000]


class Clock:
    now = float(START)

    def __call__(self) -> float:
        return self.now


def queue_item(name: str) -> dict[str, Any]:
    counters = ("published", "delivered", "delivered_no_ack", "got", "got_no_ack", "got_empty", "redelivered", "acked")
    numbers = (*counters, *QUEUE_GAUGES, "blocked_time", "blocked_since")
    return {
        "name": name,
        "vhost": "/",
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "paused": False,
        **dict.fromkeys(numbers, 0),
    }


def test_samples_of_a_minute_come_from_the_cache() -> None:
    clock = Clock()
    cache = Cache(Control(Path("unused")), clock)
    process = {"process": {"memory": 1, "pid": 1, "uptime": 60.0, "data_dir": "/nonexistent"}, "alarm": ""}
    cache.apply([["begin", None, True], ["node", None, process], ["vhost.sample", "/", [0] * 15], ["end", None, None]])
    for number in (1, 2):
        cache.apply([["begin", None, False], ["queue", number, queue_item(f"q{number}")]])
    for second in range(1, 120):
        cache._sampling = START + second
        busy = [second, *[0] * 7, second, *[0] * len(QUEUE_GAUGES)]
        cache.apply(
            [
                ["begin", None, False],
                ["queue.sample", 1, busy],
                ["vhost.sample", "/", [second, *[0] * 14]],
                ["node", None, process],
                ["end", None, None],
            ]
        )
    broker, busy_queue = minute_of(cache, START + 60)
    assert broker.subject == BROKER and busy_queue.subject == Subject("/", "q1", 1)
    assert dict(zip(QUEUE.names, busy_queue.values, strict=True))["publish"] == 60
    assert busy_queue.values[0] == 119
    named = dict(zip(VHOST.names, broker.values, strict=True))
    assert (named["ready"], named["publish"]) == (119, 60)


def test_answers(api: HttpBroker) -> None:
    whole = api.get("/leveret/history")
    assert whole["step"] == 60 and "publish" in whole["counters"] and isinstance(whole["samples"], list)
    assert api.get("/leveret/history?step=hour&vhost=%2F&queue=q")["samples"] == []
    assert isinstance(api.get("/leveret/history/queues"), list)
    (path,) = api.process.directory.rglob("history.sqlite")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert api("GET", "/leveret/history", user="manager").status == 401
    assert api("GET", "/leveret/history?vhost=none&queue=q", user="manager").status == 404
    for query in ("step=day", "vhost=%2F", "age=x"):
        assert api("GET", f"/leveret/history?{query}").status == 400
    assert KEPT[MINUTE] == 24 * HOUR


def test_lists_and_single_queues_show_the_history_after_a_restart(tmp_path: Path) -> None:
    leveret_only("the HTTP API")
    now = int(time.time()) // MINUTE * MINUTE
    config = basic_config() + "[management]\nport = 0\n"
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        api = HttpBroker(process)
        for name in ("q", "new"):
            api("PUT", f"/queues/%2F/{name}", {"durable": True})
        changes = control_client.call(process.data_dir, "statistics.changes", {"reader": "test"})
        ids = {value["name"]: key for kind, key, value in changes if kind == "queue"}
    database = HistoryDatabase(process.data_dir / "history.sqlite")
    known, former = Subject("/", "q", ids["q"]), Subject("/", "new", ids["new"] + 1000)
    for begin in range(now - 5 * HOUR, now, MINUTE):
        samples = [queue_sample(subject, ready=3, publish=1) for subject in (known, former)]
        database.add_minute(begin, [broker_sample(2), *samples])
    database.note_deleted({former: now - 90})
    database.close()
    with process.start():
        api = HttpBroker(process)
        window = "lengths_age=14400&lengths_incr=3600"

        def messages(row: dict[str, Any]) -> list[int]:
            return [sample["sample"] for sample in row["messages_details"]["samples"]]

        for query in (f"?{window}", f"?page=1&{window}", f"?page=1&sort=name&sort_reverse=true&{window}"):
            found = api.get(f"/queues{query}")
            rows = {row["name"]: messages(row) for row in (found["items"] if "page" in query else found)}
            assert rows == {"q": [0, 3, 3, 3, 3], "new": [0, 0, 0, 0, 0]}, query
        assert messages(api.get(f"/queues/%2F/q?{window}")) == [0, 3, 3, 3, 3]
        assert messages(api.get(f"/overview?{window}")["queue_totals"])[1:] == [0, 0, 0, 0]
        assert messages(api.get("/queues/%2F/q?lengths_age=10&lengths_incr=5"))[0] == 0

        def history(name: str) -> Any:
            return api.get(f"/leveret/history?vhost=%2F&queue={name}")

        assert len(history("q")["samples"]) == 5 * 60 and history("q")["deleted"] == []
        assert (history("new")["samples"], history("new")["deleted"]) == ([], [1000 * (now - 90)])
        assert api("DELETE", "/queues/%2F/q").status == 204
        (deleted,) = wait_until(lambda: history("q")["deleted"])
        assert 1000 * now <= deleted <= 1000 * (time.time() + 1)
        assert len(history("q")["samples"]) == 5 * 60  # those of the last queue with the name
        assert api("PUT", "/queues/%2F/q", {"durable": True}).status == 201
        wait_until(lambda: history("q")["samples"] == [])
        assert history("q")["deleted"] == [deleted]
        assert messages(api.get(f"/queues/%2F/q?{window}")) == [0, 0, 0, 0, 0]
