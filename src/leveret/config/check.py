"""Rules that involve more than one setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_network
from urllib.parse import urlsplit

from leveret.config.model import Config, MailConfig, ManagementConfig, OAuthConfig, OAuthProviderConfig
from leveret.config.schema import Choices

Source = Callable[[tuple[str, ...]], str]

_WEBHOOK = re.compile(r'https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?][!"$-~]*)?')
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_LOCAL_PART = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CERT = "expected 'tls.cert' to name the server's certificate"


def conflicts(config: Config, source: Source, choices: Choices) -> Iterator[str]:
    """Return a message for each conflict of settings. `source` returns the source of a setting."""
    yield from _check_tls(config, source)
    yield from _check_websocket(config, source)
    yield from _check_cluster_tls(config, source)
    yield from _check_auth(config, source, choices)
    yield from _check_users(config, source)
    yield from _check_management(config, source)
    yield from _check_storage(config, source)


def _check_storage(config: Config, source: Source) -> Iterator[str]:
    storage = config.storage
    given = [name for name in ("dsn", "dsn_file") if getattr(storage, name) is not None]
    if len(given) > 1:
        yield f"{source(('storage', 'dsn'))}: 'storage.dsn' and 'storage.dsn_file' are set; expected one of them"
    if storage.engine == "postgresql":
        if not given:
            yield (
                f"{source(('storage', 'engine'))}: 'storage.engine' is 'postgresql'; expected 'storage.dsn' or"
                " 'storage.dsn_file' to name the database"
            )
        if storage.synchronous != "full":
            yield (
                f"{source(('storage', 'synchronous'))}: 'storage.synchronous' is '{storage.synchronous}', which"
                " 'storage.engine' 'postgresql' does not have"
            )
        return
    only = [("storage", name) for name in given[:1]]
    if config.uploads.directory is not None:
        only.append(("uploads", "directory"))
    for place in only:
        yield (
            f"{source(place)}: '{'.'.join(place)}' is set, but 'storage.engine' is '{storage.engine}';"
            " expected 'postgresql'"
        )


def _check_tls(config: Config, source: Source) -> Iterator[str]:
    tls = config.tls
    if tls.cert is None:
        for name in ("key", "ca", "key_password_file"):
            if getattr(tls, name) is not None:
                yield f"{source(('tls', name))}: 'tls.{name}' is set without 'tls.cert'; {_CERT}"
        if tls.verify != "none":
            yield f"{source(('tls', 'verify'))}: 'tls.verify' is set without 'tls.cert'; {_CERT}"
        if not config.server.plain:
            yield f"{source(('server', 'plain'))}: 'server.plain' is false, which leaves no listener; {_CERT}"
    elif tls.verify != "none" and tls.ca is None:
        yield (
            f"{source(('tls', 'verify'))}: 'tls.verify' is '{tls.verify}' without 'tls.ca'; "
            "expected 'tls.ca' to name the certificates to verify clients against"
        )


def _check_websocket(config: Config, source: Source) -> Iterator[str]:
    websocket = config.websocket
    path = websocket.path
    if not _PATH.fullmatch(path):
        yield f"{source(('websocket', 'path'))}: 'websocket.path' is '{path}'; expected a path such as /ws"
    plain = config.server.plain if websocket.plain is None else websocket.plain
    if websocket.enabled and not plain and config.tls.cert is None:
        yield (
            f"{source(('websocket', 'enabled'))}: 'websocket.enabled' is true, but 'websocket.plain' (or 'server.plain') is"
            f" false; {_CERT}"
        )
    origins = [origin for origin in websocket.allowed_origins if origin != "*"]
    yield from _check_origins(origins, ("websocket", "allowed_origins"), source)
    proxies = ("websocket", "trusted_proxies")
    yield from _check_networks(websocket.trusted_proxies, proxies, source)
    for network in websocket.trusted_proxies:
        if network.endswith("/0"):
            yield (
                f"{source(proxies)}: 'websocket.trusted_proxies' has '{network}', so that every client could name any"
                " address; expected the addresses of proxies"
            )


def _check_cluster_tls(config: Config, source: Source) -> Iterator[str]:
    tls = config.cluster.tls
    if tls.cert is None:
        for name in ("key", "ca", "key_password_file"):
            if getattr(tls, name) is not None:
                yield (
                    f"{source(('cluster', 'tls', name))}: 'cluster.tls.{name}' is set without 'cluster.tls.cert'; expected"
                    " 'cluster.tls.cert' to name the node's certificate"
                )
    elif tls.ca is None:
        yield (
            f"{source(('cluster', 'tls', 'cert'))}: 'cluster.tls.cert' is set without 'cluster.tls.ca'; expected"
            " 'cluster.tls.ca' to name the certificates to verify other nodes against"
        )


def _check_auth(config: Config, source: Source, choices: Choices) -> Iterator[str]:
    auth = config.auth
    where = f"{source(('auth', 'mechanisms'))}: 'auth.mechanisms'"
    if not auth.mechanisms:
        names = ", ".join(choices.get("mechanism", ["the SASL mechanisms"]))
        yield f"{where} is empty; expected at least one of {names}"
    if "ANONYMOUS" in auth.mechanisms and auth.anonymous_user is None:
        yield f"{where} contains ANONYMOUS; expected 'auth.anonymous_user' to name the user for anonymous clients"
    yield from _check_providers(auth.oauth, source)
    if "EXTERNAL" in auth.mechanisms and config.tls.verify == "none":
        yield f"{where} contains EXTERNAL; expected 'tls.verify' to be 'optional' or 'required'"


def _check_providers(oauth: OAuthConfig, source: Source) -> Iterator[str]:
    where = source(("auth", "oauth", "resource_server_id"))
    if oauth.resource_server_id and not (oauth.issuer or oauth.jwks_uri or oauth.key_file):
        yield (
            f"{where}: 'auth.oauth.resource_server_id' is set without keys; "
            "expected 'auth.oauth.issuer', 'auth.oauth.jwks_uri' or 'auth.oauth.key_file'"
        )
    if oauth.providers and not (oauth.resource_server_id and oauth.issuer):
        yield (
            f"{source(('auth', 'oauth', 'providers'))}: 'auth.oauth.providers' is set without a first provider; "
            "expected 'auth.oauth.resource_server_id' and 'auth.oauth.issuer'"
        )
    known: dict[str, str] = {}
    sections: list[tuple[tuple[str, ...], OAuthProviderConfig]] = [(("auth", "oauth"), oauth)]
    sections += [(("auth", "oauth", "providers", name), provider) for name, provider in oauth.providers.items()]
    for path, provider in sections:
        name = ".".join(path)
        if oauth.resource_server_id and not provider.algorithms:
            yield f"{source((*path, 'algorithms'))}: '{name}.algorithms' is empty; expected at least one algorithm"
        if oauth.providers and not provider.issuer:
            yield f"{source(path)}: '{name}' has no 'issuer', by which the provider of a token is chosen"
        if provider.issuer in known:
            yield (
                f"{source((*path, 'issuer'))}: '{name}.issuer' is also the one of '{known[provider.issuer]}'; "
                "expected another issuer for each provider"
            )
        known[provider.issuer] = name


def _check_users(config: Config, source: Source) -> Iterator[str]:
    for name, user in config.users.items():
        where = f"{source(('users', name))}: 'users.{name}"
        yield from _check_name(f"{where}'", name)
        given = [key for key in ("password", "password_hash", "password_file") if getattr(user, key) is not None]
        if len(given) > 1:
            yield f"{where}' has {' and '.join(given)}; expected only one of them"
        if user.password == "":
            yield f"{where}.password' is empty; omit it if the user never logs in with a password"
        if user.password_hash is not None and not user.password_hash.startswith("$argon2id$"):
            yield f"{where}.password_hash' is not an argon2id hash; create one with `leveret users hash`"
    for name in config.vhosts:
        yield from _check_name(f"{source(('vhosts', name))}: 'vhosts.{name}'", name)


def _check_origins(origins: list[str], path: tuple[str, ...], source: Source) -> Iterator[str]:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            yield f"{source(path)}: '{'.'.join(path)}' has '{origin}'; expected an origin such as https://id.example.com"


def _check_management(config: Config, source: Source) -> Iterator[str]:
    management = config.management
    if management.tls_key is not None and management.tls_cert is None:
        yield (
            f"{source(('management', 'tls_key'))}: 'management.tls_key' is set without 'management.tls_cert'; expected "
            "'management.tls_cert' to name the server's certificate"
        )
    if management.oauth_client_id and not (config.auth.oauth.resource_server_id and config.auth.oauth.issuer):
        yield (
            f"{source(('management', 'oauth_client_id'))}: 'management.oauth_client_id' is set without a provider; "
            "expected 'auth.oauth.resource_server_id' and 'auth.oauth.issuer'"
        )
    if not management.basic_auth and not config.auth.oauth.resource_server_id:
        yield (
            f"{source(('management', 'basic_auth'))}: 'management.basic_auth' is false, which leaves no way to log in; "
            "expected 'auth.oauth.resource_server_id'"
        )
    for host in management.hosts:
        if host != "*" and not _HOST_NAME.fullmatch(host):
            yield (
                f"{source(('management', 'hosts'))}: 'management.hosts' has '{host}'; expected a name such as"
                " broker.example.com, without scheme and port, or '*'"
            )
    yield from _check_origins(management.oauth_origins, ("management", "oauth_origins"), source)
    for name, provider in management.oauth_providers.items():
        path = ("management", "oauth_providers", name)
        if name not in config.auth.oauth.providers:
            yield f"{source(path)}: '{'.'.join(path)}' is no provider; expected a name of 'auth.oauth.providers'"
        if not provider.client_id:
            yield f"{source(path)}: '{'.'.join(path)}' has no 'client_id', the console's at the provider"
        yield from _check_origins(provider.origins, (*path, "origins"), source)
    yield from _check_webhooks(management, source)
    yield from _check_networks(management.shovel_networks, ("management", "shovel_networks"), source)
    yield from _check_mail(management.mail, source)
    prefix = management.path_prefix
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        yield (
            f"{source(('management', 'path_prefix'))}: 'management.path_prefix' is '{prefix}'; expected an empty string or "
            "a path that starts with '/' and does not end with '/'"
        )


def _check_webhooks(management: ManagementConfig, source: Source) -> Iterator[str]:
    expected = "expected a URL such as https://hooks.example.com/alerts, without a user, a password and a fragment"
    for url in management.alert_webhooks:
        if not _is_webhook(url):
            yield f"{source(('management', 'alert_webhooks'))}: 'management.alert_webhooks' has '{url}'; {expected}"
    known = set(management.alert_webhooks)
    for name, webhook in management.webhooks.items():

        def where(key: str, name: str = name) -> str:
            return f"{source(('management', 'webhooks', name, key))}: 'management.webhooks.{name}.{key}'"

        if not _is_webhook(webhook.url):
            yield f"{where('url')} is '{webhook.url}'; {expected}"
        if webhook.url in known:
            yield f"{where('url')} is '{webhook.url}', which is configured twice; expected it once"
        known.add(webhook.url)
        parts = urlsplit(webhook.url)
        if webhook.headers_file is not None and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            yield (
                f"{where('headers_file')} is set for '{webhook.url}', to which headers go in plain text; expected a URL "
                "that begins with https://"
            )
        yield from _check_networks(webhook.networks, ("management", "webhooks", name, "networks"), source)


def _check_networks(networks: Iterable[str], path: tuple[str, ...], source: Source) -> Iterator[str]:
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            yield f"{source(path)}: '{'.'.join(path)}' has '{network}': {error}; expected a network such as 10.1.0.0/16"


def _check_mail(mail: MailConfig, source: Source) -> Iterator[str]:
    def where(key: str) -> str:
        return f"{source(('management', 'mail', key))}: 'management.mail.{key}'"

    if not mail.host:
        return
    if not is_address(mail.sender):
        yield f"{where('sender')} is '{mail.sender}'; expected an address such as leveret@example.com"
    if not mail.recipients:
        yield f"{where('recipients')} is empty; expected the addresses or domains that may get mails"
    for recipient in mail.recipients:
        if not (is_address(recipient) or _DOMAIN.fullmatch(recipient)):
            yield f"{where('recipients')} has '{recipient}'; expected an address such as ops@example.com, or a domain"
    if bool(mail.user) != (mail.password_file is not None):
        yield f"{where('user')} and 'management.mail.password_file' belong together; expected both or none"
    if mail.user and mail.security == "none":
        yield (
            f"{where('security')} is 'none', which sends the password of 'management.mail.user' in plain text; expected "
            "'starttls' or 'tls'"
        )


def is_address(text: str) -> bool:
    """Return whether a text is a mail address, in ASCII and without a display name."""
    local, at, domain = text.rpartition("@")
    return bool(at and _LOCAL_PART.fullmatch(local) and _DOMAIN.fullmatch(domain)) and len(text) <= 254


def _is_webhook(url: str) -> bool:
    try:
        return _WEBHOOK.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:  # the port is too large, or the IPv6 address is invalid
        return False


def _check_name(where: str, name: str) -> Iterator[str]:
    if not 1 <= len(name.encode()) <= 255:
        yield f"{where}: expected a name of 1 to 255 bytes"
