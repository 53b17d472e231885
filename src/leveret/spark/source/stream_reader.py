"""Streaming reads of streams, exactly once by offsets."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from leveret.segments.typed_json import Document
from leveret.spark.connection import ControlClient
from leveret.spark.errors import DataLoss, OffsetError, OptionError, RequestRefused
from leveret.spark.options import Settings
from leveret.spark.read_limits import read_limit
from leveret.spark.source.admission import Backlog, Run, apply_limits
from leveret.spark.source.file_pins import PIN_SECONDS, FilePin, PinnedRange, pin
from leveret.spark.source.offsets import Offsets, Position, from_json, start_of
from leveret.spark.source.partitions import Slice, StreamPartition, plan
from leveret.spark.source.reading import reading_of
from leveret.spark.source.start_offsets import check_names, starting_offset
from leveret.spark.source.target import Member, Target, streams_of
from leveret.spark.source.topology import StreamInfo, check_same, describe
from leveret.spark.task_input import InTask

logger = logging.getLogger("leveret.spark")


class StreamReader(InTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`readStream` of a stream, a super stream, several of them, or streams by pattern.

    Spark keeps one instance per query in a separate process, and pickles others into tasks, which only use `read`.
    """

    def __init__(self, settings: Settings, target: Target) -> None:
        for option in sorted(settings.given & {"endingOffsets", "endingTimestamp"}):
            raise OptionError(f"option {option}: not valid in readStream, only in read")
        self.settings = settings
        self.target = target
        self.reading = reading_of(settings)
        self.control = ControlClient(self.reading.endpoint, f"leveret-spark {settings.consumer_name or ''}".strip())
        self.file_pin = FilePin(uuid.uuid4().hex, PIN_SECONDS, counts_losses=not settings.fail_on_data_loss)
        self._pinned: set[str] = set()
        self._end_offsets: dict[str, int] | None = None
        # Start offsets of streams that were added to the query, until a batch has them.
        self._added: dict[str, int] = {}
        self._latest: dict[str, StreamInfo] = {}
        self._reached = Offsets()
        self._triggered = time.monotonic()
        # Losses that tasks reported under a holder, by stream.
        self._reported: tuple[str, dict[str, int]] = ("", {})

    # Start

    def initialOffset(self) -> dict[str, Document]:
        self._check_start()
        members = streams_of(self.target, self.control)
        check_names(self.settings, members)
        offsets = Offsets(initial=True)
        for name in members:
            info = describe(self.control, name)
            begin = self._start(info)
            offsets.streams[name] = Position(info.id, begin)
            offsets.began[name] = begin
        return offsets.to_json()

    def _check_start(self) -> None:
        settings = self.settings
        if (
            settings.starting_offsets in (None, "latest")
            and settings.starting_timestamp is None
            and settings.consumer_name is None
        ):
            raise OptionError(
                "option consumerName: required if a query begins with the latest messages (option "
                "startingOffsets), so that a restart before its first checkpoint begins at the same offset"
            )

    def _start(self, info: StreamInfo) -> int:
        """Return the offset at which the query starts to read a stream, according to the options."""
        begin = starting_offset(self.settings, self.control, info, "latest")
        return begin if self.settings.consumer_name is None else self._register(info, begin)

    def _register(self, info: StreamInfo, begin: int) -> int:
        """Register the start of the consumer. Returns its offset, which a previous start may have registered."""
        consumer = self.settings.consumer_name
        try:
            offset = int(self.control.request("stream.start", stream=info.name, consumer=consumer, offset=begin)["offset"])
        except RequestRefused as error:
            raise OptionError(f"option consumerName: {error.message}") from None
        if offset != begin and isinstance(self.settings.starting_offsets, dict):
            raise OffsetError(
                f"option startingOffsets: offset {begin} of stream {info.name!r} differs from offset "
                f"{offset}, at which consumer {consumer!r} began; use another consumerName, or first run "
                f"`leveret streams forget {info.name} {consumer}`"
            )
        return offset

    # Offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        return read_limit(self.settings)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end_offsets = {name: describe(self.control, name).next for name in streams_of(self.target, self.control)}

    def latestOffset(self, start: dict[str, Document], limit: ReadLimit) -> dict[str, Document]:
        begin = from_json(start)
        members = self._members(begin)
        infos = self._describe_all(members)
        end = Offsets(began=dict(begin.began), lost=self._losses(begin))
        backlogs: list[Backlog] = []
        for name, info in infos.items():
            place = begin.streams.get(name)
            if place is None:
                if self._end_offsets is not None and name not in self._end_offsets:
                    continue  # declared after this run had begun
                place = Position(info.id, self._start_added(info, members, begin))
                end.began[name] = place.next
            check_same(info, place.id, place.next)
            end.streams[name] = Position(info.id, place.next)
            last = info.next if self._end_offsets is None else self._end_offsets.get(name, info.next)
            last = max(last, place.next)
            first = min(max(place.next, info.first), last)
            runs = () if isinstance(limit, ReadAllAvailable) else self._size_runs(name, first, last)
            size = info.body_bytes / max(info.next - info.first, 1)
            backlogs.append(Backlog(name, first, last, size, runs))
        available = sum(backlog.count for backlog in backlogs)
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(available):
                return self._remember(begin).to_json()
            settings = self.settings
            read = sum(place.next for place in begin.streams.values())
            backlogs = apply_limits(backlogs, settings.max_messages_per_trigger, settings.max_bytes_per_trigger, turn=read)
        for backlog in backlogs:
            self._advance(end, backlog)
        self._triggered = time.monotonic()
        if not end.follows(begin):
            return self._remember(begin).to_json()
        if self.file_pin.counts_losses:
            end.holder = uuid.uuid4().hex
        end.initial = begin.initial and all(
            name in begin.streams and begin.streams[name].next == place.next for name, place in end.streams.items()
        )
        return self._remember(end).to_json()

    def _advance(self, end: Offsets, backlog: Backlog) -> None:
        """Advance the position of a stream to the end of a batch's part of its backlog, and count what is lost before."""
        position = end.streams[backlog.name]
        lost = backlog.first - position.next
        if lost and not self.settings.fail_on_data_loss:
            end.lost[backlog.name] = end.lost.get(backlog.name, 0) + lost
            position.next = position.first = backlog.first
        if backlog.count:
            position.next = backlog.stop

    def _losses(self, begin: Offsets) -> dict[str, int]:
        """Return the losses until the end of the batch before, with those that its tasks reported.

        The broker keeps these until the next batch is in the checkpoint.
        """
        holder = begin.holder or (self.file_pin.holder if self.file_pin.counts_losses else None)
        if holder is None or begin.initial:
            return dict(begin.lost)
        if self._reported[0] != holder:
            self._reported = (
                holder,
                {name: self._release(name, holder, True) for name in begin.streams if name in self._latest},
            )
            if holder == self.file_pin.holder:
                self._pinned = {name for name, count in self._reported[1].items() if count}
        lost = begin.lost | {name: begin.lost.get(name, 0) + count for name, count in self._reported[1].items()}
        return {name: count for name, count in lost.items() if count}

    def _release(self, name: str, holder: str, keep_losses: bool) -> int:
        """Release the pins of a stream. Returns the number of messages that tasks reported as lost."""
        reply = self.control.request(
            "stream.release", stream=name, holder=holder, keep_losses=True if keep_losses else None
        )
        return int(reply.get("lost") or 0)

    def _members(self, begin: Offsets) -> dict[str, Member]:
        """Return the current streams. Raises OffsetError if a stream of the checkpoint is missing and may not be."""
        members = streams_of(self.target, self.control)
        for name in begin.streams:
            if name not in members:
                what = f"the checkpoint is of stream {name!r}, which is no longer among the streams of {self.target}"
                if self.settings.fail_on_data_loss:
                    raise OffsetError(
                        f"{what}; restore the stream, use a new checkpoint, or set failOnDataLoss to false to continue "
                        "without it"
                    )
                logger.warning("%s; its other messages are not read (failOnDataLoss=false)", what)
        return members

    def _describe_all(self, members: Iterable[str]) -> dict[str, StreamInfo]:
        self._latest = {name: describe(self.control, name) for name in members}
        return self._latest

    def _start_added(self, info: StreamInfo, members: dict[str, Member], begin: Offsets) -> int:
        """Return the offset at which the query starts to read a stream that its checkpoint does not have."""
        if not members[info.name].starts_with(begin.streams, members):
            return info.first
        if info.name not in self._added:
            self._check_start()
            self._added[info.name] = self._start(info)
        return self._added[info.name]

    def _size_runs(self, name: str, first: int, stop: int) -> tuple[Run, ...]:
        """Return message sizes from the manifest, if a limit needs them."""
        if self.settings.max_bytes_per_trigger is None or stop <= first:
            return ()
        runs = []
        position = first
        for segment in describe(self.control, name, first, stop - 1).segments:
            if segment.first > position:
                break
            position = segment.last + 1
            runs.append(Run(position, segment.body_bytes / (position - segment.first)))
        return tuple(runs)

    def _should_wait(self, available: int) -> bool:
        settings = self.settings
        return (
            settings.min_messages_per_trigger is not None
            and self._end_offsets is None
            and available < settings.min_messages_per_trigger
            and time.monotonic() - self._triggered < settings.max_trigger_delay
        )

    def _remember(self, offsets: Offsets) -> Offsets:
        self._reached = offsets
        return offsets

    def reportLatestOffset(self) -> dict[str, Document] | None:
        if not self._latest:
            # A batch that was planned earlier is repeated.
            self._latest = {name: describe(self.control, name) for name in streams_of(self.target, self.control)}
        lags = {
            name: max(info.next - self._reached.streams[name].next, 0)
            for name, info in self._latest.items()
            if name in self._reached.streams
        }
        return {
            "streams": {name: info.next for name, info in self._latest.items()},
            "lag": sum(lags.values()),
            "lags": lags,
            "lost": sum(self._reached.lost.values()),
        }

    # Batches

    def partitions(self, start: dict[str, Document], end: dict[str, Document]) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        self._remember(stop)
        self._release_all(False)
        self.file_pin = replace(self.file_pin, holder=stop.holder or self.file_pin.holder)
        slices: list[Slice] = []
        members = streams_of(self.target, self.control)
        for name, place in stop.streams.items():
            first = start_of(name, begin, stop)
            if place.first is not None:
                _warn(name, first, place.first)
                first = place.first
            if first >= place.next:
                continue
            info = describe(self.control, name, first, place.next - 1)
            check_same(info, place.id, place.next)
            if info.first > first:
                first = self._skip_lost(name, first, min(info.first, place.next))
            segments = info.segments
            if segments and self.settings.history != "amqp":
                segments = pin(self.control, self.file_pin, PinnedRange(name, first, place.next - 1))
                self._pinned.add(name)
            if self.file_pin.counts_losses:
                self._pinned.add(name)
            member = members.get(name, Member(0, None, True))
            topic = member.super_stream or name
            slices.append(Slice(name, member.partition, topic, info.id, first, place.next, segments))
        return plan(slices, self.settings.min_partitions, self.settings.max_records_per_partition, self.file_pin)

    def _skip_lost(self, name: str, first: int, stop: int) -> int:
        """Skip messages that were removed since the batch's end was determined."""
        if self.settings.fail_on_data_loss:
            raise DataLoss(f"{_lost_text(name, first, stop)}; set failOnDataLoss to false to skip them")
        _warn(name, first, stop)
        self.control.request("stream.lost", stream=name, holder=self.file_pin.holder, first=first, stop=stop)
        return stop

    def _release_all(self, keep_losses: bool) -> None:
        pinned, self._pinned = self._pinned, set()
        for name in pinned:
            self._release(name, self.file_pin.holder, keep_losses)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return self.reading.batches(partition)

    def commit(self, end: dict[str, Document]) -> None:
        consumer = self.settings.consumer_name
        if consumer is not None:
            for name, place in from_json(end).streams.items():
                self.control.request("stream.commit", stream=name, consumer=consumer, offset=place.next)

    def stop(self) -> None:
        try:
            self._release_all(True)
        except Exception as error:
            logger.warning("segment files stay pinned for up to %g s: %s", PIN_SECONDS, error)
        if self._reached.lost:
            logger.warning("%d messages were lost and skipped (failOnDataLoss=false)", sum(self._reached.lost.values()))
        self.control.close()


def _warn(name: str, first: int, stop: int) -> None:
    logger.warning("%s; skipped (failOnDataLoss=false)", _lost_text(name, first, stop))


def _lost_text(name: str, first: int, stop: int) -> str:
    return (
        f"stream {name!r}: {stop - first} messages, from offset {first} to {stop - 1}, were removed by retention before "
        "they were read"
    )
