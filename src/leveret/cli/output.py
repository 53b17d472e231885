"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from rich.console import JustifyMethod

# Longer tables are printed as plain columns, because rich takes too long to lay them out.
MAX_RICH_ROWS = 1000
_CLEAR_LINE = "\r\x1b[K"
# Spaces between two columns and at both edges on a terminal.
_GAP = 3
_EDGES = 2
# Cells that are left out if a table is too wide and a column has no others.
_SAYS_NOTHING = ("", "0", "0 B", "no")

# Any part of a decoded JSON reply.
Reply: TypeAlias = Any
Item: TypeAlias = dict[str, Reply]
Columns = Sequence[tuple[str, str] | tuple[str, str, Callable[[Reply], str]]]


def size(value: Reply) -> str:
    """Format a number of bytes; None is empty."""
    if value is None:
        return ""
    number = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def seconds(value: Reply) -> str:
    """Format a number of seconds; None is empty."""
    return "" if value is None else f"{value:.0f}s"


def moment(milliseconds: Reply) -> str:
    """Format a time in milliseconds since 1970; None and 0 are empty."""
    if not milliseconds:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def limit(value: Reply) -> str:
    """Format a limit; 0 is unlimited."""
    return str(value) if value else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def text(value: Reply) -> str:
    """Format a value on one line. Escapes control characters, which clients may put into names."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        shown = json.dumps(value, ensure_ascii=False) if value else ""
    else:
        shown = str(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


# Display words for words in field names.
_LABELS = {"octets": "bytes", "unsealed because": "not sealed because"}


def label(name: str) -> str:
    """Return the label of a field, such as "file bytes" for `file_octets`."""
    shown = name.replace("_", " ")
    for word, known in _LABELS.items():
        shown = shown.replace(word, known)
    return shown


def show_json(value: Reply) -> None:
    """Print a value as JSON."""
    shown = json.dumps(value, indent=2, ensure_ascii=False)
    # Non-ASCII characters occur only in strings, so string escapes are valid for them.
    click.echo("".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in shown))


def show_table(items: Sequence[Item], columns: Columns) -> None:
    """Print a table. Columns are (key, heading) or (key, heading, format); numbers are right-aligned."""
    rows = [
        [column[2](item.get(column[0])) if len(column) == 3 else text(item.get(column[0])) for column in columns]
        for item in items
    ]
    headings = [column[1] for column in columns]
    right = [
        bool(items)
        and all(isinstance(item.get(column[0]), int) and not isinstance(item.get(column[0]), bool) for item in items)
        for column in columns
    ]
    if sys.stdout.isatty() and len(rows) <= MAX_RICH_ROWS:
        _show_rich(headings, rows, right)
    else:
        _show_plain(headings, rows, right)


def _show_rich(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(cell_len, cells)) for cells in zip(headings, *rows, strict=True)]
    shown = _fitting(widths, rows, console.width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index in shown:
        justify: JustifyMethod = "right" if right[index] else "left"
        table.add_column(headings[index], justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    console.print(table)
    hidden = [heading for index, heading in enumerate(headings) if index not in shown]
    if hidden:
        click.echo(f"not shown, because all are empty, 0 or no: {', '.join(hidden)}")


def _fitting(widths: Sequence[int], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the columns to show: without those that say nothing, from the right, until the others fit on a line."""
    shown = list(range(len(widths)))
    for index in reversed(range(len(widths))):
        if sum(widths[column] + _GAP for column in shown) <= width + _GAP - _EDGES:
            break
        if rows and all(row[index] in _SAYS_NOTHING for row in rows):
            shown.remove(index)
    return shown


def _show_plain(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    widths = [max([len(heading), *(len(row[index]) for row in rows)]) for index, heading in enumerate(headings)]
    for row in [headings, *rows]:
        cells = [
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


class StatusLine:
    """Context manager for a line on standard error that replaces the one before. Shown only on a terminal.

    Args:
        wanted: Whether to show the line.
    """

    def __init__(self, wanted: bool) -> None:
        self._shown = wanted and sys.stderr.isatty()

    def show(self, line: str) -> None:
        """Show a line."""
        if self._shown:
            click.echo(f"{_CLEAR_LINE}{line}", nl=False, err=True)

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            click.echo(_CLEAR_LINE, nl=False, err=True)
