"""Requirements in the descriptions of 0-9's fields and methods, outside of the rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import CONFIG_AMQP09, Connect
from tests.conformance.amqp09.kinds import KINDS, consume, publish, receive, receive_all
from tests.conformance.catalogue import rules_of
from tests.conformance.marks import checks
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp09 import Channel, Peer
from tests.support.peers.codec09 import INLINE, Body

V: Final = "0-9"
KNOWN: Final = frozenset(rules_of(V))
WITH_PUBLISH: Final = ("basic", "file", "stream")


def each(*rules: str, only: tuple[str, ...] = KINDS) -> pytest.MarkDecorator:
    """Run for each class, and mark with its rules: CLASS stands for its name."""
    return pytest.mark.parametrize(
        "kind",
        [
            pytest.param(kind, marks=checks(V, *(rule for name in rules if (rule := name.replace("CLASS", kind)) in KNOWN)))
            for kind in only
        ],
    )


# No wait: each method with the fields that succeed, those that fail and how


NO_WAIT: Final[dict[str, tuple[dict[str, Any], dict[str, Any], int]]] = {
    "exchange.declare": (
        {"exchange": "NAME", "type": "direct", "auto_delete": True},
        {"exchange": "NAME.x", "passive": True},
        404,
    ),
    "exchange.delete": ({"exchange": "NAME.e"}, {"exchange": "NAME.x"}, 404),
    "queue.declare": ({"queue": "NAME", "auto_delete": True}, {"queue": "NAME.x", "passive": True}, 404),
    "queue.bind": ({"queue": "NAME.q", "exchange": "NAME.e"}, {"queue": "NAME.x", "exchange": "NAME.e"}, 404),
    "queue.purge": ({"queue": "NAME.q"}, {"queue": "NAME.x"}, 404),
    "queue.delete": ({"queue": "NAME.q"}, {"queue": "NAME.x"}, 404),
    **{
        f"{kind}.consume": ({"queue": "NAME.q", "consumer_tag": "c"}, {"queue": "NAME.x", "consumer_tag": "d"}, 404)
        for kind in WITH_PUBLISH
    },
}


def filled(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value.replace("NAME", name) if isinstance(value, str) else value for key, value in fields.items()}


@pytest.mark.rule(V, "no-ack.text.not-expected")
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=checks(V, f"{method}.nowait.text.no-reply", f"{method}.nowait.text.failure-told"))
        for method in NO_WAIT
    ],
)
def test_with_nowait_only_a_failure_is_reported(channel: Channel, name: str, method: str) -> None:
    succeeds, fails, code = NO_WAIT[method]
    channel.queue(name + ".q", exclusive=True)
    channel.exchange(name + ".e", auto_delete=True)
    channel.send(method, nowait=True, **filled(succeeds, name))
    channel.quiet()
    channel.send(method, nowait=True, **filled(fails, name))
    channel.refused(code, method).quiet()


@each("CLASS.cancel.nowait.text.no-reply", "CLASS.cancel.nowait.text.failure-told", only=WITH_PUBLISH)
def test_a_cancel_without_waiting_is_not_answered(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name, exclusive=True)
    consume(channel, kind, name, "c")
    channel.send(f"{kind}.cancel", consumer_tag="c", nowait=True)
    channel.quiet()
    consume(channel, kind, name, "c")  # the tag is free again
    kinds.cancel(channel, kind, "c")


# The last declared queue


@each(
    "CLASS.consume.queue.text.last-declared",
    "CLASS.get.queue.text.last-declared",
    "CLASS.get.destination.text.to-destination",
    "message.transfer.text.got",
)
def test_no_queue_name_is_the_last_declared_queue(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name + ".first", exclusive=True)
    channel.queue(name, exclusive=True)
    publish(channel, kind, b"x", name)
    if kind == "message":
        channel.send("message.get", queue="", destination="here", no_ack=True)
        got = channel.peer.pick(1, "message.transfer")
        assert (got.destination, got.body.data) == ("here", b"x")
        channel.peer.pick(1, "message.ok")
        publish(channel, kind, b"y", name)
    elif kind == "basic":
        content = channel.get("")
        assert content is not None
        publish(channel, kind, b"y", name)
    consume(channel, kind, "", "c", no_ack=True)
    assert receive(channel, kind).body in (b"x", b"y")


@pytest.mark.rule(V, "queue.bind.queue.text.last-declared")
@pytest.mark.rule(V, "queue.bind.routing-key.text.last-declared")
@pytest.mark.rule(V, "queue.bind.routing-key.text.key-of-name")
@pytest.mark.rule(V, "queue.bind.routing-key.text.empty-key")
@pytest.mark.rule(V, "queue.bind.text.unbound")
@pytest.mark.rule(V, "queue.text.needs-binding")
@pytest.mark.rule(V, "queue.purge.queue.text.last-declared")
@pytest.mark.rule(V, "queue.delete.queue.text.last-declared")
def test_empty_names_and_keys(channel: Channel, name: str) -> None:
    exchange = channel.exchange(name, auto_delete=True)
    first, last = channel.queue(name + ".1", exclusive=True), channel.queue(name + ".2", exclusive=True)
    channel.publish(b"before", "key", exchange)
    channel.bind("", exchange, "key")
    channel.bind("", exchange, "")
    channel.bind(first, exchange, "")
    for key in ("key", last, ""):
        channel.publish(key.encode(), key, exchange)
    assert channel.drain(first) == [b""]
    assert channel.call("queue.purge").message_count == 2
    channel.call("queue.delete")
    assert not channel.exists(last)


@pytest.mark.rule(V, "queue.declare-ok.queue.text.generated")
@pytest.mark.rule(V, "queue.declare-ok.message-count.text.new-is-empty")
@pytest.mark.rule(V, "queue.declare.passive.text.creates-nothing")
@pytest.mark.rule(V, "queue.declare.arguments.text.passive-ignores")
@pytest.mark.rule(V, "queue.declare.auto-delete.text.never-consumed")
@pytest.mark.rule(V, "queue.declare.auto-delete.text.last-consumer")
def test_declaring_queues(channel: Channel, name: str) -> None:
    assert not channel.exists(name)
    assert not channel.exists(name)
    channel.queue(name, auto_delete=True)
    found = channel.call("queue.declare", queue=name, passive=True, arguments={"x-max-length": 1})
    assert (found.queue, found.message_count) == (name, 0)
    assert channel.call("queue.declare", exclusive=True).queue
    channel.consume(name, "c")
    channel.cancel("c")
    assert not channel.exists(name)


@pytest.mark.rule(V, "exchange.declare.text.creates-or-verifies")
@pytest.mark.rule(V, "exchange.declare.passive.text.creates-nothing")
@pytest.mark.rule(V, "exchange.declare.arguments.text.passive-ignores")
@pytest.mark.rule(V, "exchange.declare.auto-delete.text.last-binding")
@pytest.mark.rule(V, "exchange.delete.text.bindings")
@pytest.mark.rule(V, "exchange.delete.if-unused.text.only-unused")
@pytest.mark.rule(V, "exchange.delete.if-unused.text.else-error")
def test_declaring_and_deleting_exchanges(channel: Channel, name: str) -> None:
    assert not channel.exchange_exists(name)
    assert not channel.exchange_exists(name)
    for _ in range(2):
        channel.exchange(name, "topic")
    channel.call("exchange.declare", exchange=name, passive=True, arguments={"alternate-exchange": "x"})
    queue = channel.queue(name, exclusive=True)
    channel.bind(queue, name, "#")
    channel.send("exchange.delete", exchange=name, if_unused=True)
    channel = channel.refused(406, "exchange.delete")
    channel.call("exchange.delete", exchange=name)
    channel.exchange(name, "topic", auto_delete=True)
    channel.publish(b"x", "k", name)
    assert channel.drain(queue) == []
    channel.bind(queue, name, "#")
    channel.call("queue.unbind", queue=queue, exchange=name, routing_key="#")
    assert not channel.exchange_exists(name)


# Publishing


@each("CLASS.publish.exchange.text.unknown", "message.transfer.destination.text.unknown")
def test_an_unknown_exchange_is_an_error_of_the_channel(channel: Channel, name: str, kind: str) -> None:
    if kind == "message":
        channel.send("message.transfer", destination=name, body=Body(INLINE, b"x"))
        channel.refused(404, "message.transfer")
    elif kind == "file":
        channel.publish_file(b"x", "k", name, identifier=name)
        channel.refused(404, "file.publish")
    else:
        channel.publish(b"x", "k", name, kind=kind)
        channel.refused(404, f"{kind}.publish")


@each(
    "CLASS.publish.text.routed",
    "CLASS.deliver.text.as-they-arrive",
    "CLASS.deliver.routing-key.text.as-published",
    "CLASS.deliver.identifier.text.staged",
    "CLASS.publish.identifier.text.staged",
    "CLASS.consume-ok.text.tag-used",
    "message.transfer.text.to-exchange",
    "message.transfer.text.routed",
    "message.transfer.text.to-consumer",
)
def test_a_message_passes_its_exchange_to_a_consumer(channel: Channel, name: str, kind: str) -> None:
    exchange = channel.exchange(name, auto_delete=True)
    channel.queue(name, exclusive=True)
    channel.bind(name, exchange, "k")
    consume(channel, kind, name, "c", no_ack=True)
    publish(channel, kind, b"x", "k", exchange)
    got = receive(channel, kind)
    assert (got.body, got.consumer) == (b"x", "c")


@pytest.mark.rule(V, "basic.deliver.routing-key.text.as-published")
@pytest.mark.rule(V, "file.deliver.routing-key.text.as-published")
@pytest.mark.rule(V, "basic.get-ok.routing-key.text.as-published")
@pytest.mark.rule(V, "basic.get-ok.exchange.text.empty")
@pytest.mark.rule(V, "basic.get-ok.text.acknowledged")
def test_deliveries_have_the_key_of_the_publish(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    held = channel.get(name, no_ack=False)
    assert held is not None
    assert (held.method.exchange, held.method.routing_key) == ("", name)
    assert channel.get(name) is None
    channel.ack(held.tag)
    for kind in ("basic", "file"):
        consume(channel, kind, name, kind, no_ack=True)
        publish(channel, kind, b"x", name)
        method = channel.delivery().method if kind == "basic" else channel.file().method
        assert method.routing_key == name
    channel.call("queue.delete", queue=name)


@each(
    "CLASS.publish.mandatory.text.returned",
    "CLASS.publish.mandatory.text.dropped",
    "CLASS.publish.immediate.text.returned",
    "CLASS.publish.immediate.text.queued",
    "CLASS.return.routing-key.text.as-published",
    "no-route.text.only-mandatory",
    only=WITH_PUBLISH,
)
def test_undeliverable_messages_are_returned_on_request(channel: Channel, name: str, kind: str) -> None:
    publish(channel, kind, b"dropped", name)
    publish(channel, kind, b"back", name, mandatory=True)
    returned = channel.content(f"{kind}.return")
    assert (returned.body, returned.method.reply_code, returned.method.routing_key) == (b"back", 312, name)
    channel.queue(name)
    publish(channel, kind, b"back, too", name, immediate=True)
    assert channel.content(f"{kind}.return").body == b"back, too"
    publish(channel, kind, b"queued", name)
    consume(channel, kind, name, "c", no_ack=True)
    assert receive(channel, kind).body == b"queued"
    channel.call("queue.delete", queue=name)


@pytest.mark.rule(V, "message.transfer.immediate.text.rejected")
@pytest.mark.rule(V, "message.transfer.immediate.text.queued")
def test_an_immediate_transfer_is_rejected_and_another_queued(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.send("message.transfer", routing_key=name, immediate=True, body=Body(INLINE, b"x"))
    channel.expect("message.reject")
    publish(channel, "message", b"y", name)
    assert channel.call("queue.delete", queue=name).message_count == 1


# Consuming


@each(
    "CLASS.qos.prefetch-size.text.zero",
    "CLASS.qos.prefetch-size.text.no-ack",
    "CLASS.qos.prefetch-count.text.no-ack",
    "CLASS.qos.prefetch-size.text.fits",
    "no-ack.text.dequeued",
    "CLASS.qos.consume-rate.text.zero",
)
def test_windows_apply_to_acknowledging_consumers_and_zero_is_no_limit(connect: Connect, name: str, kind: str) -> None:
    for number, window in enumerate(({}, {"prefetch_count": 1, "prefetch_size": 1})):
        channel = connect().open()
        channel.queue(f"{name}.{number}", exclusive=True)
        channel.call(f"{kind}.qos", "message.ok" if kind == "message" else "", **(window if kind != "stream" else {}))
        consume(channel, kind, f"{name}.{number}", "c", no_ack=bool(window))
        for at in range(4):
            publish(channel, kind, b"%d" % at, f"{name}.{number}")
        assert receive_all(channel, kind, 4) == [b"0", b"1", b"2", b"3"]
        if window:
            assert channel.call("queue.delete", queue=f"{name}.{number}").message_count == 0


@each("CLASS.consume.consumer-tag.text.generated", only=WITH_PUBLISH)
def test_a_consumer_without_a_tag_gets_one(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name, exclusive=True)
    assert len({channel.consume(name, kind=kind) for _ in range(5)} - {""}) == 5


@each("CLASS.cancel.text.no-more-messages", "CLASS.consume.exclusive.text.alone")
def test_an_exclusive_consumer_excludes_others_until_it_is_cancelled(
    channel: Channel, other: Channel, name: str, kind: str
) -> None:
    channel.queue(name)
    consume(channel, kind, name, "c", exclusive=True, no_ack=True)
    method, tag = kinds.consume_method(kind)
    other.send(method, queue=name, **{tag: "d"})
    other = other.refused(405 if kind in ("file", "stream") else 403, method)
    kinds.cancel(channel, kind, "c")
    publish(channel, kind, b"x", name)
    channel.quiet()
    consume(other, kind, name, "d", no_ack=True)
    assert receive(other, kind).body == b"x"
    other.call("queue.delete", queue=name)


@each(
    "CLASS.reject.requeue.text.discarded",
    "CLASS.reject.requeue.text.requeued",
    "CLASS.ack.multiple.text.single",
    "CLASS.ack.multiple.text.up-to",
    "CLASS.ack.multiple.text.all",
    only=("basic", "file"),
)
def test_settling(channel: Channel, other: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    consume(channel, kind, name, "c")
    for at in range(8):
        publish(channel, kind, b"%d" % at, name)
    tags = [receive(channel, kind).tag for _ in range(8)]
    channel.ack(tags[0], kind=kind)
    channel.ack(tags[2], multiple=True, kind=kind)
    channel.reject(tags[3], requeue=False, kind=kind)
    channel.send(f"{kind}.cancel", consumer_tag="c", nowait=True)
    channel.reject(tags[4], requeue=True, kind=kind)
    channel.quiet()
    consume(other, kind, name, "d", no_ack=True)
    assert receive(other, kind).body == b"4"
    channel.ack(0, multiple=True, kind=kind)
    channel.close()
    assert other.call("queue.delete", queue=name).message_count == 0


@pytest.mark.rule(V, "file.open.text.resumed")
@pytest.mark.rule(V, "file.open.identifier.text.same-identifier")
@pytest.mark.rule(V, "file.open-ok.text.tells-staged")
@pytest.mark.rule(V, "file.open-ok.staged-size.text.new-is-zero")
def test_staging_reports_the_staged_size(channel: Channel, name: str) -> None:
    assert channel.call("file.open", identifier=name, content_size=3).staged_size == 0
    channel.stage_bytes(b"abc")
    channel.quiet()
    assert channel.call("file.open", identifier=name, content_size=3).staged_size == 3
    assert channel.call("file.open", identifier=name + ".other", content_size=3).staged_size == 0


@pytest.mark.rule(V, "message.checkpoint.identifier.text.same-identifier")
@pytest.mark.rule(V, "message.resume.text.open")
def test_a_resumed_reference_is_open(channel: Channel, name: str) -> None:
    channel.call("message.open", "message.ok", reference="r")
    channel.call("message.append", "message.ok", reference="r", bytes=b"abc")
    channel.call("message.checkpoint", "message.ok", reference="r", identifier=name)
    channel.close()
    again = channel.peer.open(2)
    assert again.call("message.resume", "message.offset", reference="s", identifier=name).value == 3
    again.call("message.append", "message.ok", reference="s", bytes=b"d")
    again.call("message.close", "message.ok", reference="s")


# Access, transactions, connection


@pytest.mark.rule(V, "access-ticket.text.of-channel")
def test_a_ticket_ends_with_its_channel(guarded: Callable[[], Channel]) -> None:
    channel = guarded()
    ticket = channel.call("access.request", realm="/own", active=True, read=True, write=True, passive=True).ticket
    channel.close()
    channel = channel.peer.open()
    channel.send("queue.declare", queue="own.none", ticket=ticket)
    assert channel.peer.read(None).name in ("channel.close", "connection.close")


@pytest.mark.rule(V, "dtx.select.text.before-start")
@pytest.mark.rule(V, "dtx.start-ok.text.failure-told")
def test_a_start_without_select_fails(channel: Channel, name: str) -> None:
    channel.send("dtx.start", dtx_identifier=name)
    assert channel.expect("channel.close").reply_code == 406


@pytest.mark.rule(V, "tx.select.text.before-use")
@pytest.mark.parametrize("method", ["tx.commit", "tx.rollback"])
def test_a_commit_without_select_fails(channel: Channel, method: str) -> None:
    channel.send(method)
    channel.refused(406, method)


@pytest.mark.rule(V, "connection.close.text.names-method")
@pytest.mark.rule(V, "connection.close.class-id.text.of-method")
@pytest.mark.rule(V, "connection.close.method-id.text.of-method")
@pytest.mark.rule(V, "channel.close.text.names-method")
@pytest.mark.rule(V, "channel.close.class-id.text.of-method")
@pytest.mark.rule(V, "channel.close.method-id.text.of-method")
def test_a_close_names_the_refused_method(channel: Channel, name: str) -> None:
    channel.send("queue.purge", queue=name)
    channel = channel.refused(404, "queue.purge")
    channel.send("channel.open")
    channel.peer.expect_end(504, "channel.open")


@pytest.mark.rule(V, "connection.start.locales.text.replies")
@pytest.mark.rule(V, "connection.tune-ok.channel-max.text.total")
@pytest.mark.rule(V, "connection.tune-ok.frame-max.text.zero")
@pytest.mark.rule(V, "connection.tune-ok.heartbeat.text.zero")
def test_zero_asks_for_no_limit(raw: Callable[..., Peer], name: str) -> None:
    peer = raw()
    assert peer.begin().locales == b"en_US"
    peer.log_in()
    peer.expect_method(0, "connection.tune")
    peer.tune(channel_max=0, frame_max=0, interval=0)
    peer.send_method(0, "connection.open", virtual_host="/")
    peer.expect_method(0, "connection.open-ok")
    channel = peer.open(2047)
    channel.queue(name, exclusive=True)
    channel.publish(b"x" * 300_000, name)
    assert channel.drain(name) == [b"x" * 300_000]


@pytest.mark.rule(V, "connection.tune.heartbeat.text.zero")
def test_a_server_may_want_no_heartbeats(raw: Callable[..., Peer], tmp_path: Path) -> None:
    with LeveretProcess(tmp_path / "unasking", config=CONFIG_AMQP09 + "\n[amqp]\nheartbeat = 0\n").start() as process:
        peer = raw(process)
        peer.begin()
        peer.log_in()
        assert peer.expect_method(0, "connection.tune").heartbeat == 0


@each("no-local.text.own-messages")
def test_no_local_excludes_own_messages(channel: Channel, other: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    fields = {} if kind == "stream" else {"no_ack": True}
    consume(channel, kind, name, "own", no_local=True, **fields)
    publish(channel, kind, b"own", name)
    channel.quiet()
    publish(other, kind, b"other's", name)
    assert receive(channel, kind).body == b"other's"
    channel.call("queue.delete", queue=name)


@pytest.mark.rule(V, "access.request.realm.text.replaced")
def test_another_ticket_onto_a_realm_replaces_the_first(guarded: Callable[[], Channel]) -> None:
    channel = guarded()
    first, second = (channel.call("access.request", realm="/own", active=True, passive=True).ticket for _ in range(2))
    channel.call("exchange.declare", exchange="own.replaced", type="direct", auto_delete=True, ticket=second)
    channel.send("exchange.declare", exchange="own.replaced", type="direct", auto_delete=True, ticket=first)
    assert channel.peer.read(None).name in ("channel.close", "connection.close")
