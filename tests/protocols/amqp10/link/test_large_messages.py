"""Messages in many frames: their application data goes to the spool while it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.storage.spool import FileSpool
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Accepted, Header, Properties, Source
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition
from leveret.wire.amqp10.values import Symbol
from tests.protocols.amqp10.support import Sender, Session, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site, bytes_of

THRESHOLD = 100_000
BODY = bytes(range(251)) * 4000
FOOTER = b"\x00\x53\x78" + encode_pairs([(Symbol("x-opt-hash"), 5)])
ANNOTATIONS = b"\x00\x53\x72" + encode_pairs([(Symbol("x-opt-a"), "a" * 500)])
LARGE = message(BODY, header=Header(True), before=ANNOTATIONS, properties=Properties("id"), after=FOOTER)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[FileSpool]:
    spool = FileSpool(tmp_path, 0)
    yield spool
    spool.close()


@pytest.fixture
def site(spool: FileSpool) -> Site:
    site = make_site(spool_threshold=THRESHOLD)
    site.log.spool = spool
    site.vhost.declare_queue("q", None, durable=True)
    return site


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def is_empty(spool: FileSpool) -> bool:
    """Return whether no body is left, once its thread has finished its work."""
    spool.close()
    return not spool.blocks


def begin(sender: Sender, payload: bytes = LARGE, *, size: int = 30_000, until: int = -1, **options: object) -> bytes:
    """Send a delivery up to `until` (all but its last frame) in frames; return the rest."""
    number = sender.session.next_id
    sender.session.next_id += 1
    stop = len(payload) - size if until < 0 else until
    at = 0
    first: dict[str, object] = {"delivery_id": number, "delivery_tag": b"tag"}
    while at < stop:
        sender.part(payload[at : at + size], more=True, **first, **options)
        sender.client.run()
        at += size
        first = {}
    return payload[at:]


def end(sender: Sender, rest: bytes, **options: object) -> None:
    sender.part(rest, **options)
    sender.client.run()


@pytest.mark.parametrize("size", [7_000, 30_000, 65_000])
def test_it_is_delivered_unchanged(site: Site, session: Session, spool: FileSpool, size: int) -> None:
    sender = session.sender()
    rest = begin(sender, size=size)
    connection = session.client.session
    assert spool.blocks >= 3
    assert connection.partial < 2_000
    end(sender, rest)
    assert isinstance(session.client.take(Disposition).state, Accepted)
    assert connection.partial == 0
    frames = session.receiver(credit=1).deliveries()
    payload = b"".join(frame.payload for frame in frames)
    sections, sent = split(payload), split(LARGE)
    assert payload[sections.bare :] == LARGE[sent.bare :]
    assert payload[sections.message_annotations : sections.message_annotations_end].count(b"a" * 500) == 1
    assert sections.durable
    entry = session.client.session.sessions.by_channel[0].unacked[frames[0].delivery_id or 0]
    assert entry.message.persistent
    assert not isinstance(entry.message.body, (bytes, list))
    del entry
    session.dispose(frames[0].delivery_id or 0, state=Accepted())
    assert is_empty(spool)


def test_a_consumer_of_0_9_1_gets_it(site: Site, session: Session) -> None:
    sender = session.sender()
    end(sender, begin(sender))
    got = site.channel().get("q")
    assert got is not None
    assert bytes_of(got.body) == BODY


def test_small_ones_stay_in_memory(session: Session, spool: FileSpool) -> None:
    sender = session.sender()
    rest = begin(sender, message(b"x" * (THRESHOLD - 1000)), size=30_000)
    assert session.client.session.partial >= 60_000
    end(sender, rest)
    assert isinstance(session.client.take(Disposition).state, Accepted)
    assert not spool.blocks


def test_without_a_spool_it_stays_in_memory(site: Site, session: Session) -> None:
    site.log.spool = None
    sender = session.sender()
    end(sender, begin(sender))
    assert b"".join(frame.payload for frame in session.receiver(credit=1).deliveries()).endswith(FOOTER)


def test_many_sections(session: Session) -> None:
    data = b"\x00\x53\x75\xa0\xc8" + bytes(200)
    payload = encode_composite(Properties("id")) + data * 2000
    sender = session.sender()
    end(sender, begin(sender, payload, size=33_333))
    got = b"".join(frame.payload for frame in session.receiver(credit=1).deliveries())
    assert got[split(got).bare :] == payload


def test_an_abort_releases_everything(session: Session, spool: FileSpool) -> None:
    sender = session.sender()
    begin(sender)
    assert spool.blocks
    end(sender, b"", aborted=True)
    assert session.client.session.partial == 0
    sender.send(message(b"next"))
    assert session.receiver(credit=2).bodies() == [b"next"]
    assert is_empty(spool)


@pytest.mark.parametrize("how", ["detach", "end", "drop"])
def test_a_detach_releases_everything(site: Site, session: Session, spool: FileSpool, how: str) -> None:
    sender = session.sender()
    begin(sender)
    assert spool.blocks
    if how == "detach":
        sender.detach()
    elif how == "end":
        session.end()
    else:
        session.client.drop()
    del sender, session
    assert is_empty(spool)
    assert site.vhost.queues["q"].ready_count == 0


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x00\x53\x76\x45",
        b"\x00\x53\x70\x45",
        b"nonsense",
        b"\x00\x53\x75\xa0\x10cut off",
        b"\x00\x53\x78\xc1\x03\x02\xa1\x00",
    ],
    ids=["another body", "header", "nonsense", "cut off", "footer"],
)
def test_an_error_after_the_body(site: Site, session: Session, spool: FileSpool, wrong: bytes) -> None:
    sender = session.sender()
    end(sender, begin(sender, message(BODY) + wrong))
    assert session.client.error(Detach)[0] == "amqp:decode-error"
    assert session.client.session.partial == 0
    assert site.vhost.queues["q"].ready_count == 0
    assert is_empty(spool)


@pytest.mark.rule("1.0", "transport.link-error.message-size-exceeded.choice")
def test_the_largest_message_is_the_same(spool: FileSpool) -> None:
    site = make_site(spool_threshold=THRESHOLD, max_message_size=500_000)
    site.log.spool = spool
    session = connect(site).begin()
    sender = session.sender()
    begin(sender)
    assert session.client.error(Detach)[0] == "amqp:link:message-size-exceeded"
    assert is_empty(spool)


def test_a_disk_without_room(site: Site, session: Session, tmp_path: Path) -> None:
    site.log.spool = FileSpool(tmp_path, 1 << 60)
    sender = session.sender()
    begin(sender)
    condition, text = session.client.error(Detach)
    assert condition == "amqp:link:message-size-exceeded"
    assert "limits.disk_free" in text
    assert session.client.session.partial == 0


def test_a_transaction_that_is_rolled_back(session: Session, spool: FileSpool) -> None:
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    end(sender, begin(sender, state=TransactionalState(id)), state=TransactionalState(id))
    assert spool.blocks
    controller.discharge(id, True)
    assert is_empty(spool)


def test_a_delivery_that_is_resumed_in_the_middle(session: Session, spool: FileSpool) -> None:
    """The part received before the detach need not be sent again."""
    source = Source("here", expiry_policy=Symbol("session-end"))
    sender = session.sender(name="link", source=source)
    begin(sender, until=600_000)
    sender.detach(closed=False)
    again = session.sender(name="link", source=source, unsettled={b"tag": None})
    unsettled = again.attached.unsettled
    if not unsettled:
        pytest.fail("the broker does not know the delivery any more")
    received = unsettled[b"tag"]
    rest = LARGE[split(LARGE).body + received.section_offset :] if received.section_number else LARGE
    number = session.next_id
    session.next_id += 1
    again.part(rest[:60_000], delivery_id=number, delivery_tag=b"tag", resume=True, more=True, state=received)
    end(again, rest[60_000:])
    got = b"".join(frame.payload for frame in session.receiver(credit=1).deliveries())
    assert got[split(got).bare :] == LARGE[split(LARGE).bare :]
