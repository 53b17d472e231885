"""Connections to the broker, and requests to its exchange `leveret.control`.

No representation and no error shows a password. Pickled tasks contain the URL as given; with `passwordFile` or the
environment variable it has no password, and each process reads the password when it connects.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

from leveret.client._sync.base_channel import BaseChannel
from leveret.client._sync.connection import Amqp10Connection, Connection
from leveret.client._sync.connection import open_connection as open_hosts
from leveret.client.engine.amqp091.handshake import CLOSED_DURING_LOGIN
from leveret.client.errors import (
    AuthenticationFailed,
    ChannelClosed,
    ConnectionClosed,
    ConnectionFailed,
    Error,
    InvalidUrl,
    NotFound,
    Returned,
    Timeout,
    TlsFailed,
    VhostRefused,
)
from leveret.client.parameters import Parameters
from leveret.client.url import parse_url
from leveret.segments.typed_json import Document
from leveret.spark.errors import BrokerUnreachable, ConnectionRefused, OptionError, RequestRefused
from leveret.spark.options import Settings

CONTROL_EXCHANGE: Final = "leveret.control"
REQUEST_VERSION: Final = 1
PASSWORD_VARIABLE: Final = "LEVERET_PASSWORD"
# Seconds that the broker may be unreachable while a query runs.
RECONNECT_TIMEOUT: Final = 60.0
# Seconds for one request.
REQUEST_TIMEOUT: Final = 30.0
AnyConnection = Connection | Amqp10Connection
_RETRY_DELAYS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
# Errors that a retry does not resolve, unless the broker closed the socket during the login: it may be restarting.
_PERMANENT_ERRORS: Final = (AuthenticationFailed, VhostRefused, TlsFailed)

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the broker and credentials; pickled into tasks.

    Attributes:
        url: The complete URL.
        display_url: The URL without the password.
        hosts: Other nodes, as `host` or `host:port`.
    """

    url: str = field(repr=False)
    display_url: str
    protocol: str = "0-9-1"
    vhost: str | None = None
    password_file: str | None = None
    tls: tuple[tuple[str, str | bool], ...] = ()
    key_password_file: str | None = None
    hosts: tuple[str, ...] = ()

    def parameters(self, name: str = "") -> Parameters:
        """Return the parameters of a connection, with the current password.

        Raises:
            OptionError: A file cannot be read, or the URL is invalid.
        """
        options: dict[str, Any] = dict(self.tls)
        if self.vhost is not None:
            options["vhost"] = self.vhost
        if self.password_file is not None:
            options["password"] = _read_secret("passwordFile", self.password_file)
        elif not has_password(self.url) and os.environ.get(PASSWORD_VARIABLE):
            options["password"] = os.environ[PASSWORD_VARIABLE]
        if self.key_password_file is not None:
            options["keypassword"] = _read_secret("tls.keyPasswordFile", self.key_password_file)
        try:
            return parse_url(self.url, protocol=self.protocol, name=name, reconnect=False, **options)
        except InvalidUrl as error:
            raise OptionError(f"option url: {error}") from None

    def nodes(self, name: str = "") -> list[Parameters]:
        """Return the parameters of a connection to each node, those of the URL first.

        Raises:
            OptionError: As `parameters`, or a host is invalid.
        """
        parameters = self.parameters(name)
        found = [parameters]
        for number, host in enumerate(self.hosts, 1):
            try:
                other = parse_url(f"{'amqps' if parameters.uses_tls else 'amqp'}://{host}/")
            except InvalidUrl:
                other = None
            if other is None or set("@/?") & set(host):
                # The value may contain a password.
                raise OptionError(
                    f"option hosts: address {number} is invalid; expected host or host:port, separated by commas"
                )
            found.append(replace(parameters, host=other.host, port=other.port))
        return found

    def __str__(self) -> str:
        return self.display_url


def endpoint_of(settings: Settings) -> Endpoint:
    """Return the endpoint of the options. Raises OptionError for an invalid URL or an unreadable file."""
    tls = {
        "cafile": settings.tls_ca_file,
        "certfile": settings.tls_cert_file,
        "keyfile": settings.tls_key_file,
        "server_name": settings.tls_server_name,
        "verify": None if settings.tls_verify else False,
    }
    endpoint = Endpoint(
        settings.url,
        "",
        settings.protocol,
        settings.vhost,
        settings.password_file,
        tuple((name, value) for name, value in tls.items() if value is not None),
        settings.tls_key_password_file,
        settings.hosts or (),
    )
    parameters = endpoint.nodes()[0]
    scheme = "amqps" if parameters.uses_tls else "amqp"
    host = f"[{parameters.host}]" if ":" in parameters.host else parameters.host
    display_url = f"{scheme}://{quote(parameters.user)}@{host}:{parameters.port}/{quote(parameters.vhost, safe='')}"
    return replace(endpoint, display_url=display_url)


def has_password(url: str) -> bool:
    authority = url.partition("://")[2].partition("/")[0]
    return ":" in authority.rpartition("@")[0] or "password=" in url.partition("?")[2]


def _read_secret(option: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise OptionError(
            f"option {option}: {path!r} cannot be read ({reason}); expected a file with the password that "
            "the driver and all workers can read"
        ) from None


def open_connection(endpoint: Endpoint, name: str, reconnect_timeout: float = RECONNECT_TIMEOUT) -> AnyConnection:
    """Open a connection that does not reconnect by itself.

    Args:
        endpoint: The broker, any node of which takes the connection.
        name: Name of the connection.
        reconnect_timeout: Seconds to keep trying.

    Raises:
        ConnectionRefused: The broker refused the login, the vhost or TLS; raised at once.
        BrokerUnreachable: The timeout expired.
    """
    deadline = time.monotonic() + reconnect_timeout
    attempt = 0
    while True:
        try:
            return open_hosts(endpoint.nodes(name))
        except ConnectionFailed as error:
            last: Error = error
            if isinstance(error, _PERMANENT_ERRORS) and error.reply_text != CLOSED_DURING_LOGIN:
                raise ConnectionRefused(f"no connection to {endpoint}: {error}") from None
        except (ConnectionClosed, Timeout) as error:
            last = error
        pause = _RETRY_DELAYS[min(attempt, len(_RETRY_DELAYS) - 1)]
        attempt += 1
        if time.monotonic() + pause > deadline:
            raise BrokerUnreachable(f"no connection to {endpoint} within {reconnect_timeout:g} s: {last}") from None
        time.sleep(pause)


def open_amqp091_connection(endpoint: Endpoint, name: str, reconnect_timeout: float = RECONNECT_TIMEOUT) -> Connection:
    """Like `open_connection`, but over AMQP 0-9-1, which the broker accepts on the same port."""
    connection = open_connection(replace(endpoint, protocol="0-9-1"), name, reconnect_timeout)
    assert isinstance(connection, Connection)
    return connection


class ControlClient:
    """Sends requests over a connection that is opened on first use and reopened after a failure.

    Requests are repeated after a lost connection, so they must be idempotent. Not thread-safe; pickling drops the
    connection.

    Args:
        endpoint: The broker.
        name: Name of the connection.
        reconnect_timeout: Seconds that the broker may be unreachable.
    """

    def __init__(
        self, endpoint: Endpoint, name: str = "leveret-spark", reconnect_timeout: float = RECONNECT_TIMEOUT
    ) -> None:
        self.endpoint = endpoint
        self.name = name
        self.reconnect_timeout = reconnect_timeout
        self._connection: AnyConnection | None = None
        self._channel: BaseChannel | None = None

    def request(self, operation: str, /, within: float = REQUEST_TIMEOUT, **arguments: Document) -> dict[str, Document]:
        """Send a request and return the reply. Arguments that are None are omitted.

        Raises:
            RequestRefused: The broker replied with an error.
            BrokerUnreachable: There was no reply in time.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        body = json.dumps({"version": REQUEST_VERSION, **given}).encode()
        answer = self._with_channel(
            operation,
            lambda channel: channel.request(
                body, operation, CONTROL_EXCHANGE, content_type="application/json", timeout=within
            ),
        )
        try:
            reply = json.loads(answer.body)
            if reply["ok"]:
                return dict(reply)
            error = reply["error"]
            condition, message = str(error["condition"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            raise RequestRefused(operation, "internal-error", "the reply is malformed") from None
        raise RequestRefused(operation, condition, message)

    def is_leveret(self) -> bool:
        """Return whether the broker is Leveret. Over AMQP 1.0 it presents itself as RabbitMQ in `product`."""
        properties = self.connection().server_properties
        return any(str(properties.get(name, "")).startswith("Leveret") for name in ("product", "platform"))

    def connection(self) -> AnyConnection:
        """Return the open connection for other uses. Raises BrokerUnreachable."""
        return self._ensure_connected(time.monotonic() + self.reconnect_timeout)

    def channel(self) -> BaseChannel:
        """Open a channel for other uses."""
        return self.connection().open_channel()

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.close()

    def _with_channel(self, operation: str, call: Callable[[BaseChannel], Reply]) -> Reply:
        deadline = time.monotonic() + self.reconnect_timeout
        while True:
            try:
                connection = self._ensure_connected(deadline)
                if self._channel is None or not self._channel.is_open:
                    self._channel = connection.open_channel()
                return call(self._channel)
            except (NotFound, Returned) as error:
                raise RequestRefused(
                    operation,
                    "not-implemented",
                    f"{self.endpoint} has no exchange {CONTROL_EXCHANGE}: it is not Leveret, or an older version ({error})",
                ) from None
            except ChannelClosed as error:
                self._channel = None
                raise RequestRefused(operation, "channel-closed", str(error)) from None
            except (ConnectionClosed, ConnectionFailed, Timeout) as error:
                self.close()
                if time.monotonic() > deadline:
                    raise BrokerUnreachable(
                        f"{operation}: no reply from {self.endpoint} within {self.reconnect_timeout:g} s: {error}"
                    ) from None

    def _ensure_connected(self, deadline: float) -> AnyConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self.close()
        self._connection = open_connection(self.endpoint, self.name, max(deadline - time.monotonic(), 0.0))
        return self._connection

    def __getstate__(self) -> tuple[Endpoint, str, float]:
        return self.endpoint, self.name, self.reconnect_timeout

    def __setstate__(self, state: tuple[Endpoint, str, float]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<ControlClient {self.endpoint}>"
