"""Broker processes with the HTTP API and several users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def http_broker(directory: Path) -> Iterator[HttpBroker]:
    """Run a broker with the HTTP API and the users above."""
    leveret_only("the HTTP API")
    settings = (
        '[management]\nport = 0\ncors_origins = ["https://console.example"]\nmax_body_size = 100000\nrefused_logins = 0\n'
    )
    process = LeveretProcess(
        directory, config=basic_config() + USERS + settings, environment={"LEVERET_MANAGEMENT__ENABLED": "true"}
    )
    with process.start():
        yield HttpBroker(process)
