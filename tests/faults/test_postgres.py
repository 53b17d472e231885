"""Brokers with their logs in PostgreSQL: kills, restarts of the server, take-overs, and standbys that are away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.faults.crash.rounds import CrashTest
from tests.faults.test_kill9 import KEPT, bodies_of, confirmed
from tests.support.broker import ROOT, Broker, LeveretProcess, leveret_only
from tests.support.peers.async_amqp091 import Connection
from tests.support.polling import wait_until, wait_until_async
from tests.support.postgres import PostgresServer, postgres_settings, require_postgres, shared_server
from tests.support.proxy import Proxy


@pytest.fixture
def server() -> PostgresServer:
    leveret_only("it is killed")
    require_postgres()
    return shared_server()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    leveret_only("it is killed")
    require_postgres()
    server = PostgresServer().create().start()
    yield server
    server.remove()


def broker_at(directory: Path, dsn: str, **settings: str) -> LeveretProcess:
    return LeveretProcess(directory, environment=postgres_settings(dsn) | settings)


def test_crash_rounds(server: PostgresServer, tmp_path: Path) -> None:
    process = broker_at(tmp_path, server.database())
    rounds = int(os.environ.get("LEVERET_POSTGRES_KILLS", "2"))
    test = CrashTest(process, 1, tmp_path / "journal.jsonl")
    try:
        test.run(rounds, (0.3, 1.0), found=50)
        process.check_log()
        print(test.summary())
    finally:
        process.kill()


def test_clients_stay_connected_while_the_server_restarts(own_server: PostgresServer, tmp_path: Path) -> None:
    async def scenario(broker: LeveretProcess) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.declare("kept", durable=True)
        await channel.call(commands.Confirm.Select())
        done: set[int] = set()
        blocked: list[str | None] = []
        connection.on_blocked = blocked.append
        channel.on_confirm = lambda tag, multiple, ack: done.update(range(1, tag + 1) if multiple else [tag])
        channel.publish("", "kept", b"1", KEPT)
        await wait_until_async(lambda: done == {1}, "the first confirm")
        own_server.crash()
        channel.publish("", "kept", b"2", KEPT)
        await asyncio.to_thread(broker.wait_for_log, "store away alarm: publishers blocked")
        # The first publish during an alarm is accepted, and blocks its connection.
        channel.publish("", "kept", b"3", KEPT)
        await wait_until_async(lambda: bool(blocked), "connection.blocked")
        assert blocked == ["store away"]
        assert done == {1}
        await asyncio.to_thread(own_server.start)
        await wait_until_async(lambda: done == {1, 2, 3} and blocked == ["store away", None], "the second confirm")
        await connection.close()

    with broker_at(tmp_path, own_server.database()).start() as broker:
        assert isinstance(broker, LeveretProcess)
        asyncio.run(scenario(broker))
        assert asyncio.run(bodies_of(broker, "kept")) == [b"1", b"2", b"3"]


def test_a_frozen_broker_is_taken_over_and_exits_when_it_thaws(server: PostgresServer, tmp_path: Path) -> None:
    dsn = server.database()
    frozen = broker_at(tmp_path / "frozen", dsn, LEVERET_CLUSTER__NAME="frozen").start()
    other = broker_at(tmp_path / "other", dsn, LEVERET_CLUSTER__NAME="other")
    try:
        asyncio.run(confirmed(frozen, "kept", [b"1", b"2"]))
        with pytest.raises(RuntimeError, match="is owned by node 'frozen', which is alive"):
            other.start()
        os.kill(frozen.pid, signal.SIGSTOP)
        other.start()
        assert asyncio.run(bodies_of(other, "kept")) == [b"1", b"2"]
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.process is not None
        assert frozen.process.wait(60) == 1
        assert "Error: node 'other' has taken over shard 0" in frozen.log()
        other.stop()
    finally:
        frozen.kill()
        other.kill()


def test_nothing_is_delivered_while_another_broker_may_have_taken_over(server: PostgresServer, tmp_path: Path) -> None:
    proxy = Proxy(Broker(server.host, server.port))
    dsn = server.database().replace(f":{server.port}/", f":{proxy.port}/")

    async def scenario(broker: LeveretProcess) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.declare("live")
        await channel.declare("other")
        arrived: list[bytes] = []
        channel.on_delivery = lambda delivery: arrived.append(delivery.body)
        await channel.consume("live", no_ack=True)
        sent: list[bytes] = []

        async def is_delivered() -> bool:
            """Publish a transient message, and return whether it arrives before the answer to a later method."""
            sent.append(b"%d" % len(sent))
            channel.publish("", "live", sent[-1])
            for _ in range(2):
                await channel.get("other")
            return arrived == sent

        assert await is_delivered()
        proxy.flowing.clear()
        for _ in range(3000):
            if not await is_delivered():
                break
            await asyncio.sleep(0.01)
        before = len(arrived)
        assert before < len(sent)
        assert not await is_delivered()
        assert len(arrived) == before
        proxy.flowing.set()
        await wait_until_async(lambda: arrived == sent, "the deliveries")
        await connection.close()

    try:
        with broker_at(tmp_path, dsn).start() as broker:
            assert isinstance(broker, LeveretProcess)
            asyncio.run(scenario(broker))
    finally:
        proxy.stop()


@pytest.mark.slow
def test_nothing_is_confirmed_while_the_standby_is_away(own_server: PostgresServer, tmp_path: Path) -> None:
    standby = PostgresServer().clone(own_server, "second").start()
    own_server.reload(synchronous_standby_names="second")
    broker = broker_at(tmp_path, own_server.database(), LEVERET_CLUSTER__UNREPLICATED="false").start()
    replication = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"

    async def scenario() -> None:
        await confirmed(broker, "kept", [b"1"])
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.call(commands.Confirm.Select())
        done: list[int] = []
        channel.on_confirm = lambda tag, multiple, ack: done.append(tag)
        standby.stop()
        channel.publish("", "kept", b"2", KEPT)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'leveret'"
        await wait_until_async(lambda: own_server.execute(waiting) == [(1,)], "the wait for the standby")
        # An operator cancels the wait, with which the server commits on one disk. The broker asks again.
        own_server.execute(waiting.replace("count(*)", "pg_cancel_backend(pid)"))
        await wait_until_async(lambda: own_server.execute(waiting) == [(1,)], "the wait for the standby")
        assert not done
        await asyncio.to_thread(standby.start)
        await wait_until_async(lambda: done == [1], "the confirm")
        await connection.close()

    try:
        wait_until(lambda: own_server.execute(replication) == [(1,)], own_server.log)
        asyncio.run(scenario())
        status = subprocess.run(
            [sys.executable, "-m", "leveret", "status", "--data-dir", str(broker.data_dir)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            check=True,
        )
        assert b"synchronous standbys: second" in status.stdout
        # The standby has all that was confirmed.
        own_server.crash()
        standby.promote()
        broker.kill()
        broker.environment["LEVERET_CLUSTER__UNREPLICATED"] = "true"
        broker.environment["LEVERET_STORAGE__DSN"] = standby.dsn(
            broker.environment["LEVERET_STORAGE__DSN"].rpartition("/")[2]
        )
        wait_until(lambda: standby.execute("SELECT pg_is_in_recovery()") == [(False,)], standby.log)
        broker.start()
        assert asyncio.run(bodies_of(broker, "kept")) == [b"1", b"2"]
        broker.stop()
    finally:
        broker.kill()
        standby.remove()


def test_the_default_store_does_not_import_psycopg() -> None:
    code = "import sys, leveret.cli.serving; sys.exit('psycopg' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}).returncode
