"""Behaviour common to senders and receivers: attaching and detaching (transport 2.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.conditions import link_error
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import Error, LinkClosed, copy_error
from leveret.wire.amqp10.transport import Attach, Detach, Flow

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.session.wire_session import WireSession

NO_HANDLE: Final = -1


class Link(ABC):
    """One link. It survives the loss of its connection under the same name.

    Attributes:
        handle: The client's handle; NO_HANDLE if the link is not attached on the wire.
        attached: Both sides have attached the link, and the server has accepted its terminus.
        closing: The client has sent a detach.
        finished: The link has ended. `error` says why; None if the client closed it.
        remote: The server's attach.
    """

    is_receiver = False

    def __init__(self, session: WireSession, name: str) -> None:
        self.session = session
        self.name = name
        self.handle = NO_HANDLE
        self.attached = False
        self.closing = False
        self.finished = False
        self.error: Error | None = None
        self.remote: Attach | None = None
        frontend = session.connection.frontend
        self._opened = Waiters(frontend)
        self._closed = Waiters(frontend)

    # Implemented by subclasses.

    @property
    @abstractmethod
    def description(self) -> str:
        """The terminus for error messages, such as "the target 'x'"."""

    @abstractmethod
    def performative(self) -> Attach:
        """Return the attach to send; `attach` sets its handle."""

    @abstractmethod
    def on_attached(self, attach: Attach) -> None:
        """Handle the server's attach of an accepted link."""

    @abstractmethod
    def flow_received(self, flow: Flow) -> None:
        """Handle a flow for this link."""

    @abstractmethod
    def on_finished(self, error: Error | None) -> None:
        """Handle the end of the link."""

    # Attaching

    def attach(self) -> None:
        """Send the attach; the session must be open."""
        session = self.session
        attach = self.performative()
        self.handle = attach.handle = session.add_link(self)
        attach.channel = session.number
        try:
            session.send(attach)
        except Error:
            session.remove_link(self)
            raise

    def attach_waiter(self) -> Waiter:
        """Return a waiter for the server's attach. It fails with the server's refusal."""
        waiter: Waiter = self._opened.new()
        if self.finished:
            waiter.set_exception(copy_error(self.error or LinkClosed(f"{self.description} was closed by the application")))
        elif self.attached:
            waiter.set_result(None)
        self.session.connection.ensure_reading()
        return waiter

    def attach_received(self, attach: Attach) -> None:
        """Handle the server's attach. An attach without the requested terminus is a refusal, followed by a detach."""
        self.remote = attach
        if self.closing or (attach.source if self.is_receiver else attach.target) is None:
            return
        self.attached = True
        self.on_attached(attach)
        self._opened.wake()

    # Detaching

    def detach(self, closed: bool) -> None:
        """Close the link, or only detach it if `closed` is false, so that it can be attached again."""
        if self.finished or self.closing:
            return
        self.closing = True
        self.attached = False
        if self.handle == NO_HANDLE:
            self.finish(None)
            return
        self.session.send(Detach(self.handle, closed, channel=self.session.number))

    def detach_waiter(self) -> Waiter:
        """Return a waiter for the end of the link."""
        waiter: Waiter = self._closed.new()
        if self.finished:
            waiter.set_result(None)
        self.session.connection.ensure_reading()
        return waiter

    def detach_received(self, detach: Detach) -> None:
        """Handle the server's detach."""
        if not self.closing:
            self.session.send(Detach(self.handle, detach.closed, channel=self.session.number))
        self.session.remove_link(self)
        if self.closing:
            self.finish(None)
        else:
            verb = "detached" if self.attached else "refused"
            self.finish(link_error(f"the server {verb} {self.description}", detach.error))

    def finish(self, error: Error | None) -> None:
        """End the link for good."""
        if self.finished:
            return
        self.finished = True
        self.attached = False
        self.handle = NO_HANDLE
        self.error = error
        self.on_finished(error)
        self._opened.wake(error or LinkClosed(f"{self.description} was closed by the application"))
        self._closed.wake()

    def lost(self) -> None:
        """Handle the loss of the connection; the link will be attached again."""
        self.handle = NO_HANDLE
        self.attached = False
        self._opened.wake(self.session.connection.last_error)
        if self.closing:
            self.finish(None)
