"""Make `before-redesign.tar.xz`: the data directory of a killed broker of the last commit before the redesign, 1844557c.

    git worktree add --detach /tmp/before 1844557c
    python tests/storage/data/make_before_redesign.py /tmp/before

Real clients of all three protocols fill the broker: pika, Qpid Proton, and the socket peers of that checkout's tests.
Then the broker gets SIGKILL while some of them still have unsettled deliveries. A minute later the archive is as the tests
expect it: a time to live and a delay have passed. The contents are those that
`tests/storage/test_before_redesign.py` expects. The interpreter needs the packages of requirements/core.txt, segments.txt,
dev.txt and proton.txt.

Everything of Leveret is imported from the checkout, never from the tree of this file.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

COMMIT = "1844557c"
ARCHIVE = Path(__file__).with_name("before-redesign.tar.xz")
# Ten years ahead at most are allowed for times to live and for delays.
NINE_YEARS = 9 * 365 * 86_400_000
PERSISTENT = 2
# Unsettled deliveries survive the broker.
KEPT: dict[str, Any] = {"durable": 2, "expiry_policy": "never"}
# Left out of archives: the broker makes them again, or they name a process.
LEFT_OUT = ("-shm", ".lock", ".sock")


def use(checkout: Path) -> None:
    """Import Leveret and its tests from the checkout. Raises SystemExit if it is of another commit."""
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not head.startswith(COMMIT):
        raise SystemExit(f"{checkout} is at commit {head}, expected {COMMIT}")
    os.environ["LEVERET_PURE"] = "1"
    sys.path[:0] = [str(checkout / "src"), str(checkout)]


def pack(archive: Path, directory: Path, *names: str) -> None:
    """Write these entries of a directory to an archive whose bytes depend on nothing else."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return None if member.name.endswith(LEFT_OUT) else member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as output:
        for name in names:
            output.add(directory / name, name, filter=plain)
    archive.write_bytes(buffer.getvalue())


def make(directory: Path) -> None:
    process = import_module("tests.support.broker").LeveretProcess(directory, config="")
    commands = import_module("tests.cli.runner").Commands(process.data_dir)
    process.start()
    # Connections that are open when the broker dies.
    held: list[Any] = []
    try:
        add_users(commands)
        process.user, process.password = "ana", "secret"
        for fill in (topology, classic, dead_letters, delayed, streams, lease, sinks, branches, uploads, links):
            fill(process, commands, held)
        # Commits are in order: with this confirm everything before it is on disk.
        channel = pika_channel(process, held)
        channel.queue_declare("last", durable=True)
        publish(channel, "", "last", b"confirmed")
    finally:
        process.kill()
    process.check_log()


def add_users(commands: Any) -> None:
    commands.ok("users", "add", "ana", "--password-file", "-", "--tag", "administrator", input="secret\n")
    commands.ok("users", "add", "bo", "--password-file", "-", "--max-connections", "3", input="hidden\n")
    commands.ok("users", "add", "cert", "--no-password")
    commands.ok("vhosts", "add", "vhöst/ü", "--strict", "--max-queues", "7")
    commands.ok("permissions", "set", "ana", "--configure", ".*", "--write", ".*", "--read", ".*")
    commands.ok("permissions", "set", "ana", "--vhost", "vhöst/ü", "--configure", ".*", "--write", ".*", "--read", ".*")
    commands.ok("permissions", "set", "bo", "--configure", "^mine-", "--write", "^(mine-.*|news)$", "--read", "")


def pika_channel(process: Any, held: list[Any], vhost: str = "/") -> Any:
    """Return a channel with confirms, on a connection that stays open."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(process.url(vhost=vhost)))
    held.append(connection)
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def publish(channel: Any, exchange: str, key: str, body: bytes, **properties: Any) -> None:
    """Publish a persistent message and wait for its confirm."""
    import pika

    properties.setdefault("delivery_mode", PERSISTENT)
    channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))


def topology(process: Any, commands: Any, held: list[Any]) -> None:
    """Exchanges of each type and their bindings, in both vhosts."""
    channel = pika_channel(process, held)
    for name, type, arguments in (
        ("orders", "direct", {"alternate-exchange": "unrouted"}),
        ("news", "fanout", {}),
        ("topics", "topic", {}),
        ("parcels", "headers", {}),
        ("by-customer", "x-consistent-hash", {"hash-header": "customer"}),
        ("unrouted", "fanout", {}),
    ):
        channel.exchange_declare(name, type, durable=True, arguments=arguments)
    channel.exchange_declare("hidden", "direct", durable=True, internal=True)
    channel.exchange_declare("passing", "fanout")
    for queue in ("news-a", "news-b", "parts", "lost", "shard-0", "shard-1"):
        channel.queue_declare(queue, durable=True)
    channel.queue_bind("news-a", "news")
    channel.queue_bind("news-b", "news")
    channel.exchange_bind("news", "topics", "order.*.eu.#")
    channel.queue_bind("parts", "parcels", "", {"x-match": "all-with-x", "size": "xl", "x-weight": 7, "fragile": True})
    channel.queue_bind("lost", "unrouted")
    channel.queue_bind("lost", "orders", "lost")
    channel.queue_bind("shard-0", "by-customer", "1")
    channel.queue_bind("shard-1", "by-customer", "2")
    channel.exchange_bind("hidden", "orders", "hidden")
    publish(channel, "topics", "order.paid.eu.de", b"by way of two exchanges", headers={"n": -1, "list": [True, "x", None]})
    publish(channel, "parcels", "", b"piano", headers={"size": "xl", "x-weight": 7, "fragile": True})
    publish(channel, "orders", "nowhere", b"unrouted")
    for number in range(12):
        publish(channel, "by-customer", "", b"customer %d" % number, headers={"customer": f"c{number}"})
    other = pika_channel(process, held, "vhöst/ü")
    other.queue_declare("strict", durable=True)
    other.queue_bind("strict", "amq.topic", "#.last")
    publish(other, "amq.topic", "first.last", "grüß".encode(), message_id="ü-1")


def classic(process: Any, commands: Any, held: list[Any]) -> None:
    """Queues with acked and unacked messages, large bodies, priorities and times to live."""
    channel = pika_channel(process, held)
    channel.queue_declare("plain", durable=True, arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    for number in range(8):
        publish(channel, "", "plain", b"plain %d" % number, message_id=f"m{number}", headers={"number": number})
    publish(channel, "", "plain", b"transient", delivery_mode=1)
    got = [channel.basic_get("plain")[0].delivery_tag for _ in range(4)]
    channel.basic_ack(got[0])
    channel.basic_ack(got[2])
    channel.queue_declare("untouched", durable=True)
    for number in range(3):
        publish(channel, "", "untouched", b"untouched %d" % number)
    channel.queue_declare("large", durable=True)
    publish(channel, "", "large", b"0123456789" * 150_000, content_type="text/plain")
    publish(channel, "", "large", b"")
    channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 5})
    channel.queue_declare("ten-levels", durable=True)
    for number, priority in enumerate((0, 9, None, 4, 5, 1)):
        publish(channel, "", "ranked", b"rank %d" % number, priority=priority)
        publish(channel, "", "ten-levels", b"level %d" % number, priority=priority)
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    for number in range(3):
        publish(channel, "", "quorum", b"quorum %d" % number)
    for _ in range(2):
        channel.basic_nack(channel.basic_get("quorum")[0].delivery_tag, requeue=True)
    channel.queue_declare("gone")
    publish(channel, "", "gone", b"a queue that is not durable")
    # Acks have no reply; this one comes after them.
    channel.queue_declare("plain", passive=True)


def dead_letters(process: Any, commands: Any, held: list[Any]) -> None:
    """Rejected, dropped and expired messages, and some that expire while the broker is down."""
    channel = pika_channel(process, held)
    channel.exchange_declare("dead", "topic", durable=True)
    channel.queue_declare("dead-letters", durable=True)
    channel.queue_bind("dead-letters", "dead", "#")
    channel.queue_declare("work", durable=True, arguments={"x-dead-letter-exchange": "dead", "x-max-length": 2})
    publish(channel, "amq.direct", "work", b"nowhere")
    channel.queue_bind("work", "amq.direct", "job")
    for number in range(3):
        publish(channel, "amq.direct", "job", b"job %d" % number, headers={"kept": number})
    channel.basic_reject(channel.basic_get("work")[0].delivery_tag, requeue=False)
    channel.queue_declare("quick", durable=True, arguments={"x-dead-letter-exchange": "dead", "x-message-ttl": 1})
    publish(channel, "", "quick", b"expired")
    while channel.queue_declare("dead-letters", passive=True).method.message_count < 3:
        time.sleep(0.01)
    channel.queue_declare(
        "later",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "too-late", "x-message-ttl": NINE_YEARS},
    )
    channel.queue_declare("too-late", durable=True)
    publish(channel, "", "later", b"expires while down", expiration="60000")
    publish(channel, "", "later", b"lives for years")


def delayed(process: Any, commands: Any, held: list[Any]) -> None:
    """Messages with delivery times, by Qpid Proton."""
    from proton import Message
    from proton.utils import BlockingConnection

    channel = pika_channel(process, held)
    channel.queue_declare("delayed", durable=True)
    connection = BlockingConnection(f"amqp://ana:secret@{process.host}:{process.port}", timeout=20)
    sender = connection.create_sender("/queues/delayed")
    for body, wait in ((b"in years", NINE_YEARS), (b"while down", 60_000)):
        sender.send(Message(body, durable=True, annotations={"x-opt-delivery-delay": wait}))
    sender.send(
        Message(
            b"at once",
            durable=True,
            id="m-1",
            properties={"text": "t", "number": 7},
            annotations={"x-opt-kept": "yes"},
        )
    )
    connection.close()


def streams(process: Any, commands: Any, held: list[Any]) -> None:
    """A sealed stream, an unsealed one, one with both parts, and a super stream."""
    channel = pika_channel(process, held)
    for name in ("sealed", "unsealed", "both"):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(6):
        for name in ("sealed", "unsealed", "both"):
            publish(
                channel,
                "",
                name,
                b"%s %d" % (name.encode(), number),
                headers={
                    "x-stream-publisher": "producer",
                    "x-stream-sequence": number * 10,
                    "x-stream-filter-value": "even" if number % 2 == 0 else "odd",
                },
            )
    commands.ok("streams", "seal", "sealed")
    commands.ok("streams", "seal", "both")
    commands.ok("streams", "erase", "both", "--where", "header:x-stream-sequence=20", "--remove")
    for number in range(6, 9):
        publish(channel, "", "both", b"both %d" % number)
    for name, count in (("sealed", 2), ("unsealed", 3), ("both", 7)):
        reader = pika_channel(process, held)
        reader.basic_qos(prefetch_count=count)
        arguments = {"x-stream-consumer": "reader", "x-stream-offset": "first"}
        for seen, (method, _, _) in enumerate(reader.consume(name, arguments=arguments), 1):
            if seen == count:
                reader.basic_ack(method.delivery_tag, multiple=True)
                break
        reader.connection.close()
        held.remove(reader.connection)
    commands.ok("streams", "add-super", "invoices", "--partitions", "2")
    for number in range(6):
        publish(channel, "invoices", f"key {number}", b"invoice %d" % number)


def asking(process: Any, held: list[Any]) -> tuple[Any, Any]:
    """Return a channel of Leveret's client, and the function that sends requests to the broker over one."""
    connection = import_module("leveret.blocking").connect(process.url())
    held.append(connection)
    return connection.channel(), import_module("tests.support.requests").ask


def lease(process: Any, commands: Any, held: list[Any]) -> None:
    """Batch 1 is committed except for one message, batch 2 is planned and read in part, and one message is ready."""
    publisher = pika_channel(process, held)
    publisher.queue_declare("leased", durable=True, arguments={"x-max-priority": 3})
    for number in range(8):
        publish(
            publisher,
            "",
            "leased",
            b"leased %d" % number,
            priority=number % 2,
            delivery_mode=1 if number == 4 else PERSISTENT,
        )
    channel, ask = asking(process, held)
    names = {"queue": "leased", "lease": "warehouse"}
    epoch = ask(channel, "lease.acquire", **names)["epoch"]
    ask(channel, "lease.plan", **names, epoch=epoch, after=0, max_messages=3)
    ask(channel, "lease.commit", **names, epoch=epoch, batch=1, **{"except": [1]})
    planned = ask(channel, "lease.plan", **names, epoch=epoch, after=1, max_messages=5)
    assert planned["count"] == 5
    arguments = {"x-lease": "warehouse", "x-lease-epoch": epoch, "x-lease-batch": 2, "x-lease-first": 0, "x-lease-count": 2}
    with channel.consume("leased", no_ack=True, arguments=arguments) as reader:
        for _ in range(2):
            reader.next(10)


def sinks(process: Any, commands: Any, held: list[Any]) -> None:
    """Batch 7 of a sink is committed, two sink transactions are prepared, and one is open."""
    pika_channel(process, held).queue_declare("results", durable=True)
    channel, ask = asking(process, held)

    def stage(name: str, exchange: str, *bodies: bytes, prepare: bool = True) -> None:
        ask(channel, "stage.open", stage=name, app="sink")
        with channel.publisher(f"leveret.stage:{name}:{exchange}", "results") as publisher:
            for body in bodies:
                publisher.publish(body, persistent=True)
        if prepare:
            ask(channel, "stage.seal", stage=name, count=len(bodies), crc32=zlib.crc32(b"".join(bodies)))

    stage("committed", "", b"row 0", b"row 1")
    ask(channel, "stage.promote", app="sink", batch=7, stages=["committed"])
    stage("prepared-a", "", b"row 2", b"row 3")
    stage("prepared-b", "news", b"row 4")
    stage("open", "", b"never prepared", prepare=False)


def branches(process: Any, commands: Any, held: list[Any]) -> None:
    """A prepared branch that moves two messages, and one whose commit is remembered."""
    Client = import_module("tests.support.amqp09").Client
    make_address = import_module("leveret.broker.message").make_address
    encode_header = import_module("leveret.wire.amqp0.properties").encode_header
    channel = pika_channel(process, held)
    for queue in ("from", "to"):
        channel.queue_declare(queue, durable=True)
    for number in range(5):
        publish(channel, "", "from", b"order %d" % number)
    for name, count in (("decided", 1), ("order-17", 2)):
        client = Client(process)
        held.append(client)
        client.call("dtx.select", "dtx.select-ok")
        client.call("dtx.start", "dtx.start-ok", dtx_identifier=name)
        for _ in range(count):
            client.send("basic.get", queue="from")
            got = client.expect("basic.get-ok")
            body = bytes(got.body)
            header = encode_header(60, len(body), {"delivery_mode": PERSISTENT})
            client.engine.send_publish(1, make_address("", "to"), 0, header, body, len(body))
            client.engine.send_ack(1, got.arguments["delivery_tag"], False)
            client.flush()
        client.send("channel.ping")
        client.expect("channel.ok")
        client.expect("channel.pong")
        commands.ok("dtx", "prepare", name)
    commands.ok("dtx", "commit", "decided", "--remember")


def uploads(process: Any, commands: Any, held: list[Any]) -> None:
    """An upload of class file and one of class message, both in part."""
    Client = import_module("tests.support.amqp09").Client
    pika_channel(process, held).queue_declare("files", durable=True)
    client = Client(process)
    assert client.open_file("half", 3000) == 0
    client.begin_stage(1500)
    client.stage_octets(b"file" * 375)
    client.send("channel.ping")
    client.expect("channel.ok")
    client.expect("channel.pong")
    client.close()
    other = Client(process)
    held.append(other)
    # The reply is sent when the bytes are on disk.
    assert other.open_file("half", 3000) == 1500
    assert other.call("message.resume", "message.offset", reference="r", identifier="letter")["value"] == 0
    other.call("message.append", "message.ok", reference="r", bytes=b"dear " * 100)
    other.call("message.checkpoint", "message.ok", reference="r", identifier="letter")
    other.call("message.append", "message.ok", reference="r", bytes=b"after the checkpoint")


def links(process: Any, commands: Any, held: list[Any]) -> None:
    """Links of AMQP 1.0 with unsettled deliveries in both directions, and durable subscriptions."""
    from proton import Message
    from proton.reactor import Container, DurableSubscription
    from proton.utils import BlockingConnection

    peers = import_module("tests.conformance.peer1")
    messaging = import_module("leveret.wire.amqp1.messaging")
    channel = pika_channel(process, held)
    for queue in ("sent", "taken"):
        channel.queue_declare(queue, durable=True)
    for number in range(4):
        publish(channel, "", "taken", b"taken %d" % number)

    def connect() -> Any:
        peer = peers.Peer(process.host, process.port)
        held.append(peer)
        assert peer.login(response=b"\0ana\0secret") == 0
        peer.output.max_frame_size = peer.open("container").max_frame_size
        return peer.begin(incoming_window=1000)

    session = connect()
    # The broker has accepted both deliveries; the sender settles only the first one.
    sending = session.sender(name="sending", target=messaging.Target("/queue/sent", **KEPT), rcv_settle_mode=1)
    for tag in (b"settled", b"unsettled"):
        number = sending.send(peers.message(tag, durable=True), delivery_tag=tag)
        assert isinstance(session.outcome(number).state, messaging.Accepted)
        if tag == b"settled":
            session.dispose(number, state=messaging.Accepted(), role=False)
    taking = session.receiver(name="taking", source=messaging.Source("/queue/taken", **KEPT), rcv_settle_mode=1, credit=3)
    for outcome in (messaging.Accepted(), None, None):
        delivery = taking.get()
        if outcome is not None:
            session.dispose(delivery.id, state=outcome)
    session.sync()
    # The broker keeps the received part of a delivery whose connection is lost.
    session = connect()
    large = session.sender(name="large", target=messaging.Target("/queue/sent", **KEPT), rcv_settle_mode=1)
    whole = peers.message(b"large message " * 10_000, durable=True)
    large.transfer(whole[:100_000], delivery_id=0, delivery_tag=b"large", message_format=0, more=True)
    session.sync()
    session.peer.drop()
    while not has_part(connect(), messaging):
        time.sleep(0.05)

    def proton(container_id: str) -> Any:
        container = Container()
        container.container_id = container_id
        return BlockingConnection(f"amqp://ana:secret@{process.host}:{process.port}", timeout=20, container=container)

    subscriber = proton("subscriber")
    address = "topic://prices.#"
    receiver = subscriber.create_receiver(address, credit=10, name="prices", options=DurableSubscription())
    publisher = proton("publisher")
    sender = publisher.create_sender("topic://prices.eu")
    for number in range(3):
        sender.send(Message(f"price {number}", durable=True))
    for number in range(3):
        assert receiver.receive(20).body == f"price {number}"
    # The oldest one.
    receiver.accept()
    held += [subscriber, publisher]
    # Proton writes the disposition with whatever it sends next.
    subscriber.create_sender("/queue/sent").close()
    while [item["unsettled"] for item in commands.json("links") if item["name"] == "prices"] != [2]:
        time.sleep(0.05)


def has_part(session: Any, messaging: Any) -> bool:
    """Attach the link `large` again; return whether the broker reports the received part, which is then on disk."""
    link = session.sender(
        name="large",
        target=messaging.Target("/queue/sent", **KEPT),
        rcv_settle_mode=1,
        unsettled={b"large": None},
    )
    state = (link.attached.unsettled or {}).get(b"large")
    if state is None:
        session.peer.drop()
    return state is not None


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} CHECKOUT")
    use(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory))
        pack(ARCHIVE, Path(directory), "data")
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
