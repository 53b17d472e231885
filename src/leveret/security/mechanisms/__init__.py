"""SASL mechanisms: one file each."""

from __future__ import annotations

from leveret.security.mechanisms.base import (
    Blocking,
    Challenge,
    Context,
    Failure,
    Mechanism,
    NeedsPassword,
    Outcome,
    Success,
)
from leveret.security.mechanisms.registry import MECHANISMS, create, offered

__all__ = [
    "MECHANISMS",
    "Blocking",
    "Challenge",
    "Context",
    "Failure",
    "Mechanism",
    "NeedsPassword",
    "Outcome",
    "Success",
    "create",
    "offered",
]
