"""Hides the credentials of URIs in texts that are shown or recorded."""

from __future__ import annotations

from urllib.parse import unquote


def without_credentials(text: str, hidden: str, *, is_uri: bool = False) -> str:
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


def names_uri(key: str) -> bool:
    """Return whether a key, such as `src-uri`, has URIs as values."""
    return key.lower().endswith("uri")
