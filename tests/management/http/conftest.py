"""Fixtures of tests of the HTTP API of a broker process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, basic_config, leveret_only

USERS = """
[users.monitor]
password = "monitor"
tags = ["monitoring"]

[users.manager]
password = "manager"
tags = ["management"]
permissions."/" = { configure = "^mine", write = "^mine", read = "^mine" }

[users.maker]
password = "maker"
tags = ["policymaker"]
permissions."/" = { configure = "", write = "", read = "" }

[users.viewer]
password = "viewer"
tags = ["administrator", "read-only"]
permissions."/" = { configure = ".*", write = ".*", read = ".*" }

[users.operator]
password = "operator"
tags = ["monitoring", "policymaker", "no-payloads"]
permissions."/" = { configure = ".*", write = ".*", read = ".*" }

[users.plain]
password = "plain"
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
"""


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Skip the tests if there is no HTTP server."""
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")


@pytest.fixture(scope="session")
def http_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    leveret_only("the HTTP API")
    directory: Path = tmp_path_factory.mktemp("http")
    settings = (
        '[management]\nport = 0\ncors_origins = ["https://console.example"]\nmax_body_size = 100000\nrefused_logins = 0\n'
    )
    process = LeveretProcess(
        directory, config=basic_config() + USERS + settings, environment={"LEVERET_MANAGEMENT__ENABLED": "true"}
    )
    with process.start():
        yield HttpBroker(process)


@pytest.fixture
def api(http_process: HttpBroker) -> Iterator[HttpBroker]:
    """The API of a shared broker. Tests use names of their own."""
    yield http_process
    http_process.process.check_log()
