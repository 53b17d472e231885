"""Find retired words: `python tools/check_vocabulary.py [PATH ...]`; part of `make lint`.

`tools/vocabulary.toml` lists the words with their replacements, the paths to check, and the exceptions with their reasons.
In Python files, the script checks comments, docstrings, messages (strings with a space), keys (strings that are an
identifier), and function and class names. Other strings and names may belong to a protocol. In pages, it skips text in
backticks and fenced blocks, which quotes identifiers and output.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^\s*(```|~~~)")
CODE = re.compile(r"`[^`]*`")
KEY = re.compile(r"""(["'])[a-z]\w*\1""")


class Word(NamedTuple):
    """A retired word: its pattern and its replacement."""

    pattern: re.Pattern[str]
    instead: str


class Problem(NamedTuple):
    """An occurrence of a retired word. `line` counts from 1."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: '{self.word}': {self.instead}"


class Vocabulary:
    """Words, paths and exceptions of a configuration.

    Raises:
        ValueError: An exception has no reason.
    """

    def __init__(self, text: str) -> None:
        content = tomllib.loads(text)
        self.paths: list[str] = content["paths"]
        self.words = [
            Word(re.compile(rf"\b(?:{entry['pattern']})\b", re.IGNORECASE), entry["instead"]) for entry in content["words"]
        ]
        self.exceptions: list[tuple[str, re.Pattern[str]]] = []
        for entry in content.get("exceptions", []):
            if not entry.get("reason"):
                raise ValueError(f"the exception for '{entry['path']}' has no reason")
            self.exceptions.append((entry["path"], re.compile(entry["pattern"])))

    def covers(self, path: str) -> bool:
        """Return whether to check a path, given relative to the root with slashes."""
        return any(PurePosixPath(path).is_relative_to(prefix) for prefix in self.paths)

    def problems(self, path: str, text: str) -> Iterator[Problem]:
        """Yield the retired words in the text of a file."""
        allowed = [pattern for prefix, pattern in self.exceptions if PurePosixPath(path).is_relative_to(prefix)]
        for number, line in prose_of_python(text) if path.endswith(".py") else prose(path, text):
            if any(pattern.search(line) for pattern in allowed):
                continue
            for word in self.words:
                found = word.pattern.search(line)
                if found is not None:
                    yield Problem(path, number, found.group(), word.instead)


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file to check, with their numbers; code in pages is removed."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith(".md"):
            if FENCE.match(line):
                fenced = not fenced
            if fenced:
                continue
            line = CODE.sub("``", line)
        yield number, line


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and of strings with spaces, and keys, function and class names split into words."""
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and " " in token.string and token.string[0] not in "bB"
        ):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield number, CODE.sub("``", line)
        elif token.type == tokenize.STRING and KEY.fullmatch(token.string):
            yield token.start[0], token.string.replace("_", " ")
        elif token.type == tokenize.NAME:
            if previous in ("def", "class"):
                yield token.start[0], token.string.replace("_", " ")
            previous = token.string


def tracked_files() -> list[str]:
    """Return the text files that git tracks."""
    command = ["git", "ls-files", "-z", "--", "*.py", "*.md", "*.toml"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return listed.stdout.decode().rstrip("\0").split("\0")


def main() -> int:
    parser = argparse.ArgumentParser(description="Find retired words.")
    parser.add_argument(
        "paths", nargs="*", help="files relative to the root (default: all files that the configuration covers)"
    )
    chosen = parser.parse_args()
    vocabulary = Vocabulary((ROOT / "tools" / "vocabulary.toml").read_text(encoding="utf-8"))
    paths = [path for path in chosen.paths or tracked_files() if vocabulary.covers(path) and (ROOT / path).is_file()]
    problems = [
        problem for path in paths for problem in vocabulary.problems(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    for problem in problems:
        print(problem)
    print(f"{len(paths)} files checked, {len(problems)} retired words", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
