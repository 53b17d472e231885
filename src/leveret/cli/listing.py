"""Commands that list things: `leveret THINGS` does what `leveret THINGS list` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from leveret.cli.options import Option, together
from leveret.cli.remote import remote_options


def listing(help: str, *options: Option) -> Callable[[Callable[..., None]], click.Group]:
    """Make a group of a function that prints a list: the function is its subcommand `list`, and runs where no subcommand is
    given.

    help     what the group says of itself; the function's docstring is what `list` says
    options  of the list, beside those of every command that talks to a broker
    """
    with_options = together(*options, remote_options)

    def decorate(show: Callable[..., None]) -> click.Group:
        def alone(context: click.Context, /, **given: Any) -> None:
            if context.invoked_subcommand is None:
                show(**given)

        group = click.group(show.__name__, invoke_without_command=True, help=help)(with_options(click.pass_context(alone)))
        group.command("list")(with_options(show))
        return group

    return decorate
