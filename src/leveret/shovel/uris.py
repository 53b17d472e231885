"""URIs of the brokers that a shovel connects to.

They are RabbitMQ's: a URI without a host means the broker that runs the shovel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Final
from urllib.parse import quote

from leveret.client.parameters import MECHANISMS, Parameters
from leveret.client.url import parse_url
from leveret.security import tickets

AMQP091: Final = "amqp091"
AMQP10: Final = "amqp10"
# The protocols by their names in definitions, as the client names them.
PROTOCOLS: Final = {AMQP091: "0-9-1", AMQP10: "1.0"}


# Mechanisms that need no user in the URI.
_WITHOUT_USER: Final = ("EXTERNAL", "ANONYMOUS")
_DEFAULT_USER: Final = Parameters().user


@dataclass(frozen=True, slots=True)
class TicketParameters(Parameters):
    """Parameters of a connection of the broker to itself, which logs in by a ticket."""

    mechanisms: ClassVar[tuple[str, ...]] = (*MECHANISMS, tickets.MECHANISM)

    ticket: bytes = field(default=b"", repr=False)

    def sasl(self) -> tuple[str, bytes]:
        """Return the mechanism and the ticket."""
        return self.mechanism, self.ticket

    def may_use(self, offered: Iterable[str]) -> bool:
        """Return True: the broker accepts the mechanism without offering it."""
        return True


def with_ticket(parameters: Parameters, user: str, ticket: bytes) -> TicketParameters:
    """Return parameters with a ticket as their credentials. The user is the one to name in errors."""
    values = {known.name: getattr(parameters, known.name) for known in fields(parameters)}
    return TicketParameters(**{**values, "user": user, "mechanism": tickets.MECHANISM, "ticket": ticket})


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


def has_credentials(uri: str, parameters: Parameters) -> bool:
    """Return whether a URI says who logs in. At the broker itself, that takes a user and a password."""
    if parameters.mechanism in _WITHOUT_USER:
        return not is_local(uri)
    return "@" in _authority(uri) or parameters.user != _DEFAULT_USER


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
    return _authority(uri).rpartition("@")[2]


def _authority(uri: str) -> str:
    return uri.partition("://")[2].partition("?")[0].partition("/")[0]
