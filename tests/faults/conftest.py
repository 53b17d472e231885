from __future__ import annotations

from tests.faults.killed import configuration, process
from tests.faults.neighbour import neighbour
from tests.support.fixtures import broker, name, shared_broker

__all__ = ["broker", "configuration", "name", "neighbour", "process", "shared_broker"]
