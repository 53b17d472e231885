"""The deduplication exchange, `x-message-deduplication` of RabbitMQ's plugin: a fanout that drops duplicates.

Exchanges of all types can drop duplicates; this type always does.
"""

from __future__ import annotations

from typing import ClassVar

from leveret.broker.arguments import DEDUPLICATION
from leveret.broker.exchanges.fanout import FanoutExchange


class DeduplicationExchange(FanoutExchange):
    type: ClassVar[str] = DEDUPLICATION
