"""How a command fails: one message, one exit code."""

from __future__ import annotations

import click

ERROR = 1
NO_BROKER = 3


class Failed(click.ClickException):
    """A refusal or the lack of a broker, in the words of whoever said it."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self._code
