"""The HTML page of reports: a single file without external resources, for light and dark mode."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leveret import __version__
from leveret._build import installation
from leveret.spark.pipeline.errors import PipelineError


@dataclass
class Panel:
    """A part of the page: a heading, a text, and a chart or a table. `chart` must be trusted SVG."""

    title: str
    text: str = ""
    chart: str = ""
    legend: str = ""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    wide: bool = False


@dataclass
class Page:
    title: str
    subtitle: str
    tiles: list[tuple[str, str, str]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ page.title }}</title>
<style>
:root { color-scheme: light dark; --ground: #f6f5f1; --card: #ffffff; --ink: #23262b; --soft: #6a7079; --rule: #e3e1d9;
  --c0: #2f6f9f; --c1: #d2782e; --c2: #3d8b5f; --c3: #b5484b; --c4: #7a61a8; --c5: #8a7f3a; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181c; --card: #1f2227; --ink: #e6e6e3; --soft: #9aa0a8;
  --rule: #33373e; --c0: #6aa9d6; --c1: #e89a5b; --c2: #6fbf92; --c3: #e0797b; --c4: #a792d4; --c5: #c2b565; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 32px 20px 48px; }
header h1 { margin: 0; font-size: 26px; letter-spacing: -0.01em; }
header p { margin: 4px 0 0; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0 16px; }
.tile, .panel { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; } .tile small { display: block; color: var(--soft); font-size: 12px; }
.panels { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.panel { padding: 16px 18px; min-width: 0; } .wide { grid-column: 1 / -1; }
.panel h2 { margin: 0 0 2px; font-size: 16px; } .panel p { margin: 0 0 8px; color: var(--soft); font-size: 13px; }
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.name, .value { fill: var(--ink); font-size: 13px; } .value { fill: var(--soft); font-variant-numeric: tabular-nums; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.area { opacity: 0.14; stroke: none; }
.dot { opacity: 0; } .dot:hover { opacity: 1; }
{% for n in range(6) %}.line.s{{ n }} { stroke: var(--c{{ n }}); } .area.s{{ n }}, .bar.s{{ n }}, .dot.s{{ n }} {
  fill: var(--c{{ n }}); } i.s{{ n }} { background: var(--c{{ n }}); }
{% endfor %}
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 6px; color: var(--soft); font-size: 13px; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
tr:last-child td { border-bottom: none; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.none { color: var(--soft); } footer { margin-top: 24px; color: var(--soft); font-size: 13px; }
@media (max-width: 720px) { .panels { grid-template-columns: minmax(0, 1fr); } }
</style>
</head>
<body><main>
<header><h1>{{ page.title }}</h1><p>{{ page.subtitle }}</p></header>
<section class="tiles">
{% for name, value, note in page.tiles %}<div class="tile"><span>{{ name }}</span><b>{{ value }}</b>
<small>{{ note }}</small></div>{% endfor %}
</section>
<section class="panels">
{% for panel in page.panels %}<article class="panel{{ ' wide' if panel.wide }}"><h2>{{ panel.title }}</h2>
{% if panel.text %}<p>{{ panel.text }}</p>{% endif %}{{ panel.chart|safe }}{{ panel.legend|safe }}
{% if panel.rows %}<div class="scroll"><table><thead><tr>{% for name in panel.headings %}
<th class="{{ 'n' if numeric(panel, loop.index0) }}">{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in panel.rows %}<tr>{% for cell in row %}<td class="{{ 'n' if numeric(panel, loop.index0) }}">{{ cell }}</td>
{% endfor %}</tr>{% endfor %}</tbody></table></div>{% endif %}
</article>{% endfor %}
</section>
<footer>Generated {{ generated }} by Leveret {{ version }}. All times are UTC.</footer>
</main></body></html>
"""


def render(page: Page) -> str:
    """Render the page as HTML. PipelineError if Jinja2 is missing."""
    try:
        from jinja2 import Environment
    except ImportError:
        raise PipelineError(f"a report needs Jinja2: {installation('pipeline')}") from None
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.globals["numeric"] = _numeric
    return environment.from_string(_TEMPLATE).render(
        page=page, version=__version__, generated=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    )


def write_page(page: Page, path: str) -> None:
    """Write the page to a file, atomically."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(render(page), "utf-8")
    os.replace(temporary, target)


def _numeric(panel: Panel, index: int) -> bool:
    return bool(panel.rows) and all(row[index][:1] in "0123456789-" for row in panel.rows if row[index])
