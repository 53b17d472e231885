"""Command groups that list objects by default: `leveret queues` is the same as `leveret queues list`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from leveret.cli.options import Option, together
from leveret.cli.remote import remote_options


def listing(help: str, *options: Option) -> Callable[[Callable[..., None]], click.Group]:
    """Turn a function that prints a list into a command group with the function as `list`, the default subcommand.

    Args:
        help: The help of the group. The function's docstring is the help of `list`.
        *options: Options of `list`, in addition to `remote_options`.
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
