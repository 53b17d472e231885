"""Connections, channels and consumers: list; close connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.consumer import Consumer
from leveret.management.calls import Arguments, Call, InVhost, Item, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class Close(Arguments, kw_only=True):
    """`number` is that of `connections.list`."""

    number: int
    reason: str = "closed by the operator"


class CloseUser(Arguments, kw_only=True):
    user: str
    reason: str = "closed by the operator"


def list_connections(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    for session in list(admin.sessions()):
        item = session.describe()
        if arguments.vhost in (None, item["vhost"]):
            yield plain(item)


def list_channels(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    for session in list(admin.sessions()):
        connection = session.describe()
        if arguments.vhost in (None, connection["vhost"]):
            for channel in session.describe_channels():
                yield plain({"connection": session.number, "vhost": connection["vhost"], "user": connection["user"],
                             **channel})


def list_consumers(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    for vhost in admin.vhosts(arguments.vhost):
        for queue in list(vhost.queues.values()):
            for consumer in list(queue.consumers):
                yield _describe_consumer(consumer)


def _describe_consumer(consumer: Consumer) -> Item:
    return {
        "vhost": consumer.queue.vhost.name,
        "queue": plain(consumer.queue.name),
        "tag": plain(consumer.tag),
        # Internal consumers, such as those of direct reply-to, have no connection.
        "connection": getattr(consumer.owner, "number", None),
        "channel": getattr(consumer.channel, "number", None),
        "no_ack": consumer.no_ack,
        "exclusive": consumer.exclusive,
        "active": consumer.active,
        "priority": consumer.priority,
        "unacked": consumer.unacked,
        "arguments": plain(consumer.arguments),
    }


def close(admin: Admin, arguments: Close) -> None:
    admin.session(arguments.number).shut_down(arguments.reason)


def close_user(admin: Admin, arguments: CloseUser) -> Item:
    """Close all connections of a user. Returns their number."""
    return {"connections": close_all(admin, arguments.user, arguments.reason)}


def close_all(admin: Admin, user: str, reason: str) -> int:
    """Close the connections of a user, and return their number."""
    own = [session for session in list(admin.sessions()) if session.describe()["user"] == user]
    for session in own:
        session.shut_down(reason)
    return len(own)


CALLS = {
    "connections.list": Call(list_connections, InVhost),
    "connections.close": Call(close, Close, changes=True),
    "connections.close_user": Call(close_user, CloseUser, changes=True),
    "channels.list": Call(list_channels, InVhost),
    "consumers.list": Call(list_consumers, InVhost),
}
