"""Failures of commands: a message and an exit code."""

from __future__ import annotations

from typing import Final

import click

# The exit codes, documented in docs/cli.md. 2 is also click's code for an invalid command line.
ERROR: Final = 1
INCOMPLETE: Final = 1
USAGE_ERROR: Final = 2
NO_BROKER: Final = 3
REFUSED: Final = 4
# Plus the number of the signal, as in shells.
SIGNALLED: Final = 128
PIPE_CLOSED: Final = 141


class Failed(click.ClickException):
    """The failure of a command, with its exit code."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self._code
