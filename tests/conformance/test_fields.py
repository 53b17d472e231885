"""Requirements in the descriptions of 0-9-1's fields and domains: constraints, reserved fields, defaults."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from pamqp.base import Frame

from leveret.config.model import Config
from tests.conformance.conftest import CONFIG
from tests.conformance.marks import checks
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp091 import Basic, Channel, Connection, Exchange, Peer, Queue, Tx, method
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, METHOD_FRAME, frame_bytes, short_string

V: Final = "0-9-1"

# no-wait


NO_WAIT: Final[dict[str, tuple[type[Frame], dict[str, Any], int]]] = {
    "exchange.declare": (Exchange.Declare, {"exchange": "NAME", "passive": True}, 404),
    "exchange.delete": (Exchange.Delete, {"exchange": "amq.direct"}, 403),
    "queue.declare": (Queue.Declare, {"queue": "NAME", "passive": True}, 404),
    "queue.bind": (Queue.Bind, {"queue": "NAME", "exchange": "amq.direct", "routing_key": ""}, 404),
    "queue.purge": (Queue.Purge, {"queue": "NAME"}, 404),
    "queue.delete": (Queue.Delete, {"queue": "", "if_unused": True}, 404),
    "basic.consume": (Basic.Consume, {"queue": "NAME"}, 404),
}


@pytest.mark.rule(V, "no-wait.text.failure-told")
@pytest.mark.parametrize("what", NO_WAIT)
def test_a_failure_is_reported_even_with_nowait(channel: Channel, name: str, what: str) -> None:
    kind, fields, code = NO_WAIT[what]
    channel.send(kind, nowait=True, **{field: name if value == "NAME" else value for field, value in fields.items()})
    channel.expect_close(code, kind)


# Strings that must not be empty, or not be long


@pytest.mark.rule(V, "path.assert.notnull")
@pytest.mark.rule(V, "path.assert.length")
@pytest.mark.parametrize("path", ["", "v" * 128, "v" * 255], ids=["empty", "128", "255"])
def test_a_path_has_1_to_127_characters(raw: Callable[..., Peer], path: str) -> None:
    peer = raw()
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    peer.send(0, method(Connection.Open, virtual_host=path))
    assert peer.expect(0, Connection.Close).reply_code in (402, 530)


@pytest.mark.rule(V, "connection.start.mechanisms.assert.notnull")
@pytest.mark.rule(V, "connection.start.locales.assert.notnull")
@pytest.mark.rule(V, "connection.start.locales.text.replies")
def test_start_offers_mechanisms_and_locales(raw: Callable[..., Peer]) -> None:
    start = raw().start()
    assert "PLAIN" in str(start.mechanisms)
    assert start.locales == "en_US"


@pytest.mark.rule(V, "connection.start-ok.mechanism.assert.notnull")
@pytest.mark.rule(V, "connection.start-ok.mechanism.text.offered")
@pytest.mark.rule(V, "connection.start-ok.response.assert.notnull")
@pytest.mark.rule(V, "negotiation.login-fails")
@pytest.mark.ahead_of_rabbitmq("negotiates a close first")
@pytest.mark.parametrize(
    "fields",
    [{"mechanism": ""}, {"mechanism": "plain"}, {"mechanism": "PLAIN AMQPLAIN"}, {"response": ""}, {"response": "\0guest"}],
    ids=str,
)
def test_a_login_needs_one_offered_mechanism_and_a_response(raw: Callable[..., Peer], fields: dict[str, str]) -> None:
    peer = raw()
    peer.start()
    peer.send(
        0,
        method(
            Connection.StartOk,
            **({"client_properties": {}, "mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"} | fields),
        ),
    )
    peer.expect_eof()


@pytest.mark.rule(V, "connection.secure-ok.response.assert.notnull")
def test_an_empty_answer_to_a_challenge_proves_nothing(raw: Callable[..., Peer]) -> None:
    peer = raw()
    peer.start()
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
    peer.expect(0, Connection.Secure)
    peer.send(0, method(Connection.SecureOk, response=""))
    peer.expect_eof()


@pytest.mark.rule(V, "connection.start-ok.locale.assert.notnull")
@pytest.mark.rule(V, "connection.start-ok.locale.text.offered")
@pytest.mark.parametrize("locale", ["", "de_DE", "en_US fr_FR"])
def test_a_locale_that_was_not_offered_changes_nothing(raw: Callable[..., Peer], name: str, locale: str) -> None:
    """The client breaks the rule; the specification names no consequence, and RabbitMQ ignores the field, too."""
    peer = raw()
    peer.start()
    peer.start_ok(locale=locale)
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    peer.send(0, method(Connection.Open, virtual_host="/"))
    peer.expect(0, Connection.OpenOk)
    channel = peer.channel()
    channel.send(Queue.Declare, queue=name, passive=True)
    assert channel.expect_close(404).reply_text == f"NOT_FOUND - no queue '{name}' in vhost '/'"


# Reserved fields: any value is accepted, and none is sent.


TABLE = b"\x00\x00\x00\x00"
TICKET = b"\x12\x34"
TICKETS: Final[dict[str, tuple[int, int, Callable[[str], bytes], type[Frame]]]] = {
    "exchange.declare": (
        40,
        10,
        lambda name: short_string("amq.direct") + short_string("direct") + b"\x03" + TABLE,
        Exchange.DeclareOk,
    ),
    "exchange.delete": (40, 20, lambda name: short_string(name + ".x") + b"\x00", Exchange.DeleteOk),
    "queue.declare": (50, 10, lambda name: short_string(name) + b"\x04" + TABLE, Queue.DeclareOk),
    "queue.bind": (
        50,
        20,
        lambda name: short_string(name) + short_string("amq.direct") + short_string("k") + b"\x00" + TABLE,
        Queue.BindOk,
    ),
    "queue.unbind": (
        50,
        50,
        lambda name: short_string(name) + short_string("amq.direct") + short_string("k") + TABLE,
        Queue.UnbindOk,
    ),
    "queue.purge": (50, 30, lambda name: short_string(name) + b"\x00", Queue.PurgeOk),
    "queue.delete": (50, 40, lambda name: short_string(name) + b"\x00", Queue.DeleteOk),
    "basic.consume": (60, 20, lambda name: short_string(name) + short_string("c") + b"\x02" + TABLE, Basic.ConsumeOk),
    "basic.get": (60, 70, lambda name: short_string(name) + b"\x01", Basic.GetEmpty),
}


@pytest.mark.parametrize("what", [pytest.param(what, marks=checks(V, f"{what}.reserved-1.reserved")) for what in TICKETS])
def test_any_ticket_is_accepted(channel: Channel, name: str, what: str) -> None:
    class_id, method_id, rest, answer = TICKETS[what]
    channel.queue(name)
    channel.exchange(name + ".x", auto_delete=True)
    if what == "queue.unbind":
        channel.bind(name, "amq.direct", "k")
    channel.peer.send_bytes(frame_bytes(METHOD_FRAME, 1, struct.pack(">HH", class_id, method_id) + TICKET + rest(name)))
    channel.expect(answer)


@pytest.mark.rule(V, "basic.publish.reserved-1.reserved")
def test_a_publish_may_have_any_ticket_and_cluster_id(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.peer.send_bytes(
        frame_bytes(METHOD_FRAME, 1, b"\x00\x3c\x00\x28" + TICKET + short_string("") + short_string(name) + b"\x00")
        + frame_bytes(HEADER_FRAME, 1, b"\x00\x3c\x00\x00" + struct.pack(">QH", 1, 1 << 2) + short_string("cluster"))
        + frame_bytes(BODY_FRAME, 1, b"x")
    )
    content = channel.get(name)
    assert content is not None
    assert (content.body, content.properties.cluster_id) == (b"x", "cluster")


@pytest.mark.rule(V, "connection.open.reserved-1.reserved")
@pytest.mark.rule(V, "connection.open.reserved-2.reserved")
@pytest.mark.rule(V, "connection.open-ok.reserved-1.reserved")
@pytest.mark.rule(V, "channel.open.reserved-1.reserved")
@pytest.mark.rule(V, "channel.open-ok.reserved-1.reserved")
@pytest.mark.rule(V, "basic.get-empty.reserved-1.reserved")
def test_reserved_fields_of_open_are_empty_and_ignored(raw: Callable[..., Peer]) -> None:
    peer = raw()
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    name = short_string("/") + short_string("capable")
    peer.send_bytes(frame_bytes(METHOD_FRAME, 0, b"\x00\x0a\x00\x28" + name + b"\x01"))
    assert peer.read_payload() == (METHOD_FRAME, 0, b"\x00\x0a\x00\x29\x00")
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, b"\x00\x14\x00\x0a" + short_string("out of band")))
    assert peer.read_payload() == (METHOD_FRAME, 1, b"\x00\x14\x00\x0b\x00\x00\x00\x00")
    channel = Channel(peer, 1)
    channel.send(Basic.Get, queue=channel.queue(), no_ack=True)
    assert peer.read_payload() == (METHOD_FRAME, 1, b"\x00\x3c\x00\x48\x00")


def auto_delete_and_internal(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.exchange(name, "fanout", auto_delete=True)
    channel.bind(name, name)
    channel.call(Queue.Unbind, Queue.UnbindOk, queue=name, exchange=name)
    channel.send(Exchange.Declare, exchange=name, passive=True)
    channel.expect_close(404, Exchange.Declare)
    channel = channel.reopen()
    channel.exchange(name + ".internal", internal=True, auto_delete=True)
    channel.publish(b"x", "", name + ".internal")
    channel.expect_close(403, Basic.Publish)


@pytest.mark.rule(V, "exchange.declare.reserved-2.reserved")
@pytest.mark.rule(V, "exchange.declare.reserved-3.reserved")
@pytest.mark.mode("rabbitmq")
def test_auto_delete_and_internal_exchanges(channel: Channel, name: str) -> None:
    auto_delete_and_internal(channel, name)


@pytest.mark.rule(V, "exchange.declare.reserved-2.reserved")
@pytest.mark.rule(V, "exchange.declare.reserved-3.reserved")
@pytest.mark.mode("strict")
def test_auto_delete_and_internal_exchanges_in_strict_mode(channel: Channel, name: str) -> None:
    auto_delete_and_internal(channel, name)  # basic.publish.exchange.02 needs internal exchanges


# Numbers of which 0 means none


@pytest.fixture
def unasking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker with heartbeats disabled."""
    leveret_only("it is configured")
    process = LeveretProcess(tmp_path_factory.mktemp("unasking"), config=CONFIG + "\n[amqp]\nheartbeat = 0\n").start()
    yield process
    process.stop()
    process.check_log()


@pytest.mark.rule(V, "connection.tune.heartbeat.text.zero")
def test_a_server_may_want_no_heartbeats(unasking: LeveretProcess) -> None:
    peer = Peer(unasking.host, unasking.port)
    peer.start()
    peer.start_ok()
    assert peer.expect(0, Connection.Tune).heartbeat == 0
    peer.drop()


@pytest.mark.rule(V, "connection.tune-ok.heartbeat.text.zero")
@pytest.mark.rule(V, "heartbeats.sent")
@pytest.mark.rule(V, "heartbeats.missed")
def test_without_heartbeats_silent_connections_stay_open(raw: Callable[..., Peer]) -> None:
    silent, watched = raw(), raw()
    silent.handshake(interval=0)
    watched.handshake(interval=1)
    seen = 0
    while True:  # until the broker closes the connection: two silent intervals
        try:
            kind, channel, payload = watched.read_payload()
        except AssertionError as error:
            assert "closed the socket" in str(error)
            break
        assert (kind, channel, payload) == (8, 0, b"")
        seen += 1
    assert seen >= 2
    silent.channel().quiet()
    assert silent.heartbeats == 0


# Queues and messages


@pytest.mark.rule(V, "basic.consume.consumer-tag.text.generated")
def test_a_consumer_without_a_tag_gets_one(channel: Channel, name: str) -> None:
    channel.queue(name)
    tags = {channel.consume(name) for _ in range(20)}
    assert len(tags) == 20
    assert all(tags)


@pytest.mark.rule(V, "message-count.text.new-is-empty")
@pytest.mark.rule(V, "message-count.text.what-counts")
def test_messages_that_count(peer: Peer, name: str) -> None:
    channel, transacted = peer.channel(1), peer.channel(2)
    assert channel.call(Queue.Declare, Queue.DeclareOk, queue=name, exclusive=True).message_count == 0
    for _ in range(3):
        channel.publish(b"x", name)
    channel.get(name, no_ack=False)
    transacted.call(Tx.Select, Tx.SelectOk)
    transacted.publish(b"x", name)
    transacted.qos(1)
    assert channel.depth(name) == 2
    transacted.call(Tx.Commit, Tx.CommitOk)
    assert channel.depth(name) == 3


@pytest.mark.rule(V, "queue-name.text.none-declared")
@pytest.mark.parametrize("kind", [Queue.Bind, Queue.Unbind, Queue.Purge, Queue.Delete, Basic.Consume, Basic.Get])
@pytest.mark.mode("rabbitmq")
def test_no_queue_was_declared(channel: Channel, kind: type[Frame]) -> None:
    channel.send(kind, queue="")
    channel.expect_close(404, kind)


@pytest.mark.rule(V, "queue-name.text.none-declared")
@pytest.mark.parametrize("kind", [Queue.Bind, Queue.Purge, Queue.Delete, Basic.Consume, Basic.Get])
@pytest.mark.mode("strict")
def test_no_queue_was_declared_in_strict_mode(channel: Channel, kind: type[Frame]) -> None:
    """The methods' rules queue-known require 404, and a 502 cannot be a channel error."""
    channel.send(kind, queue="")
    channel.expect_close(404, kind)


@pytest.mark.rule(V, "queue.declare.passive.text.others-ignored")
def test_a_passive_declare_of_a_queue_compares_no_fields(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.call(
        Queue.Declare,
        Queue.DeclareOk,
        queue=name,
        passive=True,
        durable=True,
        exclusive=False,
        auto_delete=True,
        arguments={"x-max-length": 1},
    )


@pytest.mark.rule(V, "queue.text.needs-binding")
@pytest.mark.rule(V, "queue.bind.text.unbound")
def test_an_exchange_does_not_route_to_an_unbound_queue(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.exchange(name, "fanout", auto_delete=True)
    channel.publish(b"before", "", name)
    channel.bind(name, name)
    channel.publish(b"after", "", name)
    assert channel.drain(name) == [b"after"]


@pytest.mark.rule(V, "queue.bind.routing-key.text.last-declared")
@pytest.mark.rule(V, "queue.bind.routing-key.text.key-of-name")
@pytest.mark.rule(V, "queue.bind.routing-key.text.empty-key")
def test_empty_names_and_keys_of_a_binding(channel: Channel, name: str) -> None:
    exchange = channel.exchange(name, auto_delete=True)
    first, last = channel.queue(name + ".1"), channel.queue(name + ".2")
    channel.bind("", exchange, "key")
    channel.bind("", exchange, "")
    channel.bind(first, exchange, "")
    for key in ("key", last, ""):
        channel.publish(key.encode(), key, exchange)
    assert channel.drain(last) == [b"key", last.encode()]
    assert channel.drain(first) == [b""]


@pytest.mark.rule(V, "basic.get-ok.exchange.text.empty")
@pytest.mark.rule(V, "basic.get-ok.routing-key.text.as-published")
@pytest.mark.rule(V, "basic.return.routing-key.text.as-published")
@pytest.mark.parametrize("exchange", ["", "amq.topic"])
def test_a_message_has_the_exchange_and_key_of_its_publish(channel: Channel, name: str, exchange: str) -> None:
    channel.queue(name)
    if exchange:
        channel.bind(name, exchange, "#")
    channel.publish(b"x", name, exchange)
    got = channel.get(name)
    assert got is not None
    assert (got.method.exchange, got.method.routing_key) == (exchange, name)
    channel.publish(b"x", name + ".none", "amq.direct", mandatory=True)
    returned = channel.expect_content(Basic.Return)
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", name + ".none")


# The wire


@pytest.mark.rule(V, "negotiation.port")
def test_the_registered_port_is_the_default() -> None:
    assert Config().server.port == 5672


@pytest.mark.rule(V, "types.integers")
@pytest.mark.rule(V, "types.bits")
@pytest.mark.rule(V, "types.short-string")
@pytest.mark.rule(V, "framing.layout")
@pytest.mark.rule(V, "framing.size")
@pytest.mark.rule(V, "framing.method")
def test_a_method_as_bytes(peer: Peer, name: str) -> None:
    peer.channel()
    # queue.declare of an exclusive, auto-delete queue, in network byte order, with five bits in one byte
    text = name.encode()
    peer.send_bytes(
        bytes((1, 0, 1, 0, 0, 0, 12 + len(text)))
        + b"\x00\x32\x00\x0a\x00\x00"
        + bytes((len(text),))
        + text
        + b"\x0c"
        + b"\x00\x00\x00\x00"
        + b"\xce"
    )
    assert peer.read_bytes(7) == b"\x01\x00\x01\x00\x00\x00" + bytes((13 + len(text),))
    assert peer.read_bytes(14 + len(text)) == (b"\x00\x32\x00\x0b" + bytes((len(text),)) + text + b"\x00" * 8 + b"\xce")
    channel = Channel(peer, 1)
    channel.queue(name, auto_delete=True)  # it exists and is exclusive, or this would be refused


@pytest.mark.rule(V, "types.long-string")
@pytest.mark.rule(V, "types.timestamp")
@pytest.mark.rule(V, "content.flags")
def test_a_content_header_as_bytes(channel: Channel, name: str) -> None:
    properties = (
        short_string("text/plain") + b"\x00\x00\x00\x0a\x04blobS\x00\x00\x00\x00" + b"\x02" + struct.pack(">Q", 1 << 40)
    )
    flags = 0x8000 | 0x2000 | 0x1000 | 0x0040
    channel.queue(name)
    channel.send(Basic.Publish, exchange="", routing_key=name)
    channel.peer.send_bytes(frame_bytes(HEADER_FRAME, 1, struct.pack(">HHQH", 60, 0, 0, flags) + properties))
    channel.send(Basic.Get, queue=name, no_ack=True)
    assert channel.peer.read_payload()[0] == METHOD_FRAME
    assert channel.peer.read_payload() == (HEADER_FRAME, 1, struct.pack(">HHQH", 60, 0, 0, flags) + properties)


@pytest.mark.rule(V, "content.flags-continued")
@pytest.mark.parametrize(
    "words",
    [struct.pack(">HH", 1, 0), struct.pack(">HH", 1, 0x8000) + short_string("x"), struct.pack(">H", 1)],
    ids=["empty", "a property", "absent"],
)
def test_basic_has_no_second_word_of_flags(peer: Peer, words: bytes) -> None:
    peer.channel()
    peer.send(1, method(Basic.Publish, exchange="", routing_key="none"))
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, struct.pack(">HHQ", 60, 0, 0) + words))
    if words == struct.pack(">HH", 1, 0):  # one without any flag is legal
        Channel(peer, 1).quiet()
    else:
        peer.expect_connection_close(502, Basic.Publish)


@pytest.mark.rule(V, "content.weight")
def test_a_content_has_no_weight(peer: Peer) -> None:
    peer.channel()
    peer.send(1, method(Basic.Publish, exchange="", routing_key="none"))
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, struct.pack(">HHQH", 60, 1, 0, 0)))
    peer.expect_connection_close(501, Basic.Publish)


@pytest.mark.rule(V, "content.empty")
def test_an_empty_content_has_no_body_frame(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"", name)
    channel.send(Basic.Get, queue=name, no_ack=True)
    kinds = [channel.peer.read_payload()[0] for _ in range(2)]
    assert kinds == [METHOD_FRAME, HEADER_FRAME]
    channel.quiet()


@pytest.mark.rule(V, "types.table-name")
@pytest.mark.rule(V, "types.table-duplicates")
@pytest.mark.parametrize(
    "table",
    [b"\x03oneI\x00\x00\x00\x01\x03oneI\x00\x00\x00\x02", b"\xff" + b"n" * 255 + b"t\x01"],
    ids=["duplicate", "255"],
)
def test_tables_are_passed_unchanged(channel: Channel, name: str, table: bytes) -> None:
    """Duplicate names and overlong names are left to the receiver: the broker changes nothing."""
    headers = struct.pack(">I", len(table)) + table
    channel.queue(name)
    channel.send(Basic.Publish, exchange="", routing_key=name)
    channel.peer.send_bytes(frame_bytes(HEADER_FRAME, 1, struct.pack(">HHQH", 60, 0, 0, 0x2000) + headers))
    channel.send(Basic.Get, queue=name, no_ack=True)
    channel.peer.read_payload()
    assert channel.peer.read_payload()[2].endswith(headers)


@pytest.mark.rule(V, "types.short-string-nul")
@pytest.mark.mode("rabbitmq")
def test_a_zero_byte_in_a_name_is_a_byte_like_others(channel: Channel, name: str) -> None:
    assert channel.queue(name + "\0") == name + "\0"


@pytest.mark.rule(V, "types.short-string-nul")
@pytest.mark.mode("strict")
def test_a_zero_byte_in_a_name_is_refused(channel: Channel, name: str) -> None:
    channel.send(Queue.Declare, queue=name + "\0", exclusive=True)
    channel.expect_close(406, Queue.Declare)
