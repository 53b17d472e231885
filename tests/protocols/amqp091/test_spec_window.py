"""The window of a whole connection (`amqp.qos_global = "spec"`): correct, and never recounted."""

from __future__ import annotations

import random

import pytest

from leveret.protocols.amqp091.channel.channel import Channel as Endpoint
from leveret.protocols.amqp091.methods import basic as basic_methods
from tests.protocols.support import Channel, Site


def endpoints(channel: Channel) -> list[Endpoint]:
    return list(channel.client.session.channels.values())


@pytest.mark.parametrize("seed", range(15))
def test_the_window_is_full_and_never_exceeded_whatever_channels_do(seed: int) -> None:
    chance = random.Random(seed)
    site = Site(qos_spec=True)
    publisher = site.channel()
    one = site.channel()
    client = one.client
    channels = {one.number: one}
    window = 5
    one.qos(window, everywhere=True)
    for name in ("a", "b"):
        publisher.declare(name)

    def tags(channel: Channel) -> list[int]:
        return list(client.session.channels[channel.number].unacked.entries)

    before = 0
    for _ in range(150):
        what = chance.randrange(9)
        channel = chance.choice(list(channels.values()))
        if what <= 1:
            for _ in range(chance.randrange(4)):
                publisher.publish(chance.choice("ab"))
            publisher.run()
        elif what == 2 and len(channels) < 6:
            another = client.channel()
            channels[another.number] = another
        elif what == 3:
            channel.consume(chance.choice("ab"))
        elif what == 4 and tags(channel):
            channel.ack(chance.choice(tags(channel)))
        elif what == 5 and tags(channel):
            channel.nack(chance.choice(tags(channel)), requeue=bool(chance.randrange(2)))
        elif what == 6 and tags(channel):
            channel.ack(0, multiple=True)
        elif what == 7 and len(channels) > 1:
            del channels[channel.number]
            channel.close()
        elif what == 8:
            window = chance.choice((0, 1, 3, 5))
            channel.qos(window, everywhere=True)
        publisher.run()
        next(iter(channels.values())).run()
        held = sum(len(one.unacked) for one in client.session.channels.values())
        ready = [name for name in "ab" if site.vhost.queues[name].ready_count and site.vhost.queues[name].consumers]
        if what != 8:
            assert not window or held <= max(window, before)
        if ready:
            assert window and held >= window
        before = held
    client.drop()
    site.run()


def test_an_acknowledgement_does_not_recount_all_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(qos_spec=True)
    publisher = site.channel()
    publisher.declare("q")
    one = site.channel()
    others = [one.client.channel() for _ in range(50)]
    one.qos(2, everywhere=True)
    for channel in others:
        channel.consume("q")
    for _ in range(10):
        publisher.publish("q")
    publisher.run()
    holder = next(channel for channel in others if channel.client.session.channels[channel.number].unacked.entries)
    counted: list[int] = []
    woken: list[int] = []
    note, wake = Endpoint.update_window, Endpoint.wake_own

    def update_window(self: Endpoint) -> None:
        counted.append(1)
        note(self)

    def wake_own(self: Endpoint) -> None:
        woken.append(1)
        wake(self)

    monkeypatch.setattr(Endpoint, "update_window", update_window)
    monkeypatch.setattr(Endpoint, "wake_own", wake_own)
    for tag in list(holder.client.session.channels[holder.number].unacked.entries):
        holder.client.engine.send_ack(holder.number, tag, False)
    holder.run()
    assert len(woken) <= 2 * len(endpoints(one))
    assert len(counted) <= 4 * len(endpoints(one))


def test_a_window_by_size_is_refused_with_too_many_messages_to_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic_methods, "MAX_COUNTED", 4)
    site = Site()
    channel = site.channel()
    channel.declare("q")
    for _ in range(5):
        channel.publish("q")
    channel.consume("q")
    assert len(channel.deliveries()) == 5
    channel.send("basic.qos", prefetch_size=100, prefetch_count=0, **{"global": True})
    channel.run()
    code, text = channel.client.refusal()
    assert code == 406 and "at most 4" in text


def test_an_existing_window_by_size_can_be_changed_with_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic_methods, "MAX_COUNTED", 4)
    site = Site()
    channel = site.channel()
    channel.qos(0, 10_000, everywhere=True)
    channel.declare("q")
    for _ in range(5):
        channel.publish("q", b"12345")
    channel.consume("q")
    assert len(channel.deliveries()) == 5
    channel.qos(0, 20, everywhere=True)
    assert endpoints(channel)[0].unacked.size == 25
