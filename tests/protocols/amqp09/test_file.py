"""Class file of AMQP 0-9: staging in both directions, publish, deliver, acknowledgements, transactions, overflow."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.broker import Broker
from leveret.broker.log import Recovery
from leveret.broker.metadata import VHOST, make_key
from leveret.broker.uploads import IN_MEMORY, SyncCallback, UploadSettings
from leveret.broker.vhost import OTHER_CLASSES
from leveret.protocols.amqp09.contents.files import MAX_OPEN
from leveret.protocols.amqp09.realms import Realm, Realms
from leveret.storage.memory import MemoryLog
from leveret.storage.upload_files import UploadFile, UploadFiles
from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.amqp09.support import Channel, Client, connect
from tests.protocols.support import Channel as Channel091
from tests.protocols.support import Site, bytes_of
from tests.support.queues import classic

IN_REQUESTS_TOO = True
FRAMES_ONLY = ("test_an_open_ok_without_an_open_is_out_of_order",)

FILE = 70
BODY = b"abcdefghij"


def stage(channel: Channel, body: bytes, **properties: Any) -> None:
    """Send one `file.stage`."""
    header = encode_header(FILE, len(body), properties, QPID, V0_9)
    channel.client.engine.send_content(channel.number, "file.stage", {}, header, body)
    channel.run()


def upload(channel: Channel, identifier: str = "one", body: bytes = BODY, **properties: Any) -> int:
    """Stage the missing part, and return its size."""
    there: int = channel.call("file.open", "file.open-ok", identifier=identifier, content_size=len(body))["staged_size"]
    stage(channel, body[there:], **properties)
    return there


def publish(channel: Channel, identifier: str = "one", key: str = "q", **arguments: Any) -> None:
    channel.send("file.publish", routing_key=key, identifier=identifier, **arguments)
    channel.run()


def send(channel: Channel, body: bytes = BODY, key: str = "q", **properties: Any) -> None:
    upload(channel, "any", body, **properties)
    publish(channel, "any", key)


def consume(channel: Channel, queue: str = "q", *, tag: str = "", **arguments: Any) -> str:
    answer = channel.call("file.consume", "file.consume-ok", queue=queue, consumer_tag=tag, **arguments)
    channel.run()
    return str(answer["consumer_tag"])


class Got:
    """A delivery: fields of the open, staged bytes, fields of the deliver."""

    def __init__(self, opened: dict[str, Any], staged: ContentMethod, delivered: dict[str, Any]) -> None:
        self.identifier = opened["identifier"]
        self.size = opened["content_size"]
        self.body = bytes_of(staged.body)
        self.properties = decode_header(staged.header, QPID, V0_9)[2]
        self.tag = delivered["delivery_tag"]
        self.delivered = delivered


def take(channel: Channel, staged_size: int = 0) -> Got | None:
    """Stage the next delivery, starting at a byte."""
    channel.run()
    opened = channel.client.take("file.open", channel.number)
    if opened is None:
        return None
    channel.send("file.open-ok", staged_size=staged_size)
    channel.run()
    staged = channel.client.take("file.stage", channel.number)
    delivered = channel.client.take("file.deliver", channel.number)
    assert isinstance(staged, ContentMethod) and delivered is not None
    return Got(opened.arguments, staged, delivered.arguments)


def got(channel: Channel, staged_size: int = 0) -> Got:
    taken = take(channel, staged_size)
    assert taken is not None
    return taken


def count(site: Site, queue: str = "q") -> int:
    return site.vhost.queues[queue].ready_count


# To the broker


def test_a_file_is_published_and_delivered(channel: Channel) -> None:
    channel.declare()
    send(channel, filename="report.txt", headers={"a": "b"}, message_id="1")
    tag = consume(channel, tag="here")
    delivery = got(channel)
    assert delivery.body == BODY and delivery.size == len(BODY)
    assert delivery.properties == {"filename": "report.txt", "headers": {"a": "b"}, "message_id": "1"}
    assert delivery.delivered == {
        "consumer_tag": tag,
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "identifier": delivery.identifier,
    }
    assert tag == "here"


def test_an_empty_file_is_valid(channel: Channel) -> None:
    channel.declare()
    send(channel, b"", filename="nothing")
    consume(channel)
    assert got(channel).properties == {"filename": "nothing"}


def test_staging_resumes_after_a_lost_connection(site: Site) -> None:
    first = connect(site).channel()
    first.declare()
    body = b"a" * 5000 + b"b" * 5000
    first.call("file.open", "file.open-ok", identifier="one", content_size=len(body))
    header = encode_header(FILE, len(body), {}, QPID, V0_9)
    first.client.engine.send_content(1, "file.stage", {}, header, [body[:5000], body[5000:]])
    octets = first.client.engine.to_send()
    # Cut within the second body frame: the first one has arrived.
    first.client.session.data_received(octets[: octets.index(body[5000:]) + 3])
    first.client.drop()
    second = connect(site).channel()
    assert upload(second, body=body) == 5000
    publish(second)
    consume(second)
    assert got(second).body == body


def test_staging_may_continue_in_pieces(channel: Channel) -> None:
    channel.declare()
    for piece, there in ((b"abc", 0), (b"def", 3), (b"ghij", 6)):
        answer = channel.call("file.open", "file.open-ok", identifier="one", content_size=len(BODY))
        assert answer == {"staged_size": there}
        stage(channel, piece)
    publish(channel)
    consume(channel)
    assert got(channel).body == BODY


def test_another_connection_can_publish_a_staged_file_later(site: Site) -> None:
    first = connect(site).channel()
    first.declare()
    upload(first)
    first.client.drop()
    second = connect(site).channel()
    publish(second)
    assert second.refused() == 0 and count(site) == 1


def test_a_staged_file_belongs_to_its_user(site: Site, channel: Channel) -> None:
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    upload(channel)
    other = connect(site, user="other").channel()
    publish(other)
    assert other.refused() == 404


def test_more_than_the_announced_size_is_refused_and_the_rest_stays(site: Site, channel: Channel) -> None:
    channel.call("file.open", "file.open-ok", identifier="one", content_size=5)
    stage(channel, b"abc")
    channel.call("file.open", "file.open-ok", identifier="one", content_size=5)
    stage(channel, b"defgh")
    assert channel.refused() == 311
    again = connect(site).channel()
    assert again.call("file.open", "file.open-ok", identifier="one", content_size=5) == {"staged_size": 3}


def test_pieces_of_one_sender_do_not_wait_for_the_disk(site: Site, channel: Channel) -> None:
    syncing: list[SyncCallback] = []
    site.broker.uploads.sync = lambda body, synced: syncing.append(synced)  # type: ignore[method-assign]
    for staged_size in (0, 3, 6):
        answer = channel.call("file.open", "file.open-ok", identifier="one", content_size=len(BODY))
        assert answer == {"staged_size": staged_size}
        stage(channel, BODY[staged_size : staged_size + 3])
    assert not syncing


def found(channel: Channel) -> int:
    """Return the size in the received `file.open-ok`."""
    reply = channel.client.take("file.open-ok", channel.number)
    assert reply is not None
    return int(reply.arguments["staged_size"])


@pytest.mark.parametrize("where", ["connection", "channel"])
def test_bytes_of_an_earlier_channel_are_on_disk_before_they_are_reported(site: Site, channel: Channel, where: str) -> None:
    syncing: list[SyncCallback] = []
    site.broker.uploads.sync = lambda body, synced: syncing.append(synced)  # type: ignore[method-assign]
    channel.call("file.open", "file.open-ok", identifier="one", content_size=len(BODY))
    stage(channel, BODY[:3])
    other = connect(site).channel() if where == "connection" else channel.client.channel()
    other.send("file.open", identifier="one", content_size=len(BODY))
    other.run()
    assert other.client.take("file.open-ok", other.number) is None
    syncing.pop()(None)
    site.broker.end_turn()
    other.run()
    assert found(other) == 3
    stage(other, BODY[3:5])
    # The first sender is back: bytes from the other one wait, too.
    channel.send("file.open", identifier="one", content_size=len(BODY))
    channel.run()
    assert channel.client.take("file.open-ok", channel.number) is None
    syncing.pop()(None)
    site.broker.end_turn()
    channel.run()
    assert found(channel) == 5


def test_an_upload_that_cannot_be_read_is_not_published(
    site: Site, channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.broker.uploads.place = UploadFiles(tmp_path, 0)
    channel.declare()
    upload(channel)

    def fail(body: UploadFile, at: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(UploadFile, "read", fail)
        publish(channel)
        assert channel.refused() == 541
    again = connect(site).channel()
    assert upload(again) == len(BODY)
    publish(again)
    consume(again)
    assert got(again).body == BODY


def test_an_identifier_is_opened_once_on_a_connection(channel: Channel) -> None:
    channel.call("file.open", "file.open-ok", identifier="one", content_size=5)
    other = channel.client.channel()
    other.send("file.open", identifier="one", content_size=5)
    assert other.refused() == 405
    channel.send("file.open", identifier="one", content_size=5)
    assert channel.refused() == 405


@pytest.mark.parametrize("size", [10, 11])
def test_another_connection_resumes_and_the_first_one_is_notified(site: Site, channel: Channel, size: int) -> None:
    channel.declare()
    channel.call("file.open", "file.open-ok", identifier="one", content_size=10)
    other = connect(site).channel()
    other.call("file.open", "file.open-ok", identifier="one", content_size=size)
    stage(channel, BODY)
    assert channel.refused() == 405
    stage(other, b"x" * size)
    publish(other)
    consume(other)
    assert got(other).body == b"x" * size


def test_a_file_in_a_transaction_is_not_staged_again(site: Site, channel: Channel) -> None:
    upload(channel)
    channel.call("tx.select", "tx.select-ok")
    publish(channel)
    other = connect(site).channel()
    other.send("file.open", identifier="one", content_size=len(BODY))
    assert other.refused() == 405


def test_a_stage_without_an_open_is_out_of_order(channel: Channel) -> None:
    stage(channel, b"abc")
    assert channel.refused() == 503


def test_the_limits(site: Site) -> None:
    site.broker.uploads.settings = UploadSettings(max_per_user=1, max_bytes=5)
    channel = connect(site).channel()
    channel.send("file.open", identifier="one", content_size=6)
    assert channel.refused() == 311
    channel = connect(site).channel()
    channel.call("file.open", "file.open-ok", identifier="one", content_size=5)
    channel.send("file.open", identifier="two", content_size=5)
    assert channel.refused() == 506


# Publish


@pytest.mark.parametrize("identifier", ["unknown", "unfinished", "published"])
def test_an_unstaged_file_is_not_found(channel: Channel, identifier: str) -> None:
    channel.declare()
    channel.call("file.open", "file.open-ok", identifier="unfinished", content_size=5)
    stage(channel, b"abc")
    upload(channel, "published")
    publish(channel, "published")
    publish(channel, identifier)
    assert channel.refused() == 404


def test_a_file_is_returned_as_a_file(channel: Channel) -> None:
    upload(channel, filename="f")
    publish(channel, key="nowhere", mandatory=True)
    returned = channel.client.take("file.return", 1)
    assert isinstance(returned, ContentMethod) and bytes_of(returned.body) == BODY
    assert returned.arguments["reply_code"] == 312 and returned.arguments["routing_key"] == "nowhere"
    assert decode_header(returned.header, QPID, V0_9)[1] == len(BODY)


def test_an_immediate_file_needs_a_consumer(channel: Channel) -> None:
    channel.declare()
    upload(channel)
    publish(channel, immediate=True)
    returned = channel.client.take("file.return", 1)
    assert returned is not None and returned.arguments["reply_code"] == 313
    consume(channel)
    upload(channel)
    publish(channel, immediate=True)
    assert got(channel).body == BODY


def test_an_unroutable_file_is_dropped_silently(channel: Channel) -> None:
    upload(channel)
    publish(channel, key="nowhere")
    assert channel.client.received == []


def test_an_exchange_that_does_not_exist(channel: Channel) -> None:
    upload(channel)
    publish(channel, exchange="nowhere")
    assert channel.refused() == 404


def test_a_file_is_persistent(site: Site, channel: Channel) -> None:
    channel.declare(durable=True)
    send(channel)
    entry = classic(site.vhost.queues["q"]).ready.backlog.head[0]
    assert entry.message.persistent and entry.row is not None


def test_priorities(channel: Channel) -> None:
    channel.declare()
    for priority in (1, 9, 4, 7):
        send(channel, str(priority).encode(), priority=priority)
    consume(channel)
    assert [got(channel).body for _ in range(4)] == [b"9", b"7", b"4", b"1"]


# From the broker


def test_the_client_reports_the_part_that_it_has(channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel)
    delivery = got(channel, 4)
    assert delivery.body == BODY[4:]


def test_an_incomplete_delivery_keeps_its_identifier(site: Site) -> None:
    first = connect(site).channel()
    first.declare()
    send(first)
    consume(first)
    before = got(first)
    first.client.drop()
    second = connect(site).channel()
    consume(second)
    after = got(second, len(BODY))
    assert after.identifier == before.identifier and after.body == b"" and after.delivered["redelivered"]


def test_an_offset_beyond_the_size_is_refused(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel)
    channel.send("file.open-ok", staged_size=11)
    assert channel.refused() == 530 and count(site) == 1


def test_an_open_ok_without_an_open_is_out_of_order(channel: Channel) -> None:
    channel.send("file.open-ok", staged_size=0)
    assert channel.refused() == 503


def test_a_large_file(site: Site, channel: Channel) -> None:
    channel.declare()
    body = bytes(range(256)) * 4096
    assert len(body) > IN_MEMORY
    send(channel, body)
    consume(channel)
    assert got(channel, 1000).body == body[1000:]


def test_an_undelivered_file_is_requeued(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel, no_ack=True)
    assert count(site) == 0
    channel.client.drop()
    assert count(site) == 1


def test_automatic_acknowledgement_happens_at_the_delivery(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel, no_ack=True)
    queue = site.vhost.queues["q"]
    assert queue.unacked == 1
    got(channel)
    assert queue.unacked == 0
    channel.client.drop()
    assert count(site) == 0


def test_open_files_are_limited(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(MAX_OPEN + 3):
        send(channel)
    consume(channel)
    assert count(site) == 3
    for _ in range(MAX_OPEN + 3):
        got(channel)
    assert take(channel) is None


@pytest.mark.parametrize("everywhere", [False, True], ids=["channel", "connection"])
def test_the_prefetch_counts_files_being_staged(site: Site, channel: Channel, everywhere: bool) -> None:
    channel.declare()
    for _ in range(3):
        send(channel)
    channel.call("file.qos", "file.qos-ok", prefetch_count=2, **{"global": everywhere})
    consume(channel)
    assert count(site) == 1
    first = got(channel)
    got(channel)
    assert take(channel) is None
    channel.send("file.ack", delivery_tag=first.tag)
    assert take(channel) is not None


def test_the_prefetch_counts_bytes(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(3):
        send(channel)
    channel.call("file.qos", "file.qos-ok", prefetch_size=20)
    consume(channel)
    assert count(site) == 1
    tag = got(channel).tag
    channel.send("file.ack", delivery_tag=tag)
    channel.run()
    assert count(site) == 0


def test_acknowledgements(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(3):
        send(channel)
    consume(channel)
    tags = [got(channel).tag for _ in range(3)]
    channel.send("file.ack", delivery_tag=tags[1], multiple=True)
    channel.run()
    assert site.vhost.queues["q"].unacked == 1
    channel.send("file.ack", delivery_tag=0, multiple=True)
    channel.run()
    assert site.vhost.queues["q"].unacked == 0
    channel.send("file.ack", delivery_tag=99)
    assert channel.refused() == 406


def test_acknowledging_all_excludes_files_being_staged(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel)
    channel.send("file.ack", delivery_tag=0, multiple=True)
    channel.run()
    assert site.vhost.queues["q"].unacked == 1


def test_a_rejected_file_is_delivered_to_another_channel(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel)
    channel.send("file.reject", delivery_tag=got(channel).tag, requeue=True)
    assert take(channel) is None
    other = connect(site).channel()
    consume(other)
    delivery = got(other)
    assert delivery.delivered["redelivered"]
    other.send("file.reject", delivery_tag=delivery.tag, requeue=False)
    other.run()
    assert count(site) == 0 and site.vhost.queues["q"].unacked == 0


def test_tags_are_local_to_the_connection(channel: Channel) -> None:
    channel.declare()
    consume(channel, tag="t")
    other = channel.client.channel()
    other.send("file.consume", queue="q", consumer_tag="t")
    assert other.refused() == 530


def test_cancel(site: Site, channel: Channel) -> None:
    channel.declare()
    tag = consume(channel)
    assert channel.call("file.cancel", "file.cancel-ok", consumer_tag=tag) == {"consumer_tag": tag}
    send(channel)
    assert take(channel) is None and count(site) == 1


def test_exclusive(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel)
    other = connect(site).channel()
    other.send("file.consume", queue="q", exclusive=True)
    assert other.refused() == 405


def test_no_queue_was_declared(channel: Channel) -> None:
    channel.send("file.consume")
    assert channel.refused() == 530


# Transactions


def test_a_transaction(site: Site, channel: Channel) -> None:
    channel.declare()
    upload(channel)
    channel.call("tx.select", "tx.select-ok")
    publish(channel)
    assert count(site) == 0
    channel.call("tx.rollback", "tx.rollback-ok")
    publish(channel)
    channel.call("tx.commit", "tx.commit-ok")
    assert count(site) == 1 and not site.broker.uploads.by_key


def test_a_transaction_publishes_a_file_once(site: Site, channel: Channel) -> None:
    channel.declare()
    upload(channel)
    channel.call("tx.select", "tx.select-ok")
    publish(channel)
    publish(channel)
    assert channel.refused() == 404
    again = connect(site).channel()
    publish(again)
    assert count(site) == 1


def test_acknowledgements_of_a_transaction(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    channel.call("tx.select", "tx.select-ok")
    consume(channel)
    tag = got(channel).tag
    channel.send("file.ack", delivery_tag=tag)
    channel.call("tx.rollback", "tx.rollback-ok")
    assert site.vhost.queues["q"].unacked == 1
    channel.send("file.ack", delivery_tag=got(channel).tag)
    channel.call("tx.commit", "tx.commit-ok")
    assert site.vhost.queues["q"].unacked == 0


# Overflow


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_files_are_never_dropped_but_slow_down_their_publishers(site: Site, channel: Channel, overflow: str) -> None:
    channel.declare(arguments={"x-max-length": 2, "x-overflow": overflow})
    for _ in range(3):
        send(channel)
    assert count(site) == 3
    flow = channel.client.take("channel.flow", 1)
    assert flow is not None and flow.arguments == {"active": False}
    channel.send("channel.flow-ok", active=False)
    upload(channel, "too much")
    consumer = connect(site).channel()
    consume(consumer, no_ack=True)
    for _ in range(3):
        got(consumer)
    site.broker.timers.run(site.broker.timers.now() + 1000)
    channel.run()
    flow = channel.client.take("channel.flow", 1)
    assert flow is not None and flow.arguments == {"active": True}
    channel.send("channel.flow-ok", active=True)
    publish(channel, "too much")
    assert got(consumer).body == BODY


def test_a_publisher_that_continues_is_refused_without_losses(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 1})
    for _ in range(2):
        send(channel)
    channel.send("channel.flow-ok", active=False)
    send(channel)
    assert channel.refused() == 406
    assert count(site) == 2 and [key[3] for key in site.broker.uploads.by_key] == ["any"]


def test_other_messages_make_room(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 2})
    send(channel, b"file")
    channel.publish(body=b"one")
    channel.publish(body=b"two")
    channel.publish(body=b"three")
    channel.run()
    assert channel.bodies() == [b"three"]
    consume(channel)
    assert got(channel).body == b"file"


# Classes


def test_each_class_gets_its_own(site: Site, channel: Channel) -> None:
    channel.declare()
    early = connect(site).channel()
    early.declare("early")
    early.consume("early", no_ack=True)
    send(channel, b"file")
    channel.publish(body=b"basic")
    channel.run()
    assert channel.bodies() == [b"basic"]
    assert count(site) == 1
    send(channel, b"file", "early")
    channel.publish("early", b"basic")
    channel.run()
    assert early.delivered() == [b"basic"]
    basic = connect(site).channel()
    basic.consume("q")
    assert basic.delivered() == []
    files = connect(site).channel()
    consume(files)
    assert got(files).body == b"file"


def test_files_and_0_9_1(site: Site, channel: Channel) -> None:
    channel.declare()
    old: Channel091 = site.channel()
    send(channel, b"file", filename="name", message_id="1")
    (taken,) = [old.get()]
    assert taken is not None and bytes_of(taken.body) == b"file"
    assert decode_header(taken.header)[2] == {"message_id": "1", "headers": {"x-filename": "name"}, "delivery_mode": 2}
    old.publish(body=b"from 0-9-1", message_id="2", headers={"x-filename": "other"})
    old.run()
    consume(channel)
    delivery = got(channel)
    assert delivery.body == b"from 0-9-1"
    assert delivery.properties["message_id"] == "2" and delivery.properties["filename"] == "other"


def test_no_state_is_left(site: Site) -> None:
    client: Client = connect(site)
    channel = client.channel()
    channel.declare()
    channel.call("file.open", "file.open-ok", identifier="one", content_size=5)
    channel.close()
    assert [staged.owner for staged in site.broker.uploads.by_key.values()] == [None]


def test_unwanted_files_stay_on_disk() -> None:
    site = Site(overflow=MemoryLog())
    site.broker.page_above = 20_000
    channel = connect(site).channel()
    channel.declare(durable=True)
    for number in range(200):
        send(channel, b"%d" % number)
    queue = site.vhost.queues["q"]
    before = queue.paging.memory()
    basic = connect(site).channel()
    basic.consume("q", no_ack=True)
    basic.run()
    assert queue.paging.memory() <= before and classic(queue).ready.backlog.chunks
    channel.publish(body=b"basic")
    channel.run()
    assert basic.delivered() == [b"basic"]
    consume(channel, no_ack=True)
    assert [got(channel).body for _ in range(200)] == [b"%d" % number for number in range(200)]


def test_messages_behind_files_on_disk_are_found(site: Site) -> None:
    site = Site(overflow=MemoryLog())
    site.broker.page_above = 20_000
    channel = connect(site).channel()
    channel.declare(durable=True)
    for number in range(100):
        send(channel, b"%d" % number)
        if number % 40 == 30:
            channel.publish(body=b"basic %d" % number, delivery_mode=2)
            channel.run()
    assert classic(site.vhost.queues["q"]).ready.backlog.chunks
    assert channel.bodies() == [b"basic 30", b"basic 70"]
    assert count(site) == 100


def test_limits_apply_to_messages_behind_files_on_disk(site: Site) -> None:
    site = Site(overflow=MemoryLog())
    site.broker.page_above = 20_000
    channel = connect(site).channel()
    channel.declare(durable=True, arguments={"x-max-length": 10})
    for number in range(100):
        send(channel, b"%d" % number)
    channel.publish(body=b"basic")
    channel.run()
    assert channel.client.refusal() == (0, "") and count(site) == 100
    assert channel.bodies() == []


def test_no_local(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel, no_local=True)
    send(channel)
    assert take(channel) is None and count(site) == 1
    send(connect(site).channel(), b"of another")
    assert got(channel).body == b"of another"
    other = channel.client.channel()
    other.declare("basic")
    other.consume("basic", no_local=True)
    other.publish("basic")
    assert other.delivered() == []


def test_a_vhost_remembers_other_classes(site: Site, channel: Channel) -> None:
    channel.declare()
    assert not site.vhost.has_other_classes
    send(channel)
    recovery = Recovery()
    recovery.metadata[VHOST, make_key("/")] = OTHER_CLASSES
    after = Broker(MemoryLog())
    after.recover(recovery)
    assert site.vhost.has_other_classes and after.vhosts["/"].has_other_classes


def test_files_need_tickets_if_the_vhost_has_realms(site: Site) -> None:
    site.vhost.declare_queue("data.q", None)
    site.protocols.amqp09.realms["/"] = Realms(
        {"/data": Realm("/data", r"data\..*|", {"user": frozenset(("write", "read"))})}
    )
    channel = connect(site).channel()
    upload(channel)
    write = channel.call("access.request", "access.request-ok", realm="/data", write=True)["ticket"]
    publish(channel, key="data.q", ticket=write)
    assert count(site, "data.q") == 1
    channel.send("file.consume", queue="data.q", ticket=write)
    assert channel.refused() == 403
    channel = connect(site).channel()
    read = channel.call("access.request", "access.request-ok", realm="/data", read=True)["ticket"]
    consume(channel, "data.q", ticket=read)
    assert got(channel).body == BODY
    upload(channel)
    publish(channel, key="data.q", ticket=read)
    assert channel.refused() == 403


def test_a_dead_file_is_a_file(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    send(channel, filename="name")
    consume(channel)
    channel.send("file.reject", delivery_tag=got(channel).tag, requeue=False)
    consume(channel, "dead")
    delivery = got(channel)
    assert delivery.body == BODY and delivery.properties["filename"] == "name"
    assert delivery.properties["headers"]["x-death"][0]["reason"] == "rejected"
    assert delivery.delivered["routing_key"] == "dead"


def test_a_file_is_routed_to_every_queue(channel: Channel) -> None:
    body = b"x" * (IN_MEMORY + 1)
    for name in ("a", "b"):
        channel.declare(name)
        channel.call("queue.bind", "queue.bind-ok", queue=name, exchange="amq.fanout")
    upload(channel, body=body)
    publish(channel, exchange="amq.fanout")
    for name in ("a", "b"):
        consume(channel, name, no_ack=True)
        assert got(channel).body == body


def test_in_a_transaction_publishers_are_slowed_down_too(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.call("tx.select", "tx.select-ok")
    for identifier in ("one", "two", "three"):
        upload(channel, identifier)
        publish(channel, identifier)
        channel.call("tx.commit", "tx.commit-ok")
    assert count(site) == 3
    assert channel.client.take("channel.flow", 1) is not None


def test_recovered_files_are_published_and_delivered(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel)
    consume(channel)
    got(channel)
    channel.call("channel.ping", "channel.ok")
    channel.send("basic.recover", requeue=True)
    delivery = got(channel)
    assert delivery.body == BODY and delivery.delivered["redelivered"]
