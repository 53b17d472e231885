"""The supported versions."""

from __future__ import annotations

from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.table_amqp091 import V0_9_1

__all__ = ["V0_9", "V0_9_1"]
