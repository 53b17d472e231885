"""Options that select a broker by its HTTP API, for `leveret` itself and for the commands that manage a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from leveret.cli.options import FilePath, together


def key_of(option: str) -> str:
    """Return the key of an option in the context."""
    return f"{__name__}.{option}"


URL: Final = key_of("url")
TOKEN: Final = key_of("token")
CA: Final = key_of("ca")


def keep(context: click.Context, parameter: click.Parameter, value: Path | str | bool | None) -> None:
    """Store an option in the context. Subcommands are parsed after their groups, so their options take precedence."""
    if value is not None:
        assert parameter.name is not None
        context.meta[key_of(parameter.name)] = value


# The broker of management commands on another machine. `leveret` itself has these options, too.
http_options = together(
    click.option(
        "--url",
        metavar="URL",
        callback=keep,
        expose_value=False,
        help="The broker's HTTP API, instead of its data directory.  [env LEVERET_URL]",
    ),
    click.option(
        "--token",
        metavar="TOKEN",
        callback=keep,
        expose_value=False,
        help="Access token for --url, instead of a user and password.  [env LEVERET_TOKEN]",
    ),
    click.option(
        "--ca",
        type=FilePath(path_type=Path),
        callback=keep,
        expose_value=False,
        help="CA certificates in PEM for an https --url.",
    ),
)
