"""The error of the configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """Invalid configuration. The message names the source, the setting, the error and what was expected."""
