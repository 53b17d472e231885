"""Commands that list objects: `leveret queues` is the same as `leveret queues list`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from leveret.cli.options import Option, together
from leveret.cli.remote import remote_options


def listing(help: str, *options: Option) -> Callable[[Callable[..., None]], click.Group]:
    """Turn a function that prints a list into a group. It becomes the subcommand `list`, which is the default.

    Args:
        help: The help of the group. The function's docstring is the help of `list`.
        *options: Options of the list, in addition to those of every command that talks to a broker.
    """
    with_options = together(*options, remote_options)

    def decorate(show: Callable[..., None]) -> click.Group:
        def show_by_default(context: click.Context, /, **given: Any) -> None:
            if context.invoked_subcommand is None:
                show(**given)

        default = with_options(click.pass_context(show_by_default))
        group = click.group(show.__name__.replace("_", "-"), invoke_without_command=True, help=help)(default)
        group.command("list")(with_options(show))
        return group

    return decorate
