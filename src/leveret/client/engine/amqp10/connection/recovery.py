"""Recovery of a lost connection: restores topology, sessions, links and pending confirms."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from leveret.client.engine.amqp091.recovery import MAX_LOCKED_ATTEMPTS
from leveret.client.engine.amqp10.management.operations import (
    BINDINGS,
    binding_body,
    exchange_body,
    exchange_path,
    queue_body,
    queue_path,
)
from leveret.client.engine.common.frontend import Procedure
from leveret.client.engine.common.results import Result
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, copy_error
from leveret.client.events import Recovered, RecoveryFailed
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore
    from leveret.client.engine.amqp10.session.session import SessionCore


def recover(connection: Amqp10ConnectionCore) -> Procedure:
    """Restore exchanges, queues, bindings, sessions, links and pending confirms (a procedure after the handshake).

    A refusal by the server is reported as an event and ends dependent objects. Everything else is restored.
    """
    yield from _declare_all(connection)
    sessions = [session for session in connection.channels.values() if not session.internal]
    for session in sessions:
        yield from _open(session)
    sessions = [session for session in sessions if session.opened]
    consumers = resumed = 0
    for session in sessions:
        started, again = yield from _attach(session)
        consumers += started
        resumed += again
    connection.ready()
    republished = resumed + sum(session.republish() for session in sessions if session.opened)
    connection.frontend.emit(Recovered(len(sessions), consumers, republished))


def _open(session: SessionCore) -> Procedure:
    """Begin a session again, unless the application has closed it."""
    if session.error is not None:
        return
    try:
        yield from session.open()
    except ConnectionClosed:
        raise
    except Error as error:
        if session.error is None:
            session.ended(error)
        session.connection.forget_session(session)
        session.connection.frontend.emit(RecoveryFailed(f"channel {session.number}", error))


def _attach(session: SessionCore) -> Generator[Result, Result, tuple[int, int]]:
    """Attach the links of a session again, and return the numbers of consumers and of resumed messages."""
    started = resumed = 0
    for consumer in list(session.consumers.values()):
        if consumer.ended or not session.opened or consumer is session.replies:
            continue
        what = f"consumer '{consumer.tag}' of queue '{consumer.queue}'"
        if (yield from _awaited(session, what, session.consume(consumer))):
            started += 1
    for sender in list(session.app_senders):
        if not session.opened:
            break
        resumed += len(sender.resumed)
        sender.attach()
        yield from _awaited(session, f"sender to {sender.description}", sender.attach_waiter())
    return started, resumed


def _awaited(session: SessionCore, what: str, waiter: Result) -> Generator[Result, Result, bool]:
    try:
        yield waiter
    except ConnectionClosed:
        raise
    except Error as error:
        session.connection.frontend.emit(RecoveryFailed(what, error))
        return False
    return True


def _declare_all(connection: Amqp10ConnectionCore) -> Procedure:
    topology = connection.topology
    for name, sent in list(topology.exchanges.items()):
        yield from _declare(connection, f"exchange '{name}'", "PUT", exchange_path(name), exchange_body(sent))
    for queue in list(topology.queues.values()):
        yield from _declare(connection, f"queue '{queue.name}'", "PUT", queue_path(queue.name), queue_body(queue.arguments))
    for binding in list(topology.bindings.values()):
        what = f"binding of '{binding.destination}' to exchange '{binding.source}'"
        yield from _declare(connection, what, "POST", BINDINGS, binding_body(binding.to_queue, binding.arguments))


def _declare(connection: Amqp10ConnectionCore, what: str, method: str, path: str, body: Arguments) -> Procedure:
    try:
        yield connection.management.request(method, path, body, lambda status, answer, abandoned: None, what)
    except ConnectionClosed:
        raise
    except Error as error:
        if body.get("exclusive") and connection.locked_attempts < MAX_LOCKED_ATTEMPTS:
            # The queue may still belong to the lost connection.
            connection.locked_attempts += 1
            raise
        if isinstance(error, ChannelClosed) or error.reply_code:
            connection.frontend.emit(RecoveryFailed(what, error))
            return
        connection.frontend.emit(RecoveryFailed(what, copy_error(error)))
