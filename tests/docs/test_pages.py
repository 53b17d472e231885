"""Links lead somewhere, blocks of code work, commands exist."""

from __future__ import annotations

import ast
import asyncio
import configparser
import inspect
import json
import pkgutil
import re
import shlex
import types
from pathlib import Path

import click
import pytest
import yaml

from leveret.cli.app import leveret as cli
from leveret.config import load_config
from leveret.spark.pipeline.load import load_pipeline
from tests.docs.pages import (
    DOCS,
    PAGES,
    all_blocks,
    anchors,
    at_broker,
    blocks,
    code,
    links,
    page_id,
    program_name,
    prose,
    table_widths,
)
from tests.support.broker import ROOT, Broker

# Languages of blocks that are not checked by `test_blocks_are_checked`.
ELSEWHERE = {
    "python",  # runs: test_python_blocks, and the programs in test_client_programs
    "toml",  # is loaded: test_toml_blocks
    "sh",  # names existing commands and options: test_commands_exist
    "console",  # the same; the client pages run
    "go",  # is a part of an example that runs, as the next three: test_frameworks
    "java",
    "js",
    "properties",
    "html",  # runs in a browser: tests/interop/test_websocket.py
    "jms",  # is parsed: tests/selectors
    "sql",  # is parsed: tests/selectors; statements for PostgreSQL are not
    "promql",  # is an expression for another program, as are the next two
    "dockerfile",
    "diff",
    "py",  # is pseudo code
    "text",  # is output, or a diagram
}

# An argument in single quotes, which may have several lines.
_QUOTED = re.compile(r"(?<=\s)'[^']*'(?=\s)")

pages = pytest.mark.parametrize("page", PAGES, ids=page_id)


@pages
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: there is no {target}"
        if anchor:
            assert target.suffix == ".md" and anchor in anchors(target), f"{link}: no such heading"
        # The site that mkdocs builds contains only the pages and the files in their directories.
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{link} leads out of docs/"


@pages
def test_the_lines_of_a_table_have_equal_numbers_of_cells(page: Path) -> None:
    """Otherwise, the table is shown as text, or cells are in the wrong column."""
    assert [widths for widths in table_widths(page) if len(set(widths)) > 1] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"[\w/.-]+\.md", navigation)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_api_reference_names_existing_objects() -> None:
    pages = [page.read_text("utf-8") for page in DOCS.rglob("*.md")]
    names = [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    assert "leveret.sync" in names
    for name in names:
        pkgutil.resolve_name(name)


def test_the_architecture_names_existing_files() -> None:
    paths = [text for text in code(DOCS / "architecture.md") if re.fullmatch(r"[\w*-]+/[\w/*.-]*", text)]
    assert len(paths) > 40
    for path in paths:
        # Some are relative to the first path of their row.
        found = (ROOT / path).exists() or any((ROOT / "src/leveret").glob(f"**/{path.rstrip('/')}"))
        assert found, f"{path} does not exist"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=page_id)
def test_python_blocks(page: Path, own_vhost: Broker) -> None:
    """The blocks of a page run one after the other, in one namespace, and with `await` on one event loop. Those that are
    files are not among them."""
    names: dict[str, object] = {"__name__": "__docs__"}
    with asyncio.Runner() as runner:
        for block in blocks(page, "python"):
            if program_name(block):
                continue
            # Lines keep the numbers that they have on the page.
            source = "\n" * (block.line - 1) + at_broker(block.text, own_vhost)
            code = compile(source, page_id(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = types.FunctionType(code, names)()
            if inspect.iscoroutine(result):
                runner.run(result)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=page_id)
def test_toml_blocks(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text, "utf-8")
        # A pipeline's file begins with its name.
        if re.match("(#.*\n)?name = ", block.text):
            load_pipeline(path)
        else:
            load_config(path)


def _on_one_line(quoted: re.Match[str]) -> str:
    return quoted[0].replace("\n", " ")


def _commands(page: Path) -> list[str]:
    """Return the lines of shell blocks, commands in terminals, and those with `leveret` or `make` between backticks."""
    scripts = [block.text.replace("\\\n", "") for block in blocks(page, "sh")]
    lines = [line.strip() for script in scripts for line in _QUOTED.sub(_on_one_line, script).splitlines()]
    terminals = "".join(block.text.replace("\\\n", "") for block in blocks(page, "console"))
    lines += re.findall(r"^[$#] (?:\w+=\S* |/\S*/(?=leveret ))*((?:leveret|make) .*)$", terminals, re.MULTILINE)
    lines += re.findall(r"`((?:leveret|make) [^`\n]*)`", prose(page))
    return [line for line in lines if line and not line.startswith("#")]


@pages
def test_blocks_are_checked(page: Path) -> None:
    """Each block has a language that a test checks: those in `ELSEWHERE` as the comments say, the others here."""
    for block in all_blocks(page):
        where = f"line {block.line}: {block.text}"
        match block.language:
            case "json":
                rest = block.text.strip()
                while rest:
                    _, end = json.JSONDecoder().raw_decode(rest)
                    rest = rest[end:].strip()
            case "yaml":
                assert yaml.safe_load(block.text), where
            case "ini":
                # Units of systemd may have a key several times.
                parser = configparser.ConfigParser(delimiters="=", strict=False)
                parser.read_string(block.text)
                assert parser.sections(), where
            case language:
                assert language in ELSEWHERE, f"no test checks the language '{language}': {where}"


@pages
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    extras = {"NAME", *(path.stem for path in (ROOT / "requirements").glob("*.in"))}
    for line in _commands(page):
        words = shlex.split(line.replace("[list]", "list"))
        if words[0] == "make":
            assert words[1] in targets or words[1].removeprefix("extra-") in extras, f"{line}: no such target"
        elif words[0] == "leveret":
            _check_command(words[1:], line)


def _check_command(words: list[str], line: str) -> None:
    """Follow the words through the groups of commands; options must belong to the last one."""
    command: click.Command = cli
    context = click.Context(cli)
    options: set[str] = set()
    for word in words:
        options.update(name for parameter in command.params for name in parameter.opts)
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help", "--version"}, f"{line}: no option {word}"
        elif isinstance(command, click.Group):
            following = command.get_command(context, word.rstrip(","))
            if following is None:
                break  # the value of an option, or prose
            command = following
            context = click.Context(command, parent=context)
    assert command is not cli or words[0].startswith("--"), f"{line}: no such command"


@pages
def test_no_word_twice(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "`", prose(page))
    assert not re.findall(r"\b([A-Za-z]+)[ \n]\1\b", text)
