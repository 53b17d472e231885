"""Connections that fail to open, are closed early, or are misused."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

import leveret
from leveret.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    NotFound,
    ProtocolMismatch,
    Timeout,
)
from leveret.client.events import Closed, Connected, Disconnected, Event, Unblocked
from tests.client.fake import Peer, Script, fake_server
from tests.client.sync.conftest import Open
from tests.support.broker import ROOT, Broker
from tests.support.polling import wait_until, wait_until_async
from tests.support.proxy import Proxy


@contextmanager
def fake(script: Script) -> Iterator[str]:
    """A fake server in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = fake_server(script)
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(60)
    finally:
        try:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(60)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(60)
            loop.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"AMQP\0\1\0\0",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"\1" * 64,
        b"\x08" * 32,
        b"\x01\0\0\0\0\0\4\0\xaa\0\x0b\xce",
        b"\x01\0\0\0\0\0\4\0\x0a\0\x0b\x00",
        b"\0" * 64,
        b"",
    ],
)
def test_server_without_amqp(dial: Open, garbage: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(garbage)
        if not garbage:
            peer.writer.close()
        await peer.reader.read()

    began = time.monotonic()
    with fake(script) as url, pytest.raises(ConnectionFailed) as caught:
        dial(url, connect_timeout=100)
    assert time.monotonic() - began < 60
    if garbage[:1] not in (b"", b"\1", b"\x08"):
        assert isinstance(caught.value, ProtocolMismatch)


def test_server_that_falls_silent(dial: Open) -> None:
    async def script(peer: Peer) -> None:
        await peer.handshake()
        await peer.closing()

    with fake(script) as url:
        connection = dial(url, timeout=0.2, reconnect=False)
        with pytest.raises(Timeout, match=r"channel\.open.*0\.2 s") as caught:
            connection.channel()
        assert type(caught.value) is Timeout
        connection.close()


def test_renewed_secret(connect: Open) -> None:
    connection = connect()
    connection.update_secret("guest", "because")
    assert [host.password for host in connection.driver.hosts] == ["guest"]
    assert connection.channel().is_open
    assert "guest" not in repr(connection).replace("'guest'", "")


def test_failed_start_can_be_repeated(proxy: Proxy, dial: Open, name: str) -> None:
    connection = dial(proxy.url())
    channel = connection.channel()
    queue = channel.declare_queue(name, exclusive=True)
    channel.publish("x", name, timeout=60)
    consumer = queue.consume()
    proxy.flowing.clear()
    connection.driver.core.parameters = replace(connection.parameters, timeout=0.3)
    with pytest.raises(Timeout):
        consumer.next()
    with pytest.raises(Timeout):
        consumer.start()
    proxy.flowing.set()
    connection.driver.core.parameters = replace(connection.parameters, timeout=60.0)
    # Starts that failed may have received the message; they requeue it.
    message = consumer.next(timeout=60)
    assert message.body == b"x"
    message.ack()
    wait_until(lambda: channel.declare_queue(name, passive=True, exclusive=True).consumer_count == 1)


def test_consumer_started_after_its_queue_was_renamed(proxy: Proxy, dial: Open) -> None:
    events: list[Event] = []
    connection = dial(proxy.url(), reconnect_delay=0.01, on_event=events.append)
    channel = connection.channel()
    queue = channel.declare_queue(exclusive=True)
    consumer = queue.consume()
    proxy.cut()
    wait_until(lambda: any(isinstance(event, Connected) and not event.first for event in events))
    channel.publish("x", queue.name)
    assert consumer.next(timeout=60).body == b"x"
    assert consumer.queue == queue.name


def test_transaction_raises_the_error_of_its_block(connect: Open, name: str) -> None:
    channel = connect().channel(transactional=True)
    with pytest.raises(ValueError, match="mine"), channel.transaction():
        with pytest.raises(NotFound):
            channel.declare_queue(f"{name}.nowhere", passive=True)
        raise ValueError("mine")


def test_transaction_abandoned_after_a_lost_connection(proxy: Proxy, dial: Open, name: str) -> None:
    connection = dial(proxy.url(), reconnect_delay=0.01)
    channel = connection.channel(transactional=True)
    channel.declare_queue(name, exclusive=True)
    channel.publish("x", name)
    proxy.flowing.clear()
    with pytest.raises(ValueError), channel.transaction():
        channel.publish("x", name)
        proxy.cut()
        wait_until(lambda: not connection.is_open)
        raise ValueError
    proxy.flowing.set()
    connection.driver.wait_open(60)
    with channel.transaction():
        channel.publish("y", name)
    assert channel.declare_queue(name, passive=True, exclusive=True).message_count == 1


def test_events_of_a_closed_connection(connect: Open) -> None:
    connection = connect()
    callbacks = connection.driver.callbacks
    before = len(callbacks)
    events = [connection.events() for _ in range(10)]
    assert len(callbacks) == before + 10
    del events[1:]
    gc.collect()
    assert len(callbacks) == before + 1
    connection.close()
    assert list(events[0]) == [Closed(None)]
    assert list(connection.events()) == [Closed(None)]


def test_events_before_their_iterator(connect: Open) -> None:
    """They wait behind a slow callback, and are not those of an iterator that is made meanwhile."""
    called, release = threading.Event(), threading.Event()

    def wait(event: Event) -> None:
        called.set()
        assert release.wait(60)

    connection = connect(on_event=wait)
    assert called.wait(60)
    connection.driver.emit(Unblocked())
    events = connection.events()
    release.set()
    connection.close()
    assert list(events) == [Closed(None)]


def test_callback_that_waits_for_its_own_thread(proxy: Proxy, dial: Open) -> None:
    raised: list[Error] = []

    def callback(event: Event) -> None:
        if isinstance(event, Disconnected):
            try:
                connection.channel()
            except Error as error:
                raised.append(error)

    connection = dial(proxy.url(), reconnect_delay=0.01, on_event=callback)
    channel = connection.channel()
    proxy.cut()
    wait_until(lambda: raised)
    assert isinstance(raised[0], ConnectionLost) and "on_event" in str(raised[0])
    assert channel.declare_queue(exclusive=True).name


def test_close_in_a_callback(proxy: Proxy, dial: Open) -> None:
    def close(event: Event) -> None:
        if isinstance(event, Disconnected):
            connection.close()

    connection = dial(proxy.url(), reconnect_delay=0.01, on_event=close)
    channel = connection.channel()
    proxy.cut()
    connection.wait_closed(60)
    with pytest.raises(ConnectionClosed):
        channel.declare_queue()


@pytest.mark.parametrize("silent", ["connect", "tls", "handshake"])
def test_close_while_reconnecting(proxy: Proxy, dial: Open, silent: str) -> None:
    """Close does not wait for a silent host."""
    events: list[Event] = []
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        if silent == "connect":
            # The queue of pending connections is full: the kernel accepts no more.
            for _ in range(4):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(("127.0.0.1", port))
        connection = dial(
            [proxy.url(), f"{'amqps' if silent == 'tls' else 'amqp'}://127.0.0.1:{port}"],
            reconnect_delay=0.01,
            connect_timeout=100,
            on_event=events.append,
        )
        proxy.stop()
        wait_until(
            lambda: (
                connection.driver._connecting is not None
                if silent != "handshake"
                else connection.driver.core.parameters.port == port
            )
        )
        wait_until(
            lambda: connection.driver._connecting is not None if silent != "handshake" else connection.driver._has_leader
        )
        began = time.monotonic()
        connection.close()
        assert time.monotonic() - began < 60
        assert not connection.driver._thread.is_alive()
        for each in waiting:
            each.close()


def test_threads_with_separate_connections(connect: Open, name: str) -> None:
    """No message goes to another thread's connection."""
    channel = connect().channel()
    queues = [channel.declare_queue(f"{name}.{number}", exclusive=True) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            publishers = [channel.publisher() for _ in range(8)]

            def publish(number: int) -> None:
                for _ in range(500):
                    publishers[number].publish(str(number % 4), f"{name}.{number % 4}")

            list(threads.map(publish, range(8)))
            for publisher in publishers:
                publisher.flush()
    finally:
        sys.setswitchinterval(before)
    for number, queue in enumerate(queues):
        bodies = []
        while (message := queue.get(no_ack=True)) is not None:
            bodies.append(message.body)
        assert bodies == [str(number).encode()] * 1000


_FORKING = """
import os, sys, threading
import leveret
from leveret import sync
from leveret.client import ConnectionLost

with sync.connect(sys.argv[1]) as connection, connection.channel() as channel:
    queue = channel.declare_queue(exclusive=True)
    stopping = threading.Event()
    def publish():
        own = connection.channel()
        while not stopping.is_set():
            own.publish("x", queue.name)
    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        child = os.fork()
        if not child:
            try:
                channel.publish("from the child", queue.name)
            except ConnectionLost as error:
                assert "fork" in str(error), error
                connection.close()
                with sync.connect(sys.argv[1]) as own:
                    own.channel().close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    stopping.set()
    for thread in threads:
        thread.join()
    channel.publish("from the parent", queue.name)
    print("fine", connection.driver.core.generation)
"""


def test_fork(server: Broker, tmp_path: Path) -> None:
    """The child has no connection; the parent's is not affected."""
    program = tmp_path / "forking.py"
    program.write_text(_FORKING)
    done = subprocess.run(
        # Python 3.12 and later warn that a child of a process with threads may deadlock.
        [sys.executable, "-W", "ignore::DeprecationWarning", str(program), server.url()],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine 1\n", "")


def test_unsolicited_methods(dial: Open) -> None:
    """The server is notified of its violation, waiting calls fail, and the connection is closed for good."""

    async def script(peer: Peer) -> None:
        await peer.handshake()
        number = await peer.channel()
        await peer.expect("Queue.Declare")
        peer.send(commands.Basic.QosOk(), number)
        assert (await peer.expect("Connection.Close"))[1].reply_code == 503

    with fake(script) as url:
        connection = dial(url, reconnect_delay=0.01)
        channel = connection.channel()
        with pytest.raises(ConnectionClosed) as caught:
            channel.declare_queue("x")
        assert caught.value.reply_code == 503
        with pytest.raises(ConnectionClosed):
            connection.wait_closed(60)


@pytest.mark.parametrize("calls", ["aio", "sync"])
def test_publish_times_out_while_the_connection_flaps(dial: Open, calls: str) -> None:
    """Each attempt to connect makes some progress and fails; that must not extend the deadline."""
    connections = 0

    async def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await peer.handshake()
            await peer.channel()
            return
        await peer.greet()
        await asyncio.sleep(0.02)

    options: dict[str, Any] = {"timeout": 0.5, "reconnect_delay": 0.05, "reconnect_max_delay": 0.1}

    async def publish(url: str) -> None:
        async with leveret.connect(url, **options) as connection:
            channel = await connection.channel()
            await wait_until_async(lambda: not connection.is_open)
            with pytest.raises(Timeout, match=r"no connection.*0\.5 s"):
                async with asyncio.timeout(60):
                    await channel.publish("x", "y")
            await wait_until_async(lambda: connections > 2)

    with fake(script) as url:
        if calls == "aio":
            asyncio.run(publish(url))
        else:
            connection = dial(url, **options)
            channel = connection.channel()
            wait_until(lambda: not connection.is_open)
            began = time.monotonic()
            with pytest.raises(Timeout, match=r"no connection.*0\.5 s"):
                channel.publish("x", "y")
            assert time.monotonic() - began < 60
            wait_until(lambda: connections > 2)
