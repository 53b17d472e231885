"""A pytest plugin in place of `leveret.pytest_plugin`: the same fixtures for a broker that runs already.

LEVERET_EXAMPLE_URL         its URL
LEVERET_EXAMPLE_VHOST_URL   that of another vhost, which all tests share
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def leveret_broker() -> SimpleNamespace:
    return SimpleNamespace(url=os.environ["LEVERET_EXAMPLE_URL"])


@pytest.fixture
def leveret_url() -> str:
    return os.environ["LEVERET_EXAMPLE_VHOST_URL"]
