"""Option groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., None])
Option = Callable[[Any], Any]


def together(*options: Option) -> Callable[[Function], Function]:
    """Combine decorators into one. The order is that of decorators above a function."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def split_setting(setting: str) -> tuple[str, str]:
    """Return key and value of an argument of `--set`. Raises `click.BadParameter`."""
    key, separator, value = setting.partition("=")
    if not separator:
        raise click.BadParameter(f"{setting!r}: expected KEY=VALUE", param_hint="--set")
    return key.strip(), value
