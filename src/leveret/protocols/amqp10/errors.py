"""Errors of AMQP 1.0 that end a link, a session or the connection (transport 2.8.14 to 2.8.18)."""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import BrokerError
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.transport import Error
from leveret.wire.amqp10.values import Table

# Error condition by condition of a broker error.
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
# Longer texts, which may quote the client, are truncated to fit a frame of 512 bytes.
MAX_TEXT_BYTES: Final = 300


class Refusal(Exception):
    """Base class of these errors. `condition` is an error condition of the specification."""

    def __init__(self, condition: str, text: str, info: Table | None = None) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text
        self.info = info

    def error(self) -> Error:
        return make_error(self.condition, self.text, self.info)


class LinkRefused(Refusal):
    """Error that detaches a link."""


class SessionRefused(Refusal):
    """Error that ends a session."""


class ConnectionRefused(Refusal):
    """Error that closes the connection."""


def make_error(condition: str, text: str, info: Table | None = None) -> Error:
    return Error(condition, shorten(text), info)


def shorten(text: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return a text of at most `max_bytes` in UTF-8."""
    # Names from 0-9-1 may contain bytes that are not valid UTF-8.
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > max_bytes:
        encoded = encoded[: max_bytes - 3] + b"..."
    return encoded.decode("utf-8", "ignore")


def condition_of(error: BrokerError) -> str:
    return CONDITIONS.get(error.condition, constants.INTERNAL_ERROR)
