"""Every method of 0-9-1 from either side, in order and out of order: the chassis and the class grammars."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from pamqp import commands
from pamqp.base import Frame

from tests.conformance.conftest import Connect
from tests.conformance.marks import checks, names, of_dialogue
from tests.support.peers.amqp091 import (
    Basic,
    Channel,
    ChannelClass,
    Connection,
    Exchange,
    Peer,
    Queue,
    Tx,
    content_header,
    method,
)
from tests.support.peers.connection import Closed
from tests.support.peers.framing import HEADER_AMQP091, HEARTBEAT_FRAME, frame_bytes

V: Final = "0-9-1"
# All methods that pamqp knows, by the names of the specification.
METHODS: Final[dict[int, type[Frame]]] = dict(commands.INDEX_MAPPING)
KINDS: Final[dict[str, type[Frame]]] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.name).lower(): kind for kind in METHODS.values()
}
OF_CLIENT: Final = [rule.removesuffix(".chassis.server") for rule in names(V, r"[a-z]+\.[a-z-]+\.chassis\.server")]
OF_SERVER: Final = [rule.removesuffix(".chassis.client") for rule in names(V, r"[a-z]+\.[a-z-]+\.chassis\.client")]


def number_of(name: str) -> int:
    """Return the channel for a method."""
    return 0 if name.startswith("connection.") else 1


def empty(name: str) -> Frame:
    """A method whose fields are 0, empty or false."""
    kind = KINDS[name]
    values: dict[str, Any] = {"bit": False, "shortstr": "", "longstr": "", "table": {}}
    return method(kind, **{field: values.get(kind.amqp_type(field), 0) for field in kind.attributes()})


@pytest.fixture
def connect(raw: Callable[..., Peer]) -> Connect:
    """A factory of open connections; the mode of the virtual host makes no difference here."""

    def make(**options: Any) -> Peer:
        peer = raw()
        peer.handshake(**options)
        return peer

    return make


def login(peer: Peer) -> None:
    """Everything up to connection.tune-ok."""
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)
    peer.tune_ok()


# Legal dialogues


def open_connection(channel: Channel, name: str) -> None:
    other = Peer(*channel.peer.socket.getpeername())
    try:
        other.handshake()
        other.close()
    finally:
        other.drop()


def challenge(channel: Channel, name: str) -> None:
    peer = Peer(*channel.peer.socket.getpeername())
    try:
        assert "RABBIT-CR-DEMO" not in str(peer.start().mechanisms)
        peer.send(
            0,
            method(
                Connection.StartOk,
                client_properties={},
                mechanism="SCRAM-SHA-256",
                response="n,,n=guest,r=nonce",
                locale="en_US",
            ),
        )
        assert str(peer.expect(0, Connection.Secure).challenge).startswith(("r=nonce", "b'r=nonce"))
        peer.send(0, method(Connection.SecureOk, response="c=biws,r=wrong,p=AAAA"))
        peer.expect_eof()  # the response was accepted, and is wrong
    finally:
        peer.drop()


def close_by_server(channel: Channel, name: str) -> None:
    channel.send(ChannelClass.Open)
    channel.peer.expect_connection_close(504, ChannelClass.Open)


def open_channel(channel: Channel, name: str) -> None:
    channel.peer.channel(2).quiet()


def close_channel_by_server(channel: Channel, name: str) -> None:
    channel.send(Queue.Declare, queue=name, passive=True)
    channel.expect_close(404, Queue.Declare)
    channel.reopen().quiet()


def flow(channel: Channel, name: str) -> None:
    for active in (False, True):
        assert channel.call(ChannelClass.Flow, ChannelClass.FlowOk, active=active).active is active


def functional_class(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.exchange(name, auto_delete=True)
    channel.call(Tx.Select, Tx.SelectOk)


def delete_exchange(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


def bind(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.bind(name, "amq.direct", "k")
    channel.publish(b"bound", "k", "amq.direct")
    assert channel.drain(name) == [b"bound"]


def unbind(channel: Channel, name: str) -> None:
    bind(channel, name)
    channel.call(Queue.Unbind, Queue.UnbindOk, queue=name, exchange="amq.direct", routing_key="k")
    channel.publish(b"unbound", "k", "amq.direct")
    assert channel.drain(name) == []


def purge(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    assert channel.call(Queue.Purge, Queue.PurgeOk, queue=name).message_count == 1


def delete_queue(channel: Channel, name: str) -> None:
    channel.queue(name)
    assert channel.call(Queue.Delete, Queue.DeleteOk, queue=name).message_count == 0


def cancel(channel: Channel, name: str) -> None:
    channel.queue(name)
    tag = channel.consume(name)
    assert channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag=tag).consumer_tag == tag


def consume(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    assert channel.consume(name, "c") == "c"
    assert channel.delivery().method.consumer_tag == "c"


def return_(channel: Channel, name: str) -> None:
    channel.publish(b"back", name, mandatory=True)
    assert channel.expect_content(Basic.Return).body == b"back"


def get(channel: Channel, name: str) -> None:
    channel.queue(name)
    assert channel.get(name) is None
    channel.publish(b"x", name)
    content = channel.get(name)
    assert content is not None
    assert content.body == b"x"


def settle(kind: type[Frame], **fields: object) -> Callable[[Channel, str], None]:
    def run(channel: Channel, name: str) -> None:
        channel.queue(name)
        channel.publish(b"x", name)
        held = channel.get(name, no_ack=False)
        assert held is not None
        channel.send(kind, delivery_tag=held.tag, **fields)
        channel.quiet()
        channel.ack(held.tag)  # it is already settled
        channel.expect_close(406, Basic.Ack)

    return run


def recover(kind: type[Frame]) -> Callable[[Channel, str], None]:
    def run(channel: Channel, name: str) -> None:
        channel.queue(name)
        channel.publish(b"x", name)
        held = channel.get(name, no_ack=False)
        assert held is not None
        channel.send(kind, requeue=True)
        if kind is Basic.Recover:
            channel.expect(Basic.RecoverOk)
        again = channel.get(name)
        assert again is not None
        assert again.redelivered

    return run


def transaction(kind: type[Frame], answer: type[Frame], expected: list[bytes]) -> Callable[[Channel, str], None]:
    def run(channel: Channel, name: str) -> None:
        channel.queue(name)
        channel.call(Tx.Select, Tx.SelectOk)
        channel.publish(b"x", name)
        channel.call(kind, answer)
        assert channel.drain(name) == expected

    return run


DIALOGUES: Final[dict[str, Callable[[Channel, str], Any]]] = {
    "S:connection.start C:connection.start-ok": open_connection,
    "S:connection.tune C:connection.tune-ok": open_connection,
    "C:connection.open S:connection.open-ok": open_connection,
    "S:connection.secure C:connection.secure-ok": challenge,
    "C:connection.close S:connection.close-ok": open_connection,
    "S:connection.close C:connection.close-ok": close_by_server,
    "C:channel.open S:channel.open-ok": open_channel,
    "C:channel.flow S:channel.flow-ok": flow,
    "C:channel.close S:channel.close-ok": lambda channel, name: channel.close(),
    "S:channel.close C:channel.close-ok": close_channel_by_server,
    "C:exchange.declare S:exchange.declare-ok": lambda channel, name: channel.exchange(name, auto_delete=True),
    "C:exchange.delete S:exchange.delete-ok": delete_exchange,
    "C:queue.declare S:queue.declare-ok": lambda channel, name: channel.queue(name),
    "C:queue.bind S:queue.bind-ok": bind,
    "C:queue.unbind S:queue.unbind-ok": unbind,
    "C:queue.purge S:queue.purge-ok": purge,
    "C:queue.delete S:queue.delete-ok": delete_queue,
    "C:basic.qos S:basic.qos-ok": lambda channel, name: channel.qos(1),
    "C:basic.consume S:basic.consume-ok": consume,
    "C:basic.cancel S:basic.cancel-ok": cancel,
    "C:basic.publish": get,
    "S:basic.return": return_,
    "S:basic.deliver": consume,
    "C:basic.get S:basic.get-ok": get,
    "C:basic.get S:basic.get-empty": get,
    "C:basic.ack": settle(Basic.Ack),
    "C:basic.reject": settle(Basic.Reject, requeue=False),
    "C:basic.recover-async": recover(Basic.RecoverAsync),
    "C:basic.recover S:basic.recover-ok": recover(Basic.Recover),
    "C:tx.select S:tx.select-ok": functional_class,
    "C:tx.commit S:tx.commit-ok": transaction(Tx.Commit, Tx.CommitOk, [b"x"]),
    "C:tx.rollback S:tx.rollback-ok": transaction(Tx.Rollback, Tx.RollbackOk, []),
}


@pytest.mark.ahead_of_rabbitmq("refuses channel.flow")
@pytest.mark.parametrize("dialogue", [pytest.param(dialogue, marks=of_dialogue(V, dialogue)) for dialogue in DIALOGUES])
def test_a_dialogue_follows_its_grammar(channel: Channel, name: str, dialogue: str) -> None:
    DIALOGUES[dialogue](channel, name)


@pytest.mark.rule(V, "basic.recover-async.requeue.text.requeued")
@pytest.mark.ahead_of_rabbitmq("does not redeliver in order")
def test_recover_async_requeues_unacked_messages(channel: Channel, name: str) -> None:
    channel.queue(name)
    for body in (b"1", b"2"):
        channel.publish(body, name)
        channel.get(name, no_ack=False)
    channel.send(Basic.RecoverAsync, requeue=True)
    assert channel.drain(name) == [b"1", b"2"]


@pytest.mark.rule(V, "connection.grammar")
@pytest.mark.rule(V, "connection.grammar.open-connection")
@pytest.mark.rule(V, "connection.grammar.use-connection")
@pytest.mark.rule(V, "channel.grammar")
@pytest.mark.rule(V, "channel.grammar.open-channel")
@pytest.mark.rule(V, "channel.grammar.use-channel.functional-class")
def test_a_connection_opens_is_used_and_closes(connect: Connect, name: str) -> None:
    peer = connect()
    for number in (1, 2, 1):
        channel = peer.channel(number)
        functional_class(channel, f"{name}.{number}")
        channel.close()
    peer.close()


# From the wrong side


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=checks(V, f"{name}.chassis.client"))
        # RabbitMQ's clients may answer its basic.cancel.
        for name in OF_SERVER
        if name not in OF_CLIENT and name != "basic.cancel-ok"
    ],
)
def test_a_method_that_only_servers_send_is_refused(connect: Connect, name: str) -> None:
    peer = connect()
    peer.channel()
    peer.send(number_of(name), empty(name))
    peer.expect_connection_close(503, KINDS[name])


# At the wrong time


def sent(number: int, name: str, **fields: Any) -> Callable[[Peer], None]:
    return lambda peer: peer.send(number, method(KINDS[name], **fields))


START_OK = {"client_properties": {}, "mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}
CONNECTION_METHODS: Final[dict[str, Callable[[Peer], None]]] = {
    "connection.start-ok": sent(0, "connection.start-ok", **START_OK),
    "connection.secure-ok": sent(0, "connection.secure-ok", response="x"),
    "connection.tune-ok": sent(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0),
    "connection.open": sent(0, "connection.open", virtual_host="/"),
    "connection.close-ok": sent(0, "connection.close-ok"),
    "channel.open": sent(1, "channel.open"),
    "queue.declare": sent(1, "queue.declare", queue=""),
    "a content": lambda peer: peer.send(1, content_header(0)),
    "a protocol header": lambda peer: peer.send_bytes(HEADER_AMQP091),
}


def after_start(peer: Peer) -> None:
    peer.start()


def after_tune(peer: Peer) -> None:
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)


def after_open(peer: Peer) -> None:
    login(peer)
    peer.send(0, method(Connection.Open, virtual_host="/"))
    peer.expect(0, Connection.OpenOk)


MOMENTS: Final = {
    after_start: {"connection.start-ok"},
    after_tune: {"connection.tune-ok"},
    login: {"connection.open"},
    after_open: {"channel.open"},
}


@pytest.mark.rule(V, "connection.grammar.open-connection")
@pytest.mark.rule(V, "connection.grammar.challenge")
@pytest.mark.rule(V, "negotiation.before-open")
@pytest.mark.rule(V, "negotiation.early-errors")
@pytest.mark.ahead_of_rabbitmq("closes some of these without a word")
@pytest.mark.parametrize(
    ("moment", "what"),
    [
        pytest.param(moment, what, id=f"{moment.__name__}-{what}")
        for moment, legal in MOMENTS.items()
        for what in CONNECTION_METHODS
        if what not in legal
    ],
)
def test_methods_outside_the_grammar_of_connection_end_the_connection(
    raw: Callable[..., Peer], moment: Callable[[Peer], None], what: str
) -> None:
    peer = raw()
    moment(peer)
    CONNECTION_METHODS[what](peer)
    try:
        closed = peer.read()
    except Closed:
        assert moment is not after_open
        return
    assert isinstance(closed, Connection.Close)
    not_open = what == "a content" or (what == "queue.declare" and moment is after_open)
    assert closed.reply_code == (501 if what == "a protocol header" else 504 if not_open else 503)
    peer.send(0, Connection.CloseOk())
    peer.expect_eof()


@pytest.mark.rule(V, "channel.grammar.open-channel")
@pytest.mark.rule(V, "framing.not-open")
@pytest.mark.parametrize("closed", [False, True], ids=["never opened", "closed"])
@pytest.mark.parametrize("name", [name for name in OF_CLIENT if number_of(name) == 1 and name != "channel.open"])
def test_a_method_on_a_channel_that_is_not_open_ends_the_connection(connect: Connect, name: str, closed: bool) -> None:
    peer = connect()
    if closed:
        peer.channel().close()
    peer.send(1, empty(name))
    peer.expect_connection_close(504, KINDS[name])


@pytest.mark.rule(V, "basic.grammar.client-publish")
@pytest.mark.rule(V, "content.sequence")
@pytest.mark.rule(V, "content.interrupted")
@pytest.mark.parametrize("where", ["before the header", "amid the body"])
@pytest.mark.parametrize(
    "name", [name for name in OF_CLIENT if number_of(name) == 1 and name not in ("channel.open", "channel.close")]
)
def test_a_method_amid_a_content_ends_the_connection(connect: Connect, name: str, where: str) -> None:
    peer = connect()
    peer.channel()
    peer.send(1, method(Basic.Publish, exchange="", routing_key="none"))
    if where == "amid the body":
        peer.send(1, content_header(2))
    peer.send_bytes(frame_bytes(HEARTBEAT_FRAME, 0, b""))  # which is legal anywhere
    peer.send(1, empty(name))
    peer.expect_connection_close(505, KINDS[name])
