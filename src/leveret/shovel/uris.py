"""URIs of the brokers that a shovel connects to.

They are RabbitMQ's: a URI without a host means the broker that runs the shovel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from leveret.client.parameters import Parameters
from leveret.client.url import parse_url

AMQP091: Final = "amqp091"
AMQP10: Final = "amqp10"
# The protocols by their names in definitions, as the client names them.
PROTOCOLS: Final = {AMQP091: "0-9-1", AMQP10: "1.0"}


def read_uri(uri: str, protocol: str, name: str) -> Parameters:
    """Return the parameters of a connection that is not reopened when it is lost.

    Args:
        uri: The URI.
        protocol: A key of `PROTOCOLS`.
        name: The name of the connection on the server.

    Raises:
        InvalidUrl: The URI is invalid.
    """
    return parse_url(uri, protocol=PROTOCOLS[protocol], name=name, reconnect=False, tracing="off")


def is_local(uri: str) -> bool:
    """Return whether a URI has no host."""
    return not _host(uri)


def at_address(parameters: Parameters, address: Callable[[], tuple[str, int]]) -> Parameters:
    """Return the parameters of a URI without a host, with the address of the broker."""
    host, port = address()
    return replace(parameters, host=host, port=port)


def without_credentials(uri: str) -> str:
    """Return a URI for operators: without user, password and options.

    If the path has '@', the URI may be valid, but the host and the path are parts of a password with '/'.
    """
    scheme, _, rest = uri.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if "@" in path:
        return f"{scheme}://***"
    return f"{scheme}://{_host(uri)}" + (f"/{quote(path, safe='%')}" if path else "")


def _host(uri: str) -> str:
    authority = uri.partition("://")[2].partition("?")[0].partition("/")[0]
    return authority.rpartition("@")[2]
