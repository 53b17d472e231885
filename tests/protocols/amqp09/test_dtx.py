"""Distributed transactions over 0-9: class dtx with an external coordinator, and the extensions of Qpid's peers."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import BrokerError
from leveret.broker.jobs import STEP_WORK
from leveret.broker.transactions.branch import PREPARED, ROLLBACK_ONLY, BranchSettings
from leveret.broker.transactions.transaction import LARGE
from tests.protocols.amqp09.support import Channel, Client, connect
from tests.protocols.support import Site, bytes_of
from tests.support.queues import classic

IN_REQUESTS_TOO = True

OK, RBROLLBACK, RBTIMEOUT = 8, 1, 2


@pytest.fixture
def channel(site: Site) -> Channel:
    channel = connect(site).channel()
    channel.declare("q", durable=True)
    return channel


def dtx_channel(site: Site, name: str = "x1") -> Channel:
    channel = connect(site).channel()
    channel.call("dtx.select", "dtx.select-ok")
    channel.call("dtx.start", "dtx.start-ok", dtx_identifier=name)
    return channel


def decide(site: Site, what: str, name: str = "x1", **options: Any) -> int | None:
    """Return the reply to the coordinator; None while it is pending."""
    told: list[int] = []
    branches = site.vhost.branches
    getattr(branches, what)(branches.find(name, None), done=told.append, **options)
    site.run()
    return told[0] if told else None


def bodies(site: Site, queue: str = "q") -> list[bytes]:
    """Return the ready messages of a queue, which is empty afterwards."""
    found = []
    while (entry := site.vhost.queues[queue].get(True)) is not None:
        found.append(bytes_of(entry.message.body))
    return found


def get(channel: Channel, queue: str = "q") -> int:
    """Return the delivery tag of the next message."""
    tag: int = channel.call("basic.get", "basic.get-ok", queue=queue)["delivery_tag"]
    return tag


# Class dtx


def test_publishes_and_acknowledgements_wait_for_the_commit(site: Site, channel: Channel) -> None:
    channel.publish(body=b"old", delivery_mode=2)
    channel.client.run()
    worker = dtx_channel(site)
    worker.publish(body=b"new", delivery_mode=2)
    worker.ack(get(worker))
    worker.client.run()
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 1)
    assert decide(site, "prepare") == 0
    assert (queue.ready_count, queue.unacked) == (0, 1)
    assert site.vhost.branches.by_name["x1"].state == PREPARED
    assert decide(site, "commit", one_phase=False) == 0
    assert queue.unacked == 0
    assert bodies(site) == [b"new"]
    assert not site.vhost.branches.by_name


def test_a_rollback_requeues_acknowledged_messages(site: Site, channel: Channel) -> None:
    channel.publish(body=b"old", delivery_mode=2)
    channel.client.run()
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.ack(get(worker))
    worker.client.run()
    assert decide(site, "prepare") == 0
    assert decide(site, "rollback") == 0
    assert bodies(site) == [b"old"]
    assert site.vhost.queues["q"].unacked == 0


def test_a_message_rejected_in_a_branch_is_not_redelivered_to_its_channel(site: Site, channel: Channel) -> None:
    channel.publish(body=b"m", delivery_mode=2)
    channel.client.run()
    worker = dtx_channel(site)
    worker.send("basic.reject", delivery_tag=get(worker), requeue=True)
    worker.client.run()
    assert decide(site, "prepare") == 0
    assert decide(site, "commit", one_phase=False) == 0
    assert site.vhost.queues["q"].ready_count == 1
    worker.call("basic.get", "basic.get-empty", queue="q")
    assert get(channel) == 1


def test_one_phase(site: Site, channel: Channel) -> None:
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.client.run()
    assert bodies(site) == []
    assert decide(site, "commit", one_phase=True) == 0
    assert bodies(site) == [b"new"]


def test_phases_must_match_the_state_of_the_branch(site: Site, channel: Channel) -> None:
    dtx_channel(site)
    with pytest.raises(BrokerError, match="not prepared"):
        decide(site, "commit", one_phase=False)
    decide(site, "prepare")
    with pytest.raises(BrokerError, match="two phases"):
        decide(site, "commit", one_phase=True)
    with pytest.raises(BrokerError, match="already prepared"):
        decide(site, "prepare")


def test_a_channel_has_several_branches_in_a_row(site: Site, channel: Channel) -> None:
    worker = dtx_channel(site)
    worker.publish(body=b"one")
    worker.client.run()
    decide(site, "commit", one_phase=True)
    worker.call("dtx.start", "dtx.start-ok", dtx_identifier="x2")
    worker.publish(body=b"two")
    worker.client.run()
    assert bodies(site) == [b"one"]
    decide(site, "commit", name="x2", one_phase=True)
    assert bodies(site) == [b"two"]


def test_a_branch_of_a_closed_channel_can_only_be_rolled_back(site: Site, channel: Channel) -> None:
    channel.publish(body=b"old")
    channel.client.run()
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.ack(get(worker))
    worker.call("channel.close", "channel.close-ok")
    assert site.vhost.branches.by_name["x1"].state == ROLLBACK_ONLY
    assert bodies(site) == [b"old"]
    assert decide(site, "prepare") == 1
    assert decide(site, "rollback") == 0
    assert not site.vhost.branches.by_name


def test_a_prepared_branch_outlives_its_connection(site: Site, channel: Channel) -> None:
    channel.publish(body=b"old")
    channel.client.run()
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.ack(get(worker))
    worker.client.run()
    decide(site, "prepare")
    worker.client.session.connection_lost()
    site.run()
    assert bodies(site) == []
    assert decide(site, "commit", one_phase=False) == 0
    assert bodies(site) == [b"new"]


def test_an_identifier_in_use(site: Site, channel: Channel) -> None:
    dtx_channel(site)
    other = connect(site).channel()
    other.call("dtx.select", "dtx.select-ok")
    other.send("dtx.start", dtx_identifier="x1")
    assert other.refused() == 405
    assert other.client.is_open


@pytest.mark.parametrize(
    "begin",
    [
        [],
        [("dtx.select", "dtx.select-ok", {}), ("basic.consume", "basic.consume-ok", {"queue": "q"})],
        [("dtx.select", "dtx.select-ok", {}), ("dtx.start", "dtx.start-ok", {"dtx_identifier": "x0"})],
        [("tx.select", "tx.select-ok", {})],
        [("dtx-demarcation.select", "dtx-demarcation.select-ok", {})],
    ],
    ids=["not-selected", "consumed", "started", "tx", "demarcated"],
)
def test_start_follows_select_and_precedes_other_work(site: Site, channel: Channel, begin: list[Any]) -> None:
    worker = connect(site).channel()
    for name, answer, arguments in begin:
        worker.call(name, answer, **arguments)
    worker.send("dtx.start", dtx_identifier="x1")
    assert worker.refused() == 406
    assert "x1" not in site.vhost.branches.by_name


def test_start_names_a_transaction(site: Site) -> None:
    worker = connect(site).channel()
    worker.call("dtx.select", "dtx.select-ok")
    worker.send("dtx.start", dtx_identifier="")
    assert worker.refused() == 406


@pytest.mark.parametrize("method", ["tx.select", "tx.commit", "tx.rollback"])
def test_a_channel_with_dtx_has_no_local_transactions(site: Site, channel: Channel, method: str) -> None:
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.send(method)
    assert worker.refused() == 406
    assert bodies(site) == []


def test_no_dtx_on_a_channel_with_transactions(channel: Channel) -> None:
    channel.call("tx.select", "tx.select-ok")
    channel.send("dtx.select")
    assert channel.refused() == 406


def test_too_many_branches(site: Site) -> None:
    site.broker.branch_settings = BranchSettings(count=1)
    dtx_channel(site)
    other = connect(site).channel()
    other.call("dtx.select", "dtx.select-ok")
    other.send("dtx.start", dtx_identifier="x2")
    assert other.refused() == 506


def test_the_size_of_branches_is_limited(site: Site, channel: Channel) -> None:
    site.broker.branch_settings = BranchSettings(size=3500)
    first = dtx_channel(site)
    first.publish(body=b"x" * 1000)
    first.client.run()
    decide(site, "prepare")
    second = dtx_channel(site, "x2")
    second.publish(body=b"x" * 1000)
    second.client.run()
    assert second.client.is_open and site.vhost.branches.bytes == 1000
    second.publish(body=b"x" * 1000)
    assert second.refused() == 311
    assert decide(site, "commit", one_phase=False) == 0
    assert site.vhost.branches.bytes == 0


def test_unroutable_messages_are_returned_at_the_prepare(site: Site, channel: Channel) -> None:
    worker = dtx_channel(site)
    worker.publish("nowhere", mandatory=True)
    worker.client.run()
    assert worker.client.take("basic.return", worker.number) is None
    decide(site, "prepare")
    worker.client.run()
    assert worker.client.take("basic.return", worker.number) is not None


def test_a_client_is_notified_of_a_forced_rollback(site: Site, channel: Channel) -> None:
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.client.run()
    assert decide(site, "rollback", by_hand=True) == 0
    assert worker.refused() == 406
    assert bodies(site) == []


def test_acknowledgements_in_a_branch_free_credit(site: Site, channel: Channel) -> None:
    for body in (b"1", b"2"):
        channel.publish(body=body)
    channel.client.run()
    worker = dtx_channel(site)
    worker.call("basic.qos", "basic.qos-ok", prefetch_count=1)
    worker.consume("q")
    assert worker.delivered() == [b"1"]
    worker.ack(1)
    worker.client.run()
    assert worker.delivered() == []
    decide(site, "prepare")
    worker.client.run()
    assert worker.delivered() == [b"2"]


def test_an_unroutable_message_leaves_a_branch_that_can_only_be_rolled_back(site: Site, channel: Channel) -> None:
    channel.call("exchange.declare", "exchange.declare-ok", exchange="x", type="headers", durable=True)
    channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="x", arguments={"a": 1})
    channel.publish(body=b"old", delivery_mode=2)
    channel.client.run()
    worker = dtx_channel(site)
    worker.publish(body=b"new")
    worker.publish("", b"costly", exchange="x", headers={"a": 1})
    worker.ack(get(worker))
    worker.client.run()
    site.broker.max_routing_steps = 5
    assert decide(site, "prepare") == RBROLLBACK
    assert bodies(site) == [b"old"]
    assert decide(site, "rollback") == 0


# Classes dtx-demarcation and dtx-coordination


class Demarcated:
    """A channel of a Qpid client. Replies contain flags."""

    def __init__(self, client: Client) -> None:
        self.channel = client.channel()

    def select(self) -> Demarcated:
        self.channel.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
        return self

    def start(self, xid: str = "x1", **bits: bool) -> int:
        flags: int = self.channel.call("dtx-demarcation.start", "dtx-demarcation.start-ok", xid=xid, **bits)["flags"]
        return flags

    def end(self, xid: str = "x1", **bits: bool) -> int:
        flags: int = self.channel.call("dtx-demarcation.end", "dtx-demarcation.end-ok", xid=xid, **bits)["flags"]
        return flags

    def coordinate(self, what: str, xid: str = "x1", **more: Any) -> int:
        flags: int = self.channel.call(f"dtx-coordination.{what}", f"dtx-coordination.{what}-ok", xid=xid, **more)["flags"]
        return flags

    def publish(self, body: bytes) -> None:
        self.channel.publish(body=body, delivery_mode=2)
        self.channel.client.run()


@pytest.fixture
def qpid(site: Site, channel: Channel) -> Demarcated:
    return Demarcated(connect(site)).select()


def test_a_branch_over_the_wire(site: Site, qpid: Demarcated) -> None:
    assert qpid.start() == OK
    qpid.publish(b"in")
    assert qpid.end() == OK
    qpid.publish(b"outside")
    assert bodies(site) == [b"outside"]
    other = Demarcated(connect(site))
    assert other.coordinate("prepare") == OK
    assert recovered(other) == ["x1"]
    assert other.coordinate("commit") == OK
    assert bodies(site) == [b"in"]
    assert recovered(other) == []


def recovered(peer: Demarcated) -> list[str]:
    table = peer.channel.call("dtx-coordination.recover", "dtx-coordination.recover-ok", startscan=True, endscan=0)
    octets = table["xids"]["xids"].encode("utf-8", "surrogateescape")
    found = []
    while octets:
        found.append(octets[1 : 1 + octets[0]].decode("utf-8", "surrogateescape"))
        octets = octets[1 + octets[0] :]
    return found


def test_two_channels_join_a_branch(site: Site, qpid: Demarcated) -> None:
    other = Demarcated(connect(site)).select()
    qpid.start()
    assert other.start(join=True) == OK
    qpid.publish(b"one")
    other.publish(b"two")
    qpid.end()
    assert other.end() == OK
    assert qpid.coordinate("commit", one_phase=True) == OK
    assert sorted(bodies(site)) == [b"one", b"two"]


def test_suspending_and_resuming(site: Site, qpid: Demarcated) -> None:
    qpid.start()
    qpid.publish(b"one")
    assert qpid.end(suspend=True) == OK
    qpid.publish(b"outside")
    assert bodies(site) == [b"outside"]
    assert qpid.start(resume=True) == OK
    qpid.publish(b"two")
    qpid.end()
    qpid.coordinate("commit", one_phase=True)
    assert bodies(site) == [b"one", b"two"]


def test_failed_work(site: Site, qpid: Demarcated) -> None:
    qpid.start()
    qpid.publish(b"one")
    assert qpid.end(fail=True) == RBROLLBACK
    assert qpid.coordinate("prepare") == RBROLLBACK
    assert qpid.coordinate("commit", one_phase=True) == RBROLLBACK
    assert qpid.coordinate("rollback") == OK
    assert bodies(site) == []


@pytest.mark.parametrize("how", ["end", "fail", "suspend"])
def test_a_large_branch_ends_in_steps(site: Site, qpid: Demarcated, how: str) -> None:
    many = 3 * LARGE
    channel = qpid.channel
    for number in range(many):
        channel.publish(body=b"%d" % number, delivery_mode=2)
    channel.consume("q")
    assert len(channel.deliveries()) == many
    qpid.start()
    for number in range(many):
        channel.publish(body=b"new", delivery_mode=2)
        channel.ack(number + 1)
    channel.run()
    queue = site.vhost.queues["q"]
    branch = site.vhost.branches.by_name["x1"]
    channel.send("dtx-demarcation.end", xid="x1", fail=how == "fail", suspend=how == "suspend")
    channel.client.flush()
    assert channel.client.session.channels[channel.number].stalled
    steps = 0
    while site.posted:
        before = len(branch.publishes) + len(branch.settlements), queue.ready_count
        site.posted.pop(0)()
        assert len(branch.publishes) + len(branch.settlements) - before[0] <= STEP_WORK
        assert queue.ready_count - before[1] <= STEP_WORK
        site.broker.end_turn()
        steps += 1
    assert steps > many // STEP_WORK
    channel.run()
    answer = channel.client.take("dtx-demarcation.end-ok", channel.number)
    assert answer is not None and answer.arguments["flags"] == (RBROLLBACK if how == "fail" else OK)
    if how == "fail":
        assert (len(branch.publishes), queue.ready_count + queue.unacked) == (0, many)
        assert channel.client.session.channels[channel.number].unacked
        assert channel.delivered() == [b"%d" % number for number in range(many)]
    else:
        assert (len(branch.publishes), len(branch.settlements)) == (many, many)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_closing_channel_requeues_a_large_branch(site: Site, qpid: Demarcated, steps: int) -> None:
    many = 3 * LARGE
    channel = qpid.channel
    for number in range(many):
        channel.publish(body=b"%d" % number, delivery_mode=2)
    channel.consume("q")
    assert len(channel.deliveries()) == many
    qpid.start()
    for number in range(many):
        channel.publish(body=b"new", delivery_mode=2)
        channel.ack(number + 1)
    channel.run()
    channel.send("dtx-demarcation.end", xid="x1", suspend=True)
    channel.client.flush()
    for _ in range(steps):
        site.posted.pop(0)()
        site.broker.end_turn()
    channel.client.peer.closed = True
    channel.client.session.connection_lost()
    site.run()
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked, classic(queue).dispatcher.frozen) == (many, 0, 0)
    assert site.vhost.branches.by_name["x1"].state == ROLLBACK_ONLY
    assert decide(site, "rollback") == 0
    assert bodies(site) == [b"%d" % number for number in range(many)]


def test_an_unset_time_out_is_reported_as_0(site: Site, qpid: Demarcated) -> None:
    assert site.broker.branch_settings.timeout
    qpid.start()
    answer = qpid.channel.call("dtx-coordination.get-timeout", "dtx-coordination.get-timeout-ok", xid="x1")
    assert answer["timeout"] == 0


def test_a_branch_that_times_out(site: Site, qpid: Demarcated) -> None:
    qpid.start()
    qpid.channel.call("dtx-coordination.set-timeout", "dtx-coordination.set-timeout-ok", xid="x1", timeout=7)
    answer = qpid.channel.call("dtx-coordination.get-timeout", "dtx-coordination.get-timeout-ok", xid="x1")
    assert answer["timeout"] == 7
    qpid.publish(b"one")
    site.broker.timers.run(site.broker.timers.now() + 8000)
    qpid.publish(b"two")
    assert qpid.end() == RBTIMEOUT
    assert qpid.coordinate("prepare") == RBTIMEOUT
    assert not site.vhost.branches.by_name
    assert bodies(site) == []


@pytest.mark.parametrize("selected", [True, False], ids=["selected", "not"])
@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ((), ("dtx-coordination.prepare", {"xid": "x9"})),
        ((), ("dtx-coordination.commit", {"xid": "x9"})),
        ((), ("dtx-coordination.rollback", {"xid": "x9"})),
        ((), ("dtx-coordination.forget", {"xid": "x9"})),
        ((), ("dtx-coordination.get-timeout", {"xid": "x9"})),
        ((), ("dtx-coordination.set-timeout", {"xid": "x9", "timeout": 1})),
        ((), ("dtx-demarcation.end", {"xid": "x9"})),
        ((), ("dtx-demarcation.start", {"xid": "x9", "join": True})),
        ((), ("dtx-demarcation.start", {"xid": "x9", "resume": True})),
        ((), ("dtx-demarcation.start", {"xid": ""})),
        (("start",), ("dtx-demarcation.start", {"xid": "x1"})),
        (("start",), ("dtx-demarcation.start", {"xid": "x2"})),
        (("start",), ("dtx-demarcation.end", {"xid": "x1", "fail": True, "suspend": True})),
        (("start",), ("dtx-demarcation.end", {"xid": "x2"})),
        (("start",), ("dtx-coordination.prepare", {"xid": "x1"})),
        (("start",), ("dtx-coordination.rollback", {"xid": "x1"})),
        (("start",), ("dtx-coordination.forget", {"xid": "x1"})),
        (("start", "end"), ("dtx-coordination.commit", {"xid": "x1"})),
        (("start", "end"), ("dtx-demarcation.start", {"xid": "x1"})),
        (("start", "end"), ("dtx-demarcation.start", {"xid": "x1", "join": True, "resume": True})),
    ],
)
def test_misuse_ends_the_connection(
    site: Site, channel: Channel, selected: bool, steps: tuple[str, ...], last: tuple[str, dict[str, Any]]
) -> None:
    peer = Demarcated(connect(site))
    if selected:
        peer.select()
        for step in steps:
            getattr(peer, step)()
    name, arguments = last
    peer.channel.send(name, **arguments)
    assert peer.channel.refused() == 503
    assert not peer.channel.client.session.opened or peer.channel.client.session.closing


def test_a_users_branches_are_hidden_from_others(site: Site, qpid: Demarcated) -> None:
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    qpid.start()
    qpid.end()
    qpid.coordinate("prepare")
    other = Demarcated(connect(site, user="other"))
    assert recovered(other) == []
    other.channel.send("dtx-coordination.commit", xid="x1")
    assert other.channel.refused() == 503


def test_a_transaction_identifier_may_be_any_bytes(site: Site, qpid: Demarcated) -> None:
    xid = bytes(range(0, 255, 3)).decode("utf-8", "surrogateescape")
    qpid.start(xid)
    qpid.end(xid)
    assert qpid.coordinate("prepare", xid) == OK
    assert recovered(qpid) == [xid]
    assert qpid.coordinate("rollback", xid) == OK


def test_a_decision_by_hand_is_reported_until_it_is_forgotten(site: Site, qpid: Demarcated) -> None:
    qpid.start()
    qpid.end()
    qpid.coordinate("prepare")
    decide(site, "rollback", remember=True, by_hand=True)
    assert recovered(qpid) == ["x1"]
    assert qpid.coordinate("commit") == RBROLLBACK
    qpid.channel.call("dtx-coordination.forget", "dtx-coordination.forget-ok", xid="x1")
    assert recovered(qpid) == []
