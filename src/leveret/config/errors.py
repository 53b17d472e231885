"""The refusal of a configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that cannot be used. The message names source, key, what was wrong and what was expected."""
