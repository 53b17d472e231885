"""The listening sockets of the HTTP API and the metrics of a broker, and the settings of their server."""

from __future__ import annotations

import errno
import importlib.util
import logging
import socket
from collections.abc import Container
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from leveret._build import __version__, installation
from leveret.broker.node_name import node_name
from leveret.config import Config, WebhookConfig
from leveret.management.http.masks import Masks
from leveret.management.http.settings import HttpSettings, OAuthClient
from leveret.management.socket_path import CONTROL_SOCKET
from leveret.node.errors import HttpUnavailable, StartFailed
from leveret.node.listening import addresses_of, bracketed

_REQUIRED: Final = ("aiosmtplib", "asn1crypto", "h11", "httpcore", "prometheus_client", "starlette", "uvicorn")
_BACKLOG: Final = 128
# Ports that are tried instead of a default port that is in use.
_MAX_PORTS: Final = 100
# The file of the long history.
_HISTORY: Final = "history.sqlite"
# The file of alerts that wait for a webhook.
_OUTBOX: Final = "webhooks.sqlite"
# The file of alerts that wait for a mail.
_MAILS: Final = "mails.sqlite"

logger = logging.getLogger("leveret.serve")


class HttpEndpoint:
    """The sockets of one broker. They stay open while the server restarts.

    Args:
        config: The configuration of the broker.
        directory: The directory of the control socket and of the long history.
        configured: The full names of the settings that the user has set. If the default port of a listener is in use, and
            its port is not among them, the next free port is used.

    Attributes:
        listeners: The addresses of the API, as URLs. Empty if there is none.
        metrics_listeners: The addresses of the metrics, as URLs. Empty if there are none.
    """

    def __init__(
        self, config: Config, directory: Path, configured: Container[str] = ("management.port", "management.metrics_port")
    ) -> None:
        self._config = config
        self._configured = configured
        self._directory = directory
        self._sockets: list[socket.socket] = []
        self._metrics_sockets: list[socket.socket] = []
        self.listeners: list[str] = []
        self.metrics_listeners: list[str] = []

    def listen(self) -> None:
        """Open the sockets, if the API is enabled.

        Raises:
            HttpUnavailable: A package is missing, or a setting is invalid.
            StartFailed: An address cannot be listened on.
        """
        management = self._config.management
        if not management.enabled:
            return
        missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
        if missing:
            raise HttpUnavailable(f"no HTTP API: {', '.join(missing)} not installed ({installation('management')})")
        try:
            Masks(management.mask)
        except ValueError as error:
            raise HttpUnavailable(f"no HTTP API: 'management.mask' has an {error}") from None
        self._sockets = self._open("HTTP API", "port", management.port)
        self.listeners = self._urls(self._sockets, f"{management.path_prefix}/")
        if management.metrics_enabled:
            self._metrics_sockets = self._open("listener of the metrics", "metrics_port", management.metrics_port)
            self.metrics_listeners = self._urls(self._metrics_sockets, "/metrics")

    def _open(self, what: str, setting: str, port: int) -> list[socket.socket]:
        host = self._config.management.host
        # A port that the system picks may be in use on another address of the host.
        step, tries = (
            (0, _MAX_PORTS) if port == 0 else (1, 1 if f"management.{setting}" in self._configured else _MAX_PORTS)
        )
        for number in range(tries):
            try:
                opened = _listen(host, port + number * step)
            except (OSError, StartFailed) as error:
                if isinstance(error, OSError) and error.errno == errno.EADDRINUSE and number < tries - 1:
                    continue
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise StartFailed(
                    f"the {what} cannot listen on port {port}: {reason}; change 'management.host' or 'management.{setting}'"
                ) from None
            if number * step:
                logger.warning("port %d is in use; the %s listens on port %d", port, what, port + number)
            return opened
        raise AssertionError

    def _urls(self, sockets: list[socket.socket], path: str) -> list[str]:
        scheme = "https" if self._config.management.tls_cert is not None else "http"
        addresses = [opened.getsockname()[:2] for opened in sockets]
        return [f"{scheme}://{bracketed(host)}:{port}{path}" for host, port in addresses]

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the sockets. There are none if there is no API."""
        return [opened.fileno() for opened in (*self._sockets, *self._metrics_sockets)]

    def close(self) -> None:
        """Close the sockets."""
        for opened in (*self._sockets, *self._metrics_sockets):
            opened.close()
        self._sockets, self._metrics_sockets = [], []

    def settings(self) -> HttpSettings:
        """Return the settings of the server, with the descriptors of this process."""
        config = self._config
        management = config.management
        return HttpSettings(
            control=str(self._directory / CONTROL_SOCKET),
            sockets=[opened.fileno() for opened in self._sockets],
            metrics_sockets=[opened.fileno() for opened in self._metrics_sockets],
            metrics_listeners=self.metrics_listeners,
            node=node_name(),
            version=__version__,
            rabbitmq_version=management.rabbitmq_version,
            path_prefix=management.path_prefix,
            hosts=_hosts(config),
            cors_origins=management.cors_origins,
            max_body_size=management.max_body_size,
            basic_auth=management.basic_auth,
            refused_logins=management.refused_logins,
            session_timeout=management.session_timeout,
            session_idle_timeout=management.session_idle_timeout,
            oauth_clients=_oauth_clients(config),
            mask=management.mask,
            mask_exempt_tags=management.mask_exempt_tags,
            webhooks=[*map(_plain_webhook, management.alert_webhooks), *management.webhooks.values()],
            outbox=str(self._directory / _OUTBOX),
            mail=management.mail,
            mails=str(self._directory / _MAILS),
            tls_cert=management.tls_cert,
            tls_key=management.tls_key,
            amqp_tls_cert=config.tls.cert,
            amqp_tls_ca=config.tls.ca,
            disk_free_limit=config.limits.disk_free,
            mechanisms=list(config.auth.mechanisms),
            listeners=self.listeners,
            history=str(self._directory / _HISTORY),
            log_level=config.server.log_level,
            log_format=config.server.log_format,
        )


def _hosts(config: Config) -> list[str]:
    """Return the names of this broker that the configuration has, and those of the machine."""
    machine = socket.gethostname()
    advertised = config.cluster.advertised or ""
    configured = (config.management.host, config.cluster.client_host or "", advertised.rpartition(":")[0])
    return [*config.management.hosts, machine, machine.partition(".")[0], *filter(None, configured)]


def _plain_webhook(url: str) -> WebhookConfig:
    return WebhookConfig(url=url)


def _oauth_clients(config: Config) -> list[OAuthClient]:
    """Return the clients of the console at all providers of the sign-in page."""
    management, oauth = config.management, config.auth.oauth
    found = []
    if management.oauth_client_id:
        found.append(
            OAuthClient(
                label=management.oauth_label,
                issuer=oauth.issuer,
                client_id=management.oauth_client_id,
                ca=oauth.ca,
                scopes=" ".join(management.oauth_scopes),
                origins=management.oauth_origins or [_origin_of(oauth.issuer)],
            )
        )
    for name, client in management.oauth_providers.items():
        provider = oauth.providers[name]
        found.append(
            OAuthClient(
                label=client.label or name,
                issuer=provider.issuer,
                client_id=client.client_id,
                ca=provider.ca,
                scopes=" ".join(client.scopes),
                origins=client.origins or [_origin_of(provider.issuer)],
            )
        )
    return found


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a host with the same port. Addresses that this machine lacks are skipped.

    Raises:
        OSError: No address can be listened on, or the port is in use.
        StartFailed: The host is unknown.
    """
    opened: list[socket.socket] = []
    failure: OSError | None = None
    for address in addresses_of(host, "management.host"):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            opened.append(_bind(family, address, opened[0].getsockname()[1] if opened else port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for listener in opened:
                    listener.close()
                raise
            failure = error
    if not opened:
        assert failure is not None
        raise failure
    return opened


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
