"""Callback for entries that are being loaded into memory."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiting:
    """Callback for when the head of a queue is in memory."""

    def loaded(self) -> None:
        raise NotImplementedError
