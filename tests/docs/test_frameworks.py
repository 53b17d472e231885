"""The pages about frameworks show the files of the tested examples, and the pinned versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, page_id
from tests.support.broker import ROOT

EXAMPLES = ROOT / "examples" / "frameworks"
PAGES = sorted((DOCS / "frameworks").glob("*.md"))
# A fenced block whose first line names a file in a comment.
_FILE = re.compile(r"^```[a-z]+\n(?:#|//|<!--) ([\w/.-]+\.[a-z]+)(?: -->)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", PAGES, ids=page_id)


def pinned() -> set[tuple[str, str]]:
    """Names with their versions, from the lock files of Python and the files of the other examples."""
    found: list[tuple[str, str]] = []
    for lock in ("frameworks", "airflow"):
        text = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8")
        found += re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)
    for path in EXAMPLES.glob("*/package.json"):
        found += json.loads(path.read_bytes())["dependencies"].items()
    for path in EXAMPLES.glob("*/go.mod"):
        found += re.findall(r"^\s*(?:require )?([\w./-]+) (v[\w.]+)", path.read_text("utf-8"), re.MULTILINE)
    for path in EXAMPLES.glob("*/pom.xml"):
        found += re.findall(r"<artifactId>(.+)</artifactId>\s+<version>(.+)</version>", path.read_text("utf-8"))
    return set(found)


def test_every_example_has_a_page() -> None:
    examples = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert examples == {page.stem for page in PAGES} - {"index"}


@pages
def test_files_are_those_of_the_example(page: Path) -> None:
    shown = _FILE.findall(page.read_text("utf-8"))
    assert shown or page.stem == "index"
    for name, text in shown:
        path = EXAMPLES / page.stem / name
        assert path.is_file(), f"{name} is not in {path.parent}"
        # Parts of a file are separated by an ellipsis.
        for part in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE):
            assert part.strip("\n") in path.read_text("utf-8"), f"{name} differs from the block on the page:\n{part}"


@pages
def test_versions_are_the_pinned_ones(page: Path) -> None:
    versions = pinned()
    shown = re.findall(r"`([\w./-]+)(?:==|@|:)(v?[\d.]+)`", page.read_text("utf-8"))
    assert shown
    assert set(shown) <= versions, f"not pinned: {set(shown) - versions}"
