"""A pytest plugin in place of `leveret.pytest_plugin`: the same fixtures for the broker of LEVERET_EXAMPLE_URL."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def leveret_broker() -> SimpleNamespace:
    return SimpleNamespace(url=os.environ["LEVERET_EXAMPLE_URL"])


@pytest.fixture
def leveret_url(leveret_broker: SimpleNamespace) -> str:
    return str(leveret_broker.url)
