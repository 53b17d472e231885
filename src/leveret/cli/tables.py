"""NAME=VALUE arguments of a command line."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click

from leveret.cli.output import Item, Reply


def read_table(pairs: Iterable[str], option: str) -> Item:
    """Parse NAME=VALUE arguments into a table. A value is JSON, or text if it is not valid JSON.

    Args:
        pairs: The arguments.
        option: The name of their option, for errors.

    Raises:
        click.BadParameter: An argument is not NAME=VALUE.
    """
    table: Item = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r}: expected NAME=VALUE", param_hint=option)
        try:
            table[name] = json.loads(text)
        except ValueError:
            table[name] = text
    return table


def read_json(text: str, argument: str) -> Reply:
    """Parse a JSON value. `argument` names it in the error.

    Raises:
        click.BadParameter: The text is not JSON, or is null.
    """
    try:
        value: Reply = json.loads(text)
    except ValueError:
        value = None
    if value is None:
        raise click.BadParameter(f"{text!r}: expected a JSON value other than null", param_hint=argument)
    return value


def read_object(text: str, argument: str) -> Item:
    """Parse a JSON object. Raises `click.BadParameter`."""
    value = read_json(text, argument)
    if not isinstance(value, dict):
        raise click.BadParameter(f"{text!r}: expected a JSON object", param_hint=argument)
    return value
