"""rabbit-hole, the HTTP client for Go that Terraform's provider uses, with its own calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.programs import go, run
from tests.management.http.client import HttpBroker


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rabbit_hole(api: HttpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    command = go(Path(__file__).parent / "go", "rabbit-hole")
    monkeypatch.setenv("LEVERET_HTTP_URL", f"http://127.0.0.1:{api.port}")
    monkeypatch.setenv("LEVERET_PORT", str(api.process.port))
    run(command, api.process, least=14)
