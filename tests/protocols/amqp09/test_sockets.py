"""AMQP 0-9 over sockets, against a separate broker process: timers, and connections that are cut."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.broker.message import make_address
from leveret.wire.amqp0.commands import Deliver
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.amqp09.tunnelling import content, install
from tests.support.broker import ROOT, LeveretProcess, basic_config, leveret_only
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until

STREAM = 80


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it is started with a configuration of its own")
    with LeveretProcess(tmp_path).start() as process:
        yield process
        process.check_log()


def publish_stream(client: Client, body: bytes, key: str = "q", **properties: object) -> None:
    header = encode_header(STREAM, len(body), properties, QPID, V0_9)
    client.engine.send_content(1, "stream.publish", {"routing_key": key}, header, body)
    client.flush()


def test_a_stream_is_delivered_at_its_rate(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="q")
    client.call("stream.qos", "stream.qos-ok", consume_rate=20_000, prefetch_count=1)
    for _ in range(11):
        publish_stream(client, bytes(1000))
    begin = time.monotonic()
    client.call("stream.consume", "stream.consume-ok", queue="q", consumer_tag="t")
    for _ in range(11):
        client.expect("stream.deliver")
    # Ten messages are consumed before the last one: the minimum time, however busy the machine is.
    assert time.monotonic() - begin > 0.45
    client.close()


# Interrupted channels


def lose(client: Client) -> None:
    """Cut the connection like a crashed machine or a broken line: without a close, and losing unread data."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def deliveries(client: Client, count: int) -> list[Deliver]:
    found: list[Deliver] = []
    while len(found) < count:
        command = client.next()
        assert isinstance(command, Deliver), command
        found.append(command)
    return found


def ready(process: LeveretProcess, queue: str = "q") -> int:
    """Return the number of messages available to a new consumer, seen from a separate connection."""
    client = Client(process)
    count: int = client.call("queue.declare", "queue.declare-ok", queue=queue, passive=True)["message_count"]
    client.call("connection.close", "connection.close-ok", 0)
    client.close()
    return count


def publish(client: Client, body: bytes, key: str = "q") -> None:
    client.engine.send_publish(1, make_address("", key), 0, encode_header(60, len(body), {}), body, len(body))
    client.flush()


def resume(process: LeveretProcess, id: str) -> Client:
    """Resume an interrupted channel as channel 2 of a new connection; channel 1 is a separate one."""
    client = Client(process)
    client.call("channel.resume", "channel.ok", 2, channel_id=id)
    return client


def test_a_channel_resumes_after_its_connection_was_cut(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="q")
    client.call("basic.consume", "basic.consume-ok", queue="q", consumer_tag="t")
    for number in range(5):
        publish(client, b"%d" % number)
    assert [delivery.delivery_tag for delivery in deliveries(client, 5)] == [1, 2, 3, 4, 5]
    id = client.channel_id
    lose(client)
    again = resume(process, id)
    assert ready(process) == 0
    again.engine.send_ack(2, 4, True)
    again.flush()
    publish(again, b"next")
    (delivery,) = deliveries(again, 1)
    assert (delivery.channel, delivery.delivery_tag, delivery.redelivered) == (2, 6, False)
    again.call("channel.close", "channel.close-ok", 2)
    # The fifth and the sixth were not acknowledged.
    assert ready(process) == 2
    again.close()


def test_a_connection_cut_in_the_middle_of_a_content(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="q")
    id = client.channel_id
    client.engine.send_publish(1, make_address("", "q"), 0, encode_header(60, 5_000_000, {}), bytes(5_000_000), 5_000_000)
    octets = client.engine.to_send()
    client.socket.sendall(octets[:3_000_000])
    lose(client)
    again = resume(process, id)
    again.engine.send_publish(2, make_address("", "q"), 0, encode_header(60, 1, {}), b"x", 1)
    again.flush()
    again.call("channel.ping", "channel.ok", 2)
    again.expect("channel.pong")
    assert ready(process) == 1
    again.close()


def test_messages_of_an_unresumed_channel_are_requeued_in_time(tmp_path: Path) -> None:
    leveret_only("it is started with a configuration of its own")
    config = basic_config() + "\n[amqp09]\nresume_timeout = 0.3\n"
    with LeveretProcess(tmp_path, config=config).start() as process:
        assert isinstance(process, LeveretProcess)
        client = Client(process)
        client.call("queue.declare", "queue.declare-ok", queue="q")
        client.call("queue.declare", "queue.declare-ok", queue="own", exclusive=True)
        client.call("basic.consume", "basic.consume-ok", queue="q", consumer_tag="t")
        publish(client, b"1")
        deliveries(client, 1)
        id = client.channel_id
        lose(client)
        wait_until(lambda: ready(process) == 1)
        late = Client(process)
        late.send("channel.resume", 2, channel_id=id)
        assert late.expect("channel.close").arguments["reply_code"] == 404
        late.close()
        process.check_log()


def test_the_broker_stops_while_channels_are_kept(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="kept", durable=True)
    client.engine.send_publish(1, make_address("", "kept"), 0, encode_header(60, 1, {"delivery_mode": 2}), b"x", 1)
    client.call("basic.consume", "basic.consume-ok", queue="kept", consumer_tag="t")
    deliveries(client, 1)
    lose(client)
    process.stop()
    process.start()
    assert ready(process, "kept") == 1


# Tunnels


HANDLERS = """
import threading, time

def write(request):
    with open(request.meta_data["name"], "ab") as out:
        out.write(request.body)

def fail(request):
    raise RuntimeError("the handler's own fault")

def hang(request):
    time.sleep(3600)
"""


def send_request(client: Client, data_name: str, body: bytes = b"", channel: int = 1, **meta_data: str) -> None:
    header = content(body, data_name=data_name)
    client.engine.send_content(channel, "tunnel.request", {"meta_data": meta_data}, header, body)
    client.flush()


def test_tunnel_handlers_do_not_affect_others(tmp_path: Path) -> None:
    leveret_only("it is started with handlers of its own")
    install(tmp_path / "site", "handlers", HANDLERS, write="write", fail="fail", hang="hang")
    environment = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path / 'site'}"}
    out = tmp_path / "out"
    with LeveretProcess(tmp_path, environment=environment).start() as process:
        assert isinstance(process, LeveretProcess)
        client = Client(process)
        client.call("channel.open", "channel.open-ok", 2)
        send_request(client, "hang", channel=2)
        client.call("channel.open", "channel.open-ok", 3)
        send_request(client, "fail", channel=3)
        assert client.expect("channel.close").arguments["reply_code"] == 406
        send_request(client, "write", b"1", name=str(out))
        send_request(client, "write", b"2", name=str(out))
        # The reply follows once the channel continues, when the handler is done.
        client.call("queue.declare", "queue.declare-ok", queue="q")
        assert out.read_bytes() == b"12"
        # While a handler hangs, other clients can log in, and the broker can stop.
        assert ready(process) == 0
        lose(client)
        process.stop()
        assert "the handler's own fault" in process.log()
