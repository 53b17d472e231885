"""The broker to migrate from, read through RabbitMQ's management API."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from leveret.cli.failed import NO_BROKER, REFUSED, USAGE_ERROR, Failed

Row: TypeAlias = dict[str, Any]

_PORTS: Final = {"http": 15672, "https": 15671}
_TIMEOUT: Final = 60.0
_QUEUE_COLUMNS: Final = (
    "vhost",
    "name",
    "type",
    "durable",
    "exclusive",
    "messages_ready",
    "messages_unacknowledged",
    "consumers",
)
# The protocol of an AMQP listener in the overview, and the scheme of its URLs.
_LISTENERS: Final = (("amqp", "amqp"), ("amqp/ssl", "amqps"))


class Source:
    """The management API of a broker.

    Args:
        url: Its address, `http://USER:PASSWORD@HOST:PORT/PREFIX`.
        ca: A file with CA certificates in PEM to verify that of the broker; None for those of the system.

    Raises:
        Failed: The URL is invalid.
    """

    def __init__(self, url: str, ca: Path | None) -> None:
        expected = "expected http:// or https://, as in http://user:password@rabbit:15672"
        try:
            parts = urlsplit(url)
            self.host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise Failed(f"--from: {error}; {expected}", USAGE_ERROR) from None
        if parts.scheme not in _PORTS or not self.host:
            raise Failed(f"--from: the URL has the scheme '{parts.scheme}'; {expected}", USAGE_ERROR)
        self.user = "guest" if parts.username is None else unquote(parts.username)
        self.password = "guest" if parts.password is None else unquote(parts.password)
        self._port = port or _PORTS[parts.scheme]
        self._prefix = parts.path.rstrip("/")
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._prefix}"
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=None if ca is None else str(ca))
            except OSError as error:
                raise Failed(f"cannot read the CA certificates {ca}: {error}", USAGE_ERROR) from None

    def definitions(self) -> bytes:
        """Return the definitions file."""
        return self._get("/definitions")

    def plugins(self) -> set[str]:
        """Return the names of the plugins that any node has enabled."""
        nodes: list[Row] = json.loads(self._get("/nodes?columns=enabled_plugins"))
        return {name for node in nodes for name in node.get("enabled_plugins", ())}

    def queues(self) -> list[Row]:
        """Return the queues with their numbers of messages and consumers, ordered by vhost and name."""
        found: list[Row] = json.loads(self._get(f"/queues?columns={','.join(_QUEUE_COLUMNS)}"))
        return sorted(found, key=lambda row: (row["vhost"], row["name"]))

    def amqp_uri(self) -> str:
        """Return the URI of the broker without a vhost, with the user of the API. Raises `Failed` if it is unknown."""
        listeners: list[Row] = json.loads(self._get("/overview?columns=listeners"))["listeners"]
        preferred = _LISTENERS if self._context is None else _LISTENERS[::-1]
        for protocol, scheme in preferred:
            for listener in listeners:
                if listener["protocol"] == protocol:
                    return amqp_uri(scheme, self.host, listener["port"], self.user, self.password)
        raise Failed(f"{self._shown} has no AMQP listener; give the address with --from-amqp")

    def _get(self, path: str) -> bytes:
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=_TIMEOUT)
        else:
            connection = http.client.HTTPSConnection(self.host, self._port, timeout=_TIMEOUT, context=self._context)
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        try:
            connection.request("GET", f"{self._prefix}/api{path}", headers={"authorization": f"Basic {credentials}"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise Failed(
                f"no management API answers at {self._shown}: {reason}; RabbitMQ needs the plugin rabbitmq_management",
                NO_BROKER,
            ) from None
        finally:
            connection.close()
        if response.status == 401:
            raise Failed(
                f"{self._shown} refuses user '{self.user}': expected a user with the tag administrator, and its password",
                REFUSED,
            )
        if response.status != 200:
            raise Failed(f"{self._shown}/api{path.partition('?')[0]} answers with status {response.status}", REFUSED)
        return content


def amqp_uri(scheme: str, host: str, port: int, user: str, password: str) -> str:
    """Return the URI of a broker without a vhost."""
    place = f"[{host}]" if ":" in host else host
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{place}:{port}"


def with_vhost(uri: str, vhost: str) -> str:
    """Return a URI of a broker with a vhost. The URI may have options."""
    head, mark, query = uri.partition("?")
    return f"{head.rstrip('/')}/{quote(vhost, safe='')}{mark}{query}"
