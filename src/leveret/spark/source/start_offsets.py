"""Offsets from the options: the start of a query without a checkpoint, and the end of a batch read."""

from __future__ import annotations

from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError, RequestRefused
from leveret.spark.options import Settings
from leveret.spark.source.topology import StreamInfo
from leveret.spark.values import EARLIEST, LATEST


def starting_offset(settings: Settings, control: ControlClient, info: StreamInfo, default: str) -> int:
    """Return the first offset to read in a stream. `default`, "earliest" or "latest", applies if no option is set."""
    if settings.starting_timestamp is not None:
        if settings.starting_offsets is not None:
            raise OptionError("options startingOffsets and startingTimestamp: set only one of them")
        try:
            reply = control.request("stream.locate", stream=info.name, timestamp=settings.starting_timestamp)
        except RequestRefused as error:
            raise OptionError(f"option startingTimestamp: {error.message}") from None
        return min(max(int(reply["offset"]), info.first), info.next)
    return _named("startingOffsets", settings.starting_offsets, info, default, settings.fail_on_data_loss)


def ending_offset(settings: Settings, info: StreamInfo) -> int:
    """Return the offset before which a batch read ends."""
    return _named("endingOffsets", settings.ending_offsets, info, "latest")


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


def check_names(option: str, value: str | dict[str, int] | None, names: list[str]) -> None:
    """Raise OptionError if an option has offsets of streams that are not read."""
    if isinstance(value, dict):
        for name in value:
            if name not in names:
                raise OptionError(
                    f"option {option}: stream {name!r} is not read; expected some of {', '.join(names[:10]) or 'none yet'}"
                )
