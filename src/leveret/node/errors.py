"""What an embedded broker refuses."""

from __future__ import annotations


class StartFailed(Exception):
    """A broker could not be started, and nothing of it is left. The message says what was wrong and which setting it is."""


class CallRefused(Exception):
    """A broker refused to do what was asked of it; nothing has changed.

    condition  why, as a word: "not-found", "precondition-failed", "not-allowed"
    """

    def __init__(self, message: str, condition: str = "") -> None:
        super().__init__(message)
        self.condition = condition
