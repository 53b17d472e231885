"""Links with many unsettled deliveries are attached again in steps, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.queues.queue import Queue
from leveret.protocols.amqp10.connection.connection import Connection
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.protocols.amqp10.terminus.target import TargetTerminus
from leveret.wire.amqp10.messaging import Accepted, Modified, Released, Source, Target
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Attach, Close, Detach, Disposition, End, Flow, Transfer
from leveret.wire.amqp10.values import Symbol
from tests.broker.support import HeldLog
from tests.protocols.amqp10.support import Client, Session, body_of, connect, make_site, message
from tests.protocols.amqp10.terminus.test_durable_termini import crash, kept
from tests.protocols.support import Site
from tests.support.queues import classic

MANY = 200
WINDOW = 1 << 30
# Units of work of a step: the smallest that the steps can observe.
STEP = 64
SOURCE = Source("q", expiry_policy="never")


@pytest.fixture
def site() -> Site:
    return make_small_site()


def make_small_site(**options: Any) -> Site:
    site = make_site(**options)
    site.broker.jobs.step_work = STEP
    site.vhost.declare_queue("q", None, durable=True)
    sender = connect(site, container="filler").begin().sender("q")
    for number in range(MANY):
        sender.send(message(b"%d" % number, durable=True), settled=True, run=number % 100 == 99)
    sender.client.drop()
    return site


def queue_of(site: Site) -> Queue:
    return site.vhost.queues["q"]


def hold(site: Site, source: Source = SOURCE) -> Session:
    """A session whose link has received all messages."""
    session = connect(site).begin(incoming_window=1 << 31)
    session.receiver(name="r", source=source).flow(MANY, window=WINDOW)
    session.client.run()
    assert queue_of(site).unacked == MANY
    return session


def put(client: Client, *frames: Any) -> None:
    """Send frames as one read of the socket, without running what follows."""
    output = Output(1 << 20)
    for frame in frames:
        output.send(frame)
    client.session.data_received(output.to_send())


def attach(client: Client, source: Source = SOURCE, handle: int = 0, **options: Any) -> None:
    put(client, Attach("r", handle, True, source=source, target=Target("here"), **options))


def step(site: Site) -> None:
    """Run one callback of the event loop."""
    site.broker.end_turn()
    if site.posted:
        site.posted.pop(0)()


def terminus_of(site: Site) -> SourceTerminus:
    [terminus] = [found for found in site.protocols.amqp10.termini.by_key.values() if found.key[3] == "r"]
    assert isinstance(terminus, SourceTerminus)
    return terminus


def everywhere(site: Site) -> list[int]:
    """The sequence numbers of all messages in the queue, in sessions and in termini, but not in steps."""
    found = [entry.seq for entry in classic(queue_of(site)).ready.backlog.head]
    for connection in site.services.sessions:
        assert isinstance(connection, Connection)
        for session in connection.sessions.by_channel.values():
            found.extend(entry.seq for entry in session.all_unacked())
    found.extend(entry.seq for entry in site.protocols.amqp10.termini.all_unacked())
    return sorted(found)


def in_one_place(site: Site) -> None:
    """Run all steps. None loses a message, or has it in two places."""
    queue = queue_of(site)
    while site.posted:
        found = everywhere(site)
        assert len(found) == len(set(found))
        assert queue.ready_count + queue.unacked + queue.counters.settled == MANY
        step(site)
    assert len(everywhere(site)) + queue.counters.settled == MANY


def received_after_all(site: Site) -> list[int]:
    """Destroy all links; return the numbers of the messages that a consumer receives then."""
    for connection in list(site.services.sessions):
        connection.connection_lost()
    site.run()
    for terminus in site.protocols.amqp10.termini.all():
        terminus.destroy()
    site.run()
    assert queue_of(site).unacked == 0 and not classic(queue_of(site)).dispatcher.frozen
    session = connect(site, container="after").begin(incoming_window=1 << 31)
    session.receiver("q").flow(2 * MANY, window=WINDOW)
    return [int(body_of(frame.payload)) for frame in session.client.all(Transfer)]


def tag_of(number: int) -> bytes:
    return number.to_bytes(4, "big")


def client_map() -> dict[bytes, Any]:
    """The client has half of the deliveries, in all states."""
    states: list[Any] = [None, Accepted(), Released(), Modified(True)]
    return {tag_of(number): states[number // 2 % 4] for number in range(0, MANY, 2)}


# Deliveries that `client_map` has accepted.
ACCEPTED = {number for number in range(0, MANY, 2) if number // 2 % 4 == 1}


def detach(site: Site, client: Client) -> None:
    put(client, Detach(0, False))


def detach_closed(site: Site, client: Client) -> None:
    put(client, Detach(0, True))


def end(site: Site, client: Client) -> None:
    put(client, End())


def close(site: Site, client: Client) -> None:
    put(client, Close())


def drop(site: Site, client: Client) -> None:
    client.session.connection_lost()


def steal(site: Site, client: Client) -> None:
    thief = connect(site)
    thief.begin(incoming_window=1 << 31)
    attach(thief, unsettled={})
    site.run()
    put(thief, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY))


def release(site: Site, client: Client) -> None:
    if terminus_of(site).link is None:
        site.protocols.amqp10.termini.release("/", "user", "test", "r", "sender")


def delete(site: Site, client: Client) -> None:
    site.protocols.amqp10.termini.delete("/", "user", "test", "r", "sender")


def grant(site: Site, client: Client) -> None:
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY))


def drain(site: Site, client: Client) -> None:
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY, drain=True))


@pytest.mark.parametrize(
    "event",
    [detach, detach_closed, end, close, drop, steal, release, delete, grant, drain],
    ids=lambda event: event.__name__,
)
@pytest.mark.parametrize(("durable", "mapped"), [(0, False), (0, True), (2, True)])
def test_each_delivery_is_in_one_place_whatever_happens_in_the_middle(
    event: Callable[[Site, Client], None], durable: int, mapped: bool
) -> None:
    source = Source("q", expiry_policy="never", durable=durable)
    for count in range(0, 50, 8):
        site = make_small_site()
        hold(site, source).client.drop()
        client = connect(site)
        client.begin(incoming_window=1 << 31)
        attach(client, source, unsettled=client_map() if mapped else {})
        for _ in range(count):
            step(site)
        event(site, client)
        in_one_place(site)
        found = received_after_all(site)
        assert len(found) == len(set(found)) and found == sorted(found)
        assert set(range(MANY)) - set(found) <= (ACCEPTED if mapped else set())


@pytest.mark.parametrize("event", [end, close, drop, steal, release, delete, grant], ids=lambda event: event.__name__)
def test_deliveries_that_continue_in_their_session_are_in_one_place(event: Callable[[Site, Client], None]) -> None:
    for count in range(0, 9, 2):
        site = make_small_site()
        session = hold(site)
        client = session.client
        put(client, Detach(0, False))
        attach(client)
        for _ in range(count):
            step(site)
        event(site, client)
        in_one_place(site)
        assert received_after_all(site) == list(range(MANY))


@pytest.mark.parametrize("policy", ["link-detach", "session-end", "connection-close"])
def test_each_delivery_is_in_one_place_if_the_terminus_expires_in_the_middle(policy: str) -> None:
    source = Source("q", expiry_policy=policy, timeout=60)
    for count in range(0, 30, 5):
        site = make_small_site()
        hold(site, source).client.drop()
        client = connect(site)
        client.begin(incoming_window=1 << 31)
        attach(client, source, unsettled={})
        for _ in range(count):
            step(site)
        site.broker.timers.run(site.broker.timers.now() + 61_000)
        client.run()
        assert len(everywhere(site)) == MANY
        assert terminus_of(site).link is not None and client.take(Attach).unsettled is not None
        assert received_after_all(site) == list(range(MANY))


def test_an_attach_takes_many_turns(site: Site) -> None:
    hold(site).client.drop()
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    attach(client, unsettled={})
    turns = 0
    while terminus_of(site).link is None:
        assert not any(isinstance(frame, Attach) for frame in client.received)
        step(site)
        turns += 1
    compared = 0
    while classic(queue_of(site)).dispatcher.frozen or not queue_of(site).ready_count:
        before = queue_of(site).ready_count
        step(site)
        compared += 1
        assert queue_of(site).ready_count - before <= STEP
    assert turns >= MANY // STEP and compared >= MANY // STEP


def test_the_attach_has_all_deliveries_and_later_frames_wait_for_it(site: Site) -> None:
    hold(site).client.drop()
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    unsettled = {tag_of(number): None for number in range(MANY)}
    attach(client, unsettled=unsettled)
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY))
    client.run()
    answer = client.take(Attach)
    assert answer.unsettled == unsettled and not answer.incomplete_unsettled
    resumed = client.all(Transfer)
    assert [frame.delivery_tag for frame in resumed] == list(unsettled) and all(frame.resume for frame in resumed)


def test_deliveries_are_resumed_before_new_ones_are_sent(site: Site) -> None:
    hold(site).client.drop()
    filler = connect(site, container="filler")
    filler.begin().sender("q").send(message(b"new"), settled=True)
    filler.drop()
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    attach(client, unsettled={tag_of(number): None for number in range(MANY)})
    while terminus_of(site).link is None:
        step(site)
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY + 1))
    frames = client.all(Transfer)
    assert [body_of(frame.payload) for frame in frames] == [*(b"%d" % number for number in range(MANY)), b"new"]
    assert [frame.resume for frame in frames] == [True] * MANY + [False]


def test_a_drain_waits_for_the_comparison(site: Site) -> None:
    hold(site).client.drop()
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    attach(client, unsettled={})
    while terminus_of(site).link is None:
        step(site)
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, 2 * MANY, drain=True))
    client.run()
    kinds = [type(frame) for frame in client.received if isinstance(frame, (Transfer, Flow))]
    assert kinds == [Transfer] * MANY + [Flow]
    answer = client.take(Flow)
    assert (answer.link_credit, answer.delivery_count) == (0, 2 * MANY)


def test_a_drain_is_answered_after_the_comparison_if_others_get_the_messages(site: Site) -> None:
    hold(site).client.drop()
    other = connect(site, container="other")
    preferred = {Symbol("rabbitmq:priority"): 10}
    other.begin(incoming_window=1 << 31).receiver("q", properties=preferred).flow(2 * MANY, window=WINDOW)
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    attach(client, unsettled={})
    while terminus_of(site).link is None:
        step(site)
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, 5, drain=True))
    client.run()
    assert len(other.all(Transfer)) == MANY
    assert client.take(Flow).link_credit == 0


@pytest.mark.parametrize("earlier_first", [True, False])
def test_the_latest_attach_wins_if_several_wait(site: Site, earlier_first: bool) -> None:
    hold(site).client.drop()
    earlier, later = connect(site), connect(site)
    for client in (earlier, later):
        client.begin(incoming_window=1 << 31)
    attach(earlier, unsettled={})
    step(site)
    attach(later, unsettled={})
    for client in (earlier, later) if earlier_first else (later, earlier):
        client.run()
    for client in (earlier, later):
        client.run()
    assert earlier.error(Detach)[0] == "amqp:link:stolen" and later.find(Detach) is None
    link = terminus_of(site).link
    assert link is not None and link.session.connection is later.session
    assert received_after_all(site) == list(range(MANY))


def test_a_released_terminus_sends_no_map_of_the_released_deliveries(site: Site) -> None:
    hold(site).client.drop()
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    attach(client, unsettled={tag_of(number): None for number in range(MANY)})
    step(site)
    site.protocols.amqp10.termini.release("/", "user", "test", "r", "sender")
    client.run()
    assert client.take(Attach).unsettled == {}
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY))
    assert not any(frame.resume for frame in client.all(Transfer))


@pytest.mark.parametrize("frame_size", [512, 1000])
def test_a_map_that_exceeds_a_frame_is_incomplete_and_resumes_what_it_has(site: Site, frame_size: int) -> None:
    hold(site).client.drop()
    client = Client(site)
    client.open(max_frame_size=frame_size)
    client.begin(incoming_window=1 << 31)
    known = {tag_of(number): None for number in range(MANY - 10, MANY)}
    attach(client, unsettled=known)
    client.run()
    answer = client.take(Attach)
    assert answer.incomplete_unsettled and set(known) <= set(answer.unsettled) and len(answer.unsettled) < MANY
    returned = len(answer.unsettled) - len(known)
    assert queue_of(site).ready_count == returned > 0
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY))
    assert [frame.delivery_tag for frame in client.all(Transfer)] == list(known)
    assert len(everywhere(site)) == MANY


def test_deliveries_that_continue_keep_their_ids_and_tags(site: Site) -> None:
    session = hold(site)
    client = session.client
    tags = [frame.delivery_tag for frame in client.all(Transfer)]
    put(client, Detach(0, False))
    attach(client)
    put(client, Disposition(True, 0, 9, True, Accepted()))
    turns = 0
    while terminus_of(site).link is None:
        step(site)
        turns += 1
    assert turns >= MANY // STEP
    client.run()
    assert queue_of(site).unacked == MANY - 10 and client.take(Attach).unsettled is None
    link = terminus_of(site).link
    assert link is not None and link.describe().name == "r"
    client.drop()
    assert list(terminus_of(site).unsettled) == tags[10:]
    assert received_after_all(site) == list(range(10, MANY))


def test_many_deliveries_are_resumed_over_several_turns(site: Site) -> None:
    hold(site).client.drop()
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    attach(client, unsettled={tag_of(number): None for number in range(MANY)})
    while terminus_of(site).link is None:
        step(site)
    site.run()
    site.broker.work = 8000 - 80
    put(client, Flow(WINDOW, 0, WINDOW, 0, 0, 0, MANY))
    assert 0 < len(client.session.sessions.by_channel[0].unacked) <= 10
    assert len(client.all(Transfer)) == MANY


def test_the_map_of_a_target_is_sent_in_steps(site: Site) -> None:
    client = connect(site)
    target = Target("q", expiry_policy="never")
    link = client.begin().sender(name="s", target=target, rcv_settle_mode=1)
    for number in range(MANY):
        link.send(message(b"again"), delivery_tag=tag_of(number), run=number % 100 == 99)
    client.drop()
    client = connect(site)
    client.begin()
    known = {tag_of(number): None for number in range(0, MANY, 3)}
    put(client, Attach("s", 0, False, target=target, source=Source("s"), unsettled=known, initial_delivery_count=0))
    [terminus] = [found for found in site.protocols.amqp10.termini.by_key.values() if isinstance(found, TargetTerminus)]
    turns = 0
    while terminus.link is None:
        step(site)
        turns += 1
    client.run()
    answer = client.take(Attach)
    assert turns >= MANY // STEP and list(answer.unsettled) == list(known) == list(terminus.deliveries)
    assert {type(state) for state in answer.unsettled.values()} == {Accepted}


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 2), (2, 1), (2, 0)])
@pytest.mark.parametrize("event", [None, drop, steal, delete], ids=lambda event: getattr(event, "__name__", "none"))
def test_the_durability_of_many_deliveries_changes_in_steps(
    before: int, after: int, event: Callable[[Site, Client], None] | None
) -> None:
    source = Source("q", expiry_policy="never", durable=after)
    for count in range(6, 42, 12):
        site = make_small_site(log=HeldLog())
        hold(site, Source("q", expiry_policy="never", durable=before)).client.drop()
        client = connect(site)
        client.begin(incoming_window=1 << 31)
        attach(client, source, unsettled={tag_of(number): None for number in range(MANY)})
        for _ in range(count):
            step(site)
        if event is not None:
            event(site, client)
        changed = [found.durable == after for found in site.protocols.amqp10.termini.by_key.values()]
        restarted = crash(site)
        queue = queue_of(restarted)
        assert queue.ready_count + queue.unacked == MANY
        assert len(kept(restarted, metadata.LINK_STATE)) == queue.unacked
        site.run()
        if event is None or (event is not delete and all(changed)):
            expected = MANY if after == 2 and event is not steal else 0
            assert len(kept(site, metadata.LINK_STATE)) == expected
        assert received_after_all(site) == list(range(MANY))
        assert not kept(site, metadata.LINK_STATE)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_queue_that_is_deleted_in_the_middle_detaches_the_link(mapped: bool) -> None:
    for count in range(0, 40, 7):
        site = make_small_site()
        hold(site).client.drop()
        client = connect(site)
        client.begin(incoming_window=1 << 31)
        attach(client, unsettled=client_map() if mapped else {})
        for _ in range(count):
            step(site)
        queue = queue_of(site)
        attached = terminus_of(site).link is not None
        site.vhost.delete_queue("q", None)
        client.run()
        grant(site, client)
        client.run()
        if attached:
            assert client.error(Detach)[0] == "amqp:resource-deleted"
        for terminus in site.protocols.amqp10.termini.all():
            terminus.destroy()
        site.run()
        assert (queue.ready_count, queue.unacked) == (0, 0) and not classic(queue).dispatcher.frozen


def test_links_that_end_with_their_connection_end_in_steps_but_are_not_resumed(site: Site) -> None:
    source = Source("q", expiry_policy="connection-close")
    client = connect(site)
    session = client.begin(incoming_window=1 << 31)
    for number in range(MANY):
        session.receiver(name=f"r{number}", source=source).flow(1, window=WINDOW)
    session.end()
    termini = site.protocols.amqp10.termini
    put(client, Close())
    assert MANY - STEP < len(termini.by_key) < MANY
    client = connect(site)
    client.begin(incoming_window=1 << 31)
    for number, name in enumerate(("r0", f"r{MANY // 2}", f"r{MANY - 1}")):
        put(client, Attach(name, number, True, source=source, target=Target("here"), unsettled={}))
    client.run()
    assert [frame.unsettled for frame in client.received if isinstance(frame, Attach)] == [{}, {}, {}]
    assert len(termini.by_key) == 3 and len(everywhere(site)) == MANY
    assert received_after_all(site) == list(range(MANY))
