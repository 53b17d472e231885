"""Operations that cost more with more channels count as more work."""

from __future__ import annotations

from leveret.protocols.amqp09.connection.base import CHANNELS_SHIFT
from tests.protocols.amqp09.support import Client
from tests.protocols.support import Site


def test_finding_the_channel_of_a_consumer_tag_is_work() -> None:
    client = Client(Site())
    client.open()
    for _ in range(100):
        client.channel()
    broker = client.site.broker
    before = broker.work
    assert client.session.tag_owner("none") is None  # type: ignore[attr-defined]
    assert broker.work - before == 100 >> CHANNELS_SHIFT
