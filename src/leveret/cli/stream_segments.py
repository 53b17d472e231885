"""`leveret streams segments` and `leveret streams seal`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from leveret.cli.failed import Failed
from leveret.cli.output import octets, show_json
from leveret.cli.remote import Remote, current, in_vhost_option, remote_options

# Seconds between two questions of how far it is.
PAUSE: Final = 0.2


def moment(milliseconds: int | None) -> str:
    """A time for people."""
    if not milliseconds:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


SEGMENTS: Final = (
    ("first", "first offset"), ("last", "last offset"), ("count", "messages"), ("body_octets", "bodies", octets),
    ("octets", "file", octets), ("first_time", "from", moment), ("last_time", "to", moment), ("held_by", "read leases"),
    ("path", "path"),
)


@click.command()
@click.argument("name")
@in_vhost_option
@remote_options
def segments(name: str, vhost: str, **_: Any) -> None:
    """List the sealed segments of a stream, oldest first."""
    current().show_list("streams.segments", SEGMENTS, name=name, vhost=vhost)


def streams_of(broker: Remote, name: str, vhost: str) -> list[str]:
    """The stream, or all partitions of one."""
    found: list[str] = broker.call("streams.names", name=name, vhost=vhost)["streams"]
    return found


@click.command()
@click.argument("name")
@in_vhost_option
@remote_options
def seal(name: str, vhost: str, **_: Any) -> None:
    """Seal all messages of a stream, or of all partitions of one, that are there now, and wait until that is done."""
    broker = current()
    done = [_seal(broker, stream, vhost) for stream in streams_of(broker, name, vhost)]
    if broker.as_json:
        show_json(done)
        return
    for figures in done:
        click.echo(f"stream '{figures['name']}' is sealed up to offset {figures['sealed_until']},"
                   f" in {figures['segments']} segments")


def _seal(broker: Remote, name: str, vhost: str) -> dict[str, Any]:
    """The figures of the stream when it is sealed."""
    begun = broker.call("streams.seal", name=name, vhost=vhost)
    while True:
        figures: dict[str, Any] = broker.call("streams.show", name=name, vhost=vhost)
        if figures["sealed_until"] >= begun["until"] or not begun["messages"]:
            return figures
        if figures["sealing_problem"]:
            raise Failed(f"stream '{name}' is sealed up to offset {figures['sealed_until']}: {figures['sealing_problem']}")
        time.sleep(PAUSE)
