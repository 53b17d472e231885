"""Values without their secrets, for the audit log and for reports."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from leveret.management.json_values import Json

_SECRET: Final = re.compile(r"pass(word|wd|phrase)|secret|token|private_?key|credential", re.IGNORECASE)
# The levels of nested values that are shown.
_LEVELS: Final = 16


def without_secrets(value: Json, hidden: str, *, key: str = "", levels: int = _LEVELS) -> Json:
    """Return a value without passwords: those in keys with such a name, and in URIs.

    Args:
        value: The value.
        hidden: What to show instead of a secret, and of what is nested deeper than `levels`.
        key: The key of the value. The name of one such as `src-uri` says that its value is meant as a URI.
        levels: The levels of nested values to show.
    """
    if _SECRET.search(key) and not isinstance(value, bool):
        return hidden
    if isinstance(value, str):
        return _without_credentials(value, hidden, is_uri=key.lower().endswith("uri"))
    if isinstance(value, (dict, list)) and not levels:
        return hidden
    if isinstance(value, dict):
        return {name: without_secrets(inner, hidden, key=name, levels=levels - 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner, hidden, key=key, levels=levels - 1) for inner in value]
    return value


def _without_credentials(text: str, hidden: str, *, is_uri: bool) -> str:
    """Return a text without the credentials of its URIs, which may be invalid: passwords may have any character.

    Thus all between the scheme of the first URI and the last '@' may be a user and a password. Takes linear time.

    Args:
        text: The text.
        hidden: The text in place of credentials.
        is_uri: Whether the text is meant as a URI, although it may not look like one.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text if is_uri else ""
    if ("password" if rest else "password=") in unquote(text).lower():
        return hidden  # of the key of a certificate: an option of the URI
    user, at, host = rest.rpartition("@")
    is_path = "/" in user and ":" not in user
    return f"{scheme}{separator}{hidden}@{host}" if at and not is_path else text
