"""The broker to migrate from, read through RabbitMQ's management API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from leveret.cli.failed import NO_BROKER, REFUSED, USAGE_ERROR, Failed
from leveret.management.http_endpoint import HttpEndpoint, InvalidUrl, NoAnswer

Row: TypeAlias = dict[str, Any]
# The vhost and the name of a queue.
Key: TypeAlias = tuple[str, str]

_TIMEOUT: Final = 60.0
# RabbitMQ's maximum.
_PAGE_SIZE: Final = 500
_MAX_QUEUES: Final = 1_000_000
# The columns of queues, with their values for queues whose node is down.
_QUEUE_COLUMNS: Final[Row] = {
    "vhost": "",
    "name": "",
    "type": "classic",
    "durable": True,
    "exclusive": False,
    "auto_delete": False,
    "state": "",
    "messages_ready": None,
    "messages_unacknowledged": None,
    "consumers": None,
}
# The protocol of an AMQP listener in the overview, and the scheme of its URLs.
_LISTENERS: Final = (("amqp", "amqp"), ("amqp/ssl", "amqps"))


class Source:
    """The management API of a broker.

    Args:
        url: Its address, `http://USER:PASSWORD@HOST:PORT/PREFIX`.
        ca: A file with CA certificates in PEM to verify those of the broker; None for those of the system.

    Raises:
        Failed: The URL is invalid.
    """

    def __init__(self, url: str, ca: Path | None) -> None:
        try:
            self._endpoint = HttpEndpoint(url, ca)
        except InvalidUrl as error:
            raise Failed(f"--from: {error}", USAGE_ERROR) from None
        self._ca = ca
        self.host, self.user, self.password = self._endpoint.host, self._endpoint.user, self._endpoint.password

    def definitions(self) -> bytes:
        """Return the definitions file."""
        return self._request("GET", "/definitions")

    def plugins(self) -> set[str]:
        """Return the names of the plugins that any node has enabled."""
        nodes: list[Row] = self._read("/nodes?columns=enabled_plugins")
        return {name for node in nodes for name in node.get("enabled_plugins", ())}

    def queues(self) -> list[Row]:
        """Return the queues with their numbers of messages and consumers, ordered by vhost and name."""
        found: dict[Key, Row] = {}
        page, pages = 1, 1
        while page <= pages:
            answer: Row = self._read(f"/queues?columns={','.join(_QUEUE_COLUMNS)}&page={page}&page_size={_PAGE_SIZE}")
            found |= {key_of(row): {**_QUEUE_COLUMNS, **row} for row in answer["items"]}
            if len(found) > _MAX_QUEUES:
                raise Failed(f"{self._endpoint.shown} has more than {_MAX_QUEUES} queues, the maximum")
            page, pages = page + 1, answer["page_count"] if answer["items"] else 0
        return [found[key] for key in sorted(found)]

    def delete_parameter(self, component: str, vhost: str, name: str) -> None:
        """Delete a parameter."""
        self._request("DELETE", "/".join(["/parameters", *(quote(part, safe="") for part in (component, vhost, name))]))

    def amqp_uri(self) -> str:
        """Return the URI of the broker without a vhost, with the user of the API. Raises `Failed` if it is unknown."""
        listeners: list[Row] = self._read("/overview?columns=listeners")["listeners"]
        preferred = _LISTENERS[::-1] if self._endpoint.is_encrypted else _LISTENERS
        for protocol, scheme in preferred:
            for listener in listeners:
                if listener["protocol"] == protocol:
                    uri = amqp_uri(scheme, self.host, listener["port"], self.user, self.password)
                    return with_ca(uri, self._ca)
        raise Failed(f"{self._endpoint.shown} has no AMQP listener; give the address with --from-amqp")

    def _read(self, path: str) -> Any:
        content = self._request("GET", path)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise Failed(f"{self._endpoint.shown} is not a management API: it answers with text that is not JSON") from None

    def _request(self, method: str, path: str) -> bytes:
        endpoint = self._endpoint
        try:
            status, content = endpoint.request(method, f"/api{path}", {"authorization": endpoint.basic}, timeout=_TIMEOUT)
        except NoAnswer as error:
            raise Failed(
                f"no management API answers at {endpoint.shown}: {error}; RabbitMQ needs the plugin rabbitmq_management",
                NO_BROKER,
            ) from None
        if status in (401, 403):
            raise Failed(
                f"{endpoint.shown} refuses user '{self.user}': expected a user with the tag administrator and its password",
                REFUSED,
            )
        if status not in (200, 204):
            raise Failed(f"{endpoint.shown}/api{path.partition('?')[0]} answers with status {status}", REFUSED)
        return content


def key_of(row: Row) -> Key:
    """Return the key of the row of a queue."""
    return row["vhost"], row["name"]


def label_of(row: Row) -> str:
    """Return a queue in messages."""
    return f"queue '{row['name']}' in vhost '{row['vhost']}'"


def amqp_uri(scheme: str, host: str, port: int, user: str, password: str) -> str:
    """Return the URI of a broker without a vhost."""
    place = f"[{host}]" if ":" in host else host
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{place}:{port}"


def with_ca(uri: str, ca: Path | None) -> str:
    """Return a URI of a broker with CA certificates, if it has TLS and there are any."""
    return uri if ca is None or not uri.startswith("amqps:") else f"{uri}?cafile={quote(str(ca), safe='/')}"


def check_without_vhost(option: str, uri: str) -> None:
    """Raise `Failed` if the URI that an option gives has a vhost, or is invalid."""
    if uri.partition("?")[0].partition("://")[2].partition("/")[2]:
        raise Failed(f"{option}: the URL has a vhost; expected amqp://user:password@host:port for all vhosts", USAGE_ERROR)
    from leveret.client.errors import InvalidUrl
    from leveret.client.url import parse_url

    try:
        parse_url(uri)
    except InvalidUrl as error:
        raise Failed(f"{option}: {error}", USAGE_ERROR) from None


def with_vhost(uri: str, vhost: str) -> str:
    """Return a URI of a broker with a vhost. The URI may have options."""
    head, mark, query = uri.partition("?")
    return f"{head.rstrip('/')}/{quote(vhost, safe='')}{mark}{query}"
