"""Fixtures for tests of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.security.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    """The context of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    return context


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    """The context of a client that trusts the server."""
    return ssl.create_default_context(cafile=str(authority.path))
