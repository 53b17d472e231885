"""Long history: a day by the minute and 30 days by the hour, of the broker and of its busiest queues.

It is in a small database in the data directory, so that it survives restarts. Its size is bounded by the number of queues
per minute and per hour. Nothing depends on it: if it cannot be written, the process logs why and continues without it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leveret.management.http.cache import Cache
from leveret.management.http.databases import open_database
from leveret.management.http.measured import Measured
from leveret.management.http.objects import QUEUE, VHOST
from leveret.management.http.samples import Layout, OlderSamples

MINUTE: Final = 60
HOUR: Final = 3600
# Seconds for which samples of a step are kept.
KEPT: Final = {MINUTE: 24 * HOUR, HOUR: 30 * 24 * HOUR}
# Number of queues whose samples are kept per minute and per hour: those with the most publishes and deliveries.
MAX_QUEUES: Final = 100
_TABLES: Final = {MINUTE: "minutes", HOUR: "hours"}
_VERSION: Final = 3
_SCHEMA: Final = """
CREATE TABLE series (
    id INTEGER PRIMARY KEY, vhost TEXT, queue TEXT, queue_id INTEGER, deleted INTEGER, UNIQUE (vhost, queue, queue_id)
);
CREATE TABLE minutes (series INTEGER, time INTEGER, sample BLOB, PRIMARY KEY (series, time)) WITHOUT ROWID;
CREATE TABLE hours (series INTEGER, time INTEGER, sample BLOB, PRIMARY KEY (series, time)) WITHOUT ROWID;
CREATE INDEX minutes_by_time ON minutes (time);
CREATE INDEX hours_by_time ON hours (time);
"""
_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of samples: a queue, or the whole broker if the names are empty.

    Attributes:
        vhost: The name of the vhost.
        queue: The name of the queue.
        id: The id of the queue: a queue that is declared again after its deletion has another one.
    """

    vhost: str = ""
    queue: str = ""
    id: int = 0

    @property
    def layout(self) -> Layout:
        return QUEUE if self.queue else VHOST


BROKER: Final = Subject()


@dataclass(frozen=True, slots=True)
class Sample:
    """The gauges at the end of a minute or their average in an hour, and the increments of the counters."""

    subject: Subject
    values: tuple[int, ...]

    def activity(self) -> int:
        """Return the number of publishes and deliveries."""
        return sum(self.values[len(self.subject.layout.gauges) :])


class HistoryDatabase:
    """The database. Methods block.

    Args:
        path: The file. One of another version, or one that is damaged, is replaced.

    Raises:
        OSError: The file cannot be created.
        sqlite3.Error: The database cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._connection = open_database(path, _SCHEMA, _VERSION, "history of statistics")
        self._series: dict[Subject, int] = {
            Subject(vhost, queue, queue_id): number
            for number, vhost, queue, queue_id in self._connection.execute("SELECT id, vhost, queue, queue_id FROM series")
        }

    def close(self) -> None:
        self._connection.close()

    def add_minute(self, time: int, samples: Iterable[Sample]) -> None:
        """Add the samples of the minute that begins at a time, and those of earlier hours that have ended."""
        with self._connection:
            self._connection.execute("BEGIN")
            self._add(MINUTE, time, samples)
            self._add_hours(time)
            for step, kept in KEPT.items():
                self._connection.execute(f"DELETE FROM {_TABLES[step]} WHERE time < ?", (time + MINUTE - kept,))
            if time % HOUR == 0:
                self._forget_series()

    def _add(self, step: int, time: int, samples: Iterable[Sample]) -> None:
        rows = [(self._number(sample.subject), time, _pack(sample.values)) for sample in samples]
        self._connection.executemany(f"INSERT OR REPLACE INTO {_TABLES[step]} VALUES (?, ?, ?)", rows)

    def _number(self, subject: Subject) -> int:
        number = self._series.get(subject)
        if number is None:
            number = self._connection.execute(
                "INSERT INTO series (vhost, queue, queue_id) VALUES (?, ?, ?)", (subject.vhost, subject.queue, subject.id)
            ).lastrowid
            assert number is not None
            self._series[subject] = number
        return number

    def _add_hours(self, time: int) -> None:
        """Add up the minutes of each hour that ended before a time and has not been added up."""
        (last,) = self._connection.execute("SELECT max(time) FROM hours").fetchone()
        current = time - time % HOUR
        first = current - KEPT[MINUTE] if last is None else last + HOUR
        (oldest,) = self._connection.execute(
            "SELECT min(time) FROM minutes WHERE time >= ? AND time < ?", (first, current)
        ).fetchone()
        while oldest is not None:
            hour = oldest - oldest % HOUR
            self._add(HOUR, hour, busiest(self._sums(hour)))
            (oldest,) = self._connection.execute(
                "SELECT min(time) FROM minutes WHERE time >= ? AND time < ?", (hour + HOUR, current)
            ).fetchone()

    def _sums(self, hour: int) -> list[Sample]:
        subjects = {number: subject for subject, number in self._series.items()}
        sums: dict[int, list[int]] = {}
        counts: dict[int, int] = {}
        for number, packed in self._connection.execute(
            "SELECT series, sample FROM minutes WHERE time >= ? AND time < ?", (hour, hour + HOUR)
        ):
            values = _unpack(packed)
            known = sums.get(number)
            sums[number] = list(values) if known is None else [a + b for a, b in zip(known, values, strict=True)]
            counts[number] = counts.get(number, 0) + 1
        found = []
        for number, total in sums.items():
            gauges = len(subjects[number].layout.gauges)
            averages = [value // counts[number] for value in total[:gauges]]
            found.append(Sample(subjects[number], (*averages, *total[gauges:])))
        return found

    def _forget_series(self) -> None:
        """Delete the names of queues without samples."""
        unused = "id NOT IN (SELECT series FROM minutes UNION SELECT series FROM hours)"
        numbers = {number for (number,) in self._connection.execute(f"SELECT id FROM series WHERE {unused}")}
        if numbers:
            self._connection.execute(f"DELETE FROM series WHERE {unused}")
            self._series = {subject: number for subject, number in self._series.items() if number not in numbers}

    def read(self, subject: Subject, step: int, first: int, last: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the samples of a subject between two times, as the time at which each begins and its values."""
        number = self._series.get(subject)
        if number is None:
            return []
        found = self._connection.execute(
            f"SELECT time, sample FROM {_TABLES[step]} WHERE series = ? AND time >= ? AND time < ? ORDER BY time",
            (number, first, last),
        )
        return [(time, _unpack(packed)) for time, packed in found]

    def older(self, subjects: Iterable[Subject], first: int, until: int) -> dict[Subject, OlderSamples]:
        """Return the samples of those subjects that have any between two times: of the last day by the minute."""
        minutes = until - KEPT[MINUTE]
        found = {}
        for subject in subjects:
            if subject in self._series:
                # The hour that contains the first time, too.
                hours = self.read(subject, HOUR, first - HOUR + 1, minutes - HOUR + 1) if first < minutes else []
                periods = [(time + HOUR - 1, HOUR, values) for time, values in hours]
                begin = hours[-1][0] + HOUR if hours else max(first, minutes)
                later = self.read(subject, MINUTE, begin, until)
                periods += [(time + MINUTE - 1, MINUTE, values) for time, values in later]
                if periods:
                    found[subject] = OlderSamples(periods, until)
        return found

    def note_deleted(self, deleted: Mapping[Subject, int]) -> None:
        """Note the times at which queues were deleted, for those that have samples."""
        known = [(time, self._series[subject]) for subject, time in deleted.items() if subject in self._series]
        if known:
            with self._connection:
                self._connection.execute("BEGIN")
                self._connection.executemany("UPDATE series SET deleted = ? WHERE id = ?", known)

    def of_name(
        self, vhost: str, queue: str, id: int | None, unwritten: Mapping[Subject, int]
    ) -> tuple[Subject, list[int]]:
        """Return the last queue with a name, and the times at which queues with the name were deleted.

        Args:
            vhost: The vhost.
            queue: The name.
            id: The id of the queue that exists now, or None if there is none.
            unwritten: Times of deletions that may not have been passed to `note_deleted` yet.
        """
        deleted: list[int] = []
        last = 0
        for number, queue_id, time in self._connection.execute(
            "SELECT id, queue_id, deleted FROM series WHERE vhost = ? AND queue = ?", (vhost, queue)
        ):
            last = max(last, queue_id)
            if queue_id != id:
                if time is None:
                    time = unwritten.get(Subject(vhost, queue, queue_id))
                deleted.append(self._end(number) if time is None else time)
        return Subject(vhost, queue, last if id is None else id), sorted(deleted)

    def _end(self, number: int) -> int:
        """Return the end of the last sample of a queue that was deleted while the process did not run."""
        (minute,) = self._connection.execute("SELECT max(time) FROM minutes WHERE series = ?", (number,)).fetchone()
        (hour,) = self._connection.execute("SELECT max(time) FROM hours WHERE series = ?", (number,)).fetchone()
        return int(hour + HOUR if minute is None else minute + MINUTE)

    def clear(self) -> None:
        """Delete all samples."""
        with self._connection:
            self._connection.execute("BEGIN")
            for table in ("minutes", "hours", "series"):
                self._connection.execute(f"DELETE FROM {table}")
        self._series = {}

    def subjects(self) -> list[Subject]:
        """Return everything that has samples."""
        return list(self._series)


def _pack(values: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *[min(max(value, 0), _MAX) for value in values])


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)


def busiest(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of the broker and of the busiest queues."""
    queues = sorted((sample for sample in samples if sample.subject != BROKER), key=Sample.activity, reverse=True)
    return [sample for sample in samples if sample.subject == BROKER] + queues[:MAX_QUEUES]


def minute_of(cache: Cache, time: int) -> list[Sample]:
    """Return the samples of the minute that begins at a time: of the broker, and of the busiest queues."""
    number = time // MINUTE
    totals = [0] * len(VHOST.names)
    for vhost in cache.vhosts.values():
        for index, value in enumerate(_values(VHOST, vhost, number)):
            totals[index] += value
    return busiest([Sample(BROKER, tuple(totals)), *_queues(cache, number)])


def _queues(cache: Cache, number: int) -> Iterator[Sample]:
    for id, queue in cache.queues.items():
        if queue.samples is not None and not queue.samples.is_idle_in(number):
            subject = Subject(queue.item["vhost"], queue.item["name"], id)
            sample = Sample(subject, tuple(_values(QUEUE, queue, number)))
            if sample.activity():
                yield sample


def _values(layout: Layout, measured: Measured, number: int) -> list[int]:
    samples = measured.samples
    if samples is None:
        return [*(measured.gauges or ()), *([0] * len(layout.counters))]
    return [samples.minute(series, number) for series in range(len(layout.names))]
