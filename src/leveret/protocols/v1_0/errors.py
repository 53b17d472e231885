"""Refusals of AMQP 1.0, by what they end: a link, a session or the connection (transport 2.8.14 to 2.8.18)."""

from __future__ import annotations

from typing import Any, Final

from leveret.broker.errors import BrokerError
from leveret.wire.amqp1 import constants
from leveret.wire.amqp1.transport import Error

# The conditions of the broker's refusals.
CONDITIONS: Final[dict[str, str]] = {
    "internal-error": constants.INTERNAL_ERROR,
    "not-found": constants.NOT_FOUND,
    "access-refused": constants.UNAUTHORIZED_ACCESS,
    "precondition-failed": constants.PRECONDITION_FAILED,
    "resource-locked": constants.RESOURCE_LOCKED,
    "not-allowed": constants.NOT_ALLOWED,
    "command-invalid": constants.ILLEGAL_STATE,
    "not-implemented": constants.NOT_IMPLEMENTED,
    "resource-error": constants.RESOURCE_LIMIT_EXCEEDED,
    "content-too-large": constants.LINK_MESSAGE_SIZE_EXCEEDED,
}
# Longer texts are cut: what a client sent may be part of them, and must fit a frame of 512 bytes.
MAX_TEXT_LENGTH: Final = 300


class Refusal(Exception):
    """Base of all refusals: `condition` is a symbol of the specification, the text says what was wrong."""

    def __init__(self, condition: str, text: str, info: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text
        self.info = info

    def error(self) -> Error:
        return make_error(self.condition, self.text, self.info)


class LinkRefused(Refusal):
    """Ends a link: it is detached with the error."""


class SessionRefused(Refusal):
    """Ends a session."""


class ConnectionRefused(Refusal):
    """Ends the connection."""


def make_error(condition: str, text: str, info: dict[str, Any] | None = None) -> Error:
    # Names that came over 0-9-1 may hold what is no Unicode text.
    said = text.encode("utf-8", "replace").decode("utf-8")
    if len(said) > MAX_TEXT_LENGTH:
        said = said[: MAX_TEXT_LENGTH - 3] + "..."
    return Error(condition, said, info)


def condition_of(error: BrokerError) -> str:
    return CONDITIONS.get(error.condition, constants.INTERNAL_ERROR)
