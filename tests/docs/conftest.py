from __future__ import annotations

from tests.support.fixtures import broker, shared_broker

__all__ = ["broker", "shared_broker"]
