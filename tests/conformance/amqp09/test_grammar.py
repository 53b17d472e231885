"""Every method of 0-9 from either side, in order and out of order: the chassis and the class grammars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.conformance.amqp09.conftest import Connect
from tests.conformance.amqp09.kinds import consume as start
from tests.conformance.amqp09.kinds import publish, receive
from tests.conformance.marks import checks, names, of_dialogue
from tests.support.peers.amqp09 import Channel, Peer
from tests.support.peers.codec09 import INLINE, METHODS, REFERENCE, Body

V: Final = "0-9"
OF_CLIENT: Final = [rule.removesuffix(".chassis.server") for rule in names(V, r"[a-z]+\.[a-z-]+\.chassis\.server")]
OF_SERVER: Final = [rule.removesuffix(".chassis.client") for rule in names(V, r"[a-z]+\.[a-z-]+\.chassis\.client")]
CONTENT: Final = ("basic", "file", "stream", "message")
Dialogue = Callable[[Channel, str], object]


def number_of(name: str) -> int:
    return 0 if name.startswith("connection.") else 1


def again(channel: Channel) -> Peer:
    return Peer(*channel.peer.socket.getpeername())


def connection(channel: Channel, name: str) -> None:
    peer = again(channel)
    peer.connect()
    peer.close()


def challenge(channel: Channel, name: str) -> None:
    peer = again(channel)
    peer.begin()
    peer.send_method(
        0,
        "connection.start-ok",
        client_properties={},
        mechanism="SCRAM-SHA-256",
        response="n,,n=guest,r=nonce",
        locale="en_US",
    )
    assert peer.expect_method(0, "connection.secure").challenge.startswith(b"r=nonce")
    peer.send_method(0, "connection.secure-ok", response="c=biws,r=wrong,p=AAAA")
    peer.expect_eof()  # the response was accepted, and is wrong


def closed_by_server(channel: Channel, name: str) -> None:
    channel.send("channel.open")
    channel.peer.expect_end(504, "channel.open")


def channel_closed_by_server(channel: Channel, name: str) -> None:
    channel.send("queue.declare", queue=name, passive=True)
    channel.refused(404, "queue.declare").quiet()


def flow(channel: Channel, name: str) -> None:
    for active in (False, True):
        assert channel.call("channel.flow", active=active).active is active


def ping(channel: Channel, name: str) -> None:
    channel.call("channel.ping", "channel.ok")
    channel.expect("channel.pong")
    channel.send("channel.ok")
    channel.quiet()


def exchange_deleted(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.call("exchange.delete", exchange=name)


def on_queue(method: str, **fields: Any) -> Dialogue:
    def run(channel: Channel, name: str) -> None:
        channel.queue(name, auto_delete=True)
        channel.call(method, queue=name, **fields)

    return run


def unbound(channel: Channel, name: str) -> None:
    channel.queue(name, auto_delete=True)
    channel.bind(name, "amq.direct", "k")
    channel.call("queue.unbind", queue=name, exchange="amq.direct", routing_key="k")


def qos(kind: str) -> Dialogue:
    return lambda channel, name: channel.call(f"{kind}.qos", "message.ok" if kind == "message" else "", prefetch_count=1)


def delivered(kind: str) -> Dialogue:
    """Consume, publish, receive, cancel."""

    def run(channel: Channel, name: str) -> None:
        channel.queue(name)
        start(channel, kind, name, "c", no_ack=True)
        publish(channel, kind, b"x", name)
        assert receive(channel, kind).body == b"x"
        tag = "destination" if kind == "message" else "consumer_tag"
        channel.call(f"{kind}.cancel", "message.ok" if kind == "message" else "", **{tag: "c"})
        channel.call("queue.delete", queue=name)

    return run


def settled(kind: str, how: str) -> Dialogue:
    def run(channel: Channel, name: str) -> None:
        channel.queue(name)
        start(channel, kind, name, "c")
        publish(channel, kind, b"x", name)
        got = receive(channel, kind)
        if kind == "message":
            channel.send(f"message.{how}")
        else:
            channel.send(f"{kind}.{how}", delivery_tag=got.tag)
        channel.quiet()
        channel.close()
        assert channel.peer.open(2).call("queue.delete", queue=name).message_count == 0

    return run


def returned(kind: str) -> Dialogue:
    def run(channel: Channel, name: str) -> None:
        if kind == "message":
            channel.queue(name, auto_delete=True)
            channel.send("message.transfer", routing_key=name, immediate=True, body=Body(INLINE, b"back"))
            assert channel.expect("message.reject").code == 1  # no consumer
        else:
            publish(channel, kind, b"back", name, mandatory=True)
            content = channel.content(f"{kind}.return")
            assert (content.body, content.method.reply_code) == (b"back", 312)

    return run


def basic_get(channel: Channel, name: str) -> None:
    channel.queue(name, auto_delete=True)
    assert channel.get(name) is None
    channel.publish(b"x", name)
    assert channel.drain(name) == [b"x"]


def basic_recover(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    assert channel.get(name, no_ack=False) is not None
    channel.send("basic.recover", requeue=True)
    content = channel.get(name)
    assert content is not None
    assert content.redelivered
    channel.call("queue.delete", queue=name)


def message_get(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.call("message.get", "message.empty", queue=name, destination="g", no_ack=True)
    publish(channel, "message", b"x", name)
    channel.send("message.get", queue=name, destination="g", no_ack=True)
    assert {channel.expect("message.ok", "message.transfer").name for _ in range(2)} == {"message.ok", "message.transfer"}
    channel.call("queue.delete", queue=name)


def reference(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.call("message.open", "message.ok", reference="r")
    channel.call("message.append", "message.ok", reference="r", bytes=b"x")
    channel.call("message.checkpoint", "message.ok", reference="r", identifier=name)
    channel.send("message.transfer", routing_key=name, body=Body(REFERENCE, b"r"))
    channel.call("message.close", "message.ok", reference="r")
    channel.expect("message.ok")
    assert channel.call("queue.delete", queue=name).message_count == 1


def resumed(channel: Channel, name: str) -> None:
    channel.call("message.open", "message.ok", reference="r")
    channel.call("message.append", "message.ok", reference="r", bytes=b"abc")
    channel.call("message.checkpoint", "message.ok", reference="r", identifier=name)
    channel.close()
    other = channel.peer.open(2)
    assert other.call("message.resume", "message.offset", reference="s", identifier=name).value == 3


def staged(channel: Channel, name: str) -> None:
    assert channel.call("file.open", identifier=name, content_size=1).staged_size == 0
    channel.peer.send_bytes(
        channel.peer.method_frame(channel.number, "file.stage")
        + channel.peer.content_frames(channel.number, "file", b"x", {})
    )
    channel.quiet()


def transaction(method: str) -> Dialogue:
    def run(channel: Channel, name: str) -> None:
        channel.call("tx.select")
        channel.call(method)

    return run


def distributed(channel: Channel, name: str) -> None:
    channel.call("dtx.select")
    channel.call("dtx.start", dtx_identifier=name)


DIALOGUES: Final[dict[str, Dialogue]] = {
    "S:connection.start C:connection.start-ok": connection,
    "S:connection.tune C:connection.tune-ok": connection,
    "C:connection.open S:connection.open-ok": connection,
    "S:connection.secure C:connection.secure-ok": challenge,
    "C:connection.close S:connection.close-ok": connection,
    "S:connection.close C:connection.close-ok": closed_by_server,
    "C:channel.open S:channel.open-ok": lambda channel, name: channel.peer.open(2).quiet(),
    "C:channel.flow S:channel.flow-ok": flow,
    "C:channel.ping S:channel.ok": ping,
    "S:channel.pong C:channel.ok": ping,
    "C:channel.pong S:channel.ok": lambda channel, name: channel.call("channel.pong", "channel.ok"),
    "C:channel.close S:channel.close-ok": lambda channel, name: channel.close(),
    "S:channel.close C:channel.close-ok": channel_closed_by_server,
    "C:access.request S:access.request-ok": lambda channel, name: channel.call("access.request", realm="/data", read=True),
    "C:exchange.declare S:exchange.declare-ok": lambda channel, name: channel.exchange(name, auto_delete=True),
    "C:exchange.delete S:exchange.delete-ok": exchange_deleted,
    "C:queue.declare S:queue.declare-ok": lambda channel, name: channel.queue(name, exclusive=True),
    "C:queue.bind S:queue.bind-ok": on_queue("queue.bind", exchange="amq.direct"),
    "C:queue.unbind S:queue.unbind-ok": unbound,
    "C:queue.purge S:queue.purge-ok": on_queue("queue.purge"),
    "C:queue.delete S:queue.delete-ok": on_queue("queue.delete"),
    **{f"C:{kind}.qos S:{kind}.{'ok' if kind == 'message' else 'qos-ok'}": qos(kind) for kind in CONTENT},
    **{
        f"C:{kind}.{method} S:{kind}.{'ok' if kind == 'message' else f'{method}-ok'}": delivered(kind)
        for kind in CONTENT
        for method in ("consume", "cancel")
    },
    "C:basic.publish": delivered("basic"),
    "S:basic.deliver": delivered("basic"),
    "S:basic.return": returned("basic"),
    "C:basic.get S:basic.get-ok": basic_get,
    "C:basic.get S:basic.get-empty": basic_get,
    "C:basic.ack": settled("basic", "ack"),
    "C:basic.reject": settled("basic", "reject"),
    "C:basic.recover": basic_recover,
    "C:file.open S:file.open-ok C:file.stage": staged,
    "C:file.publish": delivered("file"),
    "S:file.open C:file.open-ok S:file.stage": delivered("file"),
    "S:file.deliver": delivered("file"),
    "S:file.return": returned("file"),
    "C:file.ack": settled("file", "ack"),
    "C:file.reject": settled("file", "reject"),
    "C:stream.publish": delivered("stream"),
    "S:stream.deliver": delivered("stream"),
    "S:stream.return": returned("stream"),
    "C:tx.select S:tx.select-ok": lambda channel, name: channel.call("tx.select"),
    "C:tx.commit S:tx.commit-ok": transaction("tx.commit"),
    "C:tx.rollback S:tx.rollback-ok": transaction("tx.rollback"),
    "C:dtx.select S:dtx.select-ok": lambda channel, name: channel.call("dtx.select"),
    "C:dtx.start S:dtx.start-ok": distributed,
    "C:message.transfer S:message.ok": delivered("message"),
    "S:message.transfer C:message.ok": settled("message", "ok"),
    "S:message.transfer C:message.reject": settled("message", "reject"),
    "C:message.transfer S:message.reject": returned("message"),
    "C:message.get S:message.ok": message_get,
    "C:message.get S:message.empty": message_get,
    "C:message.recover S:message.ok": lambda channel, name: channel.call("message.recover", "message.ok", requeue=True),
    "C:message.open S:message.ok": reference,
    "C:message.append S:message.ok": reference,
    "C:message.checkpoint S:message.ok": reference,
    "C:message.close S:message.ok": reference,
    "C:message.resume S:message.offset": resumed,
}


@pytest.mark.parametrize("dialogue", [pytest.param(dialogue, marks=of_dialogue(V, dialogue)) for dialogue in DIALOGUES])
def test_a_dialogue_follows_its_grammar(channel: Channel, name: str, dialogue: str) -> None:
    DIALOGUES[dialogue](channel, name)


@pytest.mark.rule(V, "access.grammar")
@pytest.mark.rule(V, "dtx.grammar")
@pytest.mark.rule(V, "channel.grammar")
@pytest.mark.rule(V, "channel.grammar.use-channel.functional-class")
@pytest.mark.rule(V, "connection.grammar")
@pytest.mark.rule(V, "connection.grammar.open-connection")
@pytest.mark.rule(V, "connection.grammar.use-connection")
def test_a_connection_opens_is_used_and_closes(connect: Connect, name: str) -> None:
    peer = connect()
    for at, number in enumerate((1, 2, 1)):
        channel = peer.open(number)
        channel.call("access.request", realm="/data", read=True)
        distributed(channel, f"{name}.{at}")
        channel.close()
    peer.close()


@pytest.mark.parametrize(
    "method",
    [pytest.param(method, marks=checks(V, f"{method}.chassis.client")) for method in OF_SERVER if method not in OF_CLIENT],
)
def test_a_method_that_only_servers_send_is_refused(connect: Connect, method: str) -> None:
    peer = connect()
    peer.open()
    peer.send_method(number_of(method), method)
    peer.expect_end(503, method)


def after_start(peer: Peer) -> None:
    peer.begin()


def after_tune(peer: Peer) -> None:
    peer.begin()
    peer.log_in()
    peer.expect_method(0, "connection.tune")


LEGAL: Final = {after_start: "connection.start-ok", after_tune: "connection.tune-ok", Peer.reach_open: "connection.open"}


@pytest.mark.rule(V, "connection.grammar.open-connection")
@pytest.mark.rule(V, "connection.grammar.challenge")
@pytest.mark.parametrize(
    ("moment", "method"),
    [
        pytest.param(moment, method, id=f"{moment.__name__}-{method}")
        for moment, legal in LEGAL.items()
        for method in (
            "connection.start-ok",
            "connection.secure-ok",
            "connection.tune-ok",
            "connection.open",
            "channel.open",
            "queue.declare",
            "message.ok",
        )
        if method != legal
    ],
)
def test_methods_outside_the_grammar_of_connection_end_the_connection(
    raw: Callable[..., Peer], method: str, moment: Callable[[Peer], None]
) -> None:
    peer = raw()
    moment(peer)
    fields = {"mechanism": "PLAIN", "response": "\0guest\0guest"} if method == "connection.start-ok" else {}
    peer.send_method(number_of(method), method, **fields)
    peer.expect_end(503, method)


@pytest.mark.rule(V, "channel.grammar")
@pytest.mark.parametrize(
    "method",
    [method for method in OF_CLIENT if number_of(method) == 1 and method not in ("channel.open", "channel.resume")],
)
def test_a_method_on_a_channel_that_is_not_open_ends_the_connection(connect: Connect, method: str) -> None:
    peer = connect()
    peer.send_method(1, method)
    peer.expect_end(504, method)


@pytest.mark.rule(V, "basic.grammar.client-publish")
@pytest.mark.rule(V, "stream.grammar.client-publish")
@pytest.mark.rule(V, "file.grammar.client-open")
@pytest.mark.parametrize("content", ["basic.publish", "stream.publish", "file.stage"])
@pytest.mark.parametrize("method", ["queue.declare", "basic.publish", "message.ok", "tx.select"])
def test_a_method_amid_a_content_ends_the_connection(connect: Connect, content: str, method: str) -> None:
    peer = connect()
    channel = peer.open()
    if content == "file.stage":
        channel.call("file.open", identifier="f", content_size=1)
    channel.send(content)
    channel.send(method)
    peer.expect_end(501, method)


@pytest.mark.rule(V, "no-route.constant")
@pytest.mark.rule(V, "no-consumers.constant")
def test_returns_have_a_reason(channel: Channel, name: str) -> None:
    channel.publish(b"x", name, mandatory=True)
    assert channel.content("basic.return").method.reply_code == 312
    channel.queue(name, auto_delete=True)
    channel.publish(b"x", name, immediate=True)
    assert channel.content("basic.return").method.reply_code == 313
    channel.call("queue.delete", queue=name)


@pytest.mark.rule(V, "not-implemented.constant")
@pytest.mark.parametrize("number", [(60, 99), (99, 10)])
def test_a_method_that_does_not_exist_is_not_implemented(connect: Connect, number: tuple[int, int]) -> None:
    assert number not in {(spec.class_id, spec.method_id) for spec in METHODS.values()}
    peer = connect()
    peer.open()
    peer.send_bytes(b"\x01\x00\x01\x00\x00\x00\x04" + bytes((0, number[0], 0, number[1])) + b"\xce")
    peer.expect_end(540)
