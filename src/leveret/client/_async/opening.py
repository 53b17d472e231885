"""Results that can be awaited or entered with `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A result that `async with` can close."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


T = TypeVar("T", bound=Closable, covariant=True)


class Opening(Generic[T]):
    """An operation that starts when it is awaited or entered. `async with` closes its result at the end."""

    def __init__(self, open: Callable[[], Awaitable[T]]) -> None:
        self._open = open
        self._opened: T | None = None

    def __await__(self) -> Generator[object, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, traceback)
