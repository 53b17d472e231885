"""Connections to the broker, and requests to its exchange `leveret.control`.

Nothing here shows a password: not in a representation, not in an error. What is pickled into tasks holds the URL as it was
given; with `passwordFile` or the environment variable there is none in it, and each process reads it when it connects.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from leveret.client.blocking.channel import Channel
from leveret.client.blocking.connection import Connection
from leveret.client.core.handshake import CLOSED_DURING_LOGIN
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
from leveret.spark.errors import BrokerUnreachable, OptionError, RequestRefused
from leveret.spark.options import Settings

CONTROL: Final = "leveret.control"
VERSION: Final = 1
PASSWORD_VARIABLE: Final = "LEVERET_PASSWORD"
# Seconds that a broker may be away, in the middle of a query, before the query fails.
PATIENCE: Final = 60.0
# Seconds for one request.
REQUEST_TIME: Final = 30.0
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
# What trying again does not mend. A broker that hangs up during the login may just be killed.
_FINAL: Final = (AuthenticationFailed, VhostRefused, TlsFailed)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the broker is and how to log in; small, and pickled into tasks.

    secret   the URL with everything in it
    shown    the same for people, without password
    """

    secret: str = field(repr=False)
    shown: str
    protocol: str = "0-9-1"
    vhost: str | None = None
    password_file: str | None = None
    tls: tuple[tuple[str, Any], ...] = ()
    key_password_file: str | None = None

    def parameters(self, name: str = "") -> Parameters:
        """For one connection, with the password as it is now. `OptionError` for a file that cannot be read or a URL that
        cannot be used."""
        options: dict[str, Any] = dict(self.tls)
        if self.vhost is not None:
            options["vhost"] = self.vhost
        if self.password_file is not None:
            options["password"] = _read_secret("passwordFile", self.password_file)
        elif not has_password(self.secret) and os.environ.get(PASSWORD_VARIABLE):
            options["password"] = os.environ[PASSWORD_VARIABLE]
        if self.key_password_file is not None:
            options["keypassword"] = _read_secret("tls.keyPasswordFile", self.key_password_file)
        try:
            return parse_url(self.secret, protocol=self.protocol, name=name, reconnect=False, **options)
        except InvalidUrl as error:
            raise OptionError(f"option url: {error}") from None

    def __str__(self) -> str:
        return self.shown


def endpoint_of(settings: Settings) -> Endpoint:
    """Where the options say that the broker is. `OptionError` for what cannot be used, files included."""
    tls = {"cafile": settings.tls_ca_file, "certfile": settings.tls_cert_file, "keyfile": settings.tls_key_file,
           "server_name": settings.tls_server_name, "verify": None if settings.tls_verify else False}
    made = Endpoint(settings.url, "", settings.protocol, settings.vhost, settings.password_file,
                    tuple((name, value) for name, value in tls.items() if value is not None),
                    settings.tls_key_password_file)
    parameters = made.parameters()
    scheme = "amqps" if parameters.uses_tls else "amqp"
    host = f"[{parameters.host}]" if ":" in parameters.host else parameters.host
    shown = f"{scheme}://{quote(parameters.user)}@{host}:{parameters.port}/{quote(parameters.vhost, safe='')}"
    return replace(made, shown=shown)


def has_password(url: str) -> bool:
    authority = url.partition("://")[2].partition("/")[0]
    return ":" in authority.rpartition("@")[0] or "password=" in url.partition("?")[2]


def _read_secret(option: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text of UTF-8"
        raise OptionError(f"option {option}: {path!r} cannot be read ({reason}); expected a file with the password, "
                          "readable by the driver and by every worker") from None


def open_connection(endpoint: Endpoint, name: str, patience: float = PATIENCE) -> Connection:
    """A connection that does not come back by itself. Tries for so many seconds; `BrokerUnreachable` then, and at once
    where the broker refuses the login, the vhost or TLS."""
    deadline = time.monotonic() + patience
    attempt = 0
    while True:
        connection = Connection([endpoint.parameters(name)])
        try:
            connection.driver.open()
            return connection
        except ConnectionFailed as error:
            last: Error = error
            if isinstance(error, _FINAL) and error.reply_text != CLOSED_DURING_LOGIN:
                raise BrokerUnreachable(f"no connection to {endpoint}: {error}") from None
        except (ConnectionClosed, Timeout) as error:
            last = error
        pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
        attempt += 1
        if time.monotonic() + pause > deadline:
            raise BrokerUnreachable(f"no connection to {endpoint} within {patience:g} s: {last}") from None
        time.sleep(pause)


class ControlClient:
    """Requests to the broker, over one connection that is opened when it is needed and again when it was lost: requests
    are such that asking twice does no harm. Not for several threads at a time. Pickled, it forgets its connection.

    patience   seconds that the broker may be away
    """

    def __init__(self, endpoint: Endpoint, name: str = "leveret-spark", patience: float = PATIENCE) -> None:
        self.endpoint = endpoint
        self.name = name
        self.patience = patience
        self._connection: Connection | None = None
        self._channel: Channel | None = None

    def request(self, operation: str, /, within: float = REQUEST_TIME, **arguments: Any) -> dict[str, Any]:
        """What the broker answers. Arguments that are None are left out. `RequestRefused` where that is an error,
        `BrokerUnreachable` where it does not come."""
        given = {name: value for name, value in arguments.items() if value is not None}
        body = json.dumps({"version": VERSION, **given}).encode()
        answer = self._with_channel(operation, lambda channel: channel.request(
            body, operation, CONTROL, content_type="application/json", timeout=within))
        try:
            reply = json.loads(answer.body)
            if reply["ok"]:
                return dict(reply)
            error = reply["error"]
            condition, message = str(error["condition"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            raise RequestRefused(operation, "internal-error", "the answer cannot be understood") from None
        raise RequestRefused(operation, condition, message)

    def is_leveret(self) -> bool:
        """Whether the broker takes requests at all. Over AMQP 1.0 it says so less loudly: clients look for RabbitMQ."""
        properties = self.connection().server_properties
        return any(str(properties.get(name, "")).startswith("Leveret") for name in ("product", "platform"))

    def connection(self) -> Connection:
        """The connection, open, for other things than requests. `BrokerUnreachable`."""
        return self._connected(time.monotonic() + self.patience)

    def channel(self) -> Channel:
        """A channel of its own, for other things than requests."""
        return self.connection().channel()

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.close()

    def _with_channel(self, operation: str, ask: Callable[[Channel], Any]) -> Any:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                connection = self._connected(deadline)
                if self._channel is None or not self._channel.is_open:
                    self._channel = connection.channel()
                return ask(self._channel)
            except (NotFound, Returned) as error:
                raise RequestRefused(operation, "not-implemented", f"{self.endpoint} has no exchange {CONTROL}: it is not "
                                     f"Leveret, or an older one ({error})") from None
            except ChannelClosed as error:
                self._channel = None
                raise RequestRefused(operation, "channel-closed", str(error)) from None
            except (ConnectionClosed, ConnectionFailed, Timeout) as error:
                self.close()
                if time.monotonic() > deadline:
                    raise BrokerUnreachable(f"{operation}: no answer from {self.endpoint} within {self.patience:g} s: "
                                            f"{error}") from None

    def _connected(self, deadline: float) -> Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self.close()
        self._connection = open_connection(self.endpoint, self.name, max(deadline - time.monotonic(), 0.0))
        return self._connection

    def __getstate__(self) -> tuple[Endpoint, str, float]:
        return self.endpoint, self.name, self.patience

    def __setstate__(self, state: tuple[Endpoint, str, float]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<ControlClient {self.endpoint}>"
