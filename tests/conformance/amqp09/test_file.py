"""Class file: staging in both directions. Rules shared with other classes are tested by subject."""

from __future__ import annotations

import pytest

from tests.conformance.amqp09.conftest import Connect
from tests.support.peers.amqp09 import Channel

BODY = bytes(range(256)) * 40


@pytest.mark.rule("0-9", "file.open.content-size.01")
@pytest.mark.rule("0-9", "content-too-large.constant")
def test_more_bytes_than_were_announced_are_refused(channel: Channel, name: str) -> None:
    channel.call("file.open", identifier=name, content_size=10)
    channel.stage_bytes(b"x" * 11)
    channel = channel.refused(311, "file.stage")
    assert channel.call("file.open", identifier=name, content_size=10).staged_size == 0


@pytest.mark.rule("0-9", "file.open.content-size.01")
def test_less_than_was_announced_is_not_published(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.call("file.open", identifier=name, content_size=10)
    channel.stage_bytes(b"x" * 9)
    channel.send("file.publish", routing_key=name, identifier=name)
    channel = channel.refused(404, "file.publish")
    assert channel.depth(name) == 0


@pytest.mark.rule("0-9", "file.open.content-size.01")
def test_contents_of_no_bytes_are_permitted(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish_file(b"", name, identifier=name, filename="empty")
    channel.consume(name, kind="file", no_ack=True)
    opened = channel.expect("file.open")
    assert opened.content_size == 0
    channel.send("file.open-ok")
    content = channel.content("file.stage")
    assert (content.body, content.properties["filename"]) == (b"", "empty")
    assert channel.expect("file.deliver").identifier == opened.identifier


@pytest.mark.rule("0-9", "file.open.content-size.01")
def test_the_server_announces_accurately_too(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish_file(BODY, name, identifier=name)
    channel.consume(name, kind="file", no_ack=True)
    assert channel.expect("file.open").content_size == len(BODY)
    channel.send("file.open-ok")
    assert channel.content("file.stage").body == BODY


@pytest.mark.rule("0-9", "file.open-ok.staged-size.01")
def test_staging_resumes_where_it_was_interrupted(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.open()
    channel.queue(name)
    channel.call("file.open", identifier=name, content_size=len(BODY))
    channel.stage_bytes(BODY[:5000])
    peer.close()
    channel = connect().open()
    assert channel.call("file.open", identifier=name, content_size=len(BODY)).staged_size == 5000
    channel.stage_bytes(BODY[5000:])
    channel.send("file.publish", routing_key=name, identifier=name)
    channel.consume(name, kind="file", no_ack=True)
    assert channel.file().body == BODY


@pytest.mark.rule("0-9", "file.open-ok.staged-size.01")
@pytest.mark.parametrize("staged", [0, 1, 4096, len(BODY)])
def test_the_server_stages_from_the_clients_position(connect: Connect, name: str, staged: int) -> None:
    peer = connect()
    channel = peer.open()
    channel.queue(name)
    channel.publish_file(BODY, name, identifier=name)
    channel.consume(name, kind="file")
    first = channel.expect("file.open")
    peer.drop()  # the client keeps the received part, and asks for the rest
    channel = connect().open()
    channel.consume(name, kind="file")
    second = channel.expect("file.open")
    assert (second.identifier, second.content_size) == (first.identifier, len(BODY))
    channel.send("file.open-ok", staged_size=staged)
    assert channel.content("file.stage").body == BODY[staged:]
    assert channel.expect("file.deliver").identifier == first.identifier


@pytest.mark.rule("0-9", "file.open-ok.staged-size.01")
def test_more_than_there_is_cannot_be_staged_already(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish_file(BODY, name, identifier=name)
    channel.consume(name, kind="file")
    channel.expect("file.open")
    channel.send("file.open-ok", staged_size=len(BODY) + 1)
    channel.peer.expect_end(530, "file.open-ok")


@pytest.mark.rule("0-9", "file.open-ok.staged-size.02")
def test_staging_without_an_open_is_an_invalid_command(channel: Channel) -> None:
    channel.stage_bytes(b"x")
    channel.peer.expect_end(503, "file.stage")


@pytest.mark.rule("0-9", "file.open-ok.staged-size.02")
def test_staging_resumed_by_another_connection_is_refused(connect: Connect, channel: Channel, name: str) -> None:
    channel.call("file.open", identifier=name, content_size=len(BODY))
    channel.send("file.stage")
    frames = channel.peer.content_frames(1, "file", BODY, {})
    channel.peer.send_bytes(frames[:6000])
    second = connect().open()
    assert second.call("file.open", identifier=name, content_size=len(BODY)).staged_size <= 6000
    channel.peer.send_bytes(frames[6000:])
    channel.refused(405, "file.stage")


@pytest.mark.rule("0-9", "section.file.publish")
@pytest.mark.parametrize("again", [False, True], ids=["never-staged", "published-already"])
def test_an_identifier_that_is_not_staged_is_not_found(channel: Channel, name: str, again: bool) -> None:
    channel.queue(name)
    if again:
        channel.publish_file(BODY, name, identifier=name)
    channel.send("file.publish", routing_key=name, identifier=name)
    channel = channel.refused(404, "file.publish")
    assert channel.depth(name) == again


@pytest.mark.rule("0-9", "section.file.cancel")
def test_after_cancel_ok_no_new_message_is_delivered(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.cancel(channel.consume(name, kind="file"), "file")
    channel.publish_file(BODY, name, identifier=name)
    channel.quiet()
    assert channel.depth(name) == 1
