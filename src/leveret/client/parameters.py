"""Parameters of a connection to one host."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from leveret.client.errors import InvalidUrl, TlsFailed
from leveret.client.events import EventCallback
from leveret.wire.amqp0.constants import FRAME_MIN_SIZE
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import encode_table

PORT: Final = 5672
TLS_PORT: Final = 5671
PROTOCOLS: Final = ("auto", "0-9-1", "0-9", "1.0")
ADDRESSES: Final = ("auto", "v2", "v1", "plain")
TRACING: Final = ("propagate", "spans", "off")
SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS", *SCRAM)
# Maximum timeout in seconds that all clocks and locks of Python support.
MAX_SECONDS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Parameters:
    """Everything needed to connect to one host. Invalid values raise `InvalidUrl`.

    Attributes:
        host: Host name or address (IPv6 without brackets).
        port: Port; 0 means 5672, or 5671 with TLS.
        vhost: Virtual host.
        user: User name.
        password: Password.
        protocol: "0-9-1", "0-9", "1.0" or "auto": 0-9-1, or 1.0 if the server speaks only 1.0.
        name: Name of the connection on the server; "" for none.
        mechanism: SASL mechanism: "PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS", "SCRAM-SHA-512" or "SCRAM-SHA-256".
        locale: Locale of error texts, which most servers ignore.
        heartbeat: Heartbeat interval in seconds; 0 disables heartbeats.
        channel_max: Maximum number of channels; 0 accepts the server's limit.
        frame_max: Maximum frame size in bytes; 0 accepts the server's limit.
        connect_timeout: Seconds until the connection is open, including TLS and the handshake.
        timeout: Timeout of calls in seconds; None for no limit.
        blocked_timeout: Seconds that publishes wait while the server blocks publishers; None for no limit.
        reconnect: Whether to reopen a lost connection.
        reconnect_delay: Seconds before the second attempt; doubles with each further one.
        reconnect_max_delay: Upper limit of `reconnect_delay`.
        reconnect_attempts: Maximum number of attempts; 0 for no limit.
        tls: True for TLS with the options below, or a context that replaces them (except `server_name`).
        cafile: PEM file of trusted certificates; "" for those of the system.
        certfile: PEM file of the client's certificate.
        keyfile: PEM file of its key; "" if the key is in `certfile`.
        keypassword: Password of the key.
        verify: Whether the server's certificate must be trusted and match the server's name.
        server_name: Name that the certificate must match; "" for `host`.
        client_properties: Additional client properties for the server.
        addresses: Address format over AMQP 1.0: "v2" and "v1" are RabbitMQ's formats, "plain" passes names unchanged, and
            "auto" depends on the server's properties.
        container_id: Identity of the client over AMQP 1.0, required for named links that outlast a connection; "" for a
            random one.
        hostname: Host name in the `open` of AMQP 1.0, from which servers take the vhost; "" for "vhost:NAME" with the
            name of `vhost`, or for `host` if `vhost` is "/".
        tracing: "propagate" adds the current OpenTelemetry context to publishes if `opentelemetry-api` is installed,
            "spans" also starts a span for each `Message.process`, and "off" does neither.
        on_event: Called with each event of the connection.
    """

    mechanisms: ClassVar[tuple[str, ...]] = MECHANISMS

    host: str = "localhost"
    port: int = 0
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    protocol: str = "auto"
    name: str = ""
    mechanism: str = "PLAIN"
    locale: str = "en_US"
    heartbeat: int = 60
    channel_max: int = 0
    frame_max: int = 0
    connect_timeout: float = 10.0
    timeout: float | None = 30.0
    blocked_timeout: float | None = None
    reconnect: bool = True
    reconnect_delay: float = 0.1
    reconnect_max_delay: float = 30.0
    reconnect_attempts: int = 0
    tls: ssl.SSLContext | bool = False
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""
    keypassword: str = field(default="", repr=False)
    verify: bool = True
    server_name: str = ""
    client_properties: dict[str, Any] = field(default_factory=dict, hash=False)
    addresses: str = "auto"
    container_id: str = ""
    hostname: str = ""
    tracing: str = "propagate"
    on_event: EventCallback | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_types()
        if not self.port:
            object.__setattr__(self, "port", TLS_PORT if self.uses_tls else PORT)
        object.__setattr__(self, "client_properties", dict(self.client_properties))
        self._check_values()
        self._check_tls()

    @property
    def uses_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls is not False

    @property
    def tls_name(self) -> str:
        """The name for TLS SNI and for verifying the server's certificate."""
        return self.server_name or self.host.partition("%")[0]  # without the zone of an IPv6 address

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS.

        A new context is created for each connection, so that replaced files take effect.

        Raises:
            TlsFailed: A file cannot be used.
        """
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.cafile or None)
        except (OSError, ValueError) as error:
            raise self._tls_failed(
                f"option cafile: {self.cafile!r}: {_reason(error)}; expected certificates in PEM"
            ) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certfile:
            password = _Password(self.keypassword)
            try:
                context.load_cert_chain(self.certfile, self.keyfile or None, password.get)
            except (OSError, ValueError) as error:
                files = repr(self.certfile) + (f" and {self.keyfile!r}" if self.keyfile else "")
                if password.asked:
                    reason = "the key's password is missing or wrong (option keypassword)"
                else:
                    reason = f"{_reason(error)}; expected a certificate and its key in PEM"
                raise self._tls_failed(f"options certfile and keyfile: {files}: {reason}") from error
        return context

    def sasl(self) -> tuple[str, bytes]:
        """Return the mechanism and its initial response, for `connection.start-ok`."""
        if self.mechanism == "PLAIN":
            return "PLAIN", b"\0" + _utf8(self.user) + b"\0" + _utf8(self.password)
        if self.mechanism == "AMQPLAIN":
            # RabbitMQ omits the length of the table, and so do all of its clients.
            return "AMQPLAIN", encode_table({"LOGIN": self.user, "PASSWORD": self.password}, RABBITMQ)[4:]
        return self.mechanism, b""

    def may_use(self, offered: Iterable[str]) -> bool:
        """Return whether a server that offers these mechanisms accepts that of the connection."""
        return self.mechanism in offered

    def _tls_failed(self, text: str) -> TlsFailed:
        return TlsFailed(text, host=self.host, port=self.port)

    def _check_types(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str):
                raise bad_option(name, value, "text")
            try:
                _utf8(value)
            except UnicodeEncodeError:
                raise bad_option(name, value, "Unicode text") from None
        for name, (low, high) in _INTEGERS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise bad_option(name, value, f"an integer from {low} to {high}")
        for name in ("reconnect", "verify"):
            if not isinstance(getattr(self, name), bool):
                raise bad_option(name, getattr(self, name), "True or False")
        for name, (zero, none) in _TIMES.items():
            value = getattr(self, name)
            if none and value is None:
                continue
            if (
                not isinstance(value, (int, float))
                or isinstance(value, bool)
                or not 0 <= value <= MAX_SECONDS
                or (value == 0 and not zero)
            ):
                raise bad_option(name, value, f"seconds {'from' if zero else 'above'} 0{', or None' if none else ''}")
        if not isinstance(self.tls, (bool, ssl.SSLContext)):
            raise bad_option("tls", self.tls, "an ssl.SSLContext, True or False")
        if not isinstance(self.client_properties, dict):
            raise bad_option("client_properties", self.client_properties, "a dict")
        if self.on_event is not None and not callable(self.on_event):
            raise bad_option("on_event", self.on_event, "a function that takes an event")

    def _check_values(self) -> None:
        _check_host("host", self.host)
        if self.server_name:
            _check_host("server_name", self.server_name)
        if not 1 <= len(_utf8(self.vhost)) <= 255:
            raise bad_option("vhost", self.vhost, "a name of 1 to 255 bytes")
        for name, choices in (
            ("protocol", PROTOCOLS),
            ("mechanism", self.mechanisms),
            ("addresses", ADDRESSES),
            ("tracing", TRACING),
        ):
            if getattr(self, name) not in choices:
                raise bad_option(name, getattr(self, name), f"one of {', '.join(choices)}")
        if self.mechanism == "PLAIN" and ("\0" in self.user or "\0" in self.password):
            raise InvalidUrl(
                "options user and password: PLAIN cannot transfer NUL characters; expected none, or mechanism AMQPLAIN"
            )
        if not 1 <= len(self.locale) <= 255:
            raise bad_option("locale", self.locale, 'a name such as "en_US"')
        if 0 < self.frame_max < FRAME_MIN_SIZE:
            raise bad_option("frame_max", self.frame_max, f"0 or at least {FRAME_MIN_SIZE}")
        if self.reconnect_max_delay < self.reconnect_delay:
            raise bad_option(
                "reconnect_max_delay",
                self.reconnect_max_delay,
                f"at least reconnect_delay, which is {self.reconnect_delay}",
            )
        try:
            encode_table(self.client_properties, RABBITMQ)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidUrl(f"option client_properties: {error}") from error

    def _check_tls(self) -> None:
        given = [name for name in ("cafile", "certfile", "keyfile", "keypassword") if getattr(self, name)]
        if not self.verify:
            given.append("verify")
        if given and isinstance(self.tls, ssl.SSLContext):
            raise InvalidUrl(f"options {', '.join(given)} with an ssl.SSLContext as option tls; expected only the context")
        if self.server_name:
            given.append("server_name")
        if given and not self.uses_tls:
            raise InvalidUrl(f"options {', '.join(given)} without TLS; expected amqps:// or option tls")
        if self.keyfile and not self.certfile:
            raise InvalidUrl("option keyfile without option certfile; expected both")


_TEXTS: Final = (
    "host",
    "vhost",
    "user",
    "password",
    "protocol",
    "name",
    "mechanism",
    "locale",
    "cafile",
    "certfile",
    "keyfile",
    "keypassword",
    "server_name",
    "addresses",
    "container_id",
    "hostname",
    "tracing",
)
_CHOICES: Final = {"protocol": PROTOCOLS, "mechanism": MECHANISMS, "addresses": ADDRESSES, "tracing": TRACING}
SECRET: Final = ("password", "keypassword")
_INTEGERS: Final = {
    "port": (0, 65535),
    "heartbeat": (0, 65535),
    "channel_max": (0, 65535),
    "frame_max": (0, 2**32 - 1),
    "reconnect_attempts": (0, 2**31 - 1),
}
# Whether a time may be 0, and whether it may be None.
_TIMES: Final = {
    "connect_timeout": (False, False),
    "timeout": (False, True),
    "blocked_timeout": (True, True),
    "reconnect_delay": (True, False),
    "reconnect_max_delay": (True, False),
}


class _Password:
    """Password callback for OpenSSL, which would otherwise prompt for the key's password on the terminal."""

    def __init__(self, password: str) -> None:
        self._password = password
        self.asked = False

    def get(self) -> bytes:
        self.asked = True
        return _utf8(self._password) or b"\0"


def bad_option(name: str, value: object, expected: str) -> InvalidUrl:
    """Return the exception for an invalid option. It hides secret values and truncates long ones."""
    shown = "the value"
    if name not in SECRET:
        try:
            shown = repr(value)[:100]
        except ValueError:  # an integer of thousands of digits
            shown = "the number"
    return InvalidUrl(f"option {name}: {shown} is invalid; expected {expected}")


def _check_host(name: str, host: str) -> None:
    """Validate a host. The resolver would raise other exceptions for an invalid one."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise bad_option(name, host, "a name or an address") from None
    elif not host or any(char.isspace() or not char.isprintable() or char in "[]/?#@" for char in host):
        raise bad_option(name, host, "a name or an address")
    else:
        try:
            host.encode("idna")
        except UnicodeError:
            raise bad_option(name, host, "a name or an address") from None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error)
