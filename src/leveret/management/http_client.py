"""A blocking client of the control operations over the HTTP API, for administrators on other machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from leveret.management.control_client import TIMEOUT, CallFailed, NoBroker
from leveret.management.http_endpoint import HttpEndpoint, NoAnswer

_PATH: Final = "/api/leveret/operations/"
# The `error` of an answer to invalid credentials, in RabbitMQ's spelling; for missing rights it is "not_authorised".
_NOT_LOGGED_IN: Final = "not_authorized"


class HttpControl:
    """The control operations of the broker at a URL.

    Args:
        url: The address of the HTTP API, with its path prefix: `http://USER:PASSWORD@HOST:PORT/PREFIX`.
        token: An access token, instead of the user and password.
        ca: A file with CA certificates in PEM to verify the broker's; None for those of the system.

    Raises:
        InvalidUrl: The URL is invalid.
    """

    def __init__(self, url: str, token: str | None = None, ca: Path | None = None) -> None:
        self._endpoint = HttpEndpoint(url, ca)
        self._shown = f"{self._endpoint.shown}/"
        authorization = self._endpoint.basic if token is None else f"Bearer {token}"
        self._login = f"user '{self._endpoint.user}'" if token is None else "the access token"
        self._headers = {"authorization": authorization, "content-type": "application/json"}

    def call(self, name: str, arguments: dict[str, Any], *, timeout: float = TIMEOUT) -> Any:
        """Execute an operation and return its result. Raises `NoBroker` or `CallFailed`."""
        body = json.dumps(arguments)
        try:
            status, content = self._endpoint.request(
                "POST", f"{_PATH}{quote(name)}", self._headers, body=body, timeout=timeout
            )
        except NoAnswer as error:
            raise NoBroker(
                f"no HTTP API answers at {self._shown}: {error}; expected the address that `leveret serve` shows"
            ) from None
        return self._result(status, content)

    def _result(self, status: int, content: bytes) -> Any:
        try:
            answer = json.loads(content) if content else {}
        except (ValueError, RecursionError):
            answer = {}
        if status == 200 and isinstance(answer, dict) and "result" in answer:
            return answer["result"]
        reason = answer.get("reason") if isinstance(answer, dict) else None
        if status == 404 and reason == "Not Found":
            raise CallFailed(f"{self._shown} has no operations of Leveret; expected its HTTP API, of this version or later")
        condition = answer.get("error") if isinstance(answer, dict) else None
        if condition == _NOT_LOGGED_IN:
            reason = f"{self._shown} refused {self._login}: {reason}; expected those of a user with the tag administrator"
        raise CallFailed(str(reason) if reason else f"{self._shown} answers with status {status}", str(condition or ""))
