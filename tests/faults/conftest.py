from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.killed import configuration, process
from tests.faults.neighbour import neighbour
from tests.support.fixtures import broker, name, shared_broker

__all__ = ["broker", "configuration", "name", "neighbour", "process", "shared_broker"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)
