"""The consumer timeout of existing consumers follows the policies of their queues."""

from __future__ import annotations

from leveret.security.patterns import compile_pattern
from leveret.wire.amqp0.commands import Method
from tests.protocols.amqp09.support import Clock
from tests.protocols.support import Channel, Site


def site_with_clock() -> tuple[Site, Clock]:
    site = Site()
    site.broker.compile_pattern = compile_pattern
    return site, Clock(site)


def set_timeout(site: Site, milliseconds: int, pattern: str = "^q$") -> None:
    policies = site.vhost.policies
    policies.set(policies.user, "p", pattern, {"consumer-timeout": milliseconds})


def closed_with(channel: Channel) -> int:
    """The reply code of the last method, 0 if the channel is open."""
    channel.run()
    last = channel.client.received[-1]
    code: int = last.arguments["reply_code"] if isinstance(last, Method) and last.name == "channel.close" else 0
    return code


def test_a_shorter_timeout_counts_for_deliveries_before_the_change() -> None:
    site, clock = site_with_clock()
    channel = site.channel()
    channel.declare()
    channel.consume()
    channel.publish()
    assert closed_with(channel) == 0
    set_timeout(site, 1000)
    clock.advance(999)
    assert closed_with(channel) == 0
    clock.advance(1)
    assert closed_with(channel) == 406


def test_a_longer_timeout_and_none() -> None:
    site, clock = site_with_clock()
    channel = site.channel()
    channel.declare()
    set_timeout(site, 1000)
    channel.consume()
    channel.publish()
    assert closed_with(channel) == 0
    set_timeout(site, 3000)
    clock.advance(2999)
    assert closed_with(channel) == 0
    site.vhost.policies.delete(site.vhost.policies.user, "p")
    clock.advance(10_000)
    assert closed_with(channel) == 0
    set_timeout(site, 500)
    assert closed_with(channel) == 0
    clock.advance(1)
    assert closed_with(channel) == 406


def test_the_argument_of_the_consumer_wins() -> None:
    site, clock = site_with_clock()
    channel = site.channel()
    channel.declare()
    channel.consume(arguments={"x-consumer-timeout": 5000})
    channel.publish()
    assert closed_with(channel) == 0
    set_timeout(site, 1000)
    clock.advance(4999)
    assert closed_with(channel) == 0
    clock.advance(1)
    assert closed_with(channel) == 406
