"""A blocking client of an HTTP API at a URL."""

from __future__ import annotations

import base64
import http.client
import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# Maximum bytes of the body of an answer. The library limits the head.
MAX_ANSWER: Final = 128 << 20
_PART: Final = 64 << 10
_PORTS: Final = {"http": 15672, "https": 15671}
# Characters that no request may have.
_INVALID: Final = re.compile(r"[\x00-\x20\x7f]")
DEFAULT_USER: Final = "guest"


class InvalidUrl(ValueError):
    """A URL that is not that of an HTTP API."""


class NoAnswer(Exception):
    """No HTTP server answers. The message says why."""


class HttpEndpoint:
    """An HTTP API.

    Args:
        url: Its address, `http://USER:PASSWORD@HOST:PORT/PREFIX`.
        ca: A file with CA certificates in PEM to verify that of the server; None for those of the system.

    Attributes:
        shown: The address without credentials.
        host: Its host.
        user: Its user.
        password: The password.
        is_encrypted: Whether it uses TLS.

    Raises:
        InvalidUrl: The URL is invalid.
    """

    def __init__(self, url: str, ca: Path | None) -> None:
        expected = "expected http:// or https://, as in https://user:password@host:15671"
        encoded = f"{expected}, with '/', '?', '#' and '@' in passwords as %2F, %3F, %23, %40"
        try:
            parts = urlsplit(url)
            self.host, port = parts.hostname or "", parts.port
            self.host.encode("idna")
        except ValueError:
            # Its text has the rest of a password with '/'.
            raise InvalidUrl(f"invalid URL: its host or port is invalid; {encoded}") from None
        if parts.scheme not in _PORTS or not self.host:
            raise InvalidUrl(f"invalid URL with the scheme '{parts.scheme}'; {expected}")
        if "@" in parts.path + parts.query + parts.fragment:
            raise InvalidUrl(f"invalid URL: it has '@' after the host; {encoded}")
        if not parts.path.isascii() or _INVALID.search(self.host + parts.path):
            raise InvalidUrl(
                f"invalid URL: its host or path has spaces or control characters, or the path is not ASCII; {expected}"
            )
        self._port = port or _PORTS[parts.scheme]
        self._prefix = parts.path.rstrip("/")
        self.user = DEFAULT_USER if parts.username is None else unquote(parts.username)
        self.password = DEFAULT_USER if parts.password is None else unquote(parts.password)
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._prefix}"
        self.is_encrypted = parts.scheme == "https"
        self._context: ssl.SSLContext | None = None
        if self.is_encrypted:
            try:
                self._context = ssl.create_default_context(cafile=None if ca is None else str(ca))
            except OSError as error:
                raise InvalidUrl(f"cannot read the CA certificates {ca}: {error}") from None

    @property
    def basic(self) -> str:
        """The value of the header `authorization` with the user and password of the URL."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode("utf-8", "surrogateescape")).decode()

    def request(
        self, method: str, path: str, headers: dict[str, str], *, body: str | None = None, timeout: float
    ) -> tuple[int, bytes]:
        """Return the status and content of the answer, of up to `MAX_ANSWER` bytes. Raises `NoAnswer`."""
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self.host, self._port, timeout=timeout, context=self._context)
        try:
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            return response.status, _read(response)
        except http.client.RemoteDisconnected as error:
            raise NoAnswer(str(error)) from None
        except http.client.BadStatusLine as error:  # its text is what the server has sent
            spoken = "AMQP" if str(error).startswith("AMQP") else "another protocol than HTTP"
            raise NoAnswer(f"the server speaks {spoken}") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(str(error) or type(error).__name__) from None
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the body of an answer. Raises `NoAnswer` if it is too large."""
    content = bytearray()
    while part := response.read(_PART):
        content += part
        if len(content) > MAX_ANSWER:
            raise NoAnswer(f"the answer has more than {MAX_ANSWER >> 20} MiB, the maximum")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(content)
