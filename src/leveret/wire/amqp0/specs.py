"""The supported versions."""

from __future__ import annotations

from leveret.wire.amqp0.table_0_9 import V0_9
from leveret.wire.amqp0.table_0_9_1 import V0_9_1

__all__ = ["V0_9", "V0_9_1"]
