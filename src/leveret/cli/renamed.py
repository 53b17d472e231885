"""Renamed commands. `leveret` rejects the old names with a pointer to the new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

RENAMED_COMMANDS: Final = {
    "staged": "uploads",
    "stages": "sink-transactions",
    "stages discard": "sink-transactions abort",
}


def refuse_renamed(arguments: Sequence[str]) -> None:
    """Raise `click.UsageError` if the arguments start with the old name of a command."""
    for name in (" ".join(arguments[:2]), *arguments[:1]):
        if name in RENAMED_COMMANDS:
            raise click.UsageError(f"unknown command '{name}': it was renamed to '{RENAMED_COMMANDS[name]}'")
