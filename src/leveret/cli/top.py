"""`leveret top`."""

from __future__ import annotations

import datetime
import os
import re
import secrets
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from leveret.broker.statistics import QUEUE_COUNTERS, QUEUE_GAUGES
from leveret.cli.failed import Failed
from leveret.cli.interrupts import Interrupts, interrupts
from leveret.cli.output import Columns, Item, Reply, show_json, show_table, size, text
from leveret.cli.remote import Remote, current, remote_options

if TYPE_CHECKING:
    from rich.console import RenderableType

# Seconds for the broker to answer; keys wait meanwhile.
_TIMEOUT: Final = 5.0
# Seconds between two looks: the minimum, and the maximum, after which the broker forgets its reader.
_MIN_INTERVAL: Final = 0.1
_MAX_INTERVAL: Final = 50.0
# The counters of a vhost that are shown as rates, by their places in its sample.
_VHOST_RATES: Final = {"publish": 0, "confirm": 4}
# The same for a queue, by the names of their columns, and for a connection.
_QUEUE_RATES: Final = {
    "in": QUEUE_COUNTERS.index("publish"),
    "out": QUEUE_COUNTERS.index("deliver_get"),
    "ack": QUEUE_COUNTERS.index("ack"),
}
_CONNECTION_RATES: Final = {"received": 0, "sent": 2}
_CHANNELS: Final = 4
_GAUGES: Final = ("ready", "unacked", "consumers", "ready_bytes")
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
_NEXT_PAGE: Final = ("n", "\x1b[6~")
_PREVIOUS_PAGE: Final = ("b", "\x1b[5~")


def _rate(value: Reply) -> str:
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"


def _size_rate(value: Reply) -> str:
    return f"{size(value)}/s"


_VIEWS: Final[dict[str, Columns]] = {
    "queues": (
        ("vhost", "vhost"),
        ("name", "name"),
        ("ready", "ready"),
        ("unacked", "unacked"),
        ("in", "in/s", _rate),
        ("out", "out/s", _rate),
        ("ack", "ack/s", _rate),
        ("consumers", "consumers"),
        ("ready_bytes", "size", size),
    ),
    "connections": (
        ("number", "number"),
        ("name", "name"),
        ("user", "user"),
        ("vhost", "vhost"),
        ("protocol", "protocol"),
        ("state", "state"),
        ("channels", "channels"),
        ("received", "received", _size_rate),
        ("sent", "sent", _size_rate),
    ),
}
_DEFAULT_SORT: Final = {"queues": "ready", "connections": "received"}
# Columns that are sorted upwards.
_TEXTS: Final = ("vhost", "name", "number", "user", "protocol", "state")


class _Objects:
    """Rows of one kind with their counters.

    Args:
        rates: The columns of rates, and the places of their counters in a sample.
        describe: Returns the other columns of a sample.
    """

    def __init__(self, rates: Mapping[str, int], describe: Callable[[Sequence[int]], Item]) -> None:
        self.rows: dict[Reply, Item] = {}
        self.totals = dict.fromkeys(rates, 0.0)
        self._rates = rates
        self._describe = describe
        self._counters: dict[Reply, Sequence[int]] = {}
        self._moving: set[Reply] = set()

    def clear(self) -> None:
        """Forget all rows."""
        self.rows.clear()
        self._counters.clear()
        self._moving.clear()

    def begin(self) -> None:
        """Begin a look: what is not sampled in it has not changed."""
        self.totals = dict.fromkeys(self._rates, 0.0)
        for key in self._moving:
            self.rows[key].update(self.totals)
        self._moving.clear()

    def define(self, key: Reply, row: Item) -> None:
        """Add a row, or change its columns that are not samples."""
        self.rows.setdefault(key, {**dict.fromkeys(self._rates, 0.0)}).update(row)

    def sample(self, key: Reply, sample: Sequence[int], elapsed: float) -> None:
        """Take the sample of a row. `elapsed` is in seconds since the last look, 0 for none."""
        row = self.rows[key]
        row.update(self._describe(sample))
        before = self._counters.get(key)
        self._counters[key] = sample
        if not elapsed:
            return
        self._moving.add(key)
        for name, place in self._rates.items():
            value = max(sample[place] - (0 if before is None else before[place]), 0) / elapsed
            row[name] = value
            self.totals[name] += value

    def remove(self, key: Reply) -> None:
        """Remove a row."""
        self.rows.pop(key, None)
        self._counters.pop(key, None)
        self._moving.discard(key)


class _Looks:
    """A copy of the broker's queues, connections and counters, of which the broker sends what has changed.

    Attributes:
        node: The state of the broker's process.
    """

    def __init__(self, broker: Remote) -> None:
        self._broker = broker
        self._reader = ""
        self._at = 0.0
        self.node: Item = {}
        self._vhosts = _Objects(_VHOST_RATES, lambda sample: {})
        gauges = {name: len(QUEUE_COUNTERS) + QUEUE_GAUGES.index(name) for name in _GAUGES}
        self._queues = _Objects(_QUEUE_RATES, lambda sample: {name: sample[place] for name, place in gauges.items()})
        self._connections = _Objects(_CONNECTION_RATES, lambda sample: {"channels": sample[_CHANNELS]})
        self._kinds = {"vhost": self._vhosts, "queue": self._queues, "connection": self._connections}

    def look(self) -> None:
        """Ask the broker for changes. Raises `Failed`; the next look gets everything again then."""
        reader = self._reader or f"top-{secrets.token_hex(8)}"
        self._reader = ""
        changes = self._broker.call("statistics.changes", reader=reader)
        self._reader = reader
        now = time.monotonic()
        is_first = changes[0][2]
        elapsed = 0.0 if is_first else now - self._at
        self._at = now
        for objects in self._kinds.values():
            if is_first:
                objects.clear()
            objects.begin()
        for change in changes:
            self._apply(*change, elapsed=elapsed)

    def _apply(self, kind: str, key: Reply, value: Reply, *, elapsed: float) -> None:
        if kind == "node":
            self.node = value
            return
        name, _, part = kind.partition(".")
        objects = self._kinds.get(name)
        if objects is None:
            return
        if part == "gone":
            objects.remove(key)
        elif part == "sample":
            if objects is self._vhosts:
                objects.define(key, {})
            objects.sample(key, value, elapsed)
        elif not part:
            objects.define(key, value)

    def rows(self, view: str, sort: str, reverse: bool) -> list[Item]:
        """Return the rows of a view in order: names upwards, numbers downwards, unless reversed."""
        objects = self._queues if view == "queues" else self._connections
        rows = sorted(objects.rows.values(), key=lambda row: str(row["name"]))
        return sorted(rows, key=lambda row: row[sort], reverse=(sort not in _TEXTS) != reverse)

    def totals(self) -> Item:
        """Return the state of the broker and its rates per second."""
        process, log = self.node["process"], self.node["log"]
        return {
            "version": process["version"],
            "uptime": process["uptime"],
            "engine": process["engine"],
            "store": log["state"],
            "alarm": self.node["alarm"],
            "connections": len(self._connections.rows),
            "queues": len(self._queues.rows),
            "memory": process["memory"],
            "memory_limit": process["memory_limit"],
            "ready": sum(row["ready"] for row in self._queues.rows.values()),
            "unacked": sum(row["unacked"] for row in self._queues.rows.values()),
            "publish_rate": self._vhosts.totals["publish"],
            "deliver_rate": self._queues.totals["out"],
            "ack_rate": self._queues.totals["ack"],
            "confirm_rate": self._vhosts.totals["confirm"],
        }


def _head(totals: Item) -> list[str]:
    limit = f" of {size(totals['memory_limit'])}" if totals["memory_limit"] else ""
    lines = [
        f"Leveret {totals['version']}  up {datetime.timedelta(seconds=int(totals['uptime']))}  "
        f"store {totals['engine']} {totals['store']}  connections {totals['connections']}  queues {totals['queues']}  "
        f"memory {size(totals['memory'])}{limit}",
        f"publish {_rate(totals['publish_rate'])}/s  confirm {_rate(totals['confirm_rate'])}/s  "
        f"deliver {_rate(totals['deliver_rate'])}/s  ack {_rate(totals['ack_rate'])}/s  "
        f"ready {totals['ready']}  unacked {totals['unacked']}",
    ]
    if totals["alarm"]:
        lines.append(f"publishers are blocked: {totals['alarm']}")
    return [text(line) for line in lines]


class _Screen:
    """The view on the terminal, as keys have changed it.

    Attributes:
        ended: Whether the user has quit.
        paused: Whether no further looks are taken.
    """

    def __init__(self, looks: _Looks, view: str, sort: str, reverse: bool) -> None:
        self._looks = looks
        self._view = view
        self._sorts = _DEFAULT_SORT | {view: sort}
        self._reverse = reverse
        self._page = 0
        self._trouble = ""
        self.ended = False
        self.paused = False

    def press(self, key: str) -> None:
        """React to a key."""
        names = [column[0] for column in _VIEWS[self._view]]
        if key == "q":
            self.ended = True
        elif key == "p":
            self.paused = not self.paused
        elif key == "s":
            self._sorts[self._view] = names[(names.index(self._sorts[self._view]) + 1) % len(names)]
        elif key == "r":
            self._reverse = not self._reverse
        elif key == "v":
            views = list(_VIEWS)
            self._view = views[(views.index(self._view) + 1) % len(views)]
            self._page = 0
        elif key in _NEXT_PAGE:
            self._page += 1
        elif key in _PREVIOUS_PAGE:
            self._page = max(self._page - 1, 0)

    def look(self) -> None:
        """Take a look, and note if the broker does not answer."""
        try:
            self._looks.look()
            self._trouble = ""
        except Failed as failed:
            self._trouble = f"no answer, trying again: {failed.message.splitlines()[0]}"

    def draw(self, height: int) -> RenderableType:
        """Return the page for a terminal with this number of lines."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        view, sort = self._view, self._sorts[self._view]
        rows = self._looks.rows(view, sort, self._reverse)
        head = _head(self._looks.totals())
        if self._trouble:
            head.append(text(self._trouble))
        # The other lines are the headings, and the line with the keys.
        length = max(height - len(head) - 2, 1)
        pages = max(-(-len(rows) // length), 1)
        self._page = min(self._page, pages - 1)
        table = Table(box=None, pad_edge=False, expand=True)
        for column in _VIEWS[view]:
            mark = "*" if column[0] == sort else ""
            is_text = column[0] in _TEXTS
            table.add_column(
                column[1] + mark,
                justify="left" if is_text else "right",
                no_wrap=True,
                overflow="ellipsis",
                ratio=1 if column[0] == "name" else None,
            )
        for row in rows[self._page * length : (self._page + 1) * length]:
            table.add_row(*(Text(cell) for cell in _cells(row, _VIEWS[view])))
        state = " (paused)" if self.paused else ""
        foot = f"{view}, page {self._page + 1} of {pages}{state}: q quit, s sort, r reverse, v view, p pause, n/b page"
        lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in head]
        return Group(*lines, table, Text(foot, no_wrap=True, overflow="ellipsis", style="reverse"))


def _cells(row: Item, columns: Columns) -> list[str]:
    return [column[2](row[column[0]]) if len(column) == 3 else text(row[column[0]]) for column in columns]


@contextmanager
def _keys() -> Iterator[int]:
    """Read keys without waiting for the end of a line. Yields the descriptor; restores the terminal at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # keeps keys that were pressed before
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _show_live(screen: _Screen, interval: float, waits: Interrupts) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with suppress(KeyboardInterrupt), _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while not screen.ended:
            if not screen.paused:
                waits.run(screen.look)
            next_look = time.monotonic() + interval
            while not screen.ended:
                live.update(screen.draw(console.size.height), refresh=True)
                if not waits.wait(max(next_look - time.monotonic(), 0), keys):
                    break
                pressed = os.read(keys, 256)
                if not pressed:
                    return  # the terminal is gone
                for key in _KEY.findall(pressed.decode(errors="replace")):
                    screen.press(key)


def _show_once(looks: _Looks, view: str, sort: str, reverse: bool, as_json: bool) -> None:
    totals, rows, columns = looks.totals(), looks.rows(view, sort, reverse), _VIEWS[view]
    if as_json:
        show_json({**totals, view: [{column[0]: row[column[0]] for column in columns} for row in rows]})
        return
    for line in _head(totals):
        click.echo(line)
    show_table(rows, columns)


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(_MIN_INTERVAL, _MAX_INTERVAL),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two updates.",
)
@click.option("--once", is_flag=True, help="Print one view with the rates of one interval, and exit.")
@click.option("--view", type=click.Choice(tuple(_VIEWS)), default="queues", show_default=True, help="The view.")
@click.option("--sort", metavar="COLUMN", help="Sort by this column; by default, ready or received.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@remote_options
def top(interval: float, once: bool, view: str, sort: str | None, reverse: bool) -> None:
    """Watch queues and connections with their rates.

    Keys: q quits, s sorts by the next column, r reverses the order, v switches between queues and connections, p pauses,
    n and b show the next page and the one before. Prints one view if the output is not a terminal.
    """
    names = [column[0] for column in _VIEWS[view]]
    sort = _DEFAULT_SORT[view] if sort is None else sort
    if sort not in names:
        raise click.BadParameter(f"{sort!r}: expected one of {', '.join(names)}", param_hint="--sort")
    broker = current(_TIMEOUT)
    looks = _Looks(broker)
    with interrupts() as waits:
        waits.run(looks.look)
        if once or broker.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            waits.wait(interval)
            waits.run(looks.look)
            _show_once(looks, view, sort, reverse, broker.as_json)
            return
        _show_live(_Screen(looks, view, sort, reverse), interval, waits)
