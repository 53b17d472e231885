"""A blocking client of the control operations over the HTTP API, for administrators on other machines."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from leveret.management.control_client import TIMEOUT, CallFailed, NoBroker

_PORTS: Final = {"http": 15672, "https": 15671}
_PATH: Final = "/api/leveret/operations/"
DEFAULT_USER: Final = "guest"


class InvalidUrl(ValueError):
    """A URL that is not that of an HTTP API."""


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
        expected = "expected http:// or https://, as in https://user:password@host:15671"
        try:
            parts = urlsplit(url)
            self._host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise InvalidUrl(f"invalid URL: {error}; {expected}") from None
        if parts.scheme not in _PORTS or not self._host:
            raise InvalidUrl(f"invalid URL with the scheme '{parts.scheme}'; {expected}")
        self._port = port or _PORTS[parts.scheme]
        self._prefix = parts.path.rstrip("/")
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._prefix}/"
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=None if ca is None else str(ca))
            except OSError as error:
                raise InvalidUrl(f"cannot read the CA certificates {ca}: {error}") from None
        if token is not None:
            self._authorization = f"Bearer {token}"
        else:
            name = DEFAULT_USER if parts.username is None else unquote(parts.username)
            password = DEFAULT_USER if parts.password is None else unquote(parts.password)
            self._authorization = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()

    def call(self, name: str, arguments: dict[str, Any], *, timeout: float = TIMEOUT) -> Any:
        """Execute an operation and return its result. Raises `NoBroker` or `CallFailed`."""
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        headers = {"authorization": self._authorization, "content-type": "application/json"}
        try:
            connection.request("POST", f"{self._prefix}{_PATH}{quote(name)}", json.dumps(arguments), headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise NoBroker(
                f"no HTTP API answers at {self._shown}: {reason}; expected the address that `leveret serve` shows"
            ) from None
        finally:
            connection.close()
        return self._result(response.status, content)

    def _result(self, status: int, content: bytes) -> Any:
        try:
            answer = json.loads(content) if content else {}
        except ValueError:
            answer = {}
        if status == 200 and isinstance(answer, dict) and "result" in answer:
            return answer["result"]
        reason = answer.get("reason") if isinstance(answer, dict) else None
        if status == 404 and reason == "Not Found":
            raise CallFailed(f"{self._shown} has no operations of Leveret; expected its HTTP API, of this version or later")
        condition = answer.get("error") if isinstance(answer, dict) else None
        raise CallFailed(str(reason) if reason else f"{self._shown} answers with status {status}", str(condition or ""))
