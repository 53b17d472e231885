"""Hop, RabbitMQ's HTTP client for Java and for other languages of its virtual machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.programs import java, run
from tests.management.http.client import HttpBroker


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hop(api: HttpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    command = java(Path(__file__).parent / "java", "Hop", "http-client")
    monkeypatch.setenv("LEVERET_HTTP_URL", f"http://127.0.0.1:{api.port}/")
    run(command, api.process, least=45)
