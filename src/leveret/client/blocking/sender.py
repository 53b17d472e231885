"""A sender of AMQP 1.0, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.client.core.amqp1 import links
from leveret.client.core.amqp1.outgoing import Transfer
from leveret.client.core.amqp1.sender import SenderCore
from leveret.client.core.publisher import PublisherCore
from leveret.client.errors import ConnectionClosed
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client.blocking.channel import Channel
    from leveret.client.blocking.transaction import Transaction


class Sender:
    """A link to a target, which comes back when the connection was lost. To be entered with `with`, which waits for what
    was published and closes it. Threads may share it.

    Messages are bytes, text (one data section, as UTF-8), or an `amqp1.Message`; keywords are fields of `amqp1.Message`.
    """

    def __init__(self, channel: Channel, core: SenderCore, window: int) -> None:
        self._channel = channel
        self._driver = channel.connection.driver
        self._core = core
        self._window = PublisherCore(core.session, window)

    @property
    def name(self) -> str:
        """Of the link."""
        return self._core.name

    @property
    def address(self) -> str | None:
        """Where it sends to: of a dynamic target what the server has chosen, None for the anonymous terminus."""
        return self._core.address

    @property
    def is_open(self) -> bool:
        """It is attached now; while the connection is lost it is not."""
        return self._core.attached

    @property
    def unconfirmed(self) -> int:
        """How many messages of `publish` have no outcome yet."""
        return self._window.in_flight

    def send(self, body: Any = b"", *, transaction: Transaction | None = None, timeout: Limit = DEFAULT,
             **fields: Any) -> None:
        """Send a message and wait for its outcome (settled senders: until it is written).

        transaction  the message takes place when this is committed

        Raises `InvalidMessage` before anything is sent, `Returned` for the outcome released, `Nacked` for rejected and
        modified, the error of a sender that is closed, and `Timeout`.
        """
        core = self._core
        driver = self._driver
        transfer = links.encode(core, body, fields, transaction.core if transaction is not None else None)
        waiter = None
        if not core.settled:
            waiter = transfer.waiter = driver.new_waiter()
        while True:
            with driver.lock:
                if core.session.flowing or core.finished:
                    self._publish(transfer)
                    break
            self._channel.wait_flowing(timeout)
        if waiter is not None:
            driver.wait(waiter, timeout, "an outcome")

    def _publish(self, transfer: Transfer) -> None:
        try:
            self._core.session.publish(transfer)
        except BaseException as error:
            self._driver.interrupted(error)
            raise

    def publish(self, body: Any = b"", *, transaction: Transaction | None = None, **fields: Any) -> None:
        """As `send`, but waits only while as many messages as the window holds have no outcome. A message that fails is
        known later: the next `publish`, or `flush`, raises one exception with all that failed in its `messages`."""
        core = self._core
        driver = self._driver
        window = self._window
        if window.error is not None:
            self._raise_error()
        transfer = links.encode(core, body, fields, transaction.core if transaction is not None else None)
        while True:
            with driver.lock:
                waiter = None
                if core.finished or core.session.flowing:
                    if core.finished or window.in_flight < window.window:
                        try:
                            window.publish(transfer)
                        except BaseException as error:
                            driver.interrupted(error)
                            raise
                        return
                    waiter = window.window_waiter()
            if waiter is None:
                self._channel.wait_flowing()
            else:
                driver.wait(waiter, DEFAULT, "room in the sender's window")

    def flush(self, timeout: Limit = DEFAULT) -> None:
        """Wait until everything has an outcome. Raises `Nacked` or `Returned` with the messages that failed."""
        window = self._window
        while window.in_flight:
            with self._driver.lock:
                if not window.in_flight:
                    break
                waiter = window.idle_waiter()
            self._driver.wait(waiter, timeout, "the sender's outcomes")
        if window.error is not None:
            self._raise_error()

    def _raise_error(self) -> None:
        with self._driver.lock:
            if self._window.error is not None:
                raise self._window.take_error()

    def close(self) -> None:
        """Close it. What has no outcome fails."""
        self._leave(True)

    def detach(self) -> None:
        """Leave it: a durable target stays, with what is unsettled, for a sender of the same name."""
        self._leave(False)

    def _leave(self, closed: bool) -> None:
        try:
            with self._driver.lock:
                waiter = links.leave(self._core, closed)
            self._driver.wait(waiter, DEFAULT, "detach")
        except ConnectionClosed:
            pass

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<Sender to {self._core.description}{'' if self.is_open else ', not open'}>"
