"""Settings of the HTTP process, which the broker's process sends as JSON."""

from __future__ import annotations

import msgspec

from leveret.config import MailConfig, WebhookConfig


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True):
    """The console as a client of an OpenID provider.

    Attributes:
        label: What the button of the sign-in page says after 'Sign in with'.
        issuer: The issuer of the provider.
        client_id: The client id of the console.
        ca: The CA certificates that verify the provider; None for those of the system.
        scopes: The scopes that the console asks for, with spaces.
        origins: The origins that the console sends requests to.
    """

    label: str
    issuer: str
    client_id: str
    ca: str | None
    scopes: str
    origins: list[str]


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP process.

    Attributes:
        control: The path of the control socket.
        sockets: File descriptors of the listening sockets.
        node: The name of the node in answers.
        version: Leveret's version.
        rabbitmq_version: The RabbitMQ version to report.
        path_prefix: The prefix of all paths.
        hosts: The names by which clients reach the API.
        cors_origins: Origins of pages that may use the API from a browser.
        max_body_size: Maximum size of a request body in bytes.
        basic_auth: Whether users may log in with passwords.
        mechanisms: `auth.mechanisms`.
        refused_logins: Maximum number of refused logins of one address per minute; 0 for no limit.
        session_timeout: Seconds after which a session ends.
        session_idle_timeout: Seconds without a request after which a session ends.
        oauth_clients: The OpenID providers at which users of the console sign in, that of `auth.oauth` first.
        mask: The fields of messages that are hidden.
        mask_exempt_tags: The tags of users from whom they are not hidden.
        webhooks: The URLs that rules of alerts may send alerts to.
        outbox: The file of deliveries to them that wait.
        mail: The mails of alerts.
        mails: The file of alerts that wait for a mail.
        tls_cert: The certificate chain, or None for plain HTTP.
        tls_key: The private key; None for the key in the file of `tls_cert`.
        amqp_tls_cert: The certificate chain of the AMQP listener, or None without TLS.
        amqp_tls_ca: The CA certificates of that listener.
        disk_free_limit: `limits.disk_free`.
        listeners: The addresses of the API, as URLs.
        metrics_sockets: File descriptors of the listening sockets of the metrics.
        metrics_listeners: The addresses of the metrics, as URLs.
        history: The file of the long history.
        log_level: `server.log_level`.
        log_format: `server.log_format`.
    """

    control: str
    sockets: list[int]
    node: str
    version: str
    rabbitmq_version: str
    path_prefix: str
    hosts: list[str]
    cors_origins: list[str]
    max_body_size: int
    basic_auth: bool
    mechanisms: list[str]
    refused_logins: int
    session_timeout: float
    session_idle_timeout: float
    oauth_clients: list[OAuthClient]
    mask: list[str]
    mask_exempt_tags: list[str]
    webhooks: list[WebhookConfig]
    outbox: str
    mail: MailConfig
    mails: str
    tls_cert: str | None
    tls_key: str | None
    amqp_tls_cert: str | None
    amqp_tls_ca: str | None
    listeners: list[str]
    metrics_sockets: list[int]
    metrics_listeners: list[str]
    history: str
    disk_free_limit: int
    log_level: str
    log_format: str
