"""`leveret completion`."""

from __future__ import annotations

from typing import Final

import click

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and their values in a shell.

    \b
    bash  leveret completion bash > ~/.local/share/bash-completion/completions/leveret
    zsh   leveret completion zsh > ~/.zfunc/_leveret      (a directory in $fpath)
    fish  leveret completion fish > ~/.config/fish/completions/leveret.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "leveret", "_LEVERET_COMPLETE").source())
