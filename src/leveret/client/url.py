"""URLs and options, as Leveret, RabbitMQ, pika and aio-pika have them.

    amqp://user:password@host:port/vhost?option=value&option=value

`amqps://` is TLS. What is missing has its default: user and password "guest", localhost, 5672 or 5671, and the vhost "/",
which an empty path stands for, too. Everything may be percent-encoded; in the query part "+" is a blank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from leveret.client.errors import InvalidUrl
from leveret.client.options import read_options, read_port
from leveret.client.parameters import PORT, TLS_PORT, Parameters

_SCHEMES: Final = {"amqp": False, "amqps": True}
_EXPECTED: Final = "expected amqp://user:password@host:port/vhost"
_DEFAULT_MAX_DELAY: Final = Parameters().reconnect_max_delay


def parse_urls(urls: str | Iterable[str], **options: Any) -> list[Parameters]:
    """The parameters of each URL, one or several, with the same options. `InvalidUrl` as of `parse_url`, and for none."""
    if isinstance(urls, str):
        return [parse_url(urls, **options)]
    if not isinstance(urls, Iterable) or isinstance(urls, bytes):
        raise InvalidUrl(f"a URL is text, not {type(urls).__name__}; {_EXPECTED}")
    found = [parse_url(url, **options) for url in urls]
    if not found:
        raise InvalidUrl("the list of URLs is empty; expected at least one")
    return found


def parse_url(url: str = "amqp://", **options: Any) -> Parameters:
    """What a URL and options say; options win over the URL. They are the fields of `Parameters`, and the synonyms that
    other clients have for them (`options.py`). None leaves an option at its default, or means for ever where it is a time
    that may be.

    `InvalidUrl` for everything else, which says what was wrong and what was expected.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"a URL is text, not {type(url).__name__}; {_EXPECTED}")
    scheme, separator, rest = url.partition("://")
    tls = _SCHEMES.get(scheme.lower())
    if not separator or tls is None:
        raise InvalidUrl(f"the URL {f'begins with {scheme[:20]!r}' if separator else 'has no scheme'}; {_EXPECTED}, "
                         "or amqps://")
    if "#" in rest:
        raise InvalidUrl("the URL has a '#'; expected it written as %23")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    found = _read_authority(authority, "@" in path or "@" in query)
    if path:
        found["vhost"] = _decode(path)
    asked = read_options([_pair(piece) for piece in query.split("&") if piece], True)
    if asked.get("tls"):
        # Of pika's ssl_options, with which the port stays the scheme's.
        found.setdefault("port", TLS_PORT if tls else PORT)
    asked.update(read_options(options.items(), False))
    if tls:
        if asked.get("tls") is False:
            raise InvalidUrl("an option turns TLS off, but the URL begins with amqps://; expected amqp://")
        asked.setdefault("tls", True)
    found.update(asked)
    if "user" in found:
        # The default password is guest's, and nobody else's.
        found.setdefault("password", "")
    delay = found.get("reconnect_delay")
    if isinstance(delay, (int, float)) and delay > _DEFAULT_MAX_DELAY:
        found.setdefault("reconnect_max_delay", delay)
    return Parameters(**found)


def split_host(place: str, port: int) -> tuple[str, int]:
    """FrontEnd and port of a text such as "[::1]:5672"; the port given where there is none. `InvalidUrl` for what is
    neither."""
    found = _read_authority(place, False)
    return found.get("host", place), found.get("port", port)


def _read_authority(authority: str, suspicious: bool) -> dict[str, Any]:
    """User, password, host and port, as far as they are there. `suspicious`: there is an @ behind the authority, so that
    what looks like a port may be a piece of a password with a slash in it, and is not shown."""
    found: dict[str, Any] = {}
    credentials, separator, place = authority.rpartition("@")
    if separator:
        user, separator, password = credentials.partition(":")
        found["user"] = _decode(user)
        if separator:
            found["password"] = _decode(password)
    host, _, port = place.partition(":")
    if place.startswith("["):
        host, closed, port = place[1:].partition("]")
        if not closed or port[:1] not in ("", ":") or ":" not in host:
            raise InvalidUrl(f"{place!r} is no host; expected an IPv6 address in brackets, such as [::1]:5672")
        port = port[1:]
    elif suspicious and not found and port and not port.isdigit():
        raise InvalidUrl("the port is no number; expected '/', '?' and '@' of user and password written as %2F, %3F, %40")
    elif ":" in port:
        raise InvalidUrl(f"{place!r} is no host and port; expected an IPv6 address in brackets, such as [::1]:5672")
    if host:
        found["host"] = _decode(host)
    if port:
        found["port"] = read_port(port)
    return found


def _pair(piece: str) -> tuple[str, str]:
    name, _, value = piece.replace("+", " ").partition("=")
    return _decode(name), _decode(value)


def _decode(text: str) -> str:
    """Octets that are not UTF-8 survive as surrogates, as everywhere on the wire."""
    return unquote(text, "utf-8", "surrogateescape")
