"""What the engine asks of the face that drives it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from leveret.client.events import Event

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.files import FileContent
    from leveret.client.message import Message


class Waiter(Protocol):
    """The result of something that takes time, like `asyncio.Future`: set once. One that nobody waits for any more is
    done, without a result."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


# Steps that the face performs in turn: each yields a waiter and is sent its result, or thrown its exception.
Procedure = Generator[Any, Any, None]


class FrontEnd(ABC):
    """The face. All calls come from within a call that it has made into the engine.

    message_class, delivery_class   what messages of AMQP 0-9-1 and of 1.0 are made of
    file_class                      what files of AMQP 0-9 are made of
    """

    message_class: type[Message]
    delivery_class: type[Delivery]
    file_class: type[FileContent]

    @abstractmethod
    def new_waiter(self) -> Any:
        """A waiter that the face knows how to await."""

    @abstractmethod
    def flush_soon(self) -> None:
        """There is something to send; it may gather more before it is written."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """Show an event to the application."""

    @abstractmethod
    def pause_reading(self) -> None:
        """The application is slower than the server."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Read again."""

    @abstractmethod
    def close_socket(self) -> None:
        """Close the socket once everything is written. The engine is done with it."""

    @abstractmethod
    def reconnect(self) -> None:
        """The connection is lost: begin to connect anew, in the background."""
