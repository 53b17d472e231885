"""AMQP 0-9: channels of a lost connection are kept for a while, and can be resumed by channel.resume."""

from __future__ import annotations

import gc
import random
import struct
from typing import Any

import pytest

from leveret.protocols.amqp09.channel.channel import Channel as BrokersChannel
from leveret.protocols.amqp09.realms import Realm, Realms
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp091.methods import basic as basic_methods
from leveret.security.users import UserLimits
from leveret.wire.amqp0.commands import Method
from tests.broker.support import HeldLog
from tests.protocols.amqp09 import streaming, test_message
from tests.protocols.amqp09.support import Channel, Client, Clock, connect
from tests.protocols.amqp09.test_file import BODY, upload
from tests.protocols.support import Site
from tests.wire.amqp0.peers import frame


@pytest.fixture
def site() -> Site:
    site = Site()
    site.protocols.amqp09.settings = Amqp09Settings(resume_timeout=10.0)
    return site


def resume(lost: Channel, client: Client | None = None, number: int = 0) -> Channel:
    """Resume a lost channel on another connection, by default a new one."""
    client = connect(lost.client.site) if client is None else client
    channel = Channel(client, number or len(client.channels) + 1)
    client.channels[channel.number] = channel
    channel.call("channel.resume", "channel.ok", channel_id=lost.id)
    channel.id = lost.id
    return channel


def refused(site: Site, id: Any, **options: Any) -> tuple[int, str]:
    """Return reply code and text of a refused `channel.resume`, from the close of the channel or the connection."""
    client = connect(site, **options)
    client.engine.send(1, "channel.resume", {"channel_id": id})
    client.run()
    code, text = client.refusal()
    assert client.is_open == (code < 500)
    return code, text


def kept(site: Site) -> int:
    return len(site.protocols.amqp09.interrupted.kept)


def is_clean(site: Site, queue: str = "q") -> bool:
    """Return whether no state of any channel is left."""
    interrupted = site.protocols.amqp09.interrupted
    found = site.vhost.queues.get(queue)
    return (
        not interrupted.open
        and not interrupted.kept
        and not interrupted.of_user
        and not site.broker.holders
        and not site.vhost.exclusive
        and (found is None or (not found.consumers and not found.unacked))
    )


@pytest.mark.rule("0-9", "channel.grammar.open-channel.client-resume")
@pytest.mark.rule("0-9", "channel.resume.response.ok")
@pytest.mark.rule("0-9", "channel.resume.chassis.server")
def test_unacknowledged_deliveries_stay_with_their_channel(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume()
    for body in (b"1", b"2", b"3"):
        channel.publish(body=body)
    assert channel.delivered() == [b"1", b"2", b"3"]
    channel.client.drop()
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 3)
    again = resume(channel, number=7)
    again.ack(2)
    again.run()
    assert (queue.ready_count, queue.unacked) == (0, 2)
    again.ack(3, multiple=True)
    again.run()
    assert queue.unacked == 0


def test_tags_continue(channel: Channel) -> None:
    channel.declare()
    channel.consume(tag="mine")
    channel.publish()
    channel.deliveries()
    channel.client.drop()
    again = resume(channel)
    again.publish(body=b"next")
    (delivery,) = again.deliveries()
    assert (delivery.consumer_tag, delivery.delivery_tag, delivery.body) == (b"mine", 2, b"next")


def test_an_interrupted_consumer_gets_no_messages_until_it_resumes(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume()
    channel.client.drop()
    other = connect(site).channel()
    other.publish(body=b"meanwhile")
    other.run()
    assert site.vhost.queues["q"].ready_count == 1
    assert [delivery.body for delivery in resume(channel).deliveries()] == [b"meanwhile"]


def test_recover_redelivers_unreceived_messages(channel: Channel) -> None:
    channel.declare()
    channel.consume()
    channel.client.deaf = True
    channel.publish()
    channel.run()
    channel.client.drop()
    again = resume(channel)
    assert again.deliveries() == []
    again.send("basic.recover", requeue=False)
    (delivery,) = again.deliveries()
    assert delivery.redelivered and delivery.delivery_tag == 2


def test_flow_and_windows_are_as_they_were(channel: Channel) -> None:
    channel.declare()
    channel.qos(2)
    channel.consume()
    channel.call("channel.flow", "channel.flow-ok", active=False)
    for _ in range(3):
        channel.publish()
    channel.run()
    channel.client.drop()
    again = resume(channel)
    assert again.deliveries() == []
    again.call("channel.flow", "channel.flow-ok", active=True)
    assert len(again.deliveries()) == 2


def test_a_transaction_resumes(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.publish(body=b"got")
    channel.run()
    channel.call("tx.select", "tx.select-ok")
    channel.publish(body=b"sent")
    channel.consume()
    (delivery,) = channel.deliveries()
    channel.ack(delivery.delivery_tag)
    channel.run()
    channel.client.drop()
    again = resume(channel)
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 1)
    again.call("tx.commit", "tx.commit-ok")
    assert [delivery.body for delivery in again.deliveries()] == [b"sent"]
    assert queue.unacked == 1


def test_several_channels_of_a_connection(site: Site, channel: Channel) -> None:
    second = channel.client.channel()
    name = channel.declare("own", exclusive=True)
    channel.consume(name)
    second.consume(name)
    channel.client.drop()
    client = connect(site)
    first, other = resume(second, client), resume(channel, client)
    first.publish(name, b"1")
    first.publish(name, b"2")
    first.run()
    assert len(first.deliveries()) + len(other.deliveries()) == 2


def test_exclusive_queues_are_kept_with_the_channels(site: Site, channel: Channel) -> None:
    channel.declare("own", exclusive=True)
    channel.publish("own")
    channel.run()
    channel.client.drop()
    assert site.vhost.queues["own"].ready_count == 1
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    stranger = connect(site, user="other").channel()
    stranger.send("queue.delete", queue="own")
    assert stranger.refused() == 405
    again = resume(channel)
    assert again.bodies("own") == [b"m"]
    again.client.engine.send(0, "connection.close", {})
    again.run()
    assert "own" not in site.vhost.queues
    assert is_clean(site)


def test_a_channel_may_be_interrupted_again(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume()
    channel.publish()
    channel.deliveries()
    for _ in range(3):
        channel.client.drop()
        assert kept(site) == 1
        channel = resume(channel)
    channel.ack(1)
    channel.run()
    assert site.vhost.queues["q"].unacked == 0
    channel.close()
    assert is_clean(site)


def test_a_connection_with_an_unnoticed_loss_is_closed(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume()
    channel.publish()
    channel.deliveries()
    again = resume(channel)
    assert channel.client.peer.aborted
    again.ack(1)
    again.run()
    assert site.vhost.queues["q"].unacked == 0 and len(site.services.sessions) == 1


def test_a_channel_that_is_open_on_the_same_connection_is_in_use(channel: Channel) -> None:
    channel.client.engine.send(2, "channel.resume", {"channel_id": channel.id})
    channel.run()
    assert channel.client.refusal()[0] == 405
    channel.declare()  # the connection and the channel are as they were
    channel.client.engine.send(2, "channel.open", {})
    channel.run()
    assert channel.client.take("channel.open-ok", 2) is not None


def test_an_open_channel_is_not_resumed(channel: Channel) -> None:
    id = channel.id.encode()
    channel.client.session.data_received(frame(1, 1, struct.pack(">HHI", 20, 50, len(id)) + id))
    assert channel.refused() == 503


@pytest.mark.parametrize("count", [4, 5])
def test_the_window_of_the_connection_counts_a_limited_number_of_deliveries(
    site: Site, channel: Channel, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(basic_methods, "MAX_COUNTED", 4)
    channel.declare()
    channel.consume()
    for _ in range(5):
        channel.publish("q", b"xx")
    assert len(channel.deliveries()) == 5
    for tag in range(1, 6 - count):
        channel.ack(tag)
    channel.run()
    channel.client.drop()
    client = connect(site)
    client.channel(9).qos(0, 9, everywhere=True)
    if count == 4:
        resumed = resume(channel, client, 1)
        # The window has 8 bytes already.
        resumed.publish("q", b"xx")
        assert resumed.deliveries() == []
        return
    client.engine.send(1, "channel.resume", {"channel_id": channel.id})
    client.run()
    code, text = client.refusal()
    assert code == 406 and "5 unacknowledged deliveries; expected at most 4: resume it before basic.qos" in text
    assert resume(channel).client.session.channels[1].outstanding() == 5


@pytest.mark.parametrize("id", ["", "unknown", b"\xff\xfe", "x" * 100_000], ids=["empty", "unknown", "octets", "long"])
def test_an_unknown_id_is_not_found(site: Site, id: Any) -> None:
    assert refused(site, id)[0] == 404


def test_a_channel_that_was_closed_is_not_found(site: Site, channel: Channel) -> None:
    channel.close()
    channel.client.drop()
    assert refused(site, channel.id)[0] == 404


def test_a_closed_connection_leaves_no_channels(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume()
    channel.publish()
    channel.run()
    channel.client.engine.send(0, "connection.close", {})
    channel.run()
    assert refused(site, channel.id)[0] == 404
    assert site.vhost.queues["q"].ready_count == 1


def test_a_connection_closed_by_the_broker_leaves_no_channels(site: Site, channel: Channel) -> None:
    channel.send("basic.consume", queue="q" * 3, consumer_tag="x")
    channel.client.session.close(541, "on purpose")
    channel.client.drop()
    assert is_clean(site)


def test_another_user_gets_the_same_error(site: Site, channel: Channel) -> None:
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    unknown = refused(site, "unknown", user="other")
    assert refused(site, channel.id, user="other") == unknown
    assert channel.client.is_open
    channel.client.drop()
    assert refused(site, channel.id, user="other") == unknown
    resume(channel)


def test_another_vhost_has_other_channels(site: Site, channel: Channel) -> None:
    site.broker.add_vhost("second", site.vhost.settings)
    user = site.users.get("user")
    assert user is not None
    site.allow("both", "second", user.permissions["/"])
    site.declared["both"].user.permissions["/"] = user.permissions["/"]
    site.users.declare(site.declared)
    mine = connect(site, user="both").channel()
    mine.client.drop()
    assert refused(site, mine.id, user="both", vhost="second")[0] == 404
    client = connect(site, user="both")
    resume(mine, client)


def test_a_tag_that_another_consumer_has(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume(tag="t")
    channel.client.drop()
    client = connect(site)
    client.channel().consume(tag="t")
    client.engine.send(2, "channel.resume", {"channel_id": channel.id})
    client.run()
    assert client.refusal()[0] == 530
    client.drop()
    resume(channel)


def test_too_many_channels_of_a_user(site: Site) -> None:
    site.allow(
        "few",
        "/",
        site.users.get("user").permissions["/"],  # type: ignore[union-attr]
        limits=UserLimits(max_channels=1),
    )
    lost = connect(site, user="few").channel()
    lost.client.drop()
    client = connect(site, user="few")
    client.channel()
    client.engine.send(2, "channel.resume", {"channel_id": lost.id})
    client.run()
    assert client.refusal()[0] == 530


def test_tickets_stay_valid(site: Site) -> None:
    rights = {"user": frozenset(("active", "write", "exclusive"))}
    site.protocols.amqp09.realms["/"] = Realms({"/data": Realm("/data", ".*", rights)})
    channel = connect(site).channel()
    ticket = channel.call("access.request", "access.request-ok", realm="/data", exclusive=True, active=True, write=True)[
        "ticket"
    ]
    channel.client.drop()
    stranger = connect(site).channel()
    stranger.send("access.request", realm="/data", write=True)
    assert stranger.refused() == 403
    again = resume(channel)
    again.call("queue.declare", "queue.declare-ok", queue="q", ticket=ticket)
    again.publish(ticket=ticket)
    again.run()
    assert site.vhost.queues["q"].ready_count == 1


def test_uploads_wait_and_files_being_delivered_are_requeued(site: Site, channel: Channel) -> None:
    channel.declare()
    upload(channel, "there")
    channel.send("file.publish", routing_key="q", identifier="there")
    channel.call("file.open", "file.open-ok", identifier="more", content_size=100)
    channel.call("file.consume", "file.consume-ok", queue="q")
    channel.run()
    assert channel.client.take("file.open", 1) is not None
    channel.client.drop()
    assert site.vhost.queues["q"].ready_count == 1
    again = resume(channel)
    again.run()
    opened = again.client.take("file.open", again.number)
    assert opened is not None and opened.arguments["content_size"] == len(BODY)
    assert again.call("file.open", "file.open-ok", identifier="more", content_size=100) == {"staged_size": 0}


def test_requeued_files_do_not_count_in_the_window(channel: Channel) -> None:
    channel.declare()
    for _ in range(2):
        upload(channel)
        channel.send("file.publish", routing_key="q", identifier="one")
    channel.call("file.qos", "file.qos-ok", prefetch_size=2 * len(BODY))
    channel.call("file.consume", "file.consume-ok", queue="q")
    channel.run()
    channel.client.drop()
    again = resume(channel)
    again.run()
    for _ in range(2):
        assert again.client.take("file.open", again.number) is not None


def test_a_partial_content_is_discarded(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.publish(body=b"a" * 300_000)
    octets = channel.client.engine.to_send()
    channel.client.session.data_received(octets[:200_000])
    channel.client.drop()
    again = resume(channel)
    again.publish(body=b"whole")
    assert again.bodies() == [b"whole"]


def test_rates_of_streams_stay_valid(site: Site, channel: Channel, clock: Clock) -> None:
    channel.declare()
    streaming.qos(channel, 100, count=1)
    streaming.consume(channel)
    streaming.publish(channel, bytes(100))
    assert len(streaming.delivered(channel)) == 1
    channel.client.drop()
    again = resume(channel)
    streaming.publish(again, bytes(100))
    assert streaming.delivered(again) == []
    clock.advance(1001)
    assert len(streaming.delivered(again)) == 1


def test_a_publisher_is_asked_to_pause_again(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.publish()
    channel.run()
    channel.client.session.alarm("memory")
    channel.client.drop()
    site.services.alarm = "memory"
    again = resume(channel)
    again.publish()
    again.run()
    flow = again.client.take("channel.flow", again.number)
    assert flow is not None and flow.arguments == {"active": False}


def test_distributed_transactions_resume(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("dtx.select", "dtx.select-ok")
    channel.call("dtx.start", "dtx.start-ok", dtx_identifier="one")
    channel.publish(body=b"1")
    channel.run()
    channel.client.drop()
    again = resume(channel)
    again.publish(body=b"2")
    again.run()
    site.vhost.branches.prepare(site.vhost.branches.find("one", "user"), lambda *_: None)
    site.run()
    site.vhost.branches.commit(site.vhost.branches.find("one", "user"), False, lambda *_: None)
    site.run()
    assert site.vhost.queues["q"].ready_count == 2


def test_transfers_are_answered_after_a_resume(site: Site, channel: Channel) -> None:
    channel.declare()
    test_message.consume(channel)
    for body in (b"1", b"2"):
        test_message.put(channel, body)
    assert test_message.bodies(channel) == [b"1", b"2"]
    channel.client.drop()
    again = resume(channel)
    queue = site.vhost.queues["q"]
    assert queue.unacked == 2
    for left in (1, 0):
        again.send("message.ok")
        again.run()
        assert queue.unacked == left and queue.ready_count == 0
    test_message.put(again, b"3")
    assert test_message.bodies(again) == [b"3"]


def test_an_unsent_transfer_is_sent_again(site: Site, channel: Channel) -> None:
    channel.declare()
    test_message.put(channel, b"small")
    test_message.consume(channel)
    assert test_message.bodies(channel) == [b"small"]
    channel.client.session.pause_writing()
    large = site.channel()
    large.publish(body=bytes(3_000_000))
    large.run()
    channel.client.session.resume_writing()
    channel.client.session.pause_writing()
    large.run()
    channel.client.drop()
    queue = site.vhost.queues["q"]
    assert (queue.unacked, queue.ready_count) == (1, 1)
    again = resume(channel)
    again.run()
    assert again.client.take("message.open", again.number) is not None
    again.send("message.ok")
    again.send("message.ok")
    again.run()
    assert (queue.unacked, queue.ready_count) == (0, 0)


def test_a_channel_is_resumed_by_a_request(channel: Channel) -> None:
    channel.declare()
    channel.client.drop()
    client = Client(channel.client.site)
    plain = client.open_vhost

    def open_vhost() -> None:
        client.engine.use_requests()
        plain()

    client.open_vhost = open_vhost  # type: ignore[method-assign, assignment]
    client.open()
    again = resume(channel, client)
    assert again.call("queue.declare", "queue.declare-ok", queue="q", passive=True)["queue"] == "q"
    assert refused(channel.client.site, "unknown")[0] == 404


def test_references_wait_for_their_own_resumption(channel: Channel) -> None:
    channel.declare()
    for reference in (b"kept", b"gone"):
        channel.call("message.open", "message.ok", reference=reference)
        channel.call("message.append", "message.ok", reference=reference, bytes=b"abc")
    channel.call("message.checkpoint", "message.ok", reference=b"kept", identifier="one")
    channel.client.drop()
    again = resume(channel)
    assert again.call("message.resume", "message.offset", reference=b"kept", identifier="one") == {"value": 3}
    again.call("message.open", "message.ok", reference=b"gone")


def test_transfers_in_requests_are_sent_again(site: Site) -> None:
    """Replies to them would name requests of the lost connection."""
    client = Client(site)
    plain = client.open_vhost

    def open_vhost() -> None:
        client.engine.use_requests()
        plain()

    client.open_vhost = open_vhost  # type: ignore[method-assign, assignment]
    client.open()
    channel = client.channel()
    channel.declare()
    test_message.consume(channel)
    test_message.put(channel, b"1")
    assert test_message.bodies(channel) == [b"1"]
    client.drop()
    assert site.vhost.queues["q"].unacked == 1
    again = resume(channel)
    taken = test_message.got(again)
    assert taken["redelivered"] and taken["body"] == (0, b"1")
    again.send("message.ok")
    again.run()
    assert site.vhost.queues["q"].unacked == 0


# Channels that are not resumed


def test_messages_of_channels_not_resumed_in_time_are_requeued(site: Site, channel: Channel, clock: Clock) -> None:
    channel.declare()
    channel.declare("own", exclusive=True)
    channel.consume()
    channel.publish()
    channel.run()
    channel.client.drop()
    clock.advance(9_900)
    assert kept(site) == 1 and "own" in site.vhost.queues
    clock.advance(200)
    assert "own" not in site.vhost.queues
    assert site.vhost.queues["q"].ready_count == 1
    assert is_clean(site)
    assert refused(site, channel.id)[0] == 404
    other = connect(site).channel()
    other.consume()
    (delivery,) = other.deliveries()
    assert delivery.redelivered


def test_a_channel_that_was_resumed_does_not_time_out(site: Site, channel: Channel, clock: Clock) -> None:
    channel.client.drop()
    again = resume(channel)
    clock.advance(60_000)
    again.declare()


def test_other_channels_of_the_connection_still_time_out(site: Site, channel: Channel, clock: Clock) -> None:
    second = channel.client.channel()
    channel.client.drop()
    again = resume(channel)
    clock.advance(11_000)
    again.declare()
    assert refused(site, second.id)[0] == 404
    assert kept(site) == 0


def test_channels_are_not_kept_if_the_setting_is_0(site: Site, channel: Channel) -> None:
    site.protocols.amqp09.settings = Amqp09Settings(resume_timeout=0.0)
    channel.declare()
    channel.consume()
    channel.publish()
    channel.run()
    channel.client.drop()
    assert site.vhost.queues["q"].ready_count == 1 and is_clean(site)
    assert refused(site, channel.id)[0] == 404


def test_interrupted_channels_per_user_are_limited(site: Site) -> None:
    site.protocols.amqp09.settings = Amqp09Settings(resume_timeout=10.0, resume_channels=3)
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    other = connect(site, user="other").channel()
    other.client.drop()
    lost = []
    for _ in range(3):
        client = connect(site)
        lost += [client.channel(), client.channel()]
        client.drop()
    assert kept(site) == 4
    assert [refused(site, channel.id)[0] for channel in lost[:3]] == [404, 404, 404]
    for channel in lost[3:]:
        resume(channel)
    resume(other, connect(site, user="other"))


def test_the_oldest_is_dropped_and_its_messages_requeued(site: Site, channel: Channel) -> None:
    site.protocols.amqp09.settings = Amqp09Settings(resume_timeout=10.0, resume_channels=1)
    channel.declare()
    channel.declare("own", exclusive=True)
    channel.consume()
    channel.publish()
    channel.run()
    channel.client.drop()
    assert site.vhost.queues["q"].unacked == 1
    connect(site).channel().client.drop()
    assert site.vhost.queues["q"].ready_count == 1 and "own" not in site.vhost.queues


def test_a_deleted_user_leaves_no_channels(site: Site) -> None:
    site.allow("gone", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    channel = connect(site, user="gone").channel()
    channel.declare("own", exclusive=True)
    channel.client.drop()
    del site.declared["gone"]
    site.users.declare(site.declared)
    site.run()
    assert kept(site) == 0 and "own" not in site.vhost.queues


def test_a_deleted_vhost_leaves_no_channels(site: Site) -> None:
    site.broker.add_vhost("second", site.vhost.settings)
    site.allow("there", "second", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    channel = connect(site, user="there", vhost="second").channel()
    channel.declare()
    channel.consume()
    channel.publish()
    channel.run()
    channel.client.drop()
    assert kept(site) == 1
    site.broker.remove_vhost("second")
    site.run()
    assert is_clean(site)


def test_a_queue_deleted_while_its_channel_is_interrupted(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume()
    channel.publish()
    channel.deliveries()
    channel.client.drop()
    other = connect(site).channel()
    other.call("queue.delete", "queue.delete-ok", queue="q")
    again = resume(channel)
    again.ack(1)
    again.declare("other")
    again.consume("other")


def test_a_client_that_does_not_resume_can_redeclare_its_exclusive_queue(site: Site, channel: Channel) -> None:
    channel.declare("own", exclusive=True)
    channel.publish("own")
    channel.run()
    channel.client.drop()
    other = connect(site).channel()
    other.declare("own", exclusive=True)
    assert other.bodies("own") == []
    assert refused(site, channel.id)[0] == 404


def test_a_client_that_does_not_resume_may_consume_exclusively(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.consume(exclusive=True)
    channel.publish()
    channel.run()
    channel.client.drop()
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    stranger = connect(site, user="other").channel()
    stranger.send("basic.consume", queue="q")
    assert stranger.refused() == 403
    other = connect(site).channel()
    other.consume(exclusive=True)
    assert other.delivered() == [b"m"]
    stream = connect(site).channel()
    other.client.drop()
    streaming.consume(stream, exclusive=True)
    assert kept(site) == 0


def test_resuming_leaves_no_state(site: Site, clock: Clock) -> None:
    gc.collect()
    before = sum(isinstance(item, BrokersChannel) for item in gc.get_objects())
    for round in range(20):
        client = connect(site)
        channels = [client.channel() for _ in range(5)]
        channels[0].declare()
        for channel in channels:
            channel.consume()
        channels[0].publish()
        channels[0].run()
        client.drop()
        if round % 2:
            again = resume(channels[1])
            again.client.drop()
        clock.advance(11_000)
        assert is_clean(site) or kept(site) == 0
    assert is_clean(site)
    assert not [item for item in site.broker.timers.heap if item[2].due]
    assert site.services.sessions == {}
    del client, channels, channel, again
    gc.collect()
    assert sum(isinstance(item, BrokersChannel) for item in gc.get_objects()) <= before + 1


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_lost_or_duplicated_over_many_cuts(site: Site, clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    names = ("one", "two")
    setup = connect(site).channel()
    for name in names:
        setup.declare(name)
    lost: list[Channel] = []
    for _ in range(60):
        client = connect(site)
        if lost and chance.random() < 0.7:
            channel = lost.pop(chance.randrange(len(lost)))
            client.engine.send(1, "channel.resume", {"channel_id": channel.id})
            client.run()
            if client.take("channel.ok", 1) is None:
                assert client.refusal()[0] == 404
                continue
            again = Channel(client, 1)
            again.id = channel.id
            channel = again
        else:
            channel = client.channel()
            channel.qos(chance.randrange(4))
            for _ in range(chance.randrange(3)):
                channel.consume(chance.choice(names))
            streaming.consume(channel, chance.choice(names))
            test_message.consume(channel, chance.choice(names), destination=f"d{chance.random()}")
        for _ in range(chance.randrange(10)):
            name = chance.choice(names)
            if chance.random() < 0.5:
                channel.publish(name)
            else:
                streaming.publish(channel, key=name, priority=chance.randrange(10))
        for delivery in channel.deliveries():
            if chance.random() < 0.5:
                channel.ack(delivery.delivery_tag)
        octets = client.engine.to_send()
        if octets:
            client.session.data_received(octets[: chance.randrange(len(octets))])
        client.drop()
        lost.append(channel)
        clock.advance(chance.choice((0, 100, 4000)))
    setup.client.drop()
    clock.advance(11_000)
    for name in names:
        queue = site.vhost.queues[name]
        assert queue.counters.published > 20 and queue.counters.settled > 10
        assert queue.counters.published == queue.counters.settled + queue.ready_count
        assert is_clean(site, name)


def test_a_commit_in_progress_is_awaited(site: Site) -> None:
    log = HeldLog(held=True)
    held = Site(log)
    held.protocols.amqp09.settings = Amqp09Settings(resume_timeout=10.0)
    channel = connect(held).channel()
    channel.send("queue.declare", queue="kept", durable=True)
    channel.run()
    assert channel.client.take("queue.declare-ok", 1) is None
    channel.client.drop()
    assert refused(held, channel.id)[0] == 405
    log.held = False
    while log.flying is not None:
        log.release()
        held.run()
    again = resume(channel)
    assert again.call("queue.declare", "queue.declare-ok", queue="kept", passive=True)["queue"] == "kept"


def test_resume_has_its_own_reply(site: Site, channel: Channel) -> None:
    channel.client.drop()
    client = connect(site)
    client.engine.send(3, "channel.resume", {"channel_id": channel.id})
    client.run()
    (answer,) = client.received
    assert isinstance(answer, Method) and (answer.name, answer.channel, answer.arguments) == ("channel.ok", 3, {})
