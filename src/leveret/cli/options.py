"""Option groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., None])
Option = Callable[[Any], Any]


def together(*options: Option) -> Callable[[Function], Function]:
    """Combine decorators into one. The order is that of decorators above a function."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
