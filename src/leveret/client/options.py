"""Options by name: the fields of `Parameters`, and their names in pika, RabbitMQ and aio-pika.

Values in the query part of a URL are text. Keyword values have types, but may also be text. Times are in seconds, except
RabbitMQ's `connection_timeout`, which is in milliseconds.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterable
from ssl import SSLContext
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

from leveret.client.errors import InvalidUrl
from leveret.client.events import EventCallback
from leveret.client.parameters import SECRET, bad_option
from leveret.wire.amqp0.values import FieldMapping

_INTEGER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?", re.ASCII)
_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

# Keys of pika's `ssl_options`, and the options that they set.
_SSL_OPTIONS: Final = {
    "ca_certs": "cafile",
    "cafile": "cafile",
    "certfile": "certfile",
    "keyfile": "keyfile",
    "password": "keypassword",
    "server_hostname": "server_name",
}

# A keyword that a channel checks.
Option: TypeAlias = Any

Text: TypeAlias = str | None
Whole: TypeAlias = int | str | None
Seconds: TypeAlias = float | str | None
Switch: TypeAlias = bool | str | None
# The value of an option before it is read, or after.
Setting: TypeAlias = str | float | SSLContext | EventCallback | FieldMapping | None


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of `connect`: the fields of `Parameters`, then their synonyms in other clients.

    None leaves an option at its default, but means no limit for `timeout` and `blocked_timeout`.
    """

    host: Text
    port: Whole
    vhost: Text
    user: Text
    password: Text
    name: Text
    mechanism: Text
    locale: Text
    heartbeat: Whole
    channel_max: Whole
    frame_max: Whole
    max_message_size: Whole
    connect_timeout: Seconds
    timeout: Seconds
    blocked_timeout: Seconds
    reconnect: Switch
    reconnect_delay: Seconds
    reconnect_max_delay: Seconds
    reconnect_attempts: Whole
    tls: SSLContext | bool | None
    cafile: Text
    certfile: Text
    keyfile: Text
    keypassword: Text
    verify: Switch
    server_name: Text
    client_properties: dict[str, Any] | None
    addresses: Text
    container_id: Text
    hostname: Text
    tracing: Text
    on_event: EventCallback | None
    # pika
    connection_attempts: Whole
    retry_delay: Seconds
    socket_timeout: Seconds
    stack_timeout: Seconds
    blocked_connection_timeout: Seconds
    ssl_options: dict[str, Any] | str | None
    # RabbitMQ
    cacertfile: Text
    server_name_indication: Text
    auth_mechanism: Text
    connection_timeout: Seconds
    # aio-pika
    auth: Text
    no_verify_ssl: Switch
    reconnect_interval: Seconds
    # Leveret's own, by its long name
    connection_name: Text


def _unchanged(name: str, value: Setting) -> Setting:
    return value


def _host(name: str, value: Setting) -> Setting:
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return value[1:-1]
    return value


def _integer(name: str, value: Setting) -> Setting:
    if not isinstance(value, str):
        return value
    if not _INTEGER.fullmatch(value):
        raise bad_option(name, value, "an integer")
    return int(value)


def _seconds(name: str, value: Setting) -> Setting:
    if not isinstance(value, str):
        return value
    if not _NUMBER.fullmatch(value):
        raise bad_option(name, value, "seconds")
    return float(value)


def _seconds_or_none(name: str, value: Setting) -> Setting:
    if isinstance(value, str) and value.lower() == "none":
        return None
    return _seconds(name, value)


def _milliseconds(name: str, value: Setting) -> Setting:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise bad_option(name, value, "milliseconds")
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 10**12:
        raise bad_option(name, value, "milliseconds above 0")
    return value / 1000


def _boolean(name: str, value: Setting) -> Setting:
    if not isinstance(value, str):
        return value
    if value.lower() not in _BOOLEANS:
        raise bad_option(name, value, "true or false")
    return _BOOLEANS[value.lower()]


def _verify(name: str, value: Setting) -> Setting:
    if value in ("verify_peer", "verify_none"):
        return value == "verify_peer"
    if isinstance(value, str) and value.lower() not in _BOOLEANS:
        raise bad_option(name, value, "true or false, verify_peer or verify_none")
    return _boolean(name, value)


def _no_verify(name: str, value: Setting) -> Setting:
    value = _boolean(name, value)
    if value not in (True, False):
        raise bad_option(name, value, "true or false")
    return not value


def _server_name(name: str, value: Setting) -> Setting:
    if value == "disable":
        raise bad_option(name, value, "a name; to disable the check of the name, use verify=verify_none")
    return value


def _mechanism(name: str, value: Setting) -> Setting:
    return value.upper() if isinstance(value, str) else value


class _Option(NamedTuple):
    """An option. `target` is the field of `Parameters` that it sets."""

    target: str
    read: Callable[[str, Setting], Setting]


_OWN: Final = {
    "host": _host,
    "port": _integer,
    "vhost": _unchanged,
    "user": _unchanged,
    "password": _unchanged,
    "protocol": _unchanged,
    "name": _unchanged,
    "mechanism": _mechanism,
    "locale": _unchanged,
    "heartbeat": _integer,
    "channel_max": _integer,
    "frame_max": _integer,
    "max_message_size": _integer,
    "connect_timeout": _seconds,
    "timeout": _seconds_or_none,
    "blocked_timeout": _seconds_or_none,
    "reconnect": _boolean,
    "reconnect_delay": _seconds,
    "reconnect_max_delay": _seconds,
    "reconnect_attempts": _integer,
    "cafile": _unchanged,
    "certfile": _unchanged,
    "keyfile": _unchanged,
    "keypassword": _unchanged,
    "verify": _verify,
    "server_name": _server_name,
    "addresses": _unchanged,
    "container_id": _unchanged,
    "hostname": _unchanged,
    "tracing": _unchanged,
}
_SYNONYMS: Final = {
    # pika
    "connection_attempts": _Option("reconnect_attempts", _integer),
    "retry_delay": _Option("reconnect_delay", _seconds),
    "socket_timeout": _Option("connect_timeout", _seconds),
    "stack_timeout": _Option("connect_timeout", _seconds),
    "blocked_connection_timeout": _Option("blocked_timeout", _seconds_or_none),
    # RabbitMQ
    "cacertfile": _Option("cafile", _unchanged),
    "server_name_indication": _Option("server_name", _server_name),
    "auth_mechanism": _Option("mechanism", _mechanism),
    "connection_timeout": _Option("connect_timeout", _milliseconds),
    # aio-pika
    "auth": _Option("mechanism", _mechanism),
    "no_verify_ssl": _Option("verify", _no_verify),
    "reconnect_interval": _Option("reconnect_delay", _seconds),
    # Leveret's own, by its long name
    "connection_name": _Option("name", _unchanged),
}
_OPTIONS: Final = {**{name: _Option(name, read) for name, read in _OWN.items()}, **_SYNONYMS}
# Python objects, which a URL cannot contain.
_KEYWORD_ONLY: Final = ("tls", "client_properties", "on_event")
_OPTIONAL_TIMES: Final = ("timeout", "blocked_timeout")
_ALL: Final = (*_OPTIONS, "ssl_options", *_KEYWORD_ONLY)


def read_options(options: Iterable[tuple[str, Setting]], query: bool) -> dict[str, Option]:
    """Return the fields of `Parameters` that the options set.

    Args:
        options: Names and values.
        query: The options come from the query part of a URL.

    Raises:
        InvalidUrl: An option is unknown, invalid, or given twice.
    """
    found: dict[str, Option] = {}
    names: dict[str, str] = {}
    for name, value in options:
        if name == "ssl_options":
            pairs = {} if value is None else _read_ssl_options(value)
        elif name in _KEYWORD_ONLY:
            if query:
                raise InvalidUrl(f"option {name} in a URL; expected it as a keyword argument")
            pairs = {} if value is None else {name: value}
        else:
            option = _OPTIONS.get(name)
            if option is None:
                raise _unknown(name, query, "@" in name or not names.keys().isdisjoint(SECRET))
            # None means "not given", as passed by wrappers, or no limit for an optional timeout.
            pairs = {option.target: None if value is None else option.read(name, value)}
            if value is None and option.target not in _OPTIONAL_TIMES:
                continue
        for target, setting in pairs.items():
            other = names.get(target)
            # pika has both: socket_timeout covers the socket, stack_timeout the whole connect, as connect_timeout does.
            if name == "socket_timeout" and other == "stack_timeout":
                continue
            if other is not None and not (name == "stack_timeout" and other == "socket_timeout"):
                raise InvalidUrl(
                    f"option {name} is given twice"
                    if name == other
                    else f"options {other} and {name} set the same option; expected one of them"
                )
            names[target] = name
            found[target] = setting
    return found


def read_port(text: str) -> int:
    """Return the port of a URL. Raises `InvalidUrl`."""
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise bad_option("port", text, "an integer from 1 to 65535")
    return int(text)


def _unknown(name: str, query: bool, may_be_secret: bool) -> InvalidUrl:
    if query and may_be_secret:
        return InvalidUrl("unknown option; expected '?', '@' and '&' in passwords encoded as %3F, %40, %26")
    nearest = difflib.get_close_matches(name.lower(), _ALL[: -len(_KEYWORD_ONLY)] if query else _ALL, 1, 0.0)[0]
    return InvalidUrl(f"unknown option {name[:40]!r}; did you mean {nearest!r}")


def _read_ssl_options(value: Setting) -> dict[str, Setting]:
    """Return the options of pika's `ssl_options`: a dict or its Python literal; "None" means no TLS."""
    expected = f"a dict of {', '.join(_SSL_OPTIONS)}; for other settings, pass an ssl.SSLContext as keyword tls"
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise InvalidUrl(f"option ssl_options cannot be read; expected {expected}") from None
    if value is None:
        return {"tls": False}
    if not isinstance(value, dict):
        raise InvalidUrl(f"option ssl_options is not a dict; expected {expected}")
    found: dict[str, Setting] = {"tls": True}
    for name, setting in value.items():
        if name not in _SSL_OPTIONS:
            raise InvalidUrl(f"option ssl_options: unknown key {str(name)[:40]!r}; expected {expected}")
        if setting is not None:
            found[_SSL_OPTIONS[name]] = setting
    return found
