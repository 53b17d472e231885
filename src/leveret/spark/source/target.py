"""The target and the mode of a read, from its options and the type of the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from leveret.security.patterns import Pattern
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OptionError, RequestRefused
from leveret.spark.options import BROWSE, LEASE, SPOOL, STREAM, Settings


@dataclass(frozen=True, slots=True)
class Target:
    """The queue or streams to read.

    Attributes:
        mode: STREAM, LEASE, SPOOL or BROWSE.
        kind: The option that selects it: queue, stream, superStream, streams or streamPattern.
        name: The option's value.
        partitions: Numbers of the partitions of a super stream, None for all.
        parts: The streams and super streams of the option streams.
    """

    mode: str
    kind: str
    name: str
    partitions: tuple[int, ...] | None = None
    parts: tuple[Target, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


class Member(NamedTuple):
    """A stream among those that are read.

    Attributes:
        partition: Its number in the super stream, otherwise 0.
        super_stream: The super stream that it belongs to, None if it is read as a stream of its own.
        listed: Whether the options name this stream or partition, instead of its super stream or a pattern.
    """

    partition: int
    super_stream: str | None
    listed: bool

    def starts_with(self, read: Iterable[str], members: Mapping[str, Member]) -> bool:
        """Return whether it is read from `startingOffsets` by a query that has read other streams so far.

        That holds for what was added to the options. Streams that match a pattern, and partitions of a super stream of
        which others have been read, were declared later, and begin with their first message.
        """
        if self.listed or self.super_stream is None:
            return self.listed
        return not any(name in members and members[name].super_stream == self.super_stream for name in read)


def find_target(settings: Settings, control: ControlClient, streaming: bool) -> Target:
    """Return the target of a read.

    Args:
        settings: The options.
        control: Client of the broker.
        streaming: Whether this is for `readStream`.

    Raises:
        OptionError: The options conflict with each other, with the broker or with the type of the queue.
    """
    kind, name = settings.source()
    requested = settings.mode
    if kind == "queue" and requested == SPOOL:
        target = Target(SPOOL, kind, name)
    elif not control.is_leveret():
        target = _at_another_broker(settings, kind, name, control)
    elif kind != "queue":
        if requested not in (None, STREAM):
            raise OptionError(f"option mode: {requested} is not valid with option {kind}; expected stream")
        target = _streams_target(settings, kind, name, control)
    else:
        target = Target(_mode_of_queue(requested, name, control, streaming), kind, name)
    if target.mode == SPOOL and not streaming:
        raise OptionError("option mode: spool consumes messages, which a batch read cannot; use readStream")
    settings.check_mode(target.mode)
    return target


def _streams_target(settings: Settings, kind: str, name: str, control: ControlClient) -> Target:
    """Return a target of mode STREAM, whose streams exist."""
    if kind == "streams":
        target = Target(STREAM, kind, name, parts=tuple(_part(part, control) for part in settings.streams or ()))
    else:
        target = Target(STREAM, kind, name)
    if kind == "stream":
        _check_stream(kind, name, control)
    if settings.partitions is not None:
        target = _choose_partitions(target, settings.partitions)
    streams_of(target, control)
    return target


def _part(name: str, control: ControlClient) -> Target:
    """Return the target of a name in option streams."""
    try:
        control.request("superstream.describe", name=name)
    except RequestRefused:
        _check_stream("streams", name, control)
        return Target(STREAM, "stream", name)
    try:
        ambiguous = _queue_type("streams", name, control) == STREAM
    except OptionError:
        ambiguous = False
    if ambiguous:
        raise OptionError(f"option streams: {name!r} is a super stream and a stream; use option superStream or stream")
    return Target(STREAM, "superStream", name)


def _choose_partitions(target: Target, chosen: tuple[int, ...] | dict[str, tuple[int, ...]]) -> Target:
    """Return a target that selects only these partitions of its super streams. Raises OptionError if it has none."""
    supers = [part.name for part in target.parts or (target,) if part.kind == "superStream"]
    if not isinstance(chosen, dict):
        if target.kind != "superStream":
            raise OptionError(
                f"option partitions: numbers are not valid with option {target.kind}; expected option superStream, or "
                'lists by super stream in JSON such as {"orders": [0, 2]} with option streams'
            )
        chosen = {target.name: chosen}
    for name in chosen:
        if name not in supers:
            raise OptionError(
                f"option partitions: {name!r} is not a super stream that is read; expected some of "
                f"{', '.join(supers) or 'none'}"
            )
    parts = tuple(replace(part, partitions=chosen.get(part.name)) for part in target.parts)
    return replace(target, partitions=chosen.get(target.name), parts=parts)


def _at_another_broker(settings: Settings, kind: str, name: str, control: ControlClient) -> Target:
    """Return the target at a broker that is not Leveret: a queue, or a stream of RabbitMQ, in mode spool."""
    if kind not in ("queue", "stream"):
        raise OptionError(
            f"option {kind}: needs Leveret, and {control.endpoint} is another broker; use option queue or stream, which "
            "read in mode spool"
        )
    if settings.mode not in (None, SPOOL):
        raise OptionError(
            f"option mode: {settings.mode} needs Leveret, and {control.endpoint} is another broker; expected spool"
        )
    if kind == "stream" and settings.protocol != "0-9-1":
        raise OptionError(
            f"option protocol: {settings.protocol} reads streams of Leveret only, and {control.endpoint} is another "
            "broker; expected 0-9-1"
        )
    return Target(SPOOL, kind, name)


def find_streams(settings: Settings, control: ControlClient, alternative: str) -> Target:
    """Return the target of a batch read of streams.

    Args:
        settings: The options.
        control: Client of the broker.
        alternative: What to use for a queue, for the error.

    Raises:
        OptionError: The options conflict, or select a queue.
    """
    target = find_target(settings, control, False)
    if target.mode != STREAM:
        raise OptionError(f"option {target.kind}: {target.name!r} is not a stream; use {alternative}")
    return target


def _mode_of_queue(requested: str | None, name: str, control: ControlClient, streaming: bool) -> str:
    type = _queue_type("queue", name, control)
    if type == STREAM:
        allowed = (STREAM,)
    else:
        allowed = (LEASE,) if streaming else (BROWSE,)
    if requested is None:
        return allowed[0]
    if requested not in allowed:
        how = "readStream" if streaming else "read"
        raise OptionError(
            f"option mode: {how} of {type} queue {name!r} does not support mode {requested}; expected "
            f"{' or '.join(allowed)}"
        )
    return requested


def _check_stream(option: str, name: str, control: ControlClient) -> None:
    type = _queue_type(option, name, control)
    if type != STREAM:
        raise OptionError(f"option {option}: {name!r} is a {type} queue, not a stream; use option queue")


def _queue_type(option: str, name: str, control: ControlClient) -> str:
    try:
        return str(control.request("queue.describe", queue=name)["type"])
    except RequestRefused as error:
        raise OptionError(f"option {option}: {error.message}") from None


def streams_of(target: Target, control: ControlClient) -> dict[str, Member]:
    """Return the streams that a target of mode STREAM selects now.

    Raises:
        OptionError: There are no streams (not raised for a pattern), or a stream is selected twice.
    """
    found: dict[str, Member] = {}
    for part in target.parts or (target,):
        for name, member in _members(part, control):
            if name in found:
                raise OptionError(f"option {target.kind}: stream {name!r} is selected twice")
            found[name] = member
    return found


def _members(target: Target, control: ControlClient) -> list[tuple[str, Member]]:
    try:
        if target.kind == "superStream":
            names = [str(name) for name in control.request("superstream.describe", name=target.name)["partitions"]]
            return _partitions(target, names)
        if target.kind == "streamPattern":
            found = control.request("stream.match", pattern=target.name)["streams"]
            pattern = Pattern(target.name, whole=True)
            return [(str(name), Member(0, None, False)) for name in sorted(found) if pattern.matches(name)]
    except RequestRefused as error:
        raise OptionError(f"option {target.kind}: {error.message}") from None
    return [(target.name, Member(0, None, True))]


def _partitions(target: Target, names: list[str]) -> list[tuple[str, Member]]:
    """Return the selected partitions of a super stream with these ones."""
    if target.partitions is None:
        return [(name, Member(number, target.name, False)) for number, name in enumerate(names)]
    if target.partitions[-1] >= len(names):
        raise OptionError(
            f"option partitions: super stream {target.name!r} has partitions 0 to {len(names) - 1}, but not "
            f"{target.partitions[-1]}"
        )
    return [(names[number], Member(number, target.name, True)) for number in target.partitions]
