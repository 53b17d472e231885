"""Errors of an embedded broker."""

from __future__ import annotations


class StartFailed(Exception):
    """The broker could not be started. The message names the cause and the setting to change."""


class HttpUnavailable(StartFailed):
    """The HTTP API cannot be served with this installation or these settings. `leveret serve` starts without it."""


class CallRefused(Exception):
    """The broker refused a call without changing anything.

    Attributes:
        condition: The reason, such as "not-found", "precondition-failed" or "not-allowed".
    """

    def __init__(self, message: str, condition: str = "") -> None:
        super().__init__(message)
        self.condition = condition
