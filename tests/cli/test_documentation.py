"""The pages about the command line have every command and every option."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leveret.cli.app import COMMANDS, RENAMED_COMMANDS, leveret

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text("utf-8")
CLIENTS_PAGE = (DOCS / "cli-clients.md").read_text("utf-8")
CLIENTS = {"publish", "consume", "get", "purge", "bench"}
# Options that the page describes once for all commands to a running broker.
COMMON = {"--help", "--json", "--data-dir", "--config", "--vhost", "--url", "--token", "--ca"}


def leaves() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    context = click.Context(leveret)
    for name in COMMANDS:
        command = leveret.get_command(context, name)
        assert command is not None
        found += within(name, command)
    return found


def within(path: str, command: click.Command) -> list[tuple[str, click.Command]]:
    """The commands of a group, and of those in it; or the command itself."""
    if not isinstance(command, click.Group):
        return [(path, command)]
    return [leaf for name, inner in command.commands.items() for leaf in within(f"{path} {name}", inner)]


def shared_options(path: str) -> str:
    """The rows of the table of options that several pipelines share, for one of them."""
    group, _, name = path.partition(" ")
    if group != "pipeline":
        return ""
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `--")]
    return "".join(row[0] for row in rows if name in row[1].split(", "))


@pytest.mark.parametrize(("path", "command"), leaves())
def test_the_page_has_the_command_and_its_options(path: str, command: click.Command) -> None:
    if path == "serve":
        text = PAGE.split("## serve")[1].split("## check")[0]
    elif path == "check":
        text = PAGE.split("## check")[1].split("## Commands")[0]
    elif path in CLIENTS:
        text = CLIENTS_PAGE.split("## Common options")[1].split("## Formats")[0]
        text += CLIENTS_PAGE.split(f"\n## {path}\n")[1].split("\n## ")[0]
    else:
        written = path.replace(" list", " [list]")
        names = (f"`leveret {written}`", f"`leveret {written} ")
        rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
        [text] = [line for line in rows if any(name in line for name in names)]
        text += shared_options(path)
    options = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts + parameter.secondary_opts
    }
    if path != "serve" and path not in CLIENTS:
        options -= COMMON
    options.discard("--help")
    missing = {option for option in options if option not in text}
    # `change` has the options of `add`.
    if path == "vhosts change":
        missing -= {"--strict", "--max-queues", "--max-connections", "--qos-global", "--consumer-timeout"}
        missing -= {"--description", "--tag", "--default-queue-type", "--protected-from-deletion"}
    if path == "vhosts add":
        missing -= {"--no-strict", "--no-protected-from-deletion"}  # as it is anyway
    assert not missing


def test_an_unknown_command_is_refused_with_similar_names() -> None:
    for name, expected in (("quues", "; did you mean 'queues'?"), ("zzz", "")):
        result = CliRunner().invoke(leveret, [name])
        assert result.exit_code == 2
        assert result.output.splitlines()[-1] == f"Error: unknown command '{name}'{expected}"


@pytest.mark.parametrize(("old", "new"), RENAMED_COMMANDS.items())
def test_a_renamed_command_is_refused_with_its_new_name(old: str, new: str) -> None:
    result = CliRunner().invoke(leveret, [*old.split(), "--json"])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == f"Error: unknown command '{old}': it was renamed to '{new}'"
    assert new in {words for path, _ in leaves() for words in (path, path.split()[0])}
