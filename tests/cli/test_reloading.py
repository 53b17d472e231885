"""Reloading: which changes of the configuration take effect in a running broker, and which need a restart."""

from __future__ import annotations

import msgspec
import pytest

from leveret.cli.serving import needing_restart, reloaded
from leveret.config import Config, LimitsConfig, ServerConfig, TlsConfig, UserConfig, VhostConfig

OLD = Config(server=ServerConfig(port=1), users={"a": UserConfig()})
TLS = TlsConfig(cert="/old", key="/old.key")


def test_users_vhosts_and_limits_are_reloaded() -> None:
    new = msgspec.structs.replace(
        OLD, users={"b": UserConfig()}, vhosts={"v": VhostConfig()}, limits=LimitsConfig(connections=5)
    )
    assert reloaded(OLD, new) == new
    assert needing_restart(reloaded(OLD, new), new) == []


def test_other_keys_wait() -> None:
    new = msgspec.structs.replace(OLD, server=ServerConfig(port=2, log_level="debug"), limits=LimitsConfig(connections=5))
    running = reloaded(OLD, new)
    assert (running.server.port, running.limits.connections) == (1, 5)
    assert needing_restart(running, new) == ["server.port", "server.log_level"]


@pytest.mark.parametrize(
    ("before", "after", "wait"),
    [
        (TLS, TlsConfig(cert="/new", key="/new.key", ca="/ca", min_version="1.3"), ["tls.min_version"]),
        (TlsConfig(), TLS, ["tls.cert", "tls.key"]),
        (TLS, TlsConfig(), ["tls.cert", "tls.key"]),
    ],
)
def test_certificates_are_reloaded_if_there_is_a_tls_listener(before: TlsConfig, after: TlsConfig, wait: list[str]) -> None:
    old, new = msgspec.structs.replace(OLD, tls=before), msgspec.structs.replace(OLD, tls=after)
    running = reloaded(old, new)
    assert needing_restart(running, new) == wait
    assert (running.tls.cert == after.cert) == ("tls.cert" not in wait)
