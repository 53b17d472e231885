"""What clients of every protocol declare, bind, purge and delete: the permissions that it takes, and the order in which
they are looked at (RabbitMQ's access control). A session is the owner of the exclusive queues that it declares.
"""

from __future__ import annotations

from typing import Any

from leveret.broker.errors import AccessRefused
from leveret.broker.exchanges.base import Exchange
from leveret.broker.queues.queue import Queue
from leveret.protocols.vhost_session import VhostSession


def declare_queue(session: VhostSession, name: str, *, durable: bool, exclusive: bool, auto_delete: bool,
                  arguments: dict[str, Any]) -> Queue:
    """Declare a queue, or check that the one of that name is equal."""
    session.check("configure", name)
    target = arguments.get("x-dead-letter-exchange")
    if isinstance(target, str):
        session.check("read", name)
        session.check("write", target)
    found: Queue = session.vhost.declare_queue(name, session, durable=durable, exclusive=exclusive,
                                               auto_delete=auto_delete, arguments=arguments)
    return found


def delete_queue(session: VhostSession, name: str, *, if_unused: bool = False,
                 if_empty: bool = False) -> tuple[int, bool]:
    """How many messages it held ready, and whether the log has to keep that it is gone."""
    session.check("configure", name)
    found = session.vhost.find_queue(name)
    if found is not None:
        found.catch_up()
    stored = found is not None and found.stored
    return session.vhost.delete_queue(name, session, if_unused=if_unused, if_empty=if_empty), stored


def purge_queue(session: VhostSession, name: str) -> tuple[int, bool]:
    """How many messages are gone, and whether the log has to keep that."""
    session.check("read", name)
    found = session.vhost.queue(name, session)
    found.catch_up()
    return found.purge(), found.stored


def declare_exchange(session: VhostSession, name: str, type_name: str, *, durable: bool, auto_delete: bool, internal: bool,
                     arguments: dict[str, Any]) -> Exchange:
    """Declare an exchange, or check that the one of that name is equal."""
    if name:
        session.check("configure", name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        session.check("read", name)
        session.check("write", alternate)
    found: Exchange = session.vhost.declare_exchange(name, type_name, durable=durable, auto_delete=auto_delete,
                                                     internal=internal, arguments=arguments)
    return found


def delete_exchange(session: VhostSession, name: str, *, if_unused: bool = False) -> None:
    if name:
        session.check("configure", name)
    session.vhost.delete_exchange(name, if_unused=if_unused)


def check_queue_binding(session: VhostSession, queue: str, source: str) -> None:
    """Raise AccessRefused unless the session may bind this queue to this exchange, and unbind it."""
    session.vhost.check_bindable(source)
    session.check("write", queue)
    session.check("read", source)


def bind_queue(session: VhostSession, queue: str, source: str, routing_key: str, arguments: dict[str, Any]) -> Queue:
    check_queue_binding(session, queue, source)
    vhost = session.vhost
    vhost.exchange(source)
    found: Queue = vhost.queue(queue, session)
    vhost.bind(found, source, routing_key, arguments)
    return found


def unbind_queue(session: VhostSession, queue: str, source: str, routing_key: str, arguments: dict[str, Any]) -> None:
    """What is not bound is unbound already, whoever may use the queue, except in strict mode."""
    check_queue_binding(session, queue, source)
    vhost = session.vhost
    if vhost.strict or vhost.is_bound(queue, source, routing_key, arguments):
        vhost.unbind(vhost.queue(queue, session), source, routing_key, arguments)


def check_exchange_binding(session: VhostSession, destination: str, source: str) -> None:
    """Raise AccessRefused unless the session may bind the destination to the source, and unbind it."""
    if not destination or not source:
        raise AccessRefused("the default exchange cannot be bound to another exchange")
    session.check("write", destination)
    session.check("read", source)


def bind_exchange(session: VhostSession, destination: str, source: str, routing_key: str,
                  arguments: dict[str, Any]) -> None:
    check_exchange_binding(session, destination, source)
    vhost = session.vhost
    vhost.bind(vhost.exchange(destination), source, routing_key, arguments)


def unbind_exchange(session: VhostSession, destination: str, source: str, routing_key: str,
                    arguments: dict[str, Any]) -> None:
    """What is not bound is unbound already, except in strict mode."""
    check_exchange_binding(session, destination, source)
    vhost = session.vhost
    if vhost.strict or (destination in vhost.exchanges and source in vhost.exchanges):
        vhost.unbind(vhost.exchange(destination), source, routing_key, arguments)
