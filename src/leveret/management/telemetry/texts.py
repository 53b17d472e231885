"""Names of objects as OTLP can represent them."""

from __future__ import annotations


def text_of(name: str) -> str:
    """Return a name with question marks for bytes that are not valid UTF-8."""
    return name.encode("utf-8", "replace").decode()
