"""A broker with the HTTP API, for RabbitMQ's tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, leveret_only


@pytest.fixture(scope="session")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")
    leveret_only("the HTTP API")
    process = LeveretProcess(
        tmp_path_factory.mktemp("tools"),
        config="[management]\nport = 0\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield HttpBroker(process)


@pytest.fixture
def api(shared_api: HttpBroker) -> Iterator[HttpBroker]:
    """The API of a shared broker. Tests use vhosts of their own."""
    yield shared_api
    shared_api.process.check_log()
