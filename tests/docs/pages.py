"""The pages of the documentation, parsed for the tests."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.broker import ROOT, Broker

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")))

# Placeholder for the reader's broker at the beginning of a Python literal; options may follow.
_URL = re.compile(r'(?<=")amqp://(?:guest:guest@localhost:5672/|localhost)(?=["?])')

# A fence in a list is indented.
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page that the text begins on."""

    language: str
    text: str
    line: int


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def all_blocks(path: Path) -> list[Block]:
    """Return the fenced blocks, without the indentation of their fences."""
    page = path.read_text("utf-8")
    return [
        Block(match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE), page.count("\n", 0, match.start(3)) + 1)
        for match in _FENCE.finditer(page)
    ]


def blocks(path: Path, language: str) -> list[Block]:
    """The fenced blocks of a language."""
    return [block for block in all_blocks(path) if block.language == language]


def section_blocks(path: Path, heading: str, language: str) -> list[str]:
    """Return the blocks of a language between a heading and the next one."""
    page = path.read_text("utf-8")
    [begin] = [match for match in _HEADING.finditer(page) if match[1] == heading]
    lines = page.count("\n", 0, begin.start()), page.count("\n", 0, _next_heading(page, begin.end()))
    return [block.text for block in blocks(path, language) if lines[0] < block.line <= lines[1]]


def _next_heading(page: str, start: int) -> int:
    """Return where the next heading begins that is not a comment in a block."""
    fences = [match.span() for match in _FENCE.finditer(page)]
    found = (match.start() for match in _HEADING.finditer(page, start))
    return next((at for at in found if not any(begin < at < end for begin, end in fences)), len(page))


def at_broker(text: str, broker: Broker) -> str:
    """Code with another broker in place of the reader's."""
    return _URL.sub(lambda _: broker.url(), text)


def program_name(block: Block) -> str:
    """Return the file name in the comment of a block's first line; "" if there is none."""
    match = re.match(r"# ([\w/-]+\.(?:py|toml))\n", block.text)
    return match[1] if match else ""


def prose(path: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", path.read_text("utf-8"))


def links(path: Path) -> list[str]:
    return _LINK.findall(prose(path))


def code(path: Path) -> set[str]:
    """Return the texts between single backticks."""
    return set(_CODE.findall(prose(path)))


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings as mkdocs creates them."""
    found: dict[str, int] = {}
    result = set()
    for heading in _HEADING.findall(prose(path)):
        text = unicodedata.normalize("NFKD", heading.replace("`", "")).encode("ascii", "ignore").decode()
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        count = found.get(anchor, 0)
        found[anchor] = count + 1
        result.add(f"{anchor}_{count}" if count else anchor)
    return result


def table_rows(path: Path) -> Iterator[list[str]]:
    """The cells of every row of every table, the lines between head and body left out."""
    for line in prose(path).splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            yield [html.unescape(cell.strip()) for cell in line.strip("|").split("|")]


def table_widths(path: Path) -> Iterator[list[int]]:
    """The number of cells in each line of every table, the line between head and body included."""
    lines = re.sub(r"`[^`\n]*`|\\\|", "", prose(path)).splitlines()
    for is_table, group in itertools.groupby(lines, lambda line: line.startswith("|")):
        if is_table:
            yield [line.rstrip().count("|") - 1 for line in group]
