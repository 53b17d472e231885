"""Offsets from the options: the start of a query without a checkpoint, and the end of a batch read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError, RequestRefused
from leveret.spark.options import Settings
from leveret.spark.source.conditions import Conditions, Interval
from leveret.spark.source.partitions import Slice
from leveret.spark.source.reading import reading_of
from leveret.spark.source.topology import StreamInfo, describe
from leveret.spark.values import EARLIEST, LATEST


def starting_offset(settings: Settings, control: ControlClient, info: StreamInfo, default: str) -> int:
    """Return the first offset to read in a stream. `default`, "earliest" or "latest", applies if no option is set."""
    if settings.starting_timestamp is None:
        return _named("startingOffsets", settings.starting_offsets, info, default, settings.fail_on_data_loss)
    if settings.starting_offsets is not None:
        raise OptionError("options startingOffsets and startingTimestamp: set only one of them")
    time = _time_of("startingTimestamp", settings.starting_timestamp, info)
    offset = _offset_at("startingTimestamp", time, settings, control, info)
    if offset == info.next and settings.starting_offsets_by_timestamp_strategy == "error":
        raise OffsetError(
            f"option startingTimestamp: no message of stream {info.name!r} was appended at {_shown(time)} or later; set "
            "startingOffsetsByTimestampStrategy to latest to start at the end of the stream"
        )
    return offset


def ending_offset(settings: Settings, control: ControlClient, info: StreamInfo) -> int:
    """Return the offset before which a batch read ends."""
    if settings.ending_timestamp is None:
        return _named("endingOffsets", settings.ending_offsets, info, "latest")
    if "endingOffsets" in settings.given:
        raise OptionError("options endingOffsets and endingTimestamp: set only one of them")
    time = _time_of("endingTimestamp", settings.ending_timestamp, info)
    return _offset_at("endingTimestamp", time, settings, control, info)


def _time_of(option: str, value: int | dict[str, int], info: StreamInfo) -> int:
    if not isinstance(value, dict):
        return value
    if info.name not in value:
        raise OptionError(f"option {option}: no time for stream {info.name!r}; expected one for each stream that is read")
    return value[info.name]


def _shown(time: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)).isoformat(timespec="milliseconds")


def _offset_at(option: str, time: int, settings: Settings, control: ControlClient, info: StreamInfo) -> int:
    """Return the offset of the first message appended at a time or later, or the next offset if there is none."""
    try:
        # The control protocol has no times before 1970, which are before all messages.
        reply = control.request("stream.locate", stream=info.name, timestamp=max(time, 0))
    except RequestRefused as error:
        raise OptionError(f"option {option}: {error.message}") from None
    # The broker knows the times of commits and of segments, and messages have times between these.
    start = min(max(int(reply["offset"]), info.first), info.next)
    if start == info.next:
        return start
    segments = describe(control, info.name, start, start).segments
    stop = min(segments[-1].last + 1, info.next) if segments else info.next
    low = time * 1000
    reading = replace(
        reading_of(settings),
        columns=("offset", "append_time"),
        routing_key_filter=None,
        conditions=Conditions(append_time=Interval(low=low)),
    )
    from leveret.spark.source.slice_reader import SliceReader  # only here: queries start faster without it

    with closing(SliceReader(reading, Slice(info.name, 0, info.name, info.id, start, stop, segments)).batches()) as batches:
        for batch in batches:
            index = bisect_left(batch.column("append_time").cast(pa.int64()).to_pylist(), low)
            if index < batch.num_rows:
                return int(batch.column("offset")[index].as_py())
    return stop


def _named(option: str, value: str | dict[str, int] | None, info: StreamInfo, default: str, strict: bool = True) -> int:
    """Resolve an option's offset for a stream. With `strict`, offsets that retention has removed are out of range."""
    if value is None:
        value = default
    if isinstance(value, str):
        return info.first if value == "earliest" else info.next
    offset = value.get(info.name)
    if offset is None:
        raise OptionError(
            f"option {option}: no offset for stream {info.name!r}; expected one for each stream that is read "
            "(-2 is earliest, -1 latest)"
        )
    if offset == EARLIEST:
        return info.first
    if offset == LATEST:
        return info.next
    if offset > info.next or (strict and offset < info.first):
        raise OffsetError(
            f"option {option}: offset {offset} is out of range: stream {info.name!r} has offsets from "
            f"{info.first} to {info.next - 1}, and the next one is {info.next}"
        )
    return offset


def check_names(settings: Settings, names: Iterable[str]) -> None:
    """Raise OptionError if an option has offsets or times of streams that are not read."""
    read = list(names)
    for option, value in (
        ("startingOffsets", settings.starting_offsets),
        ("startingTimestamp", settings.starting_timestamp),
        ("endingOffsets", settings.ending_offsets),
        ("endingTimestamp", settings.ending_timestamp),
    ):
        for name in value if isinstance(value, dict) else ():
            if name not in read:
                raise OptionError(
                    f"option {option}: stream {name!r} is not read; expected some of {', '.join(read[:10]) or 'none yet'}"
                )
