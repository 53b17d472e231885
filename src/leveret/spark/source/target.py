"""The target and the mode of a read, from its options and the type of the queue."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.security.patterns import Pattern
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OptionError, RequestRefused
from leveret.spark.options import BROWSE, LEASE, SPOOL, STREAM, Settings


@dataclass(frozen=True, slots=True)
class Target:
    """The queue or streams to read.

    Attributes:
        mode: STREAM, LEASE, SPOOL or BROWSE.
        kind: The option that selects it: queue, stream, superStream or streamPattern.
        name: The option's value.
    """

    mode: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


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
    if kind != "queue":
        if requested not in (None, STREAM):
            raise OptionError(f"option mode: {requested} is not valid with option {kind}; expected stream")
        if not control.is_leveret():
            raise OptionError(
                f"option {kind}: needs Leveret, and {control.endpoint} is another broker; use option queue, "
                "which reads in mode spool"
            )
        target = Target(STREAM, kind, name)
        if kind == "stream":
            _check_stream(name, control)
        else:
            streams_of(target, control)
    elif requested == SPOOL or not control.is_leveret():
        if requested not in (None, SPOOL):
            raise OptionError(
                f"option mode: {requested} needs Leveret, and {control.endpoint} is another broker; expected spool"
            )
        target = Target(SPOOL, kind, name)
    else:
        target = Target(_mode_of_queue(requested, name, control, streaming), kind, name)
    if target.mode == SPOOL and not streaming:
        raise OptionError("option mode: spool consumes messages, which a batch read cannot; use readStream")
    settings.check_mode(target.mode)
    return target


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


def _check_stream(name: str, control: ControlClient) -> None:
    type = _queue_type("stream", name, control)
    if type != STREAM:
        raise OptionError(f"option stream: {name!r} is a {type} queue, not a stream; use option queue")


def _queue_type(option: str, name: str, control: ControlClient) -> str:
    try:
        return str(control.request("queue.describe", queue=name)["type"])
    except RequestRefused as error:
        raise OptionError(f"option {option}: {error.message}") from None


def streams_of(target: Target, control: ControlClient) -> dict[str, int]:
    """Return the streams that a target of mode STREAM selects now, with their partition numbers (0 if not partitioned).

    Raises:
        OptionError: There are no streams; not raised for a pattern.
    """
    try:
        if target.kind == "superStream":
            found = control.request("superstream.describe", name=target.name)["partitions"]
            return {str(name): number for number, name in enumerate(found)}
        if target.kind == "streamPattern":
            found = control.request("stream.match", pattern=target.name)["streams"]
            pattern = Pattern(target.name, whole=True)
            return {str(name): 0 for name in sorted(found) if pattern.matches(name)}
    except RequestRefused as error:
        raise OptionError(f"option {target.kind}: {error.message}") from None
    return {target.name: 0}
