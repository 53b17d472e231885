"""How a command fails: one message, one exit code."""

from __future__ import annotations

from typing import Final

import click

# docs/cli.md has the table. 2 is click's, for a mistake in the command line.
ERROR: Final = 1
NOT_ALL: Final = 1
MISTAKE: Final = 2
NO_BROKER: Final = 3
REFUSED: Final = 4
# 128 and the number of a signal, as shells have it.
SIGNALLED: Final = 128
PIPE_CLOSED: Final = 141


class Failed(click.ClickException):
    """A refusal or the lack of a broker, in the words of whoever said it."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self._code
