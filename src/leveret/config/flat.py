"""The configuration as a flat table of settings, for commands that show and compare it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from leveret.config.load import dotted
from leveret.config.model import Config
from leveret.config.schema import Choices, Key, Table, schema_of
from leveret.config.values import Setting

# Replaces the value of a secret, such as a password.
MASK: Final = "***"


def flat_settings(config: Config, choices: Choices = MappingProxyType({})) -> dict[str, Setting]:
    """Return the values of all settings by their full names, with `MASK` for secrets that are set."""
    found: dict[str, Setting] = {}
    _flatten(config, schema_of(Config, choices), (), found)
    return found


def _flatten(value: Setting, node: Table | Key, path: tuple[str, ...], found: dict[str, Setting]) -> None:
    if isinstance(node, Key):
        found[dotted(path)] = MASK if node.secret and value is not None else value
        return
    if node.each is not None:
        for name, inner in value.items():
            _flatten(inner, node.each, (*path, name), found)
        return
    for name, inner_node in node.keys.items():
        _flatten(getattr(value, name), inner_node, (*path, name), found)


def toml_value(value: Setting) -> str:
    """Return a value in TOML notation."""
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    # A TOML string is a JSON string, but must escape DEL, too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def differences(before: Mapping[str, Setting], after: Mapping[str, Setting]) -> list[str]:
    """Return the names of settings that differ or that only one side has. A missing setting equals None."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]
