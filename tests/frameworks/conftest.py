from __future__ import annotations

import os

import pytest

from tests.support.fixtures import broker, shared_broker

__all__ = ["broker", "shared_broker"]


@pytest.fixture
def everything() -> None:
    """Skip the test except in `make test-frameworks`, because it takes too much time for every run."""
    if os.environ.get("LEVERET_TEST_FRAMEWORKS") != "all":
        pytest.skip("runs in make test-frameworks")
