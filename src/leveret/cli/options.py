"""Option groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., None])
Option = Callable[[Any], Any]


class FilePath(click.Path):
    """A path that is not empty: `pathlib` takes an empty one for the current directory."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the path, or fail."""
        if value in ("", b""):
            self.fail("the path is empty; expected a path, such as . for the current directory", parameter, context)
        return super().convert(value, parameter, context)


def together(*options: Option) -> Callable[[Function], Function]:
    """Combine decorators into one. The order is that of decorators above a function."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
