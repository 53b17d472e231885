"""The choices of the configuration: the names in the registries of storage engines, SASL mechanisms and queue types."""

from __future__ import annotations

from typing import Final

from leveret.broker.queues.registry import DEFAULT_TYPES
from leveret.security.mechanisms.registry import MECHANISMS
from leveret.storage.registry import ENGINES

CHOICES: Final = {"engine": tuple(ENGINES), "mechanism": tuple(MECHANISMS), "queue_type": DEFAULT_TYPES}
