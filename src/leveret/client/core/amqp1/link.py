"""What senders and receivers have in common: attaching and detaching (transport 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.client.core.amqp1.conditions import link_error
from leveret.client.core.frontend import Waiter
from leveret.client.core.waiters import Waiters
from leveret.client.errors import Error, LinkClosed, copy_error
from leveret.wire.amqp1.transport import Attach, Detach, Disposition, Flow

if TYPE_CHECKING:
    from leveret.client.core.amqp1.session import Session

NO_HANDLE: Final = -1


class Link:
    """One link. It survives the loss of its connection, under the same name.

    handle    ours; NO_HANDLE while it is not attached on the wire
    attached  both sides have attached it, and the server has accepted its terminus
    closing   we have sent a detach
    gone      no more will come of it; `error` says why, None where we have closed it
    remote    the server's attach
    """

    is_receiver = False

    def __init__(self, session: Session, name: str) -> None:
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

    # To be said by those below.

    @property
    def description(self) -> str:
        """Such as "the target 'x'"."""
        raise NotImplementedError

    def performative(self) -> Attach:
        """The attach to send; its handle is set by us."""
        raise NotImplementedError

    def on_attached(self, attach: Attach) -> None:
        """The server has attached it."""
        raise NotImplementedError

    def flow_received(self, flow: Flow) -> None:
        """A flow of this link came."""
        raise NotImplementedError

    def on_finished(self, error: Error | None) -> None:
        """It is gone."""
        raise NotImplementedError

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
        """Until the server has attached it. Raises why it has not."""
        waiter: Waiter = self._opened.new()
        if self.finished:
            waiter.set_exception(copy_error(self.error or LinkClosed(f"{self.description} was closed by the application")))
        elif self.attached:
            waiter.set_result(None)
        self.session.connection.ensure_reading()
        return waiter

    def attach_received(self, attach: Attach) -> None:
        """The server's attach. Without the terminus that was asked for it is a refusal, whose detach follows."""
        self.remote = attach
        if self.closing or (attach.source if self.is_receiver else attach.target) is None:
            return
        self.attached = True
        self.on_attached(attach)
        self._opened.wake()

    # Detaching

    def detach(self, closed: bool) -> None:
        """End it, or with `closed` false only leave it, so that it can be attached again."""
        if self.finished or self.closing:
            return
        self.closing = True
        self.attached = False
        if self.handle == NO_HANDLE:
            self.finish(None)
            return
        self.session.send(Detach(self.handle, closed, channel=self.session.number))

    def detach_waiter(self) -> Waiter:
        waiter: Waiter = self._closed.new()
        if self.finished:
            waiter.set_result(None)
        self.session.connection.ensure_reading()
        return waiter

    def detach_received(self, detach: Detach) -> None:
        """The server's detach."""
        if not self.closing:
            self.session.send(Detach(self.handle, detach.closed, channel=self.session.number))
        self.session.remove_link(self)
        if self.closing:
            self.finish(None)
        else:
            verb = "detached" if self.attached else "refused"
            self.finish(link_error(f"the server {verb} {self.description}", detach.error))

    def finish(self, error: Error | None) -> None:
        """There is no more to come."""
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
        """The connection is lost: it is to be attached again."""
        self.handle = NO_HANDLE
        self.attached = False
        self._opened.wake(self.session.connection.last_error)
        if self.closing:
            self.finish(None)

    def settled_by_peer(self, disposition: Disposition, delivery: Any) -> None:
        """The other side has settled a delivery that it has sent."""
