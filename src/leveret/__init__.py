"""Leveret: a durable message broker that speaks AMQP."""

from __future__ import annotations

from leveret._compiled import BuildInfo, install

__version__ = "0.1.0"
__all__ = ["BuildInfo", "__version__", "build_info"]

_BUILD = install()


def build_info() -> BuildInfo:
    """Whether this process runs the compiled hot modules or the plain ones, and why."""
    return _BUILD
