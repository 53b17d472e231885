"""URLs and options, compatible with RabbitMQ, pika and aio-pika.

    amqp://user:password@host:port/vhost?option=value&option=value

`amqps://` means TLS. Missing parts have defaults: user and password "guest", host localhost, port 5672 or 5671, and vhost
"/", even for an empty path. All parts may be percent-encoded. In the query part, "+" is a space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from leveret.client.errors import InvalidUrl
from leveret.client.options import Option, read_options, read_port
from leveret.client.parameters import PORT, TLS_PORT, Parameters

_SCHEMES: Final = {"amqp": False, "amqps": True}
_EXPECTED: Final = "expected amqp://user:password@host:port/vhost"
_DEFAULT_MAX_DELAY: Final = Parameters().reconnect_max_delay


def parse_urls(urls: str | Iterable[str], **options: Option) -> list[Parameters]:
    """Return the parameters of one or more URLs with the same options. Raises `InvalidUrl`, even for an empty list."""
    if isinstance(urls, str):
        return [parse_url(urls, **options)]
    if not isinstance(urls, Iterable) or isinstance(urls, bytes):
        raise InvalidUrl(f"URL of type {type(urls).__name__}; {_EXPECTED}")
    found = [parse_url(url, **options) for url in urls]
    if not found:
        raise InvalidUrl("empty list of URLs; expected at least one")
    return found


def parse_hosts(urls: str | Iterable[str], protocol: str | None, options: Mapping[str, object]) -> list[Parameters]:
    """Return the parameters of the hosts of a connection, all with the same protocol.

    Args:
        urls: One or several URLs.
        protocol: Protocol; "auto" for the one that the URLs select. None is 0-9-1, which a URL must not contradict.
        options: Other options.

    Raises:
        InvalidUrl: A URL or an option is invalid.
    """
    if protocol is not None and protocol != "auto":
        options = {**options, "protocol": protocol}
    hosts = parse_urls(urls, **options)
    selected = {host.protocol for host in hosts}
    if len(selected) > 1:
        raise InvalidUrl(f"the URLs select different protocols: {', '.join(sorted(selected))}; expected one")
    if protocol is None:
        if not selected <= {"auto", "0-9-1"}:
            raise InvalidUrl(
                f"the URL selects protocol {hosts[0].protocol}, whose connections have another type; expected"
                f' argument protocol="{hosts[0].protocol}", or protocol="auto" for any'
            )
        hosts = [replace(host, protocol="0-9-1") for host in hosts]
    return hosts


def parse_url(url: str = "amqp://", **options: Option) -> Parameters:
    """Return the parameters of a URL and options; options take precedence over the URL.

    Options are the fields of `Parameters` and their synonyms in other clients (`options.py`). None leaves an option at its
    default; for an optional timeout it means no limit.

    Raises:
        InvalidUrl: The URL or an option is invalid.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"URL of type {type(url).__name__}; {_EXPECTED}")
    scheme, separator, rest = url.partition("://")
    tls = _SCHEMES.get(scheme.lower())
    if not separator or tls is None:
        raise InvalidUrl(
            f"the URL {f'begins with {scheme[:20]!r}' if separator else 'has no scheme'}; {_EXPECTED}, or amqps://"
        )
    if "#" in rest:
        raise InvalidUrl("the URL contains '#'; expected it encoded as %23")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    found = _read_authority(authority, "@" in path or "@" in query)
    if path:
        found["vhost"] = _decode(path)
    asked = read_options([_pair(piece) for piece in query.split("&") if piece], True)
    if asked.get("tls"):
        # TLS comes from pika's ssl_options, which leave the port to the scheme.
        found.setdefault("port", TLS_PORT if tls else PORT)
    asked.update(read_options(options.items(), False))
    if tls:
        if asked.get("tls") is False:
            raise InvalidUrl("an option disables TLS, but the URL begins with amqps://; expected amqp://")
        asked.setdefault("tls", True)
    found.update(asked)
    if "user" in found:
        # The default password belongs to guest only.
        found.setdefault("password", "")
    delay = found.get("reconnect_delay")
    if isinstance(delay, (int, float)) and delay > _DEFAULT_MAX_DELAY:
        found.setdefault("reconnect_max_delay", delay)
    return Parameters(**found)


def split_host(place: str, port: int) -> tuple[str, int]:
    """Return host and port of a text such as "[::1]:5672", or the given port if it has none. Raises `InvalidUrl`."""
    found = _read_authority(place, False)
    return found.get("host", place), found.get("port", port)


def _read_authority(authority: str, suspicious: bool) -> dict[str, Option]:
    """Return the user, password, host and port of an authority, without absent parts.

    `suspicious` means that an @ follows the authority. What looks like the port may then be part of a password with a slash
    or question mark, so errors do not show it.
    """
    found: dict[str, Option] = {}
    credentials, separator, place = authority.rpartition("@")
    if separator:
        user, separator, password = credentials.partition(":")
        found["user"] = _decode(user)
        if separator:
            found["password"] = _decode(password)
    try:
        found.update(_read_place(place))
    except InvalidUrl:
        if not suspicious:
            raise
        raise InvalidUrl(
            "the host or port is invalid; expected '/', '?' and '@' in credentials encoded as %2F, %3F, %40"
        ) from None
    return found


def _read_place(place: str) -> dict[str, Option]:
    """Return the host and port of a text, without absent parts. Raises `InvalidUrl`."""
    found: dict[str, Option] = {}
    host, _, port = place.partition(":")
    if place.startswith("["):
        host, closed, port = place[1:].partition("]")
        if not closed or port[:1] not in ("", ":") or ":" not in host:
            raise InvalidUrl(f"invalid host {place!r}; expected an IPv6 address in brackets, such as [::1]:5672")
        port = port[1:]
    elif ":" in port:
        raise InvalidUrl(f"invalid host and port {place!r}; expected an IPv6 address in brackets, such as [::1]:5672")
    if host:
        found["host"] = _decode(host)
    if port:
        found["port"] = read_port(port)
    return found


def _pair(piece: str) -> tuple[str, str]:
    name, _, value = piece.replace("+", " ").partition("=")
    return _decode(name), _decode(value)


def _decode(text: str) -> str:
    """Decode percent-encoded text. Bytes that are not UTF-8 become surrogates, as on the wire."""
    return unquote(text, "utf-8", "surrogateescape")
