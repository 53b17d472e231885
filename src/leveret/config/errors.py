"""Configuration errors."""

from __future__ import annotations


class ConfigError(Exception):
    """Invalid configuration. The message names the source, the setting, the problem and the expected value."""
