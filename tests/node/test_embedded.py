"""`leveret.Broker` in this process, on an event loop of ours and in a thread, with real clients."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import leveret
from leveret.config.values import Setting
from leveret.node import running
from leveret.node.composition import Composition
from leveret.storage import sqlite_store
from leveret.storage.worker import StoreBroken
from tests.support.broker import ROOT
from tests.support.peers.websocket import request
from tests.support.polling import wait_until, wait_until_async

MANAGED: Mapping[str, Setting] = {"management": {"enabled": True}}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that every test leaves threads and files as before, and that nothing was printed."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(home))
    monkeypatch.chdir(home)
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    yield
    wait_until(lambda: set(threading.enumerate()) <= threads)
    gc.collect()
    assert open_files() <= files
    assert not list(home.iterdir())


def open_files() -> set[str]:
    """Return the open descriptors by number, with their targets."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            pass  # that of the listing itself
    return found


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


def publish(channel: BlockingChannel, body: bytes, queue: str = "q") -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def exchange_a_message(url: str, body: bytes = b"hello") -> None:
    with connect(url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("exchanged")
        publish(channel, body, "exchanged")
        assert channel.basic_get("exchanged", auto_ack=True)[2] == body


# Both forms


def test_in_a_thread() -> None:
    with leveret.Broker() as broker:
        assert broker.url == f"amqp://guest:guest@127.0.0.1:{broker.port}/"
        assert (broker.host, broker.data_dir) == ("127.0.0.1", None)
        exchange_a_message(broker.url)
    with pytest.raises(OSError):
        socket.create_connection((broker.host, broker.port))


def test_on_the_running_loop() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        threads = set(threading.enumerate())
        async with leveret.Broker() as broker:
            connection = await aio_pika.connect(broker.url)
            channel = await connection.channel()
            queue = await channel.declare_queue("q")
            await channel.default_exchange.publish(aio_pika.Message(b"hello"), "q")
            message = await queue.get()
            assert (message.body, message.redelivered) == (b"hello", False)
            await connection.close()
        with pytest.raises(OSError):
            await asyncio.open_connection(broker.host, broker.port)
        assert asyncio.all_tasks() == before
        assert set(threading.enumerate()) == threads

    asyncio.run(main(), debug=True)


def test_again_and_again() -> None:
    broker = leveret.Broker()
    for _ in range(10):
        with broker as running:
            exchange_a_message(running.url)


def test_in_turns_in_both_forms() -> None:
    broker = leveret.Broker()

    async def main() -> None:
        async with broker as running:
            await asyncio.to_thread(exchange_a_message, running.url)

    for _ in range(3):
        asyncio.run(main())
        with broker as blocking:
            exchange_a_message(blocking.url)


def test_two_brokers_are_independent(tmp_path: Path) -> None:
    with leveret.Broker() as one, leveret.Broker(data_dir=tmp_path / "data") as two:
        with connect(one.url) as connection:
            connection.channel().queue_declare("q")
        with connect(two.url) as connection, pytest.raises(pika.exceptions.ChannelClosedByBroker):
            connection.channel().queue_declare("q", passive=True)


def test_one_broker_runs_once_at_a_time() -> None:
    broker = leveret.Broker()
    with broker as running:
        with pytest.raises(RuntimeError, match="already running"), broker:
            pass
        exchange_a_message(running.url)

    async def enter() -> None:
        async with broker:
            await asyncio.sleep(0)

    async def main() -> tuple[BaseException | None, BaseException | None]:
        return await asyncio.gather(enter(), enter(), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(main())] == [type(None), RuntimeError]


def test_a_broker_that_did_not_start_can_be_started_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = leveret.Broker(port=taken.getsockname()[1])
        with pytest.raises(leveret.StartFailed):
            broker.__enter__()
        with pytest.raises(leveret.StartFailed):
            asyncio.run(broker.__aenter__())
    with broker as running:
        exchange_a_message(running.url)


def test_clients_that_never_answer_do_not_keep_it() -> None:
    with leveret.Broker() as broker:
        silent = connect(broker.url)
        half = socket.create_connection((broker.host, broker.port))
        half.sendall(b"AMQP\0\0\x09\x01")
        assert half.recv(1)
    with pytest.raises(pika.exceptions.AMQPError):
        silent.channel()
    half.close()


def test_clients_are_notified_of_the_stop() -> None:
    told: list[BaseException | None] = []

    async def main() -> None:
        async with leveret.Broker() as broker:
            connection = await aio_pika.connect(broker.url)
            connection.close_callbacks.add(lambda _, reason: told.append(reason))
            await connection.channel()
        await wait_until_async(lambda: told)

    asyncio.run(main())
    assert [getattr(reason, "errno", None) or getattr(reason, "code", None) for reason in told] == [320]


def test_stopping_twice_and_calling_afterwards() -> None:
    with leveret.Broker() as broker:
        broker.stop()
        broker.stop()
        with pytest.raises(RuntimeError, match="is not running"):
            broker.create_vhost("v")

    async def main() -> None:
        async with leveret.Broker() as broker:
            await broker.stop()
            await broker.stop()
            with pytest.raises(RuntimeError, match="is not running"):
                await broker.create_vhost("v")

    asyncio.run(main())


def test_an_exception_in_the_block_stops_it() -> None:
    with pytest.raises(ZeroDivisionError), leveret.Broker() as broker:
        connect(broker.url).close()
        raise ZeroDivisionError


def test_a_task_that_is_cancelled_stops_it_to_the_end(tmp_path: Path) -> None:
    async def serve(started: asyncio.Event) -> None:
        async with leveret.Broker(data_dir=tmp_path / "data") as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(b"AMQP\0\0\x09\x01")
            await reader.read(1)
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                # The broker now waits for this client: cancel it there as well.
                asyncio.get_running_loop().call_later(0.05, asyncio.current_task().cancel)  # type: ignore[union-attr]

    async def main() -> None:
        for _ in range(3):
            started = asyncio.Event()
            task = asyncio.create_task(serve(started))
            await started.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        async with leveret.Broker(data_dir=tmp_path / "data"):
            pass

    asyncio.run(main())


# Data directories


def test_messages_live_in_the_data_directory(tmp_path: Path) -> None:
    broker = leveret.Broker(data_dir=tmp_path / "data")
    with broker as first:
        assert first.data_dir == tmp_path / "data"
        with connect(first.url) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            publish(channel, b"kept")
            channel.queue_bind("q", "amq.topic", "a.*")
        first.create_vhost("v")
    with broker as second:
        with connect(second.url) as connection:
            assert connection.channel().basic_get("q", auto_ack=True)[2] == b"kept"
        connect(second.url_of("v")).close()


@pytest.mark.parametrize("on_disk", [True, False])
def test_large_bodies(tmp_path: Path, on_disk: bool) -> None:
    """Bodies above `storage.body_spool_threshold` pass through files if there is a directory for them."""
    with leveret.Broker(data_dir=tmp_path / "data" if on_disk else None) as broker:
        exchange_a_message(broker.url, os.urandom(1 << 20) * 3)
        left = connect(broker.url).channel()
        left.queue_declare("left", durable=True)
        left.basic_publish("", "left", bytes(3 << 20), pika.BasicProperties(delivery_mode=2))


def test_in_memory_every_run_begins_empty() -> None:
    broker = leveret.Broker()
    for _ in range(2):
        with broker as running, connect(running.url) as connection:
            assert connection.channel().queue_declare("q", durable=True).method.message_count == 0
            connection.channel().basic_publish("", "q", b"", pika.BasicProperties(delivery_mode=2))


def test_a_failed_start_forgets_nothing_of_a_crash(tmp_path: Path) -> None:
    """Messages that a consumer had when the broker died are redelivered, even if a start fails before the good one."""
    with leveret.Broker(data_dir=tmp_path / "data") as broker, connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        publish(channel, b"held")
        assert not channel.basic_get("q")[0].redelivered
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(leveret.StartFailed, match="cannot listen"),
        leveret.Broker(data_dir=tmp_path / "crashed", port=taken.getsockname()[1]),
    ):
        pass
    with leveret.Broker(data_dir=tmp_path / "crashed") as broker, connect(broker.url) as connection:
        method, _, body = connection.channel().basic_get("q")
        assert (body, method.redelivered) == (b"held", True)


def test_a_process_that_ends_without_stopping_it(tmp_path: Path) -> None:
    """It ends at once with the right exit code, and the broker is stopped properly."""
    program = (
        "import leveret, pika, sys\n"
        "broker = leveret.Broker(data_dir=sys.argv[1]).__enter__()\n"
        "channel = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()\n"
        "channel.queue_declare('q', durable=True)\n"
        "sys.exit(7)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        env=environment,
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (7, False), done.stderr
    with leveret.Broker(data_dir=tmp_path / "data") as broker, connect(broker.url) as connection:
        connection.channel().queue_declare("q", passive=True)


def test_a_store_that_failed_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "REOPEN_DELAY", 0.05)
    commit = sqlite_store.SqliteStore.commit
    failing = threading.Event()

    def breaking(self: sqlite_store.SqliteStore, batch: object) -> None:
        if failing.is_set():
            raise StoreBroken("disk I/O error")
        commit(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_store.SqliteStore, "commit", breaking)
    with leveret.Broker(data_dir=tmp_path / "data", config=MANAGED) as broker:
        channel = connect(broker.url).channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        publish(channel, b"confirmed")
        failing.set()
        with pytest.raises(pika.exceptions.AMQPError):
            publish(channel, b"not confirmed")
        failing.clear()
        wait_until(lambda: _listens(broker))
        with connect(broker.url) as connection:
            assert [queue["name"] for queue in get(broker.management_url, "queues")] == ["q"]
            assert connection.channel().basic_get("q", auto_ack=True)[2] == b"confirmed"
        (record,) = get(broker.management_url, "leveret/log?level=error&text=disk+I/O+error&limit=1")["records"]
        assert record["process"] == "broker"
    assert "the store has failed: disk I/O error" in caplog.text


def _listens(broker: leveret.SyncBroker) -> bool:
    try:
        connect(broker.url).close()
    except pika.exceptions.AMQPError:
        return False
    return True


# Refusals


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(leveret.StartFailed, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*ddress already in use"):
            leveret.Broker(port=port).__enter__()
        with pytest.raises(leveret.StartFailed, match="ddress already in use"):
            asyncio.run(leveret.Broker(port=port).__aenter__())


def test_a_data_directory_that_is_in_use(tmp_path: Path) -> None:
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        with (
            pytest.raises(leveret.StartFailed, match=f"is in use by process {os.getpid()}"),
            leveret.Broker(data_dir=tmp_path / "data"),
        ):
            pass
        exchange_a_message(broker.url)


def test_losses_that_are_accepted(tmp_path: Path) -> None:
    """The equivalents of --accept-missing and --drop-damaged, each of which allows only its own losses."""
    data = tmp_path / "data"
    with leveret.Broker(data_dir=data) as running, connect(running.url) as connection:
        connection.channel().queue_declare("q", durable=True)
        connection.channel().queue_declare("kept", durable=True)
    with sqlite3.connect(data / "log-0.sqlite") as database:
        database.execute("UPDATE metadata SET value = x'00' WHERE kind = 'queue' AND instr(key, CAST('\"q\"' AS BLOB))")
    database.close()
    for refused in (leveret.Broker(data_dir=data), leveret.Broker(data_dir=data, accept_missing=True)):
        with (
            pytest.raises(leveret.StartFailed, match=r"--drop-damaged \(drop_damaged=True of an embedded broker\)"),
            refused,
        ):
            pass
    with leveret.Broker(data_dir=data, drop_damaged=True) as running, connect(running.url) as connection:
        connection.channel().queue_declare("kept", passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="q"):
            connection.channel().queue_declare("q", passive=True)
    (data / "log-0.sqlite").unlink()
    for refused in (leveret.Broker(data_dir=data), leveret.Broker(data_dir=data, drop_damaged=True)):
        with (
            pytest.raises(leveret.StartFailed, match=r"--accept-missing \(accept_missing=True of an embedded broker\)"),
            refused,
        ):
            pass

    async def start() -> None:
        async with leveret.Broker(data_dir=data, accept_missing=True) as running:
            assert running.data_dir == data

    asyncio.run(start())
    with leveret.Broker(data_dir=data):
        pass


def test_losses_are_accepted_for_a_start_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that failed is opened again without them."""
    monkeypatch.setattr(running, "REOPEN_DELAY", 0.01)
    given = []
    make = Composition

    def made(*arguments: Any, **named: Any) -> Composition:
        given.append(named["salvage"])
        return make(*arguments, **named)

    monkeypatch.setattr(running, "Composition", made)
    with leveret.Broker(data_dir=tmp_path / "data", accept_missing=True, drop_damaged=True) as broker:
        node = broker._node
        broker._thread._loop.call_soon_threadsafe(node._store_failed)  # type: ignore[union-attr]
        wait_until(lambda: len(given) == 2)
        wait_until(lambda: _listens(broker))
    assert [(salvage.accept_missing, salvage.drop_damaged) for salvage in given] == [(True, True), (False, False)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"server": {"data_dir": "/dev/null/data"}}, "cannot create data directory /dev/null/data: Not a directory"),
        ({"tls": {"cert": "/dev/null/cert.pem"}}, "/dev/null/cert.pem"),
        ({"users": {"a": {"password_file": "/dev/null"}}}, r"users\.a\.password_file: /dev/null is empty"),
        ({"server": {"host": "no such host"}}, "cannot resolve 'server.host' 'no such host'"),
        (
            {"websocket": {"enabled": True, "host": "no such host"}},
            "cannot resolve 'websocket.host' 'no such host'",
        ),
    ],
)
def test_other_reasons_not_to_start(config: dict[str, object], expected: str) -> None:
    with pytest.raises(leveret.StartFailed, match=expected), leveret.Broker(config=config):
        pass


def test_websockets() -> None:
    settings = {"enabled": True, "port": 0, "path": "/amqp", "allowed_origins": ["https://Shop.example.com"]}
    with leveret.Broker(config={"websocket": settings}) as broker:
        url = next(known for known in broker._node.listeners if known.startswith("ws://127.0.0.1:"))
        parts = urlsplit(url)
        assert parts.path == "/amqp"
        for origin, status in (("https://shop.example.com", b"101"), ("https://other.example.com", b"403")):
            with socket.create_connection((parts.hostname, parts.port)) as client:
                client.sendall(request("/amqp", origin=origin))
                assert client.recv(4096).startswith(b"HTTP/1.1 " + status)


def test_websockets_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wsproto", None)
    monkeypatch.setitem(sys.modules, "wsproto.connection", None)
    monkeypatch.delitem(sys.modules, "leveret.server.websocket", raising=False)
    expected = r"'websocket\.enabled' is set without its extra \(make extra-websocket\)"
    with pytest.raises(leveret.StartFailed, match=expected), leveret.Broker(config={"websocket": {"enabled": True}}):
        pass


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"server": {"prt": 1}}, "config: unknown setting 'server.prt': did you mean 'server.port'?"),
        (
            {"storage": {"engine": "sqlite"}},
            "config: 'storage.engine' is 'sqlite', which requires a data directory; set data_dir too",
        ),
        (
            {"cluster": {"shards": 2}},
            "config: 'cluster.shards' is 2; expected 1, because an embedded broker is one process",
        ),
        ("missing.toml", "missing.toml: cannot read the configuration file: No such file or directory"),
    ],
)
def test_a_configuration_that_cannot_be_used(config: dict[str, object] | str, expected: str) -> None:
    with pytest.raises(leveret.ConfigError) as caught:
        leveret.Broker(config=config)
    assert str(caught.value) == expected


def test_an_argument_that_cannot_be_used() -> None:
    with pytest.raises(leveret.ConfigError, match=r"argument: server\.port: got 70000, expected an integer"):
        leveret.Broker(port=70000)


# Configuration


def test_a_table_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "leveret.toml"
    file.write_text('[vhosts.orders]\nlimits.max_queues = 1\n[server]\ndata_dir = "data"\nport = 1\n')
    for config in (file, {"vhosts": {"orders": {"limits": {"max_queues": 1}}}}):
        with leveret.Broker(config=config, port=0) as broker:
            assert broker.data_dir == (tmp_path / "data" if config is file else None)
            with connect(broker.url_of("orders")) as connection:
                channel = connection.channel()
                channel.queue_declare("one")
                with pytest.raises(pika.exceptions.AMQPError, match="max_queues"):
                    channel.queue_declare("two")


def test_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEVERET_SERVER__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LEVERET_SERVER__PORT", "nonsense")
    with leveret.Broker() as broker:
        assert broker.data_dir is None


def test_the_users_of_the_configuration_are_all_there_are() -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    users = {"hash": {"tags": ["administrator"]}, "äl/ice": {"password": "p@ss", "permissions": {"/": everything}}}
    with leveret.Broker(config={"users": users}) as broker:
        assert broker.url == f"amqp://%C3%A4l%2Fice:p%40ss@127.0.0.1:{broker.port}/"
        exchange_a_message(broker.url)
        with pytest.raises(pika.exceptions.AMQPError):
            connect(broker.url.replace("%C3%A4l%2Fice:p%40ss", "guest:guest"))
        with pytest.raises(pika.exceptions.AMQPError):
            connect(broker.create_vhost("v"))


@pytest.mark.parametrize("host", ["::1", "", "0.0.0.0", "localhost"])
def test_other_addresses(host: str) -> None:
    with leveret.Broker(host=host) as broker:
        exchange_a_message(broker.url)


# Vhosts and users


def test_vhosts() -> None:
    with leveret.Broker() as broker:
        url = broker.create_vhost("a/ü b")
        assert url == broker.url_of("a/ü b") == f"{broker.url}a%2F%C3%BC%20b"
        exchange_a_message(url)
        connection = connect(url)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        broker.delete_vhost("a/ü b")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="was deleted"):
            channel.queue_declare("q", passive=True)
        with pytest.raises(pika.exceptions.AMQPError):
            connect(url)
        with connect(broker.create_vhost("a/ü b")) as again, pytest.raises(pika.exceptions.ChannelClosedByBroker):
            again.channel().queue_declare("q", passive=True)


@pytest.mark.parametrize(
    ("call", "condition", "text"),
    [
        (lambda broker: broker.create_vhost("/"), "precondition-failed", "already exists"),
        (lambda broker: broker.create_vhost(""), "precondition-failed", "1 to 255 bytes"),
        (lambda broker: broker.delete_vhost("v"), "not-found", "vhost 'v' does not exist"),
        (lambda broker: broker.delete_vhost("/"), "not-allowed", "always exists"),
        (lambda broker: broker.add_user("guest", "x"), "not-allowed", "declared in config"),
        (lambda broker: broker.add_user("a", ""), "precondition-failed", "password is empty"),
        (lambda broker: broker.add_user("a", "x", vhosts=["/", "v"]), "not-found", "vhost 'v' does not exist"),
        (lambda broker: broker.add_user("a", "x", write="("), "precondition-failed", "write permission"),
    ],
)
def test_refused_calls(call: Callable[[leveret.SyncBroker], object], condition: str, text: str) -> None:
    with leveret.Broker() as broker:
        with pytest.raises(leveret.CallRefused, match=text) as caught:
            call(broker)
        assert caught.value.condition == condition
        # None of it took effect.
        broker.add_user("a", "x")


def test_users() -> None:
    with leveret.Broker() as broker:
        broker.create_vhost("v")
        broker.add_user("alice", "secret", vhosts=["v"], configure="^mine$", write="", read=".*")
        exchange_a_message(broker.url)
        url = broker.url_of("v").replace("guest:guest", "alice:secret")
        with connect(url) as connection:
            connection.channel().queue_declare("mine")
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                connection.channel().queue_declare("yours")
        with pytest.raises(pika.exceptions.AMQPError):
            connect(broker.url.replace("guest:guest", "alice:secret"))


def test_calls_on_the_running_loop() -> None:
    async def main() -> None:
        async with leveret.Broker() as broker:
            url = await broker.create_vhost("v")
            await broker.add_user("alice", "secret", vhosts=["v"])
            connection = await aio_pika.connect(url.replace("guest:guest", "alice:secret"))
            await connection.close()
            with pytest.raises(leveret.CallRefused, match="already exists"):
                await broker.create_vhost("v")
            await broker.delete_vhost("v")
            with pytest.raises(leveret.CallRefused, match="vhost 'v' does not exist"):
                await broker.delete_vhost("v")

    asyncio.run(main())


# The HTTP API


def get(url: str | None, path: str) -> Any:
    """Return the answer to a request to the HTTP API as the user guest."""
    assert url is not None
    credentials = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(f"{url}api/{path}", headers={"authorization": f"Basic {credentials}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_there_is_no_http_api_by_default() -> None:
    with leveret.Broker() as broker:
        assert broker.management_url is None


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_the_http_api_of_a_thread(tmp_path: Path, on_disk: bool) -> None:
    broker = leveret.Broker(config=MANAGED, data_dir=tmp_path / "data" if on_disk else None)
    for _ in range(2):
        with broker as running, connect(running.url) as connection:
            connection.channel().queue_declare("q", auto_delete=True)
            assert [queue["name"] for queue in get(running.management_url, "queues")] == ["q"]
        with pytest.raises(OSError):
            get(running.management_url, "queues")


def test_the_http_api_of_a_broker_on_the_running_loop() -> None:
    async def main() -> None:
        async with leveret.Broker(config=MANAGED) as broker:
            await broker.create_vhost("orders")
            vhosts = await asyncio.to_thread(get, broker.management_url, "vhosts")
            assert [vhost["name"] for vhost in vhosts] == ["/", "orders"]

    asyncio.run(main(), debug=True)


def test_a_port_of_the_http_api_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = leveret.Broker(config={"management": {"enabled": True, "port": port}})
        with pytest.raises(leveret.StartFailed, match=rf"cannot listen on port {port}: .* change 'management\.host'"):
            broker.__enter__()
    assert logging.getLogger("leveret").handlers == []


# The process


@pytest.mark.parametrize("config", [{}, MANAGED], ids=["without HTTP", "with HTTP"])
def test_nothing_of_the_process_changes(config: Mapping[str, Setting]) -> None:
    def settings() -> list[object]:
        root = logging.getLogger()
        return [
            sys.getswitchinterval(),
            gc.get_threshold(),
            gc.get_freeze_count(),
            gc.isenabled(),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            [signal.getsignal(number) for number in signal.valid_signals()],
            root.level,
            list(root.handlers),
            logging.getLogger("leveret").handlers,
            logging.raiseExceptions,
            logging.getLogger("asyncio").level,
            logging.getLogger("uvicorn").level,
            sys.excepthook,
            threading.excepthook,
            dict(os.environ),
            os.getcwd(),
            os.umask(os.umask(0o22)),
        ]

    # Frozen objects may be freed.
    gc.unfreeze()
    before = settings()
    with leveret.Broker(config=config) as broker:
        exchange_a_message(broker.url)
        assert settings() == before
    assert settings() == before
