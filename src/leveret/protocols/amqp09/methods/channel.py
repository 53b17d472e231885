"""Classes channel and access of 0-9: open, resume, flow, ping and pong, close; tickets."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotFound, PreconditionFailed, ResourceLocked, SyntaxInvalid
from leveret.broker.log import CommitWaiter
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.realms import ACTIVE, EXCLUSIVE, PASSIVE, READ, WRITE
from leveret.protocols.amqp091.methods import basic as basic091
from leveret.protocols.amqp091.methods import channel as channel091
from leveret.protocols.amqp091.methods.replies import reply_when_stored
from leveret.protocols.amqp091.reply_codes import CODES, reply_text
from leveret.wire.amqp0.commands import Method

if TYPE_CHECKING:
    from leveret.protocols.amqp09.connection.base import BaseConnection


def open_channel(connection: BaseConnection, command: Method) -> None:
    """Perform channel.open or channel.resume."""
    if connection.closing or connection.vhost is None:
        return
    channel091.check_limit(connection)
    if command.name == "channel.resume":
        _resume(connection, command)
        return
    if command.arguments["out_of_band"]:
        raise SyntaxInvalid("channel.open: out-of-band transfers are not supported: expected an empty out-of-band")
    channel = Channel(connection, command.channel, secrets.token_urlsafe(18))
    channel091.add_channel(connection, channel)
    connection.shared.interrupted.open[channel.id] = channel
    connection.engine.send(command.channel, "channel.open-ok", {"channel_id": channel.id})


def _resume(connection: BaseConnection, command: Method) -> None:
    """Perform channel.resume."""
    number = command.channel
    engine = connection.engine
    try:
        connection.shared.interrupted.resume(connection, number, _text(command.arguments["channel_id"]))
    except (NotFound, PreconditionFailed, ResourceLocked) as error:
        # The channel is open on the wire only.
        code = CODES[error.condition]
        engine.send(
            number,
            "channel.close",
            {
                "reply_code": code,
                "reply_text": reply_text(code, str(error)),
                "class_id": command.class_id,
                "method_id": command.method_id,
            },
        )
        return
    engine.send(number, "channel.ok", {})
    connection.channels[number].wake()


def _text(id: bytes | str) -> str:
    return id if isinstance(id, str) else id.decode("utf-8", "replace")


def flow(channel: Channel, active: bool) -> None:
    """Perform channel.flow. A basic.recover received during a pause is performed first when it ends."""
    channel091.flow(channel, active)
    if active and channel.take_recovers():
        basic091.recover_async(channel, False)


def ping(channel: Channel) -> None:
    """Perform channel.ping: reply when everything before it is on disk, then send a pong.

    A ping is the only way for publishers to get a confirm.
    """
    reply_when_stored(channel, "channel.ok", {}, True, False)
    if channel.stalled:
        channel.log.wait(_Pong(channel))
    else:
        channel.connection.engine.send(channel.number, "channel.pong", {})


class _Pong(CommitWaiter):
    """Sends a pong after a reply that waits for a commit."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def committed(self, batch: int) -> None:
        channel = self.channel
        if not channel.closing:
            channel.connection.engine.send(channel.number, "channel.pong", {})
            channel.connection.mark()


def pong(channel: Channel) -> None:
    """Perform channel.pong."""
    channel.connection.engine.send(channel.number, "channel.ok", {})


def ok(channel: Channel) -> None:
    """Ignore channel.ok, the reply to a pong."""


def request(channel: Channel, realm: str, exclusive: bool, passive: bool, active: bool, write: bool, read: bool) -> None:
    """Perform access.request."""
    asked = {EXCLUSIVE: exclusive, PASSIVE: passive, ACTIVE: active, WRITE: write, READ: read}
    ticket = channel.tickets.request(realm, frozenset(right for right, wanted in asked.items() if wanted))
    channel.connection.engine.send(channel.number, "access.request-ok", {"ticket": ticket.number})


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "channel.flow": flow,
    "channel.flow-ok": channel091.flow_ok,
    "channel.close": channel091.close,
    "channel.close-ok": channel091.close_ok,
    "channel.ping": ping,
    "channel.pong": pong,
    "channel.ok": ok,
    "access.request": request,
}
