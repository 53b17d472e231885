"""Conversion of RabbitMQ's rabbitmq.conf to a configuration of Leveret."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import msgspec

from leveret.config import Config
from leveret.config.flat import MASK, toml_value
from leveret.config.load import dotted
from leveret.config.schema import Key, Table, schema_of
from leveret.config.values import READERS, Setting
from leveret.node.choices import CHOICES
from leveret.security.patterns import Pattern

Path: TypeAlias = tuple[str, ...]

_SETTING: Final = re.compile(r"\s*((?:[^\s=#\\]|\\.)+)\s*=\s*(.*?)\s*")
_QUOTED: Final = re.compile(r"'([^']*)'\s*(?:#.*)?")
_LONG_QUOTE: Final = "'''"
# Of a template, or an environment variable that RabbitMQ would insert.
_PLACEHOLDER: Final = re.compile(r"\$[({]\s*\w+\s*[)}]|\{\{.*?\}\}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SECRET: Final = re.compile(r"(?:pass|password|secret|passphrase|client_secret|signing_keys)\b")
_TRUE: Final = ("true", "on")
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
# Addresses of listeners on the same port, and the address for all of them.
_ADDRESSES: Final = (({"::"}, ""), ({"0.0.0.0", "::"}, ""), ({"127.0.0.1", "::1"}, "localhost"))

# Settings with a value that is what Leveret does anyway.
_SAME: Final = {
    "anonymous_login_pass": None,
    "auth_oauth2.https.peer_verification": "verify_peer",
    "definitions.import_backend": "local_filesystem",
    "listeners.ssl": "none",
    "log.console": "true",
    "log.file": "false",
    "log.exchange": "false",
    "log.syslog": "false",
    "password_hashing_module": "rabbit_password_hashing_sha256",
    "proxy_protocol": "false",
    "reverse_dns_lookups": "false",
}
_CLUSTER: Final = "the nodes of Leveret find each other, and agree, through PostgreSQL: see docs/cluster.md"
_LOG: Final = "Leveret has one log, on standard error: see docs/logging.md"
_OPENSSL: Final = "OpenSSL decides this"
_SOCKETS: Final = "Leveret sets the options of sockets itself"
_STORAGE: Final = "Leveret has another storage: see docs/durability.md"
_STATISTICS: Final = "Leveret's statistics are current, and it keeps its own history"
_BACKENDS: Final = "Leveret has users of its own and OAuth 2: see docs/security.md"
_POLICIES: Final = "set it with `leveret policies`, `leveret vhosts` or `leveret users` in the running broker"
_ERLANG: Final = "a setting of Erlang"
_MEMORY: Final = "Leveret decides this from the memory of its process"
# Why settings are not converted, by the beginnings of their names, the longest first.
_REASONS: Final = {
    "RABBITMQ_": "a variable of rabbitmq-env.conf",
    "auth_backends": _BACKENDS,
    "auth_cache": _BACKENDS,
    "auth_http": _BACKENDS,
    "auth_ldap": _BACKENDS,
    "auth_mechanisms": "Leveret does not have this SASL mechanism",
    "auth_oauth2": "Leveret does not have this setting of OAuth 2: see docs/oauth.md",
    "background_gc": _ERLANG,
    "classic_queue": _STORAGE,
    "cluster_": _CLUSTER,
    "collect_statistics": _STATISTICS,
    "consumer_timeout": "expected milliseconds, more than 0",
    "default_limits": _POLICIES,
    "default_policies": _POLICIES,
    "default_users": _POLICIES,
    "definitions.": "Leveret imports a file at each start, and changes only what differs",
    "delegate_count": _ERLANG,
    "deprecated_features": "Leveret does not refuse features of RabbitMQ that are deprecated there",
    "federation": "Leveret has no federation; use shovels",
    "initial_frame_max": "it is 8 KiB in Leveret",
    "listeners": "Leveret has one listener without TLS and one with TLS, each on one address, or on all of them",
    "log.": _LOG,
    "log.console.formatter.": "the fields of Leveret's log are fixed: see docs/logging.md",
    "management.": "Leveret's HTTP API does not have this setting",
    "management.cors.max_age": "browsers ask each time",
    "management.http_log_dir": "the HTTP API has no access log, but an audit log of changes: see docs/http-api.md",
    "management.rates_mode": _STATISTICS,
    "management.sample_retention_policies": _STATISTICS,
    "management.ssl": "the HTTP API has a certificate and a key, no other settings of TLS",
    "management.tcp": "Leveret's HTTP server sets its limits itself",
    "management_agent": _STATISTICS,
    "memory_monitor_interval": _MEMORY,
    "mirroring_sync_batch_size": _CLUSTER,
    "mnesia": _ERLANG,
    "mqtt": "Leveret does not speak MQTT",
    "msg_store": _STORAGE,
    "net_ticktime": _CLUSTER,
    "num_acceptors": _SOCKETS,
    "password_hashing_module": "Leveret hashes passwords with Argon2id",
    "prometheus": "Leveret's metrics have a port, no other settings: see docs/metrics.md",
    "proxy_protocol": "Leveret does not read the PROXY protocol",
    "queue_index": _STORAGE,
    "queue_leader_locator": _CLUSTER,
    "queue_master_locator": _CLUSTER,
    "quorum_": _CLUSTER,
    "raft": _CLUSTER,
    "shovel": "set shovels in [shovels]: see docs/shovel.md",
    "socket_writer": _SOCKETS,
    "ssl_cert_login_from": "expected common_name or distinguished_name",
    "ssl_handshake_timeout": "it is a part of server.handshake_timeout",
    "ssl_options": _OPENSSL,
    "ssl_options.password": "write it to a file, and name that in tls.key_password_file",
    "stomp": "Leveret does not speak STOMP",
    "stream": "Leveret serves streams over AMQP 0-9-1 and 1.0, not over RabbitMQ's stream protocol",
    "tcp_listen_options": _SOCKETS,
    "total_memory_available_override_value": "set limits.memory_high_watermark to a number of bytes",
    "vm_memory_calculation_strategy": _MEMORY,
    "vm_memory_high_watermark": _MEMORY,
    "web_mqtt": "Leveret does not speak MQTT",
    "web_stomp": "Leveret does not speak STOMP",
}
_UNKNOWN: Final = "not a setting of RabbitMQ that Leveret knows"
_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warning": "warning",
    "error": "error",
    "critical": "error",
    "alert": "error",
    "emergency": "error",
    "none": "error",
}
_FORMATTERS: Final = {"json": "json", "plaintext": "text"}


@dataclass(frozen=True, slots=True)
class Line:
    """A setting of the file, or a line that is none, whose `key` is "" then."""

    number: int
    key: str
    value: str

    def __str__(self) -> str:
        if not self.key:
            return self.value
        return f"{self.key} = {MASK if _SECRET.search(self.key) and self.value else self.value}"


@dataclass(slots=True)
class Conversion:
    """A configuration of Leveret that corresponds to a rabbitmq.conf.

    Attributes:
        settings: The settings by their paths. The value None marks an empty table.
        notes: Comments for settings.
        left: The lines that were not converted, each with the reason.
        total: The number of settings and unreadable lines of the file.
    """

    settings: dict[Path, Setting] = field(default_factory=dict)
    notes: dict[Path, str] = field(default_factory=dict)
    left: list[tuple[Line, str]] = field(default_factory=list)
    total: int = 0

    def toml(self, name: str) -> str:
        """Return the file. `name` is that of the converted one."""
        text = [f"# Converted from {_comment(name)} by `leveret migrate --conf`."]
        for section, keys in self._sections().items():
            text += ["", f"[{dotted(section)}]"]
            for path in keys:
                if path in self.notes:
                    text.append(f"# {self.notes[path]}")
                text.append(f"{dotted(path[len(section) :])} = {toml_value(self.settings[path])}")
        if self.left:
            text += ["", "# Not converted:"]
            for line, reason in self.left:
                text += ["#", f"# line {line.number}: {_comment(str(line))}", f"#   {reason}"]
        return "\n".join(text) + "\n"

    def _sections(self) -> dict[Path, list[Path]]:
        """Return the paths of the settings by their tables."""
        sections: dict[Path, list[Path]] = {}
        for path, value in self.settings.items():
            named = path[0] in ("users", "vhosts") or path[:2] == ("auth", "oauth")
            keys = sections.setdefault(path[:2] if named else path[:1], [])
            if value is not None:
                keys.append(path)
        return sections


def convert(text: str) -> Conversion:
    """Convert a rabbitmq.conf."""
    return _Converter(text).run()


def read_lines(text: str) -> Iterator[Line]:
    """Return the settings of a rabbitmq.conf, and the lines that are none."""
    rows = iter(enumerate(text.splitlines(), 1))
    for number, row in rows:
        if not row.strip() or row.lstrip().startswith("#"):
            continue
        match = _SETTING.fullmatch(row)
        if match is None:
            yield Line(number, "", row.strip())
            continue
        key, value = match[1], match[2]
        quoted = _QUOTED.fullmatch(value)
        if value.startswith(_LONG_QUOTE):
            value = value.removeprefix(_LONG_QUOTE)
            while _LONG_QUOTE not in value:
                _, more = next(rows, (0, _LONG_QUOTE))
                value += f"\n{more}"
            value = value.partition(_LONG_QUOTE)[0].strip()
        else:
            value = quoted[1] if quoted is not None else value.partition("#")[0].rstrip()
        yield Line(number, key, value)


class _Converter:
    def __init__(self, text: str) -> None:
        self._result = Conversion()
        self._root = schema_of(Config, CHOICES)
        # The settings that are not converted yet. The last one of a name counts.
        self._lines: dict[str, Line] = {}
        for line in read_lines(text):
            self._result.total += 1
            if not line.key:
                included = line.value.startswith("include")
                self._leave(line, "included files are not read; convert each one" if included else "not a setting")
            elif not line.value:
                self._leave(line, "it has no value")
            elif _PLACEHOLDER.search(line.value):
                self._leave(line, "replace the placeholder by its value, and convert the file again")
            elif line.value.startswith("encrypted:"):
                self._leave(line, "replace the encrypted value by the plain one, and convert the file again")
            else:
                if line.key in self._lines:
                    self._leave(self._lines[line.key], f"line {line.number} sets it again")
                self._lines[line.key] = line

    def run(self) -> Conversion:
        self._listeners()
        self._tls()
        self._amqp()
        self._limits()
        self._login()
        self._default_user()
        self._vhosts()
        self._log()
        self._management()
        self._oauth()
        for line in self._lines.values():
            expected = _SAME.get(line.key, "")
            if expected is not None and line.value.lower() != expected:
                self._leave(line, _reason_of(line.key))
        self._result.left.sort(key=lambda item: item[0].number)
        return self._result

    # Parts of the file

    def _listeners(self) -> None:
        plain, has_none = self._addresses("listeners.tcp"), self._value("listeners.tcp") == "none"
        secure = self._addresses("listeners.ssl")
        has_tls = bool(secure) and "ssl_options.certfile" in self._lines
        if secure and not has_tls:
            self._leave_all((line for _, _, line in secure), "there is no certificate in ssl_options.certfile")
        if has_none and has_tls:
            self._leave_all((line for _, _, line in plain), "listeners.tcp = none disables it")
            plain = []
            self._put(("server", "plain"), False)
        elif has_none:
            self._leave(self._lines["listeners.tcp"], "no listener would be left, because there is none with TLS")
        if has_none:
            del self._lines["listeners.tcp"]
        host, port = self._listen(plain) if plain else ("", None)
        self._put(("server", "host"), host, note="" if host else "RabbitMQ listens on all addresses, Leveret on loopback")
        self._put(("server", "port"), port)
        if has_tls:
            tls_host, tls_port = self._listen(secure)
            self._put(("tls", "host"), tls_host if tls_host != host else None)
            self._put(("tls", "port"), tls_port)

    def _addresses(self, prefix: str) -> list[tuple[str, int, Line]]:
        """Return the valid addresses of listeners: host, port and line."""
        found = []
        for line in self._under(prefix):
            host, _, port = line.value.rpartition(":")
            if port.isdecimal() and int(port) <= 65535:
                found.append((host.strip("[]"), int(port), line))
            else:
                self._leave(line, "expected a port, or an address and a port")
        return found

    def _listen(self, found: list[tuple[str, int, Line]]) -> tuple[str, int]:
        """Return the address and the port for a listener, and leave what it does not listen on."""
        host, port, _ = found[0]
        hosts = {item[0] for item in found if item[1] == port}
        for group, name in _ADDRESSES:
            if hosts == group:
                self._leave_all((line for _, other, line in found if other != port), _REASONS["listeners"])
                return name, port
        self._leave_all((line for _, _, line in found[1:]), _REASONS["listeners"])
        return host, port

    def _tls(self) -> None:
        if ("tls", "port") not in self._result.settings:
            self._leave_all(
                self._under("ssl_options"), "no listener has TLS: listeners.ssl is not set, or has no certificate"
            )
            return
        self._copy("ssl_options.certfile", ("tls", "cert"))
        self._copy("ssl_options.keyfile", ("tls", "key"))
        has_ca = self._copy("ssl_options.cacertfile", ("tls", "ca"))
        verify, must = self._pop("ssl_options.verify"), self._pop("ssl_options.fail_if_no_peer_cert")
        if verify is not None and verify.value == "verify_peer":
            if has_ca:
                is_required = must is not None and must.value in _TRUE
                self._put(("tls", "verify"), "required" if is_required else "optional")
            else:
                self._leave(verify, "there are no certificates to verify clients against in ssl_options.cacertfile")
        versions = self._under("ssl_options.versions")
        supported = sorted(line.value.removeprefix("tlsv") for line in versions if line.value in ("tlsv1.2", "tlsv1.3"))
        for line in versions:
            if line.value not in ("tlsv1.2", "tlsv1.3"):
                self._leave(line, "Leveret's oldest version of TLS is 1.2")
        if supported:
            note = "" if "1.3" in supported else "TLS 1.3 is always accepted"
            self._put(("tls", "min_version"), supported[0], note=note)

    def _amqp(self) -> None:
        self._copy("heartbeat", ("amqp", "heartbeat"))
        self._copy("frame_max", ("amqp", "frame_max"), _unlimited("2147483647"))
        self._copy("channel_max", ("amqp", "channel_max"), _unlimited("65535"))
        self._copy("max_message_size", ("amqp", "max_message_size"))
        self._copy("session_max_per_connection", ("amqp10", "sessions"))
        self._copy("link_max_per_session", ("amqp10", "links"))
        self._copy("handshake_timeout", ("server", "handshake_timeout"), _milliseconds)

    def _limits(self) -> None:
        relative, absolute = "vm_memory_high_watermark.relative", "vm_memory_high_watermark.absolute"
        if not self._copy(relative, ("limits", "memory_high_watermark"), _fraction):
            self._copy(absolute, ("limits", "memory_high_watermark"))
        elif absolute in self._lines:
            self._leave(self._pop(absolute), f"RabbitMQ ignores it, because {relative} is set")
        relative, absolute = "disk_free_limit.relative", "disk_free_limit.absolute"
        note = f"{self._value(relative)} times the memory of this machine"
        if not self._copy(relative, ("limits", "disk_free"), _share_of_memory, note=note):
            self._copy(absolute, ("limits", "disk_free"))
        elif absolute in self._lines:
            self._leave(self._pop(absolute), f"RabbitMQ ignores it, because {relative} is set")
        self._copy("connection_max", ("limits", "connections"), lambda text: "0" if text == "infinity" else text)
        self._copy("consumer_max_per_channel", ("limits", "consumers_per_channel"))

    def _login(self) -> None:
        no_users = self._pop("loopback_users")
        users = self._under("loopback_users")
        if (no_users is not None and no_users.value == "none") or users:
            names = [_name(line.key.partition(".")[2]) for line in users if line.value in _TRUE]
            self._put(("auth", "loopback_users"), [] if no_users is not None and no_users.value == "none" else names)
        anonymous = self._pop("anonymous_login_user")
        if anonymous is not None:
            self._put(("amqp10", "anonymous_user"), "" if anonymous.value == "none" else anonymous.value)
        self._mechanisms("guest" if anonymous is None else anonymous.value)
        for line in self._under("auth_backends"):
            backend = line.value.removeprefix("rabbit_auth_backend_")
            if backend == "oauth2" and "auth_oauth2.resource_server_id" in self._lines:
                continue
            if backend != "internal":
                self._leave(line, _BACKENDS)

    def _mechanisms(self, anonymous_user: str) -> None:
        """Convert the SASL mechanisms, and which part of a certificate is the name of a user."""
        names = []
        for line in sorted(self._under("auth_mechanisms"), key=lambda line: (len(line.key), line.key)):
            if line.value not in CHOICES["mechanism"]:
                self._leave(line, _REASONS["auth_mechanisms"])
            elif line.value == "EXTERNAL" and ("tls", "verify") not in self._result.settings:
                self._leave(line, "it needs certificates of clients: ssl_options.verify = verify_peer")
            elif line.value == "ANONYMOUS" and anonymous_user == "none":
                self._leave(line, "anonymous_login_user = none disables it")
            elif line.value not in names:
                names.append(line.value)
        if names:
            self._put(("auth", "mechanisms"), names)
        if "ANONYMOUS" in names:
            self._put(("auth", "anonymous_user"), anonymous_user)
        parts = {"common_name": "common-name", "distinguished_name": "subject"}
        part = self._value("ssl_cert_login_from", "distinguished_name" if "EXTERNAL" in names else "")
        if part in parts:
            self._lines.pop("ssl_cert_login_from", None)
            self._put(("auth", "external_name"), parts[part])

    def _default_user(self) -> None:
        singles = {name: self._pop(f"default_{name}") for name in ("user", "pass", "vhost")}
        permissions, tags = self._under("default_permissions"), self._under("default_user_tags")
        if not (any(singles.values()) or permissions or tags):
            return
        given = {name: line.value for name, line in singles.items() if line is not None}
        name, vhost = given.get("user", "guest"), given.get("vhost", "/")
        user: Path = ("users", name)
        password = given.get("pass", "guest" if name == "guest" else "")
        if password:
            self._put((*user, "password"), password)
        else:
            self._put(user, None, keep=True)
            if singles["user"] is not None:
                self._leave(singles["user"], f"the user has no password; set users.{dotted((name,))}.password")
        tagged = [_name(line.key.partition(".")[2]) for line in tags if line.value in _TRUE]
        self._put((*user, "tags"), tagged if tags else ["administrator"])
        patterns = dict.fromkeys(("configure", "write", "read"), ".*")
        for line in permissions:
            kind = line.key.partition(".")[2]
            try:
                Pattern(line.value)
            except ValueError as error:
                self._leave(line, str(error))
                patterns[kind] = ""
            else:
                patterns[kind] = line.value
        self._put((*user, "permissions", vhost), {kind: patterns[kind] for kind in ("configure", "write", "read")})
        if vhost != "/":
            self._put(("vhosts", vhost), None, keep=True)

    def _vhosts(self) -> None:
        """Convert settings of all vhosts, which Leveret has in each vhost."""
        known = ["/", *(path[1] for path in self._result.settings if path[0] == "vhosts")]
        note = "of this vhost only; set it for the others with `leveret vhosts change`"
        queue_type = re.compile("^rabbit_|_queue$")
        for key, change in (("consumer_timeout", _milliseconds), ("default_queue_type", partial(queue_type.sub, ""))):
            first, *others = [("vhosts", vhost, key) for vhost in known]
            if self._copy(key, first, change, note=note):
                for path in others:
                    self._put(path, self._result.settings[first], note=note)

    def _log(self) -> None:
        for path, suffix, names in (
            (("server", "log_level"), "level", _LEVELS),
            (("server", "log_format"), "formatter", _FORMATTERS),
        ):
            for sink in ("console", "default", "file"):
                line = self._lines.get(f"log.{sink}.{suffix}")
                value = names.get(line.value) if line is not None else None
                if line is not None and value is not None and self._result.settings.get(path, value) == value:
                    del self._lines[line.key]
                    self._put(path, value)

    def _management(self) -> None:
        listener = {name: self._pop(f"management.listener.{name}") for name in ("port", "ip", "ssl")}
        is_secure = listener["ssl"] is not None and listener["ssl"].value in _TRUE
        for name, line in listener.items():
            if line is not None and name != "ssl":
                self._lines.setdefault(f"management.{'ssl' if is_secure else 'tcp'}.{name}", line)
        for line in self._under("management.listener.ssl_opts"):
            self._lines.setdefault(f"management.ssl.{line.key.rpartition('.')[2]}", line)
        has_any = any(key.startswith(("management.", "prometheus.")) for key in self._lines)
        has_tls = "management.ssl.certfile" in self._lines
        used, other = ("ssl", "tcp") if has_tls else ("tcp", "ssl")
        if has_tls:
            self._copy("management.ssl.certfile", ("management", "tls_cert"))
            self._copy("management.ssl.keyfile", ("management", "tls_key"))
        note = "Leveret's HTTP API has one port, with TLS if it has a certificate"
        self._leave_all((self._pop(f"management.{other}.{name}") for name in ("port", "ip")), note)
        host = self._pop(f"management.{used}.ip") or self._pop("prometheus.tcp.ip")
        if has_any:
            address = "" if host is None or host.value in ("0.0.0.0", "::") else host.value
            note = "" if address else "on all addresses, as RabbitMQ; list host names of this broker in management.hosts"
            self._put(("management", "host"), address, note=note)
            if self._value("prometheus.tcp.ip") in (("0.0.0.0", "::") if not address else (address,)):
                self._pop("prometheus.tcp.ip")
        if not self._copy(f"management.{used}.port", ("management", "port")) and has_tls:
            self._put(("management", "port"), 15671)
        self._copy("prometheus.tcp.port", ("management", "metrics_port"))
        self._copy("management.path_prefix", ("management", "path_prefix"), _prefix)
        self._copy("management.login_session_timeout", ("management", "session_timeout"), lambda text: f"{text}min")
        origins = [line.value for line in self._under("management.cors.allow_origins")]
        if origins:
            self._put(("management", "cors_origins"), origins)
        for key in ("load_definitions", "management.load_definitions", "definitions.local.path"):
            if ("management", "load_definitions") not in self._result.settings:
                self._copy(key, ("management", "load_definitions"))

    def _oauth(self) -> None:
        names = {"issuer": "issuer", "jwks_uri": "jwks_uri", "jwks_url": "jwks_uri"}
        keys = [key for key in names if f"auth_oauth2.{key}" in self._lines]
        if not keys or not self._copy("auth_oauth2.resource_server_id", ("auth", "oauth", "resource_server_id")):
            missing = "auth_oauth2.resource_server_id, and auth_oauth2.issuer or auth_oauth2.jwks_uri, are needed"
            self._leave_all(self._under("auth_oauth2"), missing)
            self._leave_all(self._under("management.oauth"), missing)
            return
        for key in keys:
            self._copy(f"auth_oauth2.{key}", ("auth", "oauth", names[key]))
        self._copy("auth_oauth2.scope_prefix", ("auth", "oauth", "scope_prefix"))
        self._copy("auth_oauth2.https.cacertfile", ("auth", "oauth", "ca"))
        self._copy_list("auth_oauth2.additional_scopes_key", ("auth", "oauth", "additional_scopes_key"))
        self._copy_list("auth_oauth2.preferred_username_claims", ("auth", "oauth", "username_claims"))
        self._copy_list("auth_oauth2.algorithms", ("auth", "oauth", "algorithms"))
        if ("auth", "oauth", "issuer") in self._result.settings:
            self._copy("management.oauth_client_id", ("management", "oauth_client_id"))
            self._copy_list("management.oauth_scopes", ("management", "oauth_scopes"))
            self._lines.pop("management.oauth_enabled", None)
            disabled = self._pop("management.disable_basic_auth") or self._pop("management.oauth_disable_basic_auth")
            if disabled is not None:
                self._put(("management", "basic_auth"), disabled.value not in _TRUE)

    # Lines and settings

    def _value(self, key: str, default: str = "") -> str:
        return self._lines[key].value if key in self._lines else default

    def _pop(self, key: str) -> Line | None:
        return self._lines.pop(key, None)

    def _under(self, prefix: str) -> list[Line]:
        """Remove and return the settings whose names begin with a prefix and a dot."""
        keys = [key for key in self._lines if key.startswith(f"{prefix}.")]
        return [self._lines.pop(key) for key in keys]

    def _leave(self, line: Line | None, reason: str) -> None:
        if line is not None:
            self._result.left.append((line, reason))

    def _leave_all(self, lines: Iterable[Line | None], reason: str) -> None:
        for line in lines:
            self._leave(line, reason)

    def _put(self, path: Path, value: Setting, *, note: str = "", keep: bool = False) -> None:
        if value is not None or keep:
            self._result.settings[path] = value
            if note:
                self._result.notes[path] = note

    def _copy(self, key: str, path: Path, change: Callable[[str], str] | None = None, *, note: str = "") -> bool:
        """Convert a setting if the file has it and its value is valid. Returns whether it was converted."""
        line = self._pop(key)
        if line is None:
            return False
        try:
            self._put(path, self._valid(path, change(line.value) if change is not None else line.value), note=note)
        except ValueError as error:
            self._leave(line, str(error) or _reason_of(key))
            return False
        return True

    def _copy_list(self, key: str, path: Path) -> None:
        """Convert a list: words in one line, or a line for each item."""
        single = self._pop(key)
        lines = ([single] if single is not None else []) + self._under(key)
        items = [item for line in lines for item in line.value.split()]
        try:
            if items:
                self._put(path, self._valid(path, items))
        except ValueError as error:
            self._leave_all(lines, str(error))

    def _valid(self, path: Path, value: Setting) -> Setting:
        """Return the value for the output. Raises `ValueError` if it is not valid."""
        node: Table | Key = self._root
        for word in path:
            assert isinstance(node, Table)
            node = node.each or node.keys[word]
        assert isinstance(node, Key)
        try:
            read = READERS[node.kind](value, "/") if node.kind else value
            converted = msgspec.convert(read, node.type, strict=False)
        except (ValueError, TypeError):
            raise ValueError(f"expected {node.expected}") from None
        if not node.kind:
            return converted
        return int(value) if node.kind == "size" and value.isdecimal() else value


def _prefix(text: str) -> str:
    path = text.strip("/")
    return f"/{path}" if path else ""


def _unlimited(maximum: str) -> Callable[[str], str]:
    """Return a function that replaces 0, which is no limit in RabbitMQ, by a maximum."""
    return lambda text: maximum if text == "0" else text


def _milliseconds(text: str) -> str:
    """Return a time with a unit. Raises `ValueError` unless it is positive."""
    count = int(text) if text.isdecimal() else 0
    if count <= 0:
        raise ValueError("expected milliseconds, more than 0")
    return next(f"{count // size}{unit}" for size, unit in _UNITS if count % size == 0)


def _fraction(text: str) -> str:
    """Return a share of the memory in per cent. Raises `ValueError` unless it is more than 0, and at most 1."""
    share = _number(text)
    if not 0 < share <= 1:
        raise ValueError("expected a fraction, more than 0 and at most 1")
    return f"{share * 100:g}%"


def _share_of_memory(text: str) -> str:
    """Return bytes. Raises `ValueError` unless the text is a positive number."""
    share = _number(text)
    if not 0 < share < 1e6:
        raise ValueError("expected a number, more than 0")
    return str(int(share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _name(key: str) -> str:
    """Return the name of a user or tag in a key, in which a backslash precedes dots."""
    return re.sub(r"\\(.)", r"\1", key)


def _reason_of(key: str) -> str:
    matching = [prefix for prefix in _REASONS if key.startswith(prefix)]
    return _REASONS[max(matching, key=len)] if matching else _UNKNOWN


def _comment(text: str) -> str:
    """Return a text for a comment in TOML, which has no control characters."""
    return _CONTROL.sub("?", text)
