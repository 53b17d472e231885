"""Errors as HTTP answers."""

from __future__ import annotations

from typing import Final

# The `error` of answers for lack of a right, as RabbitMQ spells it; for lack of valid credentials it is "not_authorized".
NOT_AUTHORISED: Final = "not_authorised"
# The condition of an object whose shard is not ready, and when to try again: most take-overs last less than a second.
SHARD_UNAVAILABLE: Final = "shard-unavailable"
_RETRY: Final = (("retry-after", "1"),)
# Status and `error` of the answer by the condition of the broker's error, as RabbitMQ answers them.
_CONDITIONS: Final = {
    "not-found": (404, "not_found"),
    "access-refused": (401, NOT_AUTHORISED),
    "role-required": (401, NOT_AUTHORISED),
    "not-allowed": (400, "bad_request"),
    SHARD_UNAVAILABLE: (503, "service_unavailable"),
    "internal-error": (500, "internal_server_error"),
}
_REFUSED: Final = "Access refused."


class HttpError(Exception):
    """An answer other than success.

    Attributes:
        status: The status code.
        error: The key `error` of the body; "" for an empty body.
        reason: The key `reason` of the body: a text, or a list of objects.
        headers: More headers.
    """

    def __init__(
        self, status: int, error: str = "", reason: object = "", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers


class BrokerRefused(Exception):
    """The broker refused an operation.

    Attributes:
        condition: The condition of the broker's error.
    """

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


class BrokerUnavailable(Exception):
    """The broker does not answer on the control socket."""


def bad_request(reason: object) -> HttpError:
    return HttpError(400, "bad_request", reason)


def not_found() -> HttpError:
    return HttpError(404, "Object Not Found", "Not Found")


def not_authorised(reason: str) -> HttpError:
    return HttpError(401, NOT_AUTHORISED, reason)


def as_http_error(refused: BrokerRefused) -> HttpError:
    """Return the answer to a request whose operation the broker refused."""
    status, error = _CONDITIONS.get(refused.condition, (400, "bad_request"))
    reason = _REFUSED if refused.condition == "access-refused" else str(refused)
    return HttpError(status, error, reason, _RETRY if refused.condition == SHARD_UNAVAILABLE else ())
