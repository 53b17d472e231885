"""`leveret log`."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import click
import msgspec

from leveret.cli.logs import line_of
from leveret.cli.output import Item, show_json
from leveret.cli.output import text as printable
from leveret.cli.remote import Remote, current, remote_options
from leveret.management.recent_log import LEVELS, MAX_RECORDS, LogEntry, LogFilter

# Seconds between two reads with --follow.
_INTERVAL: Final = 0.5


@click.command()
@click.option("--level", type=click.Choice(LEVELS), default=LEVELS[0], help="Only records of this level or a higher one.")
@click.option("--logger", default="", help="Only records of this logger, or of those below it, such as leveret.http.")
@click.option("--text", default="", help="Only records that contain this text, in upper or lower case.")
@click.option("--connection", type=int, help="Only records about the connection with this number.")
@click.option("--vhost", default="", help="Only records about this vhost.")
@click.option(
    "--count",
    type=click.IntRange(0, MAX_RECORDS),
    default=100,
    show_default=True,
    help="Maximum number of past records, the latest ones.",
)
@click.option("--follow", is_flag=True, help="Print further records as they are logged, until interrupted.")
@remote_options
def log(level: str, logger: str, text: str, connection: int | None, vhost: str, count: int, follow: bool) -> None:
    """Print the latest records of the broker's log."""
    broker = current()
    wanted = LogFilter(level=level, logger=logger, text=text, connection=connection, vhost=vhost)
    reader = _Reader(broker)
    past = deque((entry for entry in reader.read() if wanted.matches(entry)), count)
    if not follow and broker.as_json:
        show_json(msgspec.to_builtins(list(past)))
        return
    for entry in past:
        _show(broker, entry)
    with suppress(KeyboardInterrupt):
        while follow:
            time.sleep(_INTERVAL)
            for entry in reader.read():
                if wanted.matches(entry):
                    _show(broker, entry)
            if reader.dropped:
                click.echo(f"{reader.dropped} records dropped: too many were logged at a time", err=True)
                reader.dropped = 0


class _Reader:
    """Reader of a broker's records.

    Attributes:
        dropped: Number of records that were not kept, after the first read.
    """

    def __init__(self, broker: Remote) -> None:
        self._broker = broker
        self._last = 0
        self._is_first = True
        self.dropped = 0

    def read(self) -> Iterator[LogEntry]:
        """Yield the next records. Raises `Failed`."""
        more = True
        while more:
            found: Item = self._broker.call("log.read", after=self._last)
            for entry in msgspec.convert(found["records"], list[LogEntry]):
                self._go_to(entry.id, entry.id - self._last - 1)
                yield entry
            self._go_to(found["last"], found["last"] - self._last)
            more = found["more"]
        self._is_first = False

    def _go_to(self, number: int, missing: int) -> None:
        self._last = number
        if not self._is_first:
            self.dropped += missing


def _show(broker: Remote, entry: LogEntry) -> None:
    """Print a record as a line: as in the text log, or JSON with --json."""
    if broker.as_json:
        click.echo(json.dumps(msgspec.to_builtins(entry)))
        return
    shard = "" if entry.shard is msgspec.UNSET else f"shard {entry.shard}: "
    click.echo(line_of(entry.time, entry.level, entry.logger, shard + entry.message))
    for line in entry.exception.splitlines():
        click.echo(printable(line))
