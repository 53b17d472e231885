"""Publisher confirms of transient messages: numbers, multiple, nacks, returns."""

from __future__ import annotations

from tests.protocols.support import Channel, Site


def confirming(site: Site) -> Channel:
    channel = site.channel()
    channel.call("confirm.select", "confirm.select-ok")
    return channel


def test_confirms_of_one_turn_are_combined() -> None:
    channel = confirming(Site())
    channel.declare()
    for _ in range(5):
        channel.publish()
    channel.run()
    assert channel.confirms() == [("ack", 5, True)]
    channel.publish()
    channel.run()
    assert channel.confirms() == [("ack", 6, False)]


def test_numbers_begin_with_confirm_select() -> None:
    channel = Site().channel()
    channel.publish("nowhere")
    channel.call("confirm.select", "confirm.select-ok")
    channel.publish("nowhere")
    channel.run()
    assert channel.confirms() == [("ack", 1, False)]


def test_unroutable_messages_are_confirmed_after_their_return() -> None:
    channel = confirming(Site())
    channel.publish("nowhere", mandatory=True)
    channel.run()
    kinds = [type(item).__name__ for item in channel.client.received]
    assert kinds == ["ContentMethod", "Ack"]


def test_a_refused_publish_is_nacked_and_multiple_ends_before_it() -> None:
    channel = confirming(Site())
    channel.declare(arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    channel.declare("other")
    for key in ("q", "q", "q", "q", "other", "q", "other", "other"):
        channel.publish(key)
    channel.run()
    assert channel.confirms() == [
        ("ack", 3, True),
        ("nack", 4, False),
        ("ack", 5, False),
        ("nack", 6, False),
        ("ack", 8, True),
    ]


def test_an_ack_before_a_nack_covers_both_publishes() -> None:
    channel = confirming(Site())
    channel.declare(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for _ in range(3):
        channel.publish()
    channel.run()
    assert channel.confirms() == [("ack", 2, True), ("nack", 3, False)]


def test_the_first_and_the_last_publish_are_refused() -> None:
    channel = confirming(Site())
    channel.declare(arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.declare("other")
    for key in ("q", "other", "q"):
        channel.publish(key)
    channel.run()
    assert channel.confirms() == [("nack", 1, False), ("ack", 2, False), ("nack", 3, False)]


def test_each_channel_has_its_own_sequence() -> None:
    site = Site()
    first = confirming(site)
    second = first.client.channel()
    second.call("confirm.select", "confirm.select-ok")
    first.publish("nowhere")
    second.publish("nowhere")
    second.publish("nowhere")
    first.run()
    assert first.confirms() == [("ack", 1, False)]
    assert second.confirms() == [("ack", 2, True)]


def test_confirm_and_tx_exclude_each_other() -> None:
    channel = confirming(Site())
    channel.send("tx.select")
    channel.run()
    assert channel.client.refusal()[0] == 406
    channel = channel.client.channel(2)
    channel.call("tx.select", "tx.select-ok")
    channel.send("confirm.select")
    channel.run()
    assert channel.client.refusal()[0] == 406


def test_messages_before_a_refused_publish_are_confirmed() -> None:
    channel = confirming(Site())
    channel.publish("nowhere")
    channel.publish("k", exchange="missing")
    channel.run()
    assert channel.confirms() == [("ack", 1, False)]
    assert channel.client.refusal()[0] == 404
