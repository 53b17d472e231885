"""The error that pipelines raise."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline cannot run. The message names the setting, the problem and the expected value."""
