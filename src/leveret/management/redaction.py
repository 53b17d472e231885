"""Values without their secrets, for logs and reports."""

from __future__ import annotations

import re
from typing import Final

from leveret.management.json_values import Json

_SECRET: Final = re.compile(r"pass(word|wd|phrase)|secret|token|private_?key|credential", re.IGNORECASE)
# The part of a URI from its user on. Consumes all that it reads, so that no text takes quadratic time.
_URI: Final = re.compile(r"://(\S*)")
_PASSWORD_OPTION: Final = re.compile(r"(?<=password=)[^&\s]*")
# The levels of nested values that are shown.
_LEVELS: Final = 16


def without_secrets(value: Json, hidden: str, levels: int = _LEVELS) -> Json:
    """Return a value without passwords: those in keys with such a name, and in URIs.

    Args:
        value: The value.
        hidden: What to show instead of a secret, and of what is nested deeper than `levels`.
        levels: The levels of nested values to show.
    """
    if isinstance(value, str):
        return _PASSWORD_OPTION.sub(hidden, _URI.sub(lambda uri: _without_user(uri, hidden), value))
    if isinstance(value, dict):
        if not levels:
            return hidden
        return {
            key: hidden
            if _SECRET.search(key) and not isinstance(inner, bool)
            else without_secrets(inner, hidden, levels - 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, hidden, levels - 1) for inner in value] if levels else hidden
    return value


def _without_user(uri: re.Match[str], hidden: str) -> str:
    """Return a URI without its user and password, which may have any character if the URI is invalid."""
    user, at, host = uri[1].rpartition("@")
    is_path = "/" in user and ":" not in user
    return f"://{hidden}@{host}" if at and not is_path else uri[0]
