"""Classes tx and dtx."""

from __future__ import annotations

import pytest

from tests.conformance.amqp09 import kinds
from tests.support.peers.amqp09 import Channel, Peer


@pytest.mark.rule("0-9", "tx.01")
@pytest.mark.parametrize("kind", ["basic", "file", "message"])
def test_the_means_to_detect_duplicates_survive_a_rollback(peer: Peer, name: str, kind: str) -> None:
    """Messages requeued by a rollback and the end of the channel are redelivered with their identity and the flag;
    those acknowledged in a committed transaction are not."""
    channel, second = peer.open(1), peer.open(2)
    channel.queue(name)
    for number in range(2):
        kinds.publish(channel, kind, b"%d" % number, name, message_id=f"m{number}")
    second.call("tx.select")
    kinds.consume(second, kind, name, "c")
    held = [kinds.receive(second, kind) for _ in range(2)]
    assert [(got.redelivered, got.properties["message_id"]) for got in held] == [(False, "m0"), (False, "m1")]
    kinds.ack(second, kind, held[0])
    second.call("tx.commit")
    kinds.ack(second, kind, held[1])
    second.call("tx.rollback")
    got = kinds.receive(second, kind)
    assert (got.body, got.redelivered, got.properties["message_id"]) == (b"1", True, "m1")
    second.close()
    kinds.consume(channel, kind, name, "d")
    got = kinds.receive(channel, kind)
    assert (got.body, got.redelivered, got.properties["message_id"]) == (b"1", True, "m1")
    channel.quiet()


@pytest.mark.rule("0-9", "section.tx")
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_publishes_are_seen_when_they_are_committed(peer: Peer, name: str, kind: str) -> None:
    channel, watcher = peer.open(1), peer.open(2)
    channel.queue(name)
    channel.call("tx.select")
    for end, depth in (("tx.rollback", 0), ("tx.commit", 1)):
        kinds.publish(channel, kind, b"x", name)
        channel.quiet()
        assert watcher.depth(name) == 0
        channel.call(end)
        assert watcher.depth(name) == depth


@pytest.mark.rule("0-9", "section.tx")
@pytest.mark.parametrize("method", ["tx.commit", "tx.rollback"])
def test_a_channel_that_is_not_transacted_has_nothing_to_end(channel: Channel, method: str) -> None:
    channel.send(method)
    channel.refused(406, method)


@pytest.mark.rule("0-9", "section.dtx")
def test_an_identifier_in_use_is_refused(peer: Peer, name: str) -> None:
    first, second = peer.open(1), peer.open(2)
    for channel in (first, second):
        channel.call("dtx.select")
    first.call("dtx.start", dtx_identifier=name)
    second.send("dtx.start", dtx_identifier=name)
    second.refused(405, "dtx.start")


@pytest.mark.rule("0-9", "section.dtx")
def test_publishes_in_a_branch_are_invisible_before_the_decision(peer: Peer, name: str) -> None:
    channel, watcher = peer.open(1), peer.open(2)
    channel.queue(name)
    channel.call("dtx.select")
    channel.call("dtx.start", dtx_identifier=name)
    channel.publish(b"x", name)
    channel.quiet()
    channel.close()
    assert watcher.depth(name) == 0
