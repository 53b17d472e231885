"""NAME=VALUE texts of a command line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click


def read_table(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """A table of values by name; a value is JSON, or a text where it is no JSON. `click.BadParameter` names the option."""
    table: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r}: expected NAME=VALUE", param_hint=option)
        try:
            table[name] = json.loads(text)
        except ValueError:
            table[name] = text
    return table
