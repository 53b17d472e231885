"""Class dtx, and Qpid's classes dtx-demarcation and dtx-coordination, a preview of AMQP 0-10.

Class dtx has no method to end the work in a branch: a coordinator prepares and decides the branch over the control socket
or with class dtx-coordination. Any error in a method of the preview classes closes the connection with 503.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from leveret.broker.errors import BrokerError, CommandInvalid, PreconditionFailed, ResourceError
from leveret.broker.transactions.branch import ROLLBACK_ONLY, ROLLED_BACK, Branch
from leveret.broker.transactions.branches import DONE, FAILED, HAS_TIMED_OUT, WAS_ROLLED_BACK
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.channel.dtx import DtxSession
from leveret.protocols.amqp09.methods import tx

Handler = Callable[..., None]

OK: Final = 8
RBROLLBACK: Final = 1
RBTIMEOUT: Final = 2
FLAGS: Final = {DONE: OK, WAS_ROLLED_BACK: RBROLLBACK, HAS_TIMED_OUT: RBTIMEOUT}


# Class dtx


def select(channel: Channel) -> None:
    """Perform dtx.select."""
    _select(channel, False)
    channel.connection.engine.send(channel.number, "dtx.select-ok", {})


def start(channel: Channel, dtx_identifier: str) -> None:
    """Perform dtx.start: begin a branch. The first one must precede publishes and consumers of the channel."""
    session = channel.dtx
    if session is None or session.demarcated:
        raise PreconditionFailed("dtx.start: send dtx.select first")
    if not session.started and (channel.publish_count or len(channel.consumers) or channel.unacked.any_delivered()):
        raise PreconditionFailed("dtx.start: the channel has already published or consumed; expected dtx.start first")
    session.start(dtx_identifier)
    channel.connection.engine.send(channel.number, "dtx.start-ok", {})


def _select(channel: Channel, demarcated: bool) -> None:
    if channel.dtx is None:
        if channel.transacted:
            raise PreconditionFailed("the channel has local transactions (tx.select)")
        channel.select_dtx(demarcated)
    elif channel.dtx.demarcated != demarcated:
        used = "dtx-demarcation" if channel.dtx.demarcated else "dtx"
        raise PreconditionFailed(
            f"the channel already uses class {used}: classes dtx and dtx-demarcation exclude each other"
        )


def _unless_distributed(handler: Handler) -> Handler:
    """Refuse methods of class tx on channels with distributed transactions."""

    @wraps(handler)
    def checked(channel: Channel) -> None:
        if channel.dtx is not None:
            raise PreconditionFailed("the channel has distributed transactions (dtx.select)")
        handler(channel)

    return checked


# Preview classes of Qpid


def _preview(handler: Handler) -> Handler:
    """Make errors of a method close the connection."""

    @wraps(handler)
    def checked(channel: Channel, **arguments: Any) -> None:
        try:
            handler(channel, **arguments)
        except ResourceError:
            raise
        except BrokerError as error:
            raise CommandInvalid(str(error)) from None

    return checked


def _answer(channel: Channel, name: str, flags: int) -> None:
    channel.connection.engine.send(channel.number, name, {"flags": flags})


def demarcation_select(channel: Channel) -> None:
    """Perform dtx-demarcation.select."""
    _select(channel, True)
    channel.connection.engine.send(channel.number, "dtx-demarcation.select-ok", {})


def demarcation_start(channel: Channel, ticket: int, xid: str, join: bool, resume: bool) -> None:
    """Perform dtx-demarcation.start: begin, join or resume a branch."""
    session = _demarcated(channel)
    if join and resume:
        raise PreconditionFailed("join and resume exclude each other")
    if resume:
        session.resume(xid)
    else:
        session.start(xid, join)
    _answer(channel, "dtx-demarcation.start-ok", OK)


def demarcation_end(channel: Channel, ticket: int, xid: str, fail: bool, suspend: bool) -> None:
    """Perform dtx-demarcation.end."""
    session = _demarcated(channel)
    if fail and suspend:
        raise PreconditionFailed("fail and suspend exclude each other")
    branch, pieces = session.suspend(xid) if suspend else session.end(xid, fail)
    channel.run_steps(pieces, lambda: _answer(channel, "dtx-demarcation.end-ok", _flags_of(branch)))


def _demarcated(channel: Channel) -> DtxSession:
    session = channel.dtx
    if session is None or not session.demarcated:
        raise PreconditionFailed("send dtx-demarcation.select first")
    return session


def _flags_of(branch: Branch) -> int:
    if branch.timed_out:
        return RBTIMEOUT
    return RBROLLBACK if branch.state in (ROLLBACK_ONLY, ROLLED_BACK) else OK


class _Decision:
    """Replies to a coordinator when its decision is on disk. The channel is stalled until then."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.channel = channel
        self.name = name

    def done(self, outcome: int) -> None:
        channel = self.channel
        if outcome == FAILED:
            channel.fail()
        elif not channel.closing:
            _answer(channel, self.name, FLAGS[outcome])
            channel.connection.mark()
            channel.resume()


def _find(channel: Channel, xid: str) -> Branch:
    return channel.vhost.branches.find(xid, channel.connection.user)


def _decide(channel: Channel, name: str, decide: Callable[[Callable[[int], None]], None]) -> None:
    channel.stall()
    try:
        decide(_Decision(channel, name).done)
    except BrokerError:
        channel.cancel_stall()
        raise


def prepare(channel: Channel, ticket: int, xid: str) -> None:
    """Perform dtx-coordination.prepare."""
    branch = _find(channel, xid)
    _decide(channel, "dtx-coordination.prepare-ok", lambda done: channel.vhost.branches.prepare(branch, done))


def commit(channel: Channel, ticket: int, xid: str, one_phase: bool) -> None:
    """Perform dtx-coordination.commit."""
    branch = _find(channel, xid)
    _decide(channel, "dtx-coordination.commit-ok", lambda done: channel.vhost.branches.commit(branch, one_phase, done))


def rollback(channel: Channel, ticket: int, xid: str) -> None:
    """Perform dtx-coordination.rollback."""
    branch = _find(channel, xid)
    _decide(channel, "dtx-coordination.rollback-ok", lambda done: channel.vhost.branches.rollback(branch, done))


def forget(channel: Channel, ticket: int, xid: str) -> None:
    """Perform dtx-coordination.forget."""
    channel.vhost.branches.forget(_find(channel, xid))
    channel.connection.engine.send(channel.number, "dtx-coordination.forget-ok", {})


def recover(channel: Channel, ticket: int, startscan: bool, endscan: int) -> None:
    """Perform dtx-coordination.recover: return all branches in doubt at once."""
    found = bytearray()
    for branch in channel.vhost.branches.in_doubt(channel.connection.user):
        data = branch.name.encode("utf-8", "surrogateescape")
        found.append(len(data))
        found += data
    channel.connection.engine.send(
        channel.number, "dtx-coordination.recover-ok", {"xids": {"xids": found.decode("utf-8", "surrogateescape")}}
    )


def get_timeout(channel: Channel, xid: str) -> None:
    """Perform dtx-coordination.get-timeout, in seconds. 0 means that no timeout was set, so that `dtx.timeout` applies."""
    channel.connection.engine.send(
        channel.number, "dtx-coordination.get-timeout-ok", {"timeout": _find(channel, xid).asked_timeout}
    )


def set_timeout(channel: Channel, ticket: int, xid: str, timeout: int) -> None:
    """Perform dtx-coordination.set-timeout, in seconds; 0 means no timeout."""
    _find(channel, xid).set_timeout(timeout)
    channel.connection.engine.send(channel.number, "dtx-coordination.set-timeout-ok", {})


HANDLERS: Final[dict[str, Handler]] = {
    **{name: _unless_distributed(handler) for name, handler in tx.HANDLERS.items()},
    "dtx.select": select,
    "dtx.start": start,
    **{
        name: _preview(handler)
        for name, handler in (
            ("dtx-demarcation.select", demarcation_select),
            ("dtx-demarcation.start", demarcation_start),
            ("dtx-demarcation.end", demarcation_end),
            ("dtx-coordination.prepare", prepare),
            ("dtx-coordination.commit", commit),
            ("dtx-coordination.rollback", rollback),
            ("dtx-coordination.forget", forget),
            ("dtx-coordination.recover", recover),
            ("dtx-coordination.get-timeout", get_timeout),
            ("dtx-coordination.set-timeout", set_timeout),
        )
    },
}
