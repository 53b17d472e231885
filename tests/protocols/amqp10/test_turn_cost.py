"""Work that one client can cause in one turn: it is counted in units; the excess waits, or is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from leveret.broker.bodies import StoredBody
from leveret.broker.broker import MAX_CONVERTED
from leveret.broker.message import FORMAT_AMQP1, Message, make_address
from leveret.protocols.amqp10.connection.connection import COSTS, MAX_FRAME_VALUES, MAX_OWN_WORK
from leveret.protocols.amqp10.link.incoming import JOINED_CHUNK, MAX_VALUES, REFUSED, RESOLVED, IncomingLink
from leveret.protocols.amqp10.session import dispositions
from leveret.protocols.amqp10.session.serial_numbers import Numbers
from leveret.protocols.convert import to_amqp0, to_amqp10
from leveret.protocols.convert.names import AMQP_ENCODED, STRING_BODY
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp10.decode import DECIMAL_VALUES, NO_LIMIT, count_values, decode_value
from leveret.wire.amqp10.descriptors import ATTACH
from leveret.wire.amqp10.encode import encode_pairs, encode_value
from leveret.wire.amqp10.frames import FRAME_COST, FrameReader
from leveret.wire.amqp10.messaging import Accepted, Properties, Released, Source, Target
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.sections import MAX_SECTIONS, split
from leveret.wire.amqp10.transport import Attach, Close, Detach, Disposition, End, Flow, Transfer
from leveret.wire.amqp10.values import Array, Decimal32, Described, Symbol, UInt, ULong
from leveret.wire.amqp10.walking import Walk
from tests.protocols.amqp10.support import Client, Session, connect, make_site, message
from tests.protocols.support import Site

PROPERTIES = b"\x00\x53\x74"


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin(incoming_window=1 << 31)


def octets(*frames: Any) -> bytes:
    output = Output(1 << 20)
    for frame in frames:
        output.send(frame)
    return output.to_send()


def one_turn(client: Client, data: bytes) -> None:
    """Do what one read of the socket causes, without the parts left to the next turn."""
    client.session.data_received(data)


# Reading


def test_a_read_is_limited() -> None:
    data = octets(*(Attach(f"link {number}", number, False, target=Target("q")) for number in range(300)))
    reader = FrameReader(1 << 20, 1 << 20, False, NO_LIMIT, 500)
    frames = reader.receive(data)
    calls = 1
    assert len(frames) <= 500 // FRAME_COST
    while reader.more:
        before = len(frames)
        frames.extend(reader.receive(b""))
        assert reader.cost >= 8 * (len(frames) - before)
        calls += 1
    assert [frame.handle for frame in frames if isinstance(frame, Attach)] == list(range(300))
    assert calls > 5
    assert reader.buffered == 0


def test_later_input_is_read_after_the_rest() -> None:
    reader = FrameReader(1 << 20, 1 << 20, False, NO_LIMIT, 1)
    frames = [octets(Attach("link", number, False, target=Target("q"))) for number in range(4)]
    found = reader.receive(frames[0] + frames[1] + frames[2][:10])
    assert reader.more
    found += reader.receive(frames[2][10:])
    found += reader.receive(frames[3][:-1])
    while reader.more:
        found += reader.receive(b"")
    found += reader.receive(frames[3][-1:])
    assert [frame.handle for frame in found if isinstance(frame, Attach)] == [0, 1, 2, 3]
    assert not reader.more


def test_a_frame_has_so_many_values(session: Session) -> None:
    client = session.client
    client.output.max_frame_size = 1 << 20
    client.send(Attach("a", 0, False, target=Target("q"), properties={Symbol("p"): [None] * (MAX_FRAME_VALUES - 20)}))
    client.run()
    assert client.take(Attach).target is not None
    client.send(Attach("b", 1, False, target=Target("q"), properties={Symbol("p"): [None] * MAX_FRAME_VALUES}))
    condition, text = client.error(Close)
    assert condition == "amqp:resource-limit-exceeded"
    assert f"more than {MAX_FRAME_VALUES} values" in text


def test_a_decimal_counts_as_several_values(session: Session) -> None:
    client = session.client
    client.output.max_frame_size = 1 << 20
    most = (MAX_FRAME_VALUES - 20) // DECIMAL_VALUES
    number = Decimal32.of(5)
    client.send(Attach("a", 0, False, target=Target("q"), properties={Symbol("p"): [number] * most}))
    client.run()
    assert client.take(Attach).target is not None
    array = Array("decimal32", [number] * (most + 20))
    client.send(Attach("b", 1, False, target=Target("q"), properties={Symbol("p"): array}))
    condition, text = client.error(Close)
    assert condition == "amqp:resource-limit-exceeded"
    assert f"more than {MAX_FRAME_VALUES} values" in text


# Carrying out


def test_a_burst_of_attaches_is_carried_out_in_several_turns() -> None:
    site = make_site(links=4096)
    session = connect(site).begin()
    client = session.client
    many = 2 * MAX_OWN_WORK // COSTS[ATTACH]
    one_turn(client, octets(*(Attach(f"link {number}", number, False, target=Target("q")) for number in range(many))))
    endpoint = client.session.sessions.by_channel[0]
    assert 0 < len(endpoint.links) <= MAX_OWN_WORK // COSTS[ATTACH] + 1
    client.run()
    assert len(endpoint.links) == many
    assert [frame.handle for frame in client.all(Attach)] == list(range(many))
    assert not client.session.ingress.reasons


def test_free_numbers_are_found_without_looking_at_all() -> None:
    looked = 0

    class Taken(dict[int, Any]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(key)

    numbers = Numbers()
    taken = Taken()
    for number in range(3000):
        assert numbers.lowest(taken) == number
        taken[number] = None
    assert looked <= 3 * 3000
    for number in (7, 2999, 3, 500):
        del taken[number]
        numbers.release(number)
    for number in (3, 7, 500, 2999, 3000):
        assert numbers.lowest(taken) == number
        taken[number] = None


def test_links_of_a_connection_are_limited(site: Site) -> None:
    site.protocols.amqp10.settings.connection_links = 3
    client = connect(site)
    sessions = [client.begin(0), client.begin(1)]
    links = [sessions[number % 2].sender(name=f"link {number}") for number in range(3)]
    refused = sessions[0].sender(name="one more")
    assert refused.attached.target is None
    condition, text = client.error(Detach)
    assert (condition, "amqp10.connection_links" in text) == ("amqp:resource-limit-exceeded", True)
    client.send(Detach(refused.handle, True))
    links[0].detach()
    assert sessions[1].sender(name="again").attached.target is not None


# Deliveries


def deliver(session: Session, count: int, credit: int = 1 << 30) -> Any:
    sender = session.sender("q")
    for number in range(count):
        sender.send(b"\x00\x53\x75\xa0\x01x", settled=True, run=number % 200 == 199)
    session.client.run()
    receiver = session.receiver("q")
    receiver.flow(credit, window=1 << 31)
    return receiver


def test_a_disposition_of_many_is_carried_out_in_several_turns(session: Session) -> None:
    site = session.client.site
    many = dispositions.MAX_AT_ONCE + 500
    site.protocols.amqp10.settings.link_credit = 20_000
    deliver(session, many)
    endpoint = session.client.session.sessions.by_channel[0]
    assert len(endpoint.unacked) == many
    one_turn(session.client, octets(Disposition(True, 0, (1 << 31) - 2, True, Accepted()), End()))
    assert len(endpoint.unacked) == 500
    assert not endpoint.closing
    session.client.run()
    assert not endpoint.unacked
    # None of it was requeued when the session ended after it.
    assert site.vhost.queues["q"].ready_count == 0


def test_the_rest_of_a_disposition_does_not_affect_later_deliveries(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispositions, "MAX_AT_ONCE", 100)
    site.protocols.amqp10.settings.unsettled = 320
    session = connect(site).begin(incoming_window=1 << 31)
    deliver(session, 500)
    endpoint = session.client.session.sessions.by_channel[0]
    assert len(endpoint.unacked) == 320
    one_turn(session.client, octets(Disposition(True, 0, (1 << 31) - 2, True, Accepted())))
    session.client.run()
    # Deliveries sent after the first part had made room could not be settled by the client yet.
    assert sorted(endpoint.unacked) == list(range(320, 500))


def test_looking_for_deliveries_is_work(session: Session) -> None:
    receiver = deliver(session, 320)
    services = session.client.site.services
    services.call_soon = lambda callback: None
    broker = services.broker
    before = broker.work
    one_turn(session.client, octets(*[Disposition(True, 1 << 29, 1 << 30, True, Accepted())] * 10))
    assert broker.work - before >= 10 * (320 >> dispositions.SCAN_SHIFT)
    assert receiver.handle == 1


def test_unsettled_deliveries_of_a_connection_are_limited(site: Site) -> None:
    site.protocols.amqp10.settings.unsettled = 64
    client = connect(site)
    one, two = client.begin(0, incoming_window=1 << 31), client.begin(1, incoming_window=1 << 31)
    first = deliver(one, 200)
    assert len(first.deliveries()) == 64
    second = two.receiver("q")
    second.flow(1000, window=1 << 31)
    assert second.deliveries() == []
    # Settling in one session lets the other one continue, too.
    one.dispose(0, 63, Accepted())
    found = client.all(Transfer)
    assert len(found) >= 64
    assert {frame.handle for frame in found} == {first.attached.handle, second.attached.handle} or len(found) == 128
    for session in (one, two):
        session.dispose(0, (1 << 31) - 2, Accepted())
        found += client.all(Transfer)
    assert len(found) + 64 == 200


# Partial deliveries


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 100])
def test_small_frames_cost_little_more_than_their_payload(session: Session, payload: bytes) -> None:
    sender = session.sender("q")
    sender.part(b"\x00\x53\x75\xb0\x00\x10\x00\x00", delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    for _ in range(1000):
        sender.part(payload, more=True)
    session.client.run()
    link = session.client.session.sessions.by_channel[0].links[sender.handle]
    assert isinstance(link, IncomingLink) and link.chunks is not None
    assert len(link.chunks) <= 1 + 1000 * len(payload) // JOINED_CHUNK
    assert sum(map(len, link.chunks)) == 8 + 1000 * len(payload) == link.buffered


# Messages


def pairs_of(pairs: int, value: Any = None) -> bytes:
    return PROPERTIES + encode_pairs([(f"{number:x}", value) for number in range(pairs)])


def test_values_of_a_message_are_limited(session: Session) -> None:
    sender = session.sender("q")
    fits = MAX_VALUES // 2 - 2
    sender.send(message(before=pairs_of(fits)))
    assert [type(frame.state).__name__ for frame in session.client.all(Disposition)] == ["Accepted"]
    # Texts may be as long as they like.
    sender.send(message(before=pairs_of(3, "x" * 20_000)))
    assert [type(frame.state).__name__ for frame in session.client.all(Disposition)] == ["Accepted"]
    sender.send(message(before=pairs_of(fits + 10)))
    condition, text = session.client.error(Detach)
    assert (condition, f"more than {MAX_VALUES} values" in text) == ("amqp:resource-limit-exceeded", True)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 1),
        ([], 1),
        ([1, [2, 3]], 5),
        ({"a": {"b": "c"}}, 5),
        (Described(ULong(5), "x"), 3),
        (Array("uint", [UInt(1)] * 10), 11),
        (Array("null", [None] * 100), 101),
        ("x" * 1000, 1),
        ([b"x" * 300] * 70, 71),
    ],
)
def test_values_are_counted_without_decoding(value: Any, count: int) -> None:
    encoded = encode_value(value)
    assert count_values(encoded, 0, len(encoded), 1000) == count
    assert decode_value(encoded, 0, -1, count)[0] == value


def test_counting_stops_at_the_limit() -> None:
    encoded = encode_value([None] * 50_000)
    assert count_values(encoded, 0, len(encoded), 100) == 101
    nested = encode_value(Array("list", [[None] * 1000] * 3))
    assert count_values(nested, 0, len(nested), 100_000) >= 3000


@pytest.mark.parametrize("kind", [0x75, 0x76])
def test_sections_of_a_message_are_limited(session: Session, kind: int) -> None:
    section = bytes((0, 0x53, kind)) + (b"\xa0\x00" if kind == 0x75 else b"\x45")
    split(section * MAX_SECTIONS)
    sender = session.sender("q")
    sender.send(section * (MAX_SECTIONS + 2))
    condition, text = session.client.error(Detach)
    assert (condition, f"more than {MAX_SECTIONS} sections" in text) == ("amqp:resource-limit-exceeded", True)
    walk = Walk()
    with pytest.raises(Exception, match="sections"):
        walk.feed(section * (MAX_SECTIONS + 2))


# Conversion


class Counted(StoredBody):
    """A body on disk that counts the bytes read."""

    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.size = len(octets)
        self.was_read = 0

    def read(self, begin: int, count: int) -> bytes:
        self.was_read += count
        return self.octets[begin : begin + count]

    def append(self, octets: bytes) -> None:
        raise AssertionError


def stored(octets: bytes) -> Message:
    return Message(make_address("", "q"), b"", Counted(octets), len(octets), False, format=FORMAT_AMQP1)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (b"\x00\x53\x75\xb0", ""),
        (b"\x00\x53\x77\xb1", STRING_BODY),
        (b"\x00\x53\x77\xb0", AMQP_ENCODED),
        (b"\x00\x53\x76\xd0", AMQP_ENCODED),
    ],
)
def test_a_large_body_is_not_read_to_convert_it(form: bytes, kind: str) -> None:
    size = 100_000
    found = stored(form + struct.pack(">I", size) + bytes(size))
    body, of = to_amqp0._body_of(found)
    assert of == kind
    counted = found.body
    assert isinstance(counted, Counted) and counted.was_read <= 16
    assert body is counted if kind == AMQP_ENCODED else body.size == size  # type: ignore[union-attr]


def test_values_in_a_body_are_not_decoded_to_convert_it() -> None:
    # A list whose count exceeds its bytes cannot be decoded.
    body = b"\x00\x53\x77\xd0" + struct.pack(">II", 8, 1 << 31) + b"\x40" * 4
    found = Message(make_address("", "q"), b"", body, len(body), False, format=FORMAT_AMQP1)
    assert to_amqp0._body_of(found) == (body, AMQP_ENCODED)


def test_too_many_headers_are_not_converted() -> None:
    for count in (to_amqp10.MAX_HEADERS, to_amqp10.MAX_HEADERS + 1):
        header = encode_header(60, 1, {"headers": {f"{number:x}": True for number in range(count)}})
        found = Message(make_address("", "q"), header, b"x", 1, False)
        assert (b"x-opt-headers-lost" in to_amqp10.sections_of(found, None)) == (count > to_amqp10.MAX_HEADERS)


@pytest.mark.parametrize("other", ["0-9-1", "1.0"])
def test_conversions_of_a_turn_are_limited(site: Site, other: str) -> None:
    session = connect(site).begin(incoming_window=1 << 31)
    site.vhost.declare_queue("q", None, durable=True)
    size = MAX_CONVERTED // 4
    channel = site.channel()
    for number in range(12):
        if other == "1.0":
            channel.publish("q", b"x", headers={"text": "x" * size, "number": number})
            channel.client.flush()
        else:
            session.sender("q", name=f"s{number}").send(message(before=pairs_of(1, "x" * size + str(number))))
    site.run()
    assert site.vhost.queues["q"].ready_count == 12
    if other == "1.0":
        session.receiver("q", name="r")
        one_turn(session.client, octets(Flow(1000, 0, 1000, 0, 0, 0, 100)))
        assert 0 < len(session.client.session.sessions.by_channel[0].unacked) <= 6
        session.client.run()
        assert len(session.client.all(Transfer)) == 12
    else:
        queue = site.vhost.queues["q"]
        channel.consume("q")
        assert queue.unacked == 12


def test_messages_to_nowhere_are_work(session: Session) -> None:
    services = session.client.site.services
    services.call_soon = lambda callback: None
    sender = session.sender(None)
    before = services.broker.work
    for number in range(10):
        sender.send(message(properties=Properties(to="/queues/none")), delivery_id=number, run=False)
    one_turn(session.client, session.client.output.to_send())
    assert services.broker.work - before >= 10 * (RESOLVED + REFUSED)


def test_messages_are_requeued_in_one_turn(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise older ones would be put before or after those requeued already."""
    deliver(session, 300)
    monkeypatch.setattr(dispositions, "MAX_AT_ONCE", 100)
    endpoint = session.client.session.sessions.by_channel[0]
    one_turn(session.client, octets(Disposition(True, 0, 299, True, Released())))
    assert len(endpoint.unacked) == 300
    assert [entry.seq for entry in endpoint.unacked.values()] == sorted(entry.seq for entry in endpoint.unacked.values())


def test_the_deliveries_of_all_sources_of_a_session_are_found_in_one_pass(site: Site, session: Session) -> None:
    site.vhost.declare_queue("q", None)
    filling = session.sender("/queues/q", name="filling")
    for _ in range(2000):
        filling.send(settled=True, run=False)
    session.client.run()
    for number in range(40):
        receiver = session.receiver(name=f"r{number}", source=Source("/queues/q", expiry_policy="never"))
        receiver.flow(50, window=5000)
        assert len(receiver.deliveries()) == 50
    client = session.client
    session.client.send(End(channel=session.channel))
    begun = site.broker.work
    one_turn(client, client.output.to_send())
    assert site.broker.work - begun < 4000  # 40 passes over 2,000 would be 5,000 more
    assert sum(terminus.unsettled_count() for terminus in client.session.shared.termini.by_key.values()) == 2000
