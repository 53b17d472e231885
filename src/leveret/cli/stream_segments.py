"""`leveret streams segments` and `leveret streams seal`."""

from __future__ import annotations

import time
from typing import Final

import click

from leveret.cli.failed import Failed
from leveret.cli.output import Item, moment, show_json, size
from leveret.cli.remote import Remote, current, in_vhost_option, remote_options

# Seconds between polls of the broker.
POLL_INTERVAL: Final = 0.2


SEGMENTS: Final = (
    ("first", "first offset"),
    ("last", "last offset"),
    ("count", "messages"),
    ("body_octets", "bodies", size),
    ("octets", "file", size),
    ("first_time", "from", moment),
    ("last_time", "to", moment),
    ("held_by", "pins"),
    ("path", "path"),
)


@click.command()
@click.argument("name")
@in_vhost_option
@remote_options
def segments(name: str, vhost: str) -> None:
    """List the sealed segments of a stream, oldest first."""
    current().show_list("streams.segments", SEGMENTS, name=name, vhost=vhost)


def streams_of(broker: Remote, name: str, vhost: str) -> list[str]:
    """Return the name of the stream, or the names of all partitions of a super stream."""
    found: list[str] = broker.call("streams.names", name=name, vhost=vhost)["streams"]
    return found


@click.command()
@click.argument("name")
@in_vhost_option
@remote_options
def seal(name: str, vhost: str) -> None:
    """Seal all current messages and wait for completion. NAME is a stream, or a super stream for all its partitions."""
    broker = current()
    done = [_seal(broker, stream, vhost) for stream in streams_of(broker, name, vhost)]
    if broker.as_json:
        show_json(done)
        return
    for stream in done:
        click.echo(
            f"sealed stream '{stream['name']}' up to offset {stream['sealed_until']}, in {stream['segments']} segments"
        )


def _seal(broker: Remote, name: str, vhost: str) -> Item:
    """Seal a stream and wait for completion. Returns the details of the stream."""
    begun = broker.call("streams.seal", name=name, vhost=vhost)
    while True:
        stream: Item = broker.call("streams.show", name=name, vhost=vhost)
        if stream["sealed_until"] >= begun["until"] or not begun["messages"]:
            return stream
        if stream["sealing_problem"]:
            raise Failed(
                f"stream '{name}' is sealed only up to offset {stream['sealed_until']}: {stream['sealing_problem']}"
            )
        time.sleep(POLL_INTERVAL)
