"""Error of pipelines."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline cannot run. The message names the setting, what is wrong and what is expected."""
