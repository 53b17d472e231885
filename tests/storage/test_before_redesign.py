"""A data directory from before the redesign: today's broker serves everything in it, over all three protocols.

`data/make_before_redesign.py` made `data/before-redesign.tar.xz` with a broker of commit 1844557c, which it killed with
SIGKILL. All tests of this file share one broker over it; no two of them use the same queue, except `news-a` and `news-b`.
From this directory, that broker delivers the same messages of the queues and of the lease, with the same flags.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from pika.adapters.blocking_connection import BlockingChannel

from leveret import sync
from leveret.cli.app import leveret
from leveret.segments.reader import open_segment
from leveret.wire.amqp0.commands import ContentPart, ContentStart, Method
from leveret.wire.amqp10 import message as content
from leveret.wire.amqp10.messaging import Accepted, Source, Target
from leveret.wire.amqp10.sections import split
from tests.cli.runner import Commands
from tests.storage.test_formats import extract
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp10 import Peer, Session, header_of, message
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until
from tests.support.requests import Refused, ask

ARCHIVE = Path(__file__).with_name("data") / "before-redesign.tar.xz"
# Nine years after the archive was made: until then a delay and a time to live have not passed.
DUE = 2_079_300_000
# The streams are older than any usual age, and would be sealed while the tests read them.
UNSEALED = "[streams]\nsegment_age = 3_000_000_000"
KEPT: dict[str, Any] = {"durable": 2, "expiry_policy": "never"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("it starts on an existing data directory")
    directory = tmp_path_factory.mktemp("before-redesign")
    process = LeveretProcess(directory, config=UNSEALED, data_dir=extract(ARCHIVE, directory))
    process.user, process.password = "ana", "secret"
    with process.start():
        yield process
        process.check_log()


@pytest.fixture
def commands(broker: LeveretProcess) -> Commands:
    return Commands(broker.data_dir)


@pytest.fixture
def channel(broker: LeveretProcess) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
        yield connection.channel()


@pytest.fixture
def control(broker: LeveretProcess) -> Iterator[sync.Channel]:
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        yield channel


def drain(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Consume all ready messages; return their bodies and whether they were delivered before."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[0].redelivered))
    return found


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    return [body for body, _ in drain(channel, queue)]


def test_the_directory_is_intact(tmp_path: Path) -> None:
    result = CliRunner().invoke(leveret, ["check", str(extract(ARCHIVE, tmp_path))])
    assert result.exit_code == 0, result.output
    assert "everything is intact" in result.output
    assert "102 messages, 2 chunks, 100 definitions" in result.output
    assert "\nsegments  2 files" in result.output
    assert "\nuploads   2 files" in result.output


# Users and topology


def test_users_permissions_and_vhosts(broker: LeveretProcess, commands: Commands) -> None:
    assert {item["name"]: (item["tags"], item["max_connections"], item["scram"]) for item in commands.json("users")} == {
        "ana": (["administrator"], 0, True),
        "bo": ([], 3, True),
        "cert": ([], 0, False),
    }
    assert {
        (item["user"], item["vhost"]): (item["configure"], item["write"], item["read"])
        for item in commands.json("permissions")
    } == {
        ("ana", "/"): (".*", ".*", ".*"),
        ("ana", "vhöst/ü"): (".*", ".*", ".*"),
        ("bo", "/"): ("^mine-", "^(mine-.*|news)$", ""),
    }
    assert {item["name"]: (item["strict"], item["max_queues"]) for item in commands.json("vhosts")} == {
        "/": (False, 0),
        "vhöst/ü": (True, 7),
    }
    with pika.BlockingConnection(pika.URLParameters(broker.url(user="bo", password="hidden"))) as connection:
        connection.channel().queue_declare("mine-1", exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            connection.channel().basic_get("untouched")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(broker.url(user="bo", password="secret")))


def test_exchanges_and_bindings(commands: Commands) -> None:
    exchanges = {
        item["name"]: (item["type"], item["internal"], item["arguments"])
        for item in commands.json("exchanges", "--vhost", "/")
        if item["name"] and not item["name"].startswith(("amq.", "leveret."))
    }
    assert exchanges == {
        "orders": ("direct", False, {"alternate-exchange": "unrouted"}),
        "news": ("fanout", False, {}),
        "topics": ("topic", False, {}),
        "parcels": ("headers", False, {}),
        "by-customer": ("x-consistent-hash", False, {"hash-header": "customer"}),
        "unrouted": ("fanout", False, {}),
        "hidden": ("direct", True, {}),
        "dead": ("topic", False, {}),
        "invoices": ("x-consistent-hash", False, {}),
    }
    bindings = {
        (item["source"], item["destination"], item["kind"], item["routing_key"])
        for item in commands.json("bindings")
        if not item["destination"].startswith("subscriber/")
    }
    assert bindings == {
        ("amq.direct", "work", "queue", "job"),
        ("amq.topic", "strict", "queue", "#.last"),
        ("by-customer", "shard-0", "queue", "1"),
        ("by-customer", "shard-1", "queue", "2"),
        ("dead", "dead-letters", "queue", "#"),
        ("invoices", "invoices-0", "queue", "1"),
        ("invoices", "invoices-1", "queue", "1"),
        ("news", "news-a", "queue", "news-a"),
        ("news", "news-b", "queue", "news-b"),
        ("orders", "hidden", "exchange", "hidden"),
        ("orders", "lost", "queue", "lost"),
        ("parcels", "parts", "queue", ""),
        ("topics", "news", "exchange", "order.*.eu.#"),
        ("unrouted", "lost", "queue", "lost"),
    }


def test_messages_are_routed_as_before(broker: LeveretProcess, channel: BlockingChannel) -> None:
    """Old messages come first, and each exchange routes a new one like the old one."""
    channel.basic_publish("topics", "order.sent.eu", b"new")
    channel.basic_publish("topics", "order.sent.us", b"unbound")
    method, properties, body = channel.basic_get("news-a", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("topics", "order.paid.eu.de", b"by way of two exchanges")
    assert properties.headers == {"n": -1, "list": [True, "x", None]}
    assert bodies(channel, "news-a") == [b"new"]
    assert bodies(channel, "news-b") == [b"by way of two exchanges", b"new"]
    for size in ("xl", "s"):
        headers = {"size": size, "x-weight": 7, "fragile": True}
        channel.basic_publish("parcels", "", size.encode(), pika.BasicProperties(headers=headers))
    assert bodies(channel, "parts") == [b"piano", b"xl"]
    channel.basic_publish("orders", "nowhere", b"unrouted again")
    assert bodies(channel, "lost") == [b"unrouted", b"unrouted again"]
    shards = [bodies(channel, f"shard-{number}") for number in range(2)]
    assert sorted(shards[0] + shards[1]) == sorted(b"customer %d" % number for number in range(12))
    for number in range(12):
        headers = {"customer": f"c{number}"}
        channel.basic_publish("by-customer", "", b"customer %d" % number, pika.BasicProperties(headers=headers))
    assert [bodies(channel, f"shard-{number}") for number in range(2)] == shards
    with pika.BlockingConnection(pika.URLParameters(broker.url(vhost="vhöst/ü"))) as connection:
        method, properties, body = connection.channel().basic_get("strict", auto_ack=True)
        assert (body.decode(), method.routing_key, properties.message_id) == ("grüß", "first.last", "ü-1")


# Queues


def test_classic_queues(channel: BlockingChannel) -> None:
    # 0 and 2 were acked. After a kill all others count as delivered before, and transient ones are lost.
    found = []
    while (got := channel.basic_get("plain", auto_ack=True))[0] is not None:
        method, properties, body = got
        found.append((body, method.redelivered))
        number = int(body[-1:])
        assert (properties.message_id, properties.headers, properties.delivery_mode) == (
            f"m{number}",
            {"number": number},
            2,
        )
    assert found == [(b"plain %d" % number, True) for number in (1, 3, 4, 5, 6, 7)]
    channel.basic_publish("", "untouched", b"new")
    assert drain(channel, "untouched") == [*((b"untouched %d" % number, True) for number in range(3)), (b"new", False)]
    method, properties, body = channel.basic_get("large", auto_ack=True)
    assert (body, properties.content_type) == (b"0123456789" * 150_000, "text/plain")
    assert bodies(channel, "large") == [b""]
    assert bodies(channel, "last") == [b"confirmed"]
    channel.queue_declare("plain", durable=True, arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("gone", passive=True)


def test_priorities(channel: BlockingChannel) -> None:
    # Priorities 0, 9, none, 4, 5 and 1: none is 0 on a queue with a maximum, which caps 9 to 5, and 4 otherwise.
    assert bodies(channel, "ranked") == [b"rank %d" % number for number in (1, 4, 3, 5, 0, 2)]
    assert bodies(channel, "ten-levels") == [b"level %d" % number for number in (1, 4, 2, 3, 5, 0)]


def test_a_quorum_queue_counts_failed_deliveries(channel: BlockingChannel) -> None:
    found = []
    for _ in range(3):
        method, properties, body = channel.basic_get("quorum")
        found.append((body, method.redelivered, (properties.headers or {}).get("x-delivery-count")))
    assert found == [(b"quorum 0", True, 2), (b"quorum 1", True, 0), (b"quorum 2", True, 0)]
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})


def test_dead_letters(channel: BlockingChannel) -> None:
    assert bodies(channel, "work") == [b"job 2"]
    found = []
    while (got := channel.basic_get("dead-letters", auto_ack=True))[0] is not None:
        method, properties, body = got
        [death] = properties.headers.pop("x-death")
        assert method.exchange == "dead" and properties.headers["x-first-death-reason"] == death["reason"]
        found.append((body, death["reason"], death["queue"], death["count"], death["exchange"], death["routing-keys"]))
    assert found == [
        (b"job 0", "maxlen", "work", 1, "amq.direct", ["job"]),
        (b"job 1", "rejected", "work", 1, "amq.direct", ["job"]),
        (b"expired", "expired", "quick", 1, "", ["quick"]),
    ]


def test_what_expired_while_the_broker_was_down_is_dead_lettered(channel: BlockingChannel) -> None:
    wait_until(lambda: channel.queue_declare("too-late", passive=True).method.message_count)
    method, properties, body = channel.basic_get("too-late", auto_ack=True)
    assert (body, method.exchange, method.routing_key) == (b"expires while down", "", "too-late")
    assert not method.redelivered
    [death] = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["original-expiration"]) == ("expired", "later", "60000")
    assert properties.expiration is None
    if time.time() < DUE:
        assert drain(channel, "later") == [(b"lives for years", True)]


def test_delayed_messages(broker: LeveretProcess, commands: Commands) -> None:
    session = connect(broker)
    link = session.receiver("/queues/delayed", credit=2)
    # Proton sends bytes as one value of type binary.
    deliveries = [link.get() for _ in range(2)]
    contents = [split(delivery.payload) for delivery in deliveries]
    assert [content.body(sections) for sections in contents] == [[b"while down"], [b"at once"]]
    properties = content.properties(contents[1])
    assert properties is not None and properties.message_id == "m-1"
    assert content.message_annotations(contents[1])["x-opt-kept"] == "yes"
    assert content.application_properties(contents[1]) == {"text": "t", "number": 7}
    for delivery in deliveries:
        session.dispose(delivery.id, state=Accepted())
    session.sync()
    session.peer.close()
    if time.time() < DUE:
        [queue] = [item for item in commands.json("queues") if item["name"] == "delayed"]
        assert (queue["ready"], queue["delayed"], queue["unacked"]) == (0, 1, 0)


# Streams


def read_stream(channel: BlockingChannel, name: str, count: int, **arguments: Any) -> list[tuple[int, bytes]]:
    """Read so many messages; return offsets and bodies."""
    channel.basic_qos(prefetch_count=100)
    found: list[tuple[int, bytes]] = []
    if count:
        options = {key.replace("_", "-"): value for key, value in arguments.items()}
        for _, properties, body in channel.consume(name, arguments=options):
            found.append((properties.headers["x-stream-offset"], body))
            if len(found) == count:
                break
        channel.cancel()
    return found


def expected(name: str, *offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%s %d" % (name.encode(), offset)) for offset in offsets]


# Offset 2 was erased.
CONTENTS = {"sealed": range(6), "unsealed": range(6), "both": (0, 1, 3, 4, 5, 6, 7, 8)}


@pytest.mark.parametrize("name", CONTENTS)
def test_streams(broker: LeveretProcess, name: str, channel: BlockingChannel, control: sync.Channel) -> None:
    offsets = CONTENTS[name]
    assert read_stream(channel, name, len(offsets), x_stream_offset="first") == expected(name, *offsets)
    assert read_stream(channel, name, 2, x_stream_offset=4) == expected(name, 4, 5)
    assert read_stream(channel, name, 2, x_stream_offset="first", x_stream_filter="odd") == expected(name, 1, 3)
    described = ask(control, "stream.describe", stream=name, segments=True)
    assert (described["first_offset"], described["next_offset"]) == (0, max(offsets) + 1)
    sealed = [] if name == "unsealed" else [number for number in offsets if number < 6]
    assert [(item["first"], item["last"], item["count"]) for item in described["segments"]] == (
        [(0, 5, len(sealed))] if sealed else []
    )
    for item in described["segments"]:
        with open_segment(item["path"]) as segment:
            segment.check(item["crc32"])
            rows = [row for batch in segment.read(("offset", "body")) for row in batch.to_pylist()]
        assert [(row["offset"], row["body"]) for row in rows] == expected(name, *sealed)


def test_named_consumers_resume(channel: BlockingChannel) -> None:
    for name, offset in (("sealed", 2), ("unsealed", 3), ("both", 8)):
        rest = [number for number in CONTENTS[name] if number >= offset]
        found = read_stream(channel, name, len(rest), x_stream_consumer="reader", x_stream_offset="first")
        assert found == expected(name, *rest)


def test_named_publishers_are_deduplicated(broker: LeveretProcess, commands: Commands) -> None:
    """The stream has sequence numbers up to 50 of this publisher."""
    with sync.connect(broker.url()) as connection, connection.channel() as channel, channel.publisher("", "unsealed") as to:
        for sequence in (0, 50, 51):
            to.publish(b"again", headers={"x-stream-publisher": "producer", "x-stream-sequence": sequence})
    [stream] = [item for item in commands.json("streams") if item["name"] == "unsealed"]
    assert (stream["messages"], stream["next_offset"]) == (7, 7)


def test_a_super_stream(channel: BlockingChannel) -> None:
    found = [
        read_stream(channel, f"invoices-{number}", count, x_stream_offset="first") for number, count in ((0, 2), (1, 4))
    ]
    assert sorted(body for partition in found for _, body in partition) == [b"invoice %d" % number for number in range(6)]
    assert [[offset for offset, _ in partition] for partition in found] == [[0, 1], [0, 1, 2, 3]]


# Leases, sink transactions, branches


def test_a_lease_continues_with_its_planned_batch(channel: BlockingChannel, control: sync.Channel) -> None:
    names: dict[str, Any] = {"queue": "leased", "lease": "warehouse"}
    assert drain(channel, "leased") == [(b"leased 6", True)]
    lease = ask(control, "lease.acquire", **names)
    assert (lease["epoch"], lease["committed"]) == (2, 1)
    assert [(item["batch"], item["count"]) for item in lease["planned"]] == [(2, 5)]
    again = ask(control, "lease.plan", **names, epoch=2, after=1, max_messages=100)
    assert (again["batch"], again["count"]) == (2, 5)
    arguments: dict[str, Any] = {
        "x-lease": "warehouse",
        "x-lease-epoch": 2,
        "x-lease-batch": 2,
        "x-lease-first": 0,
        "x-lease-count": 5,
    }
    for _ in range(2):
        with control.consume("leased", no_ack=True, arguments=arguments) as reader:
            messages = [reader.next(10) for _ in range(5)]
        rows = [
            (message.headers["x-stream-offset"], message.body, message.redelivered, message.properties.delivery_mode)
            for message in messages
        ]
        # Message 3 went back from batch 1: older ones count as delivered, too. Message 4 is transient.
        assert rows == [(number, b"leased %d" % number, number <= 3, 1 if number == 4 else 2) for number in (3, 7, 0, 2, 4)]
    with pytest.raises(Refused, match="epoch"):
        ask(control, "lease.commit", **names, epoch=1, batch=2)
    assert ask(control, "lease.commit", **names | {"epoch": 2, "batch": 2, "except": [1]})["committed"] == 2
    assert bodies(channel, "leased") == [b"leased 7"]


def test_sink_transactions(channel: BlockingChannel, control: sync.Channel) -> None:
    assert bodies(channel, "results") == [b"row 0", b"row 1"]
    assert ask(control, "stage.last", app="sink")["batch"] == 7
    assert ask(control, "stage.promote", app="sink", batch=7, stages=["committed"])["already"]
    with pytest.raises(Refused, match="precondition-failed"):
        ask(control, "stage.promote", app="sink", batch=6, stages=[])
    states = {item["stage"]: item["state"] for item in ask(control, "stage.list")["stages"]}
    assert states == {"open": "open", "prepared-a": "sealed", "prepared-b": "sealed"}
    done = ask(control, "stage.promote", app="sink", batch=8, stages=["prepared-a", "prepared-b"])
    assert (done["already"], done["promoted"], done["unroutable"]) == (False, 3, 0)
    assert ask(control, "stage.promote", app="sink", batch=8, stages=[])["already"]
    assert bodies(channel, "results") == [b"row 2", b"row 3"]
    assert [bodies(channel, f"news-{letter}")[-1:] for letter in "ab"] == [[b"row 4"]] * 2
    # The open one takes more, and is prepared with what it had.
    with control.publisher("leveret.stage:open:", "results") as publisher:
        publisher.publish(b"now it is", persistent=True)
    ask(control, "stage.seal", stage="open", count=2, crc32=zlib.crc32(b"never preparednow it is"))
    ask(control, "stage.promote", app="sink", batch=9, stages=["open"])
    assert bodies(channel, "results") == [b"never prepared", b"now it is"]


def test_branches(broker: LeveretProcess, channel: BlockingChannel, commands: Commands) -> None:
    found = {item["branch"]: (item["state"], item["user"], item["publishes"]) for item in commands.json("dtx")}
    assert found == {"decided": ("committed", "ana", 0), "order-17": ("prepared", "ana", 2)}
    client = Client(broker)
    client.call("dtx-demarcation.select", "dtx-demarcation.select-ok")
    table = client.call("dtx-coordination.recover", "dtx-coordination.recover-ok")["xids"]
    assert table["xids"] == "\x07decided\x08order-17"
    assert bodies(channel, "to") == [b"order 0"]
    assert client.call("dtx-coordination.commit", "dtx-coordination.commit-ok", xid="order-17")["flags"] == 8
    client.close()
    assert bodies(channel, "to") == [b"order 1", b"order 2"]
    assert bodies(channel, "from") == [b"order 3", b"order 4"]
    commands.ok("dtx", "forget", "decided")
    assert commands.json("dtx") == []


# Uploads and links


def test_an_upload_of_class_file_resumes(broker: LeveretProcess) -> None:
    client = Client(broker)
    assert client.open_file("half", 3000) == 1500
    client.begin_stage(1500)
    client.stage_octets(b"rest" * 375)
    client.send("file.publish", routing_key="files", identifier="half")
    client.call("file.consume", "file.consume-ok", queue="files")
    opened = client.expect("file.open").arguments
    client.send("file.open-ok", staged_size=0)
    pieces = []
    while not (isinstance(command := client.next(), Method) and command.name == "file.deliver"):
        if isinstance(command, ContentPart):
            pieces.append(command.data)
        else:
            assert isinstance(command, ContentStart) or (isinstance(command, Method) and command.name == "file.stage")
    assert command.arguments["identifier"] == opened["identifier"]
    assert b"".join(pieces) == b"file" * 375 + b"rest" * 375
    client.send("file.ack", delivery_tag=command.arguments["delivery_tag"])
    client.call("file.cancel", "file.cancel-ok", consumer_tag=command.arguments["consumer_tag"])
    client.close()


def test_an_upload_of_class_message_resumes_at_its_checkpoint(broker: LeveretProcess, channel: BlockingChannel) -> None:
    channel.queue_declare("letters", durable=True)
    client = Client(broker)
    assert client.call("message.resume", "message.offset", reference="r", identifier="letter")["value"] == 500
    client.send("message.transfer", routing_key="letters", delivery_mode=2, body=(1, b"r"))
    client.send("message.append", reference="r", bytes=b"friend")
    client.expect("message.ok")
    client.call("message.close", "message.ok", reference="r")
    client.expect("message.ok")
    client.close()
    assert bodies(channel, "letters") == [b"dear " * 100 + b"friend"]


def connect(broker: LeveretProcess, container: str = "container") -> Session:
    peer = Peer(broker.host, broker.port)
    assert peer.login(response=b"\0ana\0secret") == 0
    peer.output.max_frame_size = peer.open(container).max_frame_size
    return peer.begin(incoming_window=1000)


def test_a_sender_resumes(broker: LeveretProcess, channel: BlockingChannel) -> None:
    """The broker knows the outcome of the delivery that the sender has not settled, and does not store it twice."""
    session = connect(broker)
    link = session.sender(
        name="sending", target=Target("/queue/sent", **KEPT), rcv_settle_mode=1, unsettled={b"unsettled": None}
    )
    assert list(link.attached.unsettled) == [b"unsettled"]
    assert isinstance(link.attached.unsettled[b"unsettled"], Accepted)
    number = link.send(b"", delivery_tag=b"unsettled", resume=True)
    assert isinstance(session.outcome(number).state, Accepted)
    session.dispose(number, state=Accepted(), role=False)
    # Of the large delivery 100,000 bytes had arrived.
    large = session.sender(
        name="large", target=Target("/queue/sent", **KEPT), rcv_settle_mode=1, unsettled={b"large": None}
    )
    state = large.attached.unsettled[b"large"]
    whole = message(b"large message " * 10_000, durable=True)
    assert (state.section_number, state.section_offset) == (1, 100_000 - whole.index(b"\x00\x53\x75"))
    number = large.send(whole[100_000:], delivery_tag=b"large", resume=True, state=state)
    assert isinstance(session.outcome(number).state, Accepted)
    session.dispose(number, state=Accepted(), role=False)
    session.sync()
    session.peer.close()
    assert drain(channel, "sent") == [
        (b"settled", True),
        (b"unsettled", True),
        (b"large message " * 10_000, False),
    ]


def test_a_receiver_resumes(broker: LeveretProcess, channel: BlockingChannel) -> None:
    # Other consumers do not get the deliveries of the link.
    method, _, body = channel.basic_get("taken")
    assert (body, method.redelivered) == (b"taken 3", True)
    session = connect(broker)
    # Of the three deliveries the first one is settled. The client has accepted the second, and forgotten the third.
    tags = [bytes((0, 0, 0, number)) for number in range(3)]
    link = session.receiver(
        name="taking", source=Source("/queue/taken", **KEPT), rcv_settle_mode=1, unsettled={tags[1]: Accepted()}
    )
    assert link.attached.unsettled == {tags[1]: None, tags[2]: None}
    link.flow(10)
    done, again = link.get(), link.get()
    assert (done.tag, done.settled, done.transfers[0].resume) == (tags[1], True, True)
    assert again.body == b"taken 2" and again.tag not in tags and not again.transfers[0].resume
    session.dispose(again.id, state=Accepted(), settled=False)
    session.outcome(again.id, role=False)
    channel.basic_ack(method.delivery_tag)
    session.peer.close()
    assert drain(channel, "taken") == []


def test_a_durable_subscription_resumes(broker: LeveretProcess, channel: BlockingChannel) -> None:
    """Its client remembers no deliveries, so the broker repeats them, as after a failed attempt, before new ones."""
    channel.basic_publish("amq.topic", "prices.us", b"new", pika.BasicProperties(delivery_mode=2))
    session = connect(broker, "subscriber")
    link = session.receiver(name="prices", source=Source("topic://prices.#", **KEPT), credit=10)
    found = []
    for _ in range(3):
        delivery = link.get()
        header = header_of(delivery.payload)
        found.append((content.body(split(delivery.payload)), header.delivery_count or 0))
        session.dispose(delivery.id, state=Accepted())
    assert found == [(["price 1"], 1), (["price 2"], 1), ([b"new"], 0)]
    session.sync()
    session.peer.close()
