"""A broker with TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config, free_port


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[LeveretProcess]:
    """A broker with TLS that authenticates clients by certificate; `port` is the plain port, `tls_port` the TLS port."""
    certificate, key = authority.issue("server")
    tls_port = free_port()
    config = basic_config() + (
        '\n[users."client"]\npassword = "secret"\n'
        'permissions."/" = { configure = ".*", write = ".*", read = ".*" }\n'
        f'\n[tls]\nport = {tls_port}\ncert = "{certificate}"\nkey = "{key}"\nca = "{authority.path}"\n'
        'verify = "optional"\n'
        '\n[auth]\nmechanisms = ["EXTERNAL", "PLAIN"]\n'
    )
    process = LeveretProcess(tmp_path_factory.mktemp("secure"), config=config)
    process.tls_port = tls_port  # type: ignore[attr-defined]
    with process.start():
        yield process


def tls_url(process: LeveretProcess, host: str = "localhost") -> str:
    return f"amqps://guest:guest@{host}:{process.tls_port}/"  # type: ignore[attr-defined]
