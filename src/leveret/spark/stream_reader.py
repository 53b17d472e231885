"""Streams into Structured Streaming, exactly once by offsets."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from leveret.spark.connection import ControlClient
from leveret.spark.errors import DataLoss, OffsetError, OptionError, RequestRefused
from leveret.spark.holding import HOLD, Held, Holding, hold
from leveret.spark.limiting import limit_of
from leveret.spark.limits import Backlog, Run, share_out
from leveret.spark.offsets import Offsets, Place, from_json, start_of
from leveret.spark.options import Settings
from leveret.spark.planning import Slice, StreamPartition, plan
from leveret.spark.reading import reading_of
from leveret.spark.starting import check_names, starting_offset
from leveret.spark.target import Target, streams_of
from leveret.spark.topology import StreamInfo, check_same, describe

log = logging.getLogger("leveret.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`readStream` of a stream, a super stream, or streams by pattern.

    Spark keeps one of these in a process of its own for a query, and pickles another into its tasks, which use `read` only.
    """

    def __init__(self, settings: Settings, target: Target) -> None:
        if settings.given & {"endingOffsets"}:
            raise OptionError("option endingOffsets: not taken by readStream; it is for read")
        self.settings = settings
        self.target = target
        self.reading = reading_of(settings)
        self.control = ControlClient(self.reading.endpoint, f"leveret-spark {settings.consumer_name or ''}".strip())
        self.holding = Holding(uuid.uuid4().hex, HOLD, counts=not settings.fail_on_data_loss)
        self._held: set[str] = set()
        self._target_offsets: dict[str, int] | None = None
        self._latest: dict[str, StreamInfo] = {}
        self._reached = Offsets()
        self._triggered = time.monotonic()
        self._lost = 0

    # Where it begins

    def initialOffset(self) -> dict[str, Any]:
        settings = self.settings
        if settings.starting_offsets in (None, "latest") and settings.starting_timestamp is None \
                and settings.consumer_name is None:
            raise OptionError("option consumerName: required where a query begins with the latest messages (option "
                              "startingOffsets), so that a restart before its first checkpoint begins at the same place")
        names = streams_of(self.target, self.control)
        check_names("startingOffsets", settings.starting_offsets, list(names))
        offsets = Offsets(initial=True)
        for name in names:
            info = describe(self.control, name)
            begin = starting_offset(settings, self.control, info, "latest")
            if settings.consumer_name is not None:
                begin = self._register(info, begin)
            offsets.streams[name] = Place(info.id, begin)
            offsets.began[name] = begin
        return offsets.to_json()

    def _register(self, info: StreamInfo, begin: int) -> int:
        """Where the consumer of this name began, now or before."""
        consumer = self.settings.consumer_name
        try:
            offset = int(self.control.request("stream.start", stream=info.name, consumer=consumer, offset=begin)["offset"])
        except RequestRefused as error:
            raise OptionError(f"option consumerName: {error.message}") from None
        if offset != begin and isinstance(self.settings.starting_offsets, dict):
            raise OffsetError(f"option startingOffsets: it begins at offset {begin} of stream {info.name!r}, but consumer "
                              f"{consumer!r} began at {offset}; expected another consumerName, or `leveret streams "
                              f"forget {info.name} {consumer}` before")
        return offset

    # How far it goes

    def getDefaultReadLimit(self) -> ReadLimit:
        return limit_of(self.settings)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target_offsets = {name: describe(self.control, name).next for name in streams_of(self.target, self.control)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        if self.holding.counts:
            # The batch before is done, and what it has lost is shown with this one.
            self._release()
        infos = self._describe_all(begin)
        end = Offsets(began=dict(begin.began))
        backlogs: list[Backlog] = []
        for name, info in infos.items():
            place = begin.streams.get(name)
            if place is None:
                if self._target_offsets is not None and name not in self._target_offsets:
                    continue  # it came after this run had begun
                place = Place(info.id, info.first)
                end.began[name] = info.first
            check_same(info, place.id, place.next)
            end.streams[name] = Place(info.id, place.next)
            last = info.next if self._target_offsets is None else self._target_offsets.get(name, info.next)
            first = max(place.next, info.first)
            runs = () if isinstance(limit, ReadAllAvailable) else self._sizes(name, first, last)
            backlogs.append(Backlog(name, first, max(last, place.next), info.octets / max(info.next - info.first, 1), runs))
        available = sum(backlog.count for backlog in backlogs)
        if not isinstance(limit, ReadAllAvailable):
            if self._waits(available):
                return self._remember(begin).to_json()
            backlogs = share_out(backlogs, self.settings.max_messages_per_trigger, self.settings.max_bytes_per_trigger)
        for backlog in backlogs:
            if backlog.count:
                end.streams[backlog.name].next = backlog.stop
        self._triggered = time.monotonic()
        end.initial = begin.initial and all(
            name in begin.streams and begin.streams[name].next == place.next for name, place in end.streams.items())
        return self._remember(end).to_json()

    def _describe_all(self, begin: Offsets) -> dict[str, StreamInfo]:
        """The streams that there are now; those that a checkpoint knows must be among them."""
        names = streams_of(self.target, self.control)
        for name in begin.streams:
            if name not in names:
                raise OffsetError(f"the checkpoint is of stream {name!r}, which is not among the streams of {self.target} "
                                  "any more; expected a new checkpoint, or the stream")
        self._latest = {name: describe(self.control, name) for name in names}
        return self._latest

    def _sizes(self, name: str, first: int, stop: int) -> tuple[Run, ...]:
        """What the manifest knows of the sizes of messages, where that matters."""
        if self.settings.max_bytes_per_trigger is None or stop <= first:
            return ()
        runs = []
        position = first
        for segment in describe(self.control, name, first, stop - 1).segments:
            if segment.first > position:
                break
            position = segment.last + 1
            runs.append(Run(position, segment.body_octets / (position - segment.first)))
        return tuple(runs)

    def _waits(self, available: int) -> bool:
        settings = self.settings
        return (settings.min_messages_per_trigger is not None and self._target_offsets is None
                and available < settings.min_messages_per_trigger
                and time.monotonic() - self._triggered < settings.max_trigger_delay)

    def _remember(self, offsets: Offsets) -> Offsets:
        self._reached = offsets
        return offsets

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if not self._latest:
            # A batch that was planned before is done again.
            self._latest = {name: describe(self.control, name) for name in streams_of(self.target, self.control)}
        lags = {name: max(info.next - self._reached.streams[name].next, 0) for name, info in self._latest.items()
                if name in self._reached.streams}
        return {"streams": {name: info.next for name, info in self._latest.items()}, "lag": sum(lags.values()),
                "lags": lags, "lost": self._lost}

    # Batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        self._remember(stop)
        self._release()
        slices: list[Slice] = []
        numbers = streams_of(self.target, self.control)
        for name, place in stop.streams.items():
            first = start_of(name, begin, stop)
            if first >= place.next:
                continue
            info = describe(self.control, name, first, place.next - 1)
            check_same(info, place.id, place.next)
            if info.first > first:
                first = self._lose(name, first, min(info.first, place.next))
            segments = info.segments
            if segments and self.settings.history != "amqp":
                segments = hold(self.control, self.holding, Held(name, first, place.next - 1))
                self._held.add(name)
            if self.holding.counts:
                self._held.add(name)
            slices.append(Slice(name, numbers.get(name, 0), info.id, first, place.next, segments))
        return plan(slices, self.settings.min_partitions, self.holding)

    def _lose(self, name: str, first: int, stop: int) -> int:
        count = stop - first
        what = (f"stream {name!r}: {count} messages, from offset {first} to {stop - 1}, are gone: retention took them "
                "before they were read")
        if self.settings.fail_on_data_loss:
            raise DataLoss(f"{what}; failOnDataLoss=false leaves them out")
        self._lost += count
        log.warning("%s; they are left out (failOnDataLoss=false), %d so far", what, self._lost)
        return stop

    def _release(self) -> None:
        held, self._held = self._held, set()
        for name in held:
            reply = self.control.request("stream.release", stream=name, holder=self.holding.holder)
            self._lost += int(reply.get("lost") or 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return self.reading.batches(partition)

    def commit(self, end: dict[str, Any]) -> None:
        consumer = self.settings.consumer_name
        if consumer is not None:
            for name, place in from_json(end).streams.items():
                self.control.request("stream.commit", stream=name, consumer=consumer, offset=place.next)

    def stop(self) -> None:
        try:
            if self._held:
                self._release()
        except Exception as error:
            log.warning("segments stay held for up to %g s: %s", HOLD, error)
        if self._lost:
            log.warning("%d messages were lost and left out (failOnDataLoss=false)", self._lost)
        self.control.close()
