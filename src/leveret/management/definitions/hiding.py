"""Hides secrets in the objects that reports of imports show."""

from __future__ import annotations

from typing import Final

from leveret.management.credentials import names_uri, without_credentials
from leveret.management.definitions.sections import SECRETS, Entry

_HIDDEN: Final = "***"
# The levels of nested values that are shown.
_SHOWN_LEVELS: Final = 16


def without_secrets(values: Entry) -> Entry:
    """Return the values of an object without its password, and without the credentials of URIs.

    Hides what is nested deeply, too.
    """
    shown = {name: _shown(value, names_uri(name), _SHOWN_LEVELS) for name, value in values.items() if name not in SECRETS}
    return shown if len(shown) == len(values) else {**shown, "password": _HIDDEN}


def _shown(value: object, is_uri: bool, levels: int) -> object:
    if isinstance(value, str):
        return without_credentials(value, _HIDDEN, is_uri=is_uri)
    if isinstance(value, dict):
        return {key: _shown(item, names_uri(key), levels - 1) for key, item in value.items()} if levels else _HIDDEN
    if isinstance(value, list):
        return [_shown(item, is_uri, levels - 1) for item in value] if levels else _HIDDEN
    return value
