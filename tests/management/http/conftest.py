"""Fixtures of tests of the HTTP API of a broker process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.management.http.brokers import http_broker
from tests.management.http.client import HttpBroker


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Skip the tests if there is no HTTP server."""
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")


@pytest.fixture(scope="session")
def http_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    with http_broker(tmp_path_factory.mktemp("http")) as broker:
        yield broker


@pytest.fixture
def api(http_process: HttpBroker) -> Iterator[HttpBroker]:
    """The API of a shared broker. Tests use names of their own."""
    yield http_process
    http_process.process.check_log()
