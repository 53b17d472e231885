"""The choices of the configuration: the names in the registries of storage engines and SASL mechanisms."""

from __future__ import annotations

from typing import Final

from leveret.security.mechanisms.registry import MECHANISMS
from leveret.storage.registry import ENGINES

CHOICES: Final = {"engine": tuple(ENGINES), "mechanism": tuple(MECHANISMS)}
