"""Bodies of hundreds of megabytes through a broker process: its memory stays small, and no files remain."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import sqlite3
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from leveret import sync
from tests.faults.neighbour import Neighbour
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, decode, encode, frame_bytes
from tests.support.peers.rude import RudePeer
from tests.support.polling import wait_until

MIB = 1 << 20
SIZE = 200 * MIB + 12345
PAYLOAD = 131072 - 8
CONFIG = '[amqp]\nmax_message_size = "256MiB"\n'


class Source:
    """The bytes of a body, generated on the fly; no two pieces are equal."""

    def __init__(self, seed: int, size: int = SIZE) -> None:
        self.size = size
        self._piece = random.Random(seed).randbytes(PAYLOAD)

    def frames(self) -> Iterator[bytes]:
        left = self.size
        number = 0
        while left:
            data = (struct.pack(">Q", number) + self._piece[8:])[:left]
            yield frame_bytes(BODY_FRAME, 1, data)
            left -= len(data)
            number += 1

    def digest(self) -> str:
        found = hashlib.blake2b()
        for frame in self.frames():
            found.update(frame[7:-1])
        return found.hexdigest()


class Client:
    """A connection with one channel, which reads and writes contents frame by frame."""

    def __init__(self, broker: LeveretProcess, timeout: float = 60.0) -> None:
        self.peer = RudePeer(broker, timeout).reach("channel")
        self.peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)

    def declare(self, queue: str) -> None:
        self.peer.send_method(commands.Queue.Declare(queue=queue, durable=True), 1)
        self.peer.expect_method("Queue.DeclareOk")

    def begin(self, queue: str, size: int, persistent: bool) -> None:
        self.peer.send_method(commands.Basic.Publish(exchange="", routing_key=queue), 1)
        properties = commands.Basic.Properties(delivery_mode=2 if persistent else 1)
        self.peer.send_bytes(encode(ContentHeader(0, size, properties), 1))

    def confirming(self) -> Client:
        self.peer.send_method(commands.Confirm.Select(), 1)
        self.peer.expect_method("Confirm.SelectOk")
        return self

    def get(self, queue: str) -> str:
        """The digest of a message's body."""
        peer = self.peer
        peer.send_method(commands.Basic.Get(queue=queue, no_ack=True), 1)
        frame = peer.next_frame()
        assert frame is not None and decode(*frame).name == "Basic.GetOk", frame
        frame = peer.next_frame()
        assert frame is not None and frame[0] == HEADER_FRAME
        left = struct.unpack_from(">Q", frame[2], 4)[0]
        found = hashlib.blake2b()
        while left:
            frame = peer.next_frame()
            assert frame is not None and frame[0] == BODY_FRAME, frame
            found.update(frame[2])
            left -= len(frame[2])
        return found.hexdigest()

    def close(self) -> None:
        self.peer.socket.close()


def peak_memory(process: LeveretProcess) -> int:
    """Return the maximum resident memory so far, in bytes."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def nameless_octets(process: LeveretProcess) -> int:
    """Return the bytes that unlinked files use on the disk of the data directory."""
    octets = 0
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
            if target.startswith(str(process.data_dir)) and target.endswith(" (deleted)"):
                octets += os.stat(entry).st_blocks * 512
        except FileNotFoundError:
            pass
    return octets


def named_files(process: LeveretProcess) -> set[str]:
    return {file.name for file in process.data_dir.iterdir()}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it inspects the broker's process")
    # The store syncs almost a gigabyte when it stops.
    process = LeveretProcess(
        tmp_path, config=basic_config() + CONFIG, environment={"LEVERET_SERVER__SHUTDOWN_TIMEOUT": "60"}
    )
    with process.start():
        yield process
        process.check_log()
    shutil.rmtree(process.data_dir)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("persistent", "publishers"),
    [
        pytest.param(True, 2, id="persistent"),
        pytest.param(True, 4, id="persistent-four", marks=pytest.mark.slow),
        pytest.param(False, 4, id="transient-four", marks=pytest.mark.slow),
    ],
)
def test_memory_stays_small_and_bodies_are_delivered(process: LeveretProcess, persistent: bool, publishers: int) -> None:
    before = peak_memory(process)
    sources = [Source(number) for number in range(publishers)]
    clients = [Client(process).confirming() for _ in sources]
    for number, client in enumerate(clients):
        client.declare(f"large-{number}")
        client.begin(f"large-{number}", SIZE, persistent)
    # All at once, frame by frame.
    for frames in zip(*(source.frames() for source in sources), strict=True):
        for client, frame in zip(clients, frames, strict=True):
            client.peer.send_bytes(frame)
    for client in clients:
        assert client.peer.expect_method("Basic.Ack").delivery_tag == 1
    grown = [peak_memory(process) - before]
    names = named_files(process)
    if persistent:
        for client in clients:
            client.close()
        process.stop()
        process.start()
        before = peak_memory(process)
        clients = [Client(process) for _ in sources]
    for number, client in enumerate(clients):
        assert client.get(f"large-{number}") == sources[number].digest()
    grown.append(peak_memory(process) - before)
    assert max(grown) < 200 * MIB, grown
    wait_until(lambda: nameless_octets(process) == 0, "an empty file of large bodies")
    assert named_files(process) == names
    for client in clients:
        client.close()


def test_a_connection_lost_midway_leaves_no_files(process: LeveretProcess) -> None:
    names = named_files(process)
    clients = [Client(process), Client(process)]
    source = Source(1, 40 * MIB)
    for client in clients:
        client.begin("nowhere", source.size, True)
    for _, frame in zip(range(150), source.frames(), strict=False):
        for client in clients:
            client.peer.send_bytes(frame)
    wait_until(lambda: nameless_octets(process) >= 30 * MIB, "two contents in arrival")
    clients.pop().close()
    clients.pop().close()
    wait_until(lambda: nameless_octets(process) == 0, "an empty file of large bodies")
    assert named_files(process) == names


def test_a_kill_midway_leaves_no_files(process: LeveretProcess) -> None:
    client = Client(process)
    source = Source(1, 40 * MIB)
    client.begin("nowhere", source.size, True)
    for _, frame in zip(range(100), source.frames(), strict=False):
        client.peer.send_bytes(frame)
    wait_until(lambda: nameless_octets(process) > 0, "a content in arrival")
    process.kill()
    assert sum(file.stat().st_blocks * 512 for file in process.data_dir.iterdir()) < 20 * MIB
    process.start()
    assert nameless_octets(process) == 0
    client.close()


def chunks(process: LeveretProcess) -> int:
    """Return the number of chunks of large bodies in the store, which the broker may be writing."""
    with contextlib.closing(sqlite3.connect(f"file:{process.data_dir / 'log-0.sqlite'}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM chunk").fetchone()[0])


def depth(client: Client, queue: str) -> int:
    client.peer.send_method(commands.Queue.Declare(queue=queue, passive=True), 1)
    return int(client.peer.expect_method("Queue.DeclareOk").message_count)


@pytest.mark.embedded("reads the database file")
def test_publishes_behind_a_body_that_is_written_in_slices_keep_their_order(process: LeveretProcess) -> None:
    client = Client(process).confirming()
    client.declare("both")
    source, next_source = Source(1, 8 * MIB), Source(2, 100)
    for number in (source, next_source, source):
        client.begin("both", number.size, True)
        for frame in number.frames():
            client.peer.send_bytes(frame)
    tag = 0
    while tag < 3:
        ack = client.peer.expect_method("Basic.Ack")
        assert ack.delivery_tag == tag + 1 or ack.multiple
        tag = ack.delivery_tag
    assert [client.get("both") for _ in range(3)] == [source.digest(), next_source.digest(), source.digest()]
    wait_until(lambda: not chunks(process), "the deletion of the bodies")
    client.close()


@pytest.mark.embedded("reads the database file")
def test_a_channel_that_closes_while_its_body_is_written_publishes_nothing(process: LeveretProcess) -> None:
    client = Client(process)
    client.declare("large")
    source = Source(1, 48 * MIB)
    client.begin("large", source.size, True)
    for frame in source.frames():
        client.peer.send_bytes(frame)
    wait_until(lambda: chunks(process) > 0, "a slice of the body")
    client.close()
    client = Client(process)
    wait_until(lambda: not chunks(process) or depth(client, "large") == 1, "the deletion of the body")
    client.close()


@pytest.mark.embedded("reads the database file")
def test_a_kill_between_the_slices_of_a_body(process: LeveretProcess) -> None:
    """Confirmed messages remain, and nothing of a body that was not confirmed."""
    other, client = Client(process).confirming(), Client(process).confirming()
    other.declare("small")
    client.declare("large")
    source = Source(1, 64 * MIB)
    client.begin("large", source.size, True)
    for frame in source.frames():
        client.peer.send_bytes(frame)
    wait_until(lambda: chunks(process) > 2, "some slices of the body")
    other.begin("small", 5, True)
    other.peer.send_bytes(frame_bytes(BODY_FRAME, 1, b"small"))
    assert other.peer.expect_method("Basic.Ack").delivery_tag == 1
    process.kill()
    # On a slow machine, the body may be complete by now.
    confirmed = client.peer.next_method() is not None
    process.start()
    client = Client(process)
    assert depth(client, "small") == 1
    if not confirmed and not depth(client, "large"):
        wait_until(lambda: not chunks(process), "the deletion of the unfinished body")
    else:
        assert client.get("large") == source.digest()
    client.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker on a disk of 48 MiB."""
    leveret_only("its data is on a small file system")
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={48 * MIB}", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode(errors='replace')}")
    config = basic_config() + "[limits]\ndisk_free = 1048576\n[storage]\nreserve = 4194304\n"
    process = LeveretProcess(tmp_path, config=config, data_dir=directory / "data")
    try:
        with process.start():
            yield process
            process.check_log()
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def refusal(client: Client) -> tuple[int, str]:
    """Return the channel.close that refuses the publish."""
    close = client.peer.expect_method("Channel.Close")
    return close.reply_code, close.reply_text


def check_others(process: LeveretProcess, neighbour: Neighbour) -> None:
    """Only the publisher of a large body is refused or notified of the shortage."""
    neighbour.check()
    other = Client(process).confirming()
    other.declare("small")
    other.begin("small", 5, True)
    other.peer.send_bytes(frame_bytes(BODY_FRAME, 1, b"small"))
    assert other.peer.expect_method("Basic.Ack").delivery_tag == 1
    other.close()
    assert "publishers blocked" not in process.log()


def test_a_body_that_the_disk_has_no_room_for_is_refused_at_its_header(small: LeveretProcess) -> None:
    neighbour = Neighbour(small)
    client = Client(small)
    client.begin("nowhere", 20 * MIB, True)
    code, text = refusal(client)
    assert code == 311
    assert "no room for a body of 20971520 bytes" in text
    check_others(small, neighbour)
    # A body that fits is accepted on the same connection.
    client.peer.send_method(commands.Channel.CloseOk(), 1)
    client.peer.send_method(commands.Channel.Open(), 1)
    client.peer.expect_method("Channel.OpenOk")
    client.declare("large")
    source = Source(1, 6 * MIB)
    client.begin("large", source.size, True)
    for frame in source.frames():
        client.peer.send_bytes(frame)
    assert client.get("large") == source.digest()
    client.close()
    neighbour.close()


def test_a_disk_that_fills_up_while_a_body_arrives(small: LeveretProcess) -> None:
    neighbour = Neighbour(small)
    client = Client(small)
    source = Source(1, 25 * MIB)
    client.begin("nowhere", source.size, False)
    frames = source.frames()
    for _, frame in zip(range(40), frames, strict=False):
        client.peer.send_bytes(frame)
    wait_until(lambda: nameless_octets(small) >= 4 * MIB, "a content in arrival")
    state = os.statvfs(small.data_dir)
    other_file = small.data_dir.parent / "other"
    with open(other_file, "wb") as file:
        file.write(bytes(state.f_bavail * state.f_frsize - 12 * MIB))
    for frame in frames:
        client.peer.send_bytes(frame)
    code, text = refusal(client)
    assert code == 311
    assert "no room" in text
    wait_until(lambda: nameless_octets(small) == 0, "an empty file of large bodies")
    check_others(small, neighbour)
    # The connection still works.
    client.peer.send_method(commands.Channel.CloseOk(), 1)
    client.peer.send_method(commands.Channel.Open(), 1)
    client.peer.expect_method("Channel.OpenOk")
    client.close()
    neighbour.close()


def send_in_transaction(url: str, body: bytes) -> None:
    with sync.connect(url, reconnect=False) as connection:
        channel = connection.channel(transactional=True)
        with channel.transaction():
            channel.publish(body, "large", delivery_mode=2)


def send_over_amqp10(url: str, body: bytes) -> None:
    with sync.connect(url, protocol="1.0", reconnect=False) as connection:
        connection.session().publish(body, "large", delivery_mode=2)


def send_file(url: str, body: bytes) -> None:
    with sync.connect(url, protocol="0-9", reconnect=False) as connection:
        connection.channel().send_file(body, "large")


def send_by_reference(url: str, body: bytes) -> None:
    with sync.connect(url, protocol="0-9", reconnect=False) as connection:
        connection.channel().transfer(body, "large", delivery_mode=2)


@pytest.mark.embedded("reads the database file")
@pytest.mark.parametrize("send", [send_in_transaction, send_over_amqp10, send_file, send_by_reference])
def test_a_kill_between_the_slices_of_other_classes(process: LeveretProcess, send: Callable[[str, bytes], None]) -> None:
    body = random.Random(1).randbytes(48 * MIB)
    other = Client(process).confirming()
    other.declare("small")
    other.declare("large")
    with ThreadPoolExecutor(1) as executor:
        sending = executor.submit(send, process.url(), body)
        wait_until(lambda: chunks(process) > 2, "some slices of the body")
        other.begin("small", 5, True)
        other.peer.send_bytes(frame_bytes(BODY_FRAME, 1, b"small"))
        assert other.peer.expect_method("Basic.Ack").delivery_tag == 1
        process.kill()
        # On a slow machine, the body may be complete by now.
        confirmed = sending.exception(60) is None
    process.start()
    with sync.connect(process.url()) as connection:
        channel = connection.channel()
        assert channel.declare_queue("small", passive=True).message_count == 1
        stored = channel.declare_queue("large", passive=True).message_count
        assert stored == 1 or not confirmed
        if stored:
            message = channel.get("large", no_ack=True)
            assert message is not None and message.body == body
        wait_until(lambda: not chunks(process), "the deletion of the chunks")


@pytest.mark.embedded("reads the database file")
def test_a_rollback_deletes_a_body_that_was_written(process: LeveretProcess) -> None:
    body = bytes(5 * MIB)
    with sync.connect(process.url()) as connection:
        channel = connection.channel(transactional=True)
        channel.declare_queue("large", durable=True)
        channel.publish(body, "large", delivery_mode=2)
        wait_until(lambda: chunks(process) > 5, "the body")
        channel.tx_rollback()
        wait_until(lambda: not chunks(process), "the deletion of the body")
        with channel.transaction():
            channel.publish(body, "large", delivery_mode=2)
            channel.publish(b"small", "large", delivery_mode=2)
        messages = [channel.get("large", no_ack=True) for _ in range(2)]
        assert [message and message.body for message in messages] == [body, b"small"]
