"""The refusal of a pipeline."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline that cannot be run. The message names the setting, what was wrong and what was expected."""
