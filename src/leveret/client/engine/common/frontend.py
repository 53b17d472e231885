"""The interface between the engine and the front end that drives it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from leveret.client.engine.common.results import Result
from leveret.client.events import Event

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.files import FileContent
    from leveret.client.message import Message


class Waiter(Protocol):
    """Interface of a pending result, which is set once, as in `asyncio.Future`.

    A waiter whose caller has stopped waiting is done and has no result.
    """

    def done(self) -> bool: ...

    def set_result(self, result: Result, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


# Steps that the front end runs in order. Each yields a waiter and receives its result or exception.
Procedure = Generator[Result, Result, None]


class FrontEnd(ABC):
    """Interface of the engine to its front end. The engine calls it only from within a call of the front end.

    Attributes:
        message_class: Class of messages received over AMQP 0-9-1.
        delivery_class: Class of messages received over AMQP 1.0.
        file_class: Class of files received over AMQP 0-9.
    """

    message_class: type[Message]
    delivery_class: type[Delivery]
    file_class: type[FileContent]

    @abstractmethod
    def new_waiter(self) -> Waiter:
        """Return a waiter that the front end can await."""

    @abstractmethod
    def flush_soon(self) -> None:
        """Schedule a write of `to_send`; more output may accumulate until then."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the application."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Stop reading from the socket, because the application is slower than the server."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Continue reading from the socket."""

    @abstractmethod
    def close_socket(self) -> None:
        """Close the socket after all output is written. The engine no longer uses it."""

    @abstractmethod
    def reconnect(self) -> None:
        """Start reconnecting in the background after a lost connection."""
