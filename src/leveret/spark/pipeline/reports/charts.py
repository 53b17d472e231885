"""Charts as inline SVG for HTML pages, without scripts and external resources.

Colours are classes of the page's style sheet (s0, s1, ... for series), so that charts follow light and dark mode. The exact
value of a point or bar is in its `<title>`, which browsers show as a tooltip.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from html import escape

SERIES = 6

Point = tuple[float, float | None]
Show = Callable[[float], str]

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 26


def number(value: float) -> str:
    """Format a count or a rate: 0.25, 12, 3.4k, 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def byte_size(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def milliseconds(value: float) -> str:
    if value < 1000:
        return f"{value:.3g} ms"
    return f"{value / 1000:.3g} s" if value < 120_000 else f"{value / 60_000:.3g} min"


def duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def ticks(highest: float, show: Show = number, count: int = 4) -> list[float]:
    """Return axis values from 0 up to at least the highest value, round in the unit that is shown."""
    if show is byte_size and highest > 1024:
        unit = 1024.0 ** math.floor(math.log(highest, 1024))
        return [mark * unit for mark in ticks(highest / unit, number, count)]
    if show is milliseconds and highest > 120_000:
        return [mark * 60_000 for mark in ticks(highest / 60_000, number, count)]
    if highest <= 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    raw = highest / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def line_chart(
    series: Sequence[tuple[str, Sequence[Point]]],
    show: Show = number,
    width: int = 860,
    height: int = 230,
    area: bool = False,
    label: str = "",
) -> str:
    """Draw lines over time. Points are (seconds of Unix time, value or None for a gap); all series share their times."""
    times = sorted({at for _, points in series for at, _ in points})
    values = [value for _, points in series for _, value in points if value is not None]
    if not times or not values:
        return '<p class="none">Nothing to show yet.</p>'
    marks = ticks(max(values), show)
    first, last = times[0], times[-1]
    span = (last - first) or 1.0
    inner_width, inner_height = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + ((at - first) / span * inner_width if last > first else inner_width / 2)

    def y(value: float) -> float:
        return _TOP + inner_height * (1 - value / marks[-1])

    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">']
    parts += [_grid_line(y(mark), show(mark), width) for mark in marks]
    for at in _time_ticks(first, last, 4 if width > 600 else 2):
        anchor = "start" if at == first and last > first else "end" if at == last and last > first else "middle"
        parts.append(f'<text class="tick" x="{x(at):.1f}" y="{height - 8}" text-anchor="{anchor}">{clock(at, span)}</text>')
    for index, (_, points) in enumerate(series):
        kind = f"s{index % SERIES}"
        for run in _runs(points):
            path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            if area:
                parts.append(
                    f'<polygon class="area {kind}" points="{x(run[0][0]):.1f},{y(0):.1f} {path} '
                    f'{x(run[-1][0]):.1f},{y(0):.1f}"/>'
                )
            parts.append(f'<polyline class="line {kind}" points="{path}"/>')
    for index, (name, points) in enumerate(series):
        for at, value in points:
            if value is not None:
                parts.append(
                    f'<circle class="dot s{index % SERIES}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="5">'
                    f"<title>{escape(name)}: {escape(show(value))}, {clock(at, 0)}</title></circle>"
                )
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    keys = "".join(
        f'<span class="key"><i class="s{index % SERIES}"></i>{escape(name)}</span>' for index, name in enumerate(names)
    )
    return f'<div class="legend">{keys}</div>'


def bar_chart(
    bars: Sequence[tuple[str, float]], show: Show = number, width: int = 420, kind: int = 0, label: str = ""
) -> str:
    """Draw horizontal bars, in the given order."""
    if not bars:
        return '<p class="none">Nothing to show yet.</p>'
    row, text_width, value_width = 26, min(190, 12 + 7 * max(len(name[:26]) for name, _ in bars)), 74
    highest = max(value for _, value in bars) or 1.0
    room = width - text_width - value_width
    parts = [f'<svg class="chart" viewBox="0 0 {width} {row * len(bars) + 6}" role="img" aria-label="{escape(label)}">']
    for index, (name, value) in enumerate(bars):
        top = index * row + 4
        length = max(value / highest * room, 2.0)
        shown = name if len(name) <= 26 else name[:25] + "…"
        text = escape(show(value))
        parts.append(
            f"<g><title>{escape(name)}: {text}</title>"
            f'<text class="name" x="{text_width - 8}" y="{top + 15}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="bar s{kind % SERIES}" x="{text_width}" y="{top + 2}" width="{length:.1f}" height="17" rx="3"/>'
            f'<text class="value" x="{text_width + length + 7:.1f}" y="{top + 15}">{text}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def column_chart(
    columns: Sequence[tuple[str, float]],
    show: Show = number,
    width: int = 420,
    height: int = 200,
    kind: int = 0,
    label: str = "",
) -> str:
    """Draw vertical bars for ordered classes, such as ages."""
    if not columns:
        return '<p class="none">Nothing to show yet.</p>'
    marks = ticks(max(value for _, value in columns), show)
    inner_width, inner_height = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    room = inner_width / len(columns)
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">']
    parts += [_grid_line(_TOP + inner_height * (1 - mark / marks[-1]), show(mark), width) for mark in marks]
    for index, (name, value) in enumerate(columns):
        tall = inner_height * value / marks[-1]
        left = _LEFT + room * index + room * 0.14
        parts.append(
            f"<g><title>{escape(name)}: {escape(show(value))}</title>"
            f'<rect class="bar s{kind % SERIES}" x="{left:.1f}" y="{_TOP + inner_height - tall:.1f}" '
            f'width="{room * 0.72:.1f}" height="{tall:.1f}" rx="3"/>'
            f'<text class="tick" x="{left + room * 0.36:.1f}" y="{height - 8}" text-anchor="middle">{escape(name)}</text>'
            "</g>"
        )
    return "".join([*parts, "</svg>"])


def _grid_line(at: float, text: str, width: int) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Split points into runs without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _time_ticks(first: float, last: float, count: int) -> list[float]:
    return [first] if last <= first else [first + (last - first) * index / count for index in range(count + 1)]


def clock(at: float, span: float) -> str:
    form = "%H:%M:%S" if span < 3600 else "%H:%M" if span < 2 * 86400 else "%d %b %H:%M"
    return time.strftime(form, time.gmtime(at))
