"""What a query reads, and in which mode: by its options, and by what the broker says of the queue."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.security.patterns import Pattern
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OptionError, RequestRefused
from leveret.spark.options import BROWSE, LEASE, SPOOL, STREAM, Settings


@dataclass(frozen=True, slots=True)
class Target:
    """What is read.

    mode   STREAM, LEASE, SPOOL or BROWSE
    kind   the option that names it: queue, stream, superStream or streamPattern
    name   its value
    """

    mode: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


def find_target(settings: Settings, control: ControlClient, streaming: bool) -> Target:
    """`OptionError` where the options contradict each other, the broker or the type of the queue. `streaming` says that it
    is for `readStream`."""
    kind, name = settings.source()
    asked = settings.mode
    if kind != "queue":
        if asked not in (None, STREAM):
            raise OptionError(f"option mode: {asked} does not go with option {kind}; expected stream")
        if not control.is_leveret():
            raise OptionError(f"option {kind}: {control.endpoint} is another broker than Leveret; expected option queue, "
                              "which reads it by mode spool")
        target = Target(STREAM, kind, name)
        if kind == "stream":
            _check_stream(name, control)
        else:
            streams_of(target, control)
    elif asked == SPOOL or not control.is_leveret():
        if asked not in (None, SPOOL):
            raise OptionError(f"option mode: {asked} needs Leveret, and {control.endpoint} is another broker; expected "
                              "spool")
        target = Target(SPOOL, kind, name)
    else:
        target = Target(_mode_of_queue(asked, name, control, streaming), kind, name)
    if target.mode == SPOOL and not streaming:
        raise OptionError("option mode: spool takes messages away, which a batch read cannot; expected readStream")
    settings.check_mode(target.mode)
    return target


def _mode_of_queue(asked: str | None, name: str, control: ControlClient, streaming: bool) -> str:
    type = _type_of("queue", name, control)
    if type == STREAM:
        fitting = (STREAM,)
    else:
        fitting = (LEASE,) if streaming else (BROWSE,)
    if asked is None:
        return fitting[0]
    if asked not in fitting:
        how = "readStream" if streaming else "read"
        raise OptionError(f"option mode: {asked} is no way to read queue {name!r} by {how}, which is a {type} queue; "
                          f"expected {' or '.join(fitting)}")
    return asked


def _check_stream(name: str, control: ControlClient) -> None:
    type = _type_of("stream", name, control)
    if type != STREAM:
        raise OptionError(f"option stream: {name!r} is a {type} queue and no stream; expected option queue")


def _type_of(option: str, name: str, control: ControlClient) -> str:
    try:
        return str(control.request("queue.describe", queue=name)["type"])
    except RequestRefused as error:
        raise OptionError(f"option {option}: {error.message}") from None


def streams_of(target: Target, control: ControlClient) -> dict[str, int]:
    """The streams that a target of mode STREAM stands for now, each with its number: that of the partition of a super
    stream, else 0. `OptionError` where there is none, unless they are found by a pattern."""
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
