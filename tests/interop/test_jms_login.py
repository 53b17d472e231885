"""Qpid JMS logs in and excludes other connections with its client id, against a broker with TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop.programs import java, run
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config, leveret_only

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_jms_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leveret_only("it is set up for TLS")
    command = java(HERE / "jms", "Login", "qpid-jms-client")
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    trust = tmp_path / "trust.p12"
    subprocess.run(
        [
            "keytool",
            "-importcert",
            "-noprompt",
            "-alias",
            "authority",
            "-file",
            str(authority.path),
            "-keystore",
            str(trust),
            "-storepass",
            "secret",
            "-storetype",
            "PKCS12",
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("LEVERET_TRUST_STORE", str(trust))
    config = basic_config() + f'\n[tls]\nport = 0\ncert = "{cert}"\nkey = "{key}"\n'
    with LeveretProcess(tmp_path / "broker", config=config) as broker:
        broker.start()
        run(command, broker, 11)
        broker.check_log()
