"""The connection of a node to the list of the nodes, which is cut at each statement: what was answered is kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.cluster.watch import Announcement
from leveret.storage import postgres_formats
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_formats import KNOWN, RESTORED_EPOCHS, Formats
from tests.storage.harness import postgres_log
from tests.support.broker import Broker
from tests.support.polling import wait_until
from tests.support.postgres import execute, require_postgres, shared_server
from tests.support.proxy import Proxy

RECORD = ("user", "guest", b"value")
# Parts of the statements of a start: those that create the schema, all others of `join`, and those of `enter`.
CREATE = (b"CREATE SCHEMA leveret;", b"COMMIT")
ADD_COLUMN = b"ADD COLUMN IF NOT EXISTS"
JOIN = (
    b"server_version_num",
    b"pg_walfile_name",
    b"SET tcp_keepalives_idle",
    b"to_regclass($1) IS NOT NULL",
    b"SELECT format, row_format",
    b"SELECT identity, importing",
    b"FROM pg_attribute",
    ADD_COLUMN,
    b"SELECT shards FROM",
    b"SELECT secret FROM",
)
ENTER = (b"SELECT address, seen", b"SELECT seen FROM leveret.node", b"INSERT INTO leveret.node", b"FOR SHARE")
# Seconds for what must not wait for a standby.
TIMEOUT = 20.0


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    server = shared_server()
    proxy = Proxy(Broker(server.host, server.port))
    yield proxy
    proxy.stop()


def settings_of(dsn: str, proxy: Proxy, name: str = "one") -> ClusterSettings:
    address = dsn.replace(f":{proxy.broker.port}/", f":{proxy.port}/")
    return ClusterSettings(address, name, 0.6, True, shards=4)


def open_shard(dsn: str) -> None:
    """Create the tables of shard 0, which node `test` owned."""
    log = postgres_log(dsn)
    log.open()
    log.close()
    execute(dsn, "UPDATE leveret.owner SET node = 'one'; INSERT INTO leveret.takeover VALUES (0, 1, now(), NULL)")


async def cut(proxy: Proxy, answers: bool, part: bytes, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Make a call whose connection is cut at a statement, or at its answer, and make it again if that fails."""
    if answers:
        proxy.cut_answer_to = part
    else:
        proxy.cut_at = part
    try:
        result = await call()
    except StorageFailed:
        result = await call()
    assert not (proxy.cut_at or proxy.cut_answer_to), part
    return result


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_is_cut_at_each_statement_of_a_start(dsn: str, proxy: Proxy, answers: bool) -> None:
    from leveret.cluster.directory import Directory

    async def scenario() -> None:
        for part in (*CREATE, *JOIN):
            if part in CREATE:
                execute(dsn, "DROP SCHEMA IF EXISTS leveret CASCADE")
            elif part == ADD_COLUMN:
                execute(dsn, "ALTER TABLE leveret.node DROP COLUMN unreachable")
            directory = Directory(settings_of(dsn, proxy))
            await cut(proxy, answers, part, directory.join)
            assert execute(dsn, "SELECT secret FROM leveret.cluster") == [(directory.secret,)]
            directory.close()
        directory = Directory(settings_of(dsn, proxy))
        await directory.join()
        for part in ENTER:
            await cut(proxy, answers, part, lambda: directory.enter("host:1"))
            assert execute(dsn, "SELECT name, address FROM leveret.node") == [("one", "host:1")]
            await directory.leave()
        directory.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_is_cut_at_each_statement(dsn: str, proxy: Proxy, answers: bool) -> None:
    from leveret.cluster.directory import Directory

    async def scenario() -> None:
        directory = Directory(settings_of(dsn, proxy))
        cut_at = partial(cut, proxy, answers)
        await directory.join()
        await directory.enter("host:1")
        open_shard(dsn)
        await cut_at(b"UPDATE leveret.cluster SET shards", lambda: directory.begin([RECORD]))
        view = await cut_at(b"UPDATE leveret.node SET seen", lambda: directory.look(1))
        assert ([node.name for node in view.nodes], view.shards) == (["one"], 4)
        changed = ("permission", "guest", b"all")
        version = await cut_at(b"INSERT INTO leveret.shared", lambda: directory.put([changed]))
        new = ("placement", "a", b"new 1")
        await cut_at(b"WHERE shared.value IS NULL", lambda: directory.put_new([new]))
        # A change after that stays, if the first attempt has taken effect.
        await cut_at(b"WHERE shared.value IS NULL", lambda: directory.put_new([("placement", "a", b"new 2")]))
        assert await cut_at(b"FROM leveret.shared WHERE version", lambda: directory.records(version)) == (
            version + 1,
            [new],
        )
        assert sorted((await directory.records(0))[1]) == sorted([RECORD, changed, new])
        own = Announcement("one", ("host:2", ""))
        assert await cut_at(b"WITH given", lambda: directory.announce(own, [])) == []
        # The move to the node that has the shard would never end.
        await cut_at(b"SET wanted", lambda: directory.want(0, "one"))
        assert execute(dsn, "SELECT wanted FROM leveret.owner") == [(None,)]
        await cut_at(b"SET wanted", lambda: directory.want(0, "two"))
        assert execute(dsn, "SELECT wanted FROM leveret.owner") == [("two",)]
        await cut_at(b"SET draining", lambda: directory.drain("one", True))
        assert execute(dsn, "SELECT draining FROM leveret.node") == [(True,)]
        await cut_at(b"SET served_at", lambda: directory.note_served([0]))
        assert execute(dsn, "SELECT served_at IS NULL FROM leveret.takeover") == [(False,)]
        await cut_at(b"WITH released", lambda: directory.release([0]))
        assert execute(dsn, "SELECT node, count FROM leveret.owner JOIN leveret.takeover USING (shard)") == [(None, 2)]
        assert (await cut_at(b"transaction_age", directory.condition)).synchronous == ""
        execute(dsn, "INSERT INTO leveret.node VALUES ('gone', gen_random_uuid(), '', '', 1, '{}', NULL, NULL, 0, false)")
        await cut_at(b"DELETE FROM leveret.node", lambda: directory.forget("gone"))
        await cut_at(b"DELETE FROM leveret.node", directory.leave)
        assert execute(dsn, "SELECT count(*) FROM leveret.node") == [(0,)]
        directory.close()

    asyncio.run(scenario())


def test_an_idle_connection_that_the_server_has_ended_is_replaced(dsn: str) -> None:
    from leveret.cluster.directory import Directory

    ours = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    async def scenario() -> None:
        directory = Directory(ClusterSettings(dsn, "one", 0.6, True, shards=4))
        await directory.join()
        await directory.enter("host:1")
        await directory.put([RECORD])
        execute(dsn, f"SELECT pg_terminate_backend(pid) {ours}")
        wait_until(lambda: execute(dsn, f"SELECT count(*) {ours}") == [(0,)])
        await directory.drain("one", True)
        assert [node.draining for node in (await directory.look(0)).nodes] == [True]
        directory.close()

    asyncio.run(scenario())


@contextmanager
def no_standby() -> Iterator[None]:
    """Have the commits of the shared server wait for a standby that does not exist."""
    server = shared_server()
    server.reload(synchronous_standby_names="missing")
    try:
        yield
    finally:
        server.reload(synchronous_standby_names="")


async def waiting_change(directory: Any) -> asyncio.Task[Any]:
    """Make changes until one waits for a standby, and return that."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    putting = asyncio.create_task(directory.put([RECORD]))
    while not shared_server().execute(waits)[0][0]:
        if putting.done():
            putting = asyncio.create_task(directory.put([RECORD]))
        await asyncio.sleep(0.01)
    return putting


def test_a_change_that_waits_for_a_standby_holds_up_no_look(dsn: str) -> None:
    from leveret.cluster.directory import Directory

    async def scenario() -> None:
        directory = Directory(ClusterSettings(dsn, "one", 0.6, True, shards=4))
        await directory.join()
        await directory.enter("host:1")
        with no_standby():
            putting = await waiting_change(directory)
            async with asyncio.timeout(TIMEOUT):
                assert [node.live for node in (await directory.look(0)).nodes] == [True]
                assert len((await directory.condition()).waits) == 1
            assert not putting.done()
        await putting
        directory.close()

    asyncio.run(scenario())


def test_a_change_that_waits_for_a_standby_does_not_keep_the_process(dsn: str) -> None:
    from leveret.cluster.directory import Directory

    async def scenario() -> None:
        directory = Directory(ClusterSettings(dsn, "one", 0.6, True, shards=4))
        await directory.join()
        with no_standby():
            (await waiting_change(directory)).cancel()
            directory.close()
            wait_until(lambda: not any(thread.name.startswith("leveret-directory") for thread in threading.enumerate()))

    asyncio.run(scenario())


def test_marks_of_moves_and_drains_do_not_wait_for_a_standby(dsn: str) -> None:
    """The rows would stay locked meanwhile, and their owners could show no signs of life."""
    from leveret.cluster.directory import Directory

    async def scenario() -> None:
        directory = Directory(ClusterSettings(dsn, "one", 0.6, True, shards=4))
        await directory.join()
        await directory.enter("host:1")
        open_shard(dsn)
        other = Directory(ClusterSettings(dsn, "two", 0.6, True, shards=4))
        await other.join()
        with no_standby():
            putting = await waiting_change(directory)
            async with asyncio.timeout(TIMEOUT):
                await other.want(0, "two")
                await other.drain("one", True)
                assert not await other.forget("one")
                view = await directory.look(0)
            assert ([owner.wanted for owner in view.owners], [node.draining for node in view.nodes]) == (["two"], [True])
        await putting
        other.close()
        directory.close()

    asyncio.run(scenario())


def test_a_command_does_not_wait_for_a_standby_forever(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_shard(dsn)
    execute(dsn, "UPDATE leveret.owner SET node = NULL, seen = NULL")
    settings = ClusterSettings(dsn, "command", 0.6, True)
    monkeypatch.setattr(postgres_formats, "TIMEOUT", 0.5)

    def problem() -> str:
        """Mark the database as restored until that waits for a standby."""
        while True:
            try:
                postgres_formats.mark_restored(settings)
            except StorageFailed as error:
                return str(error)

    with ThreadPoolExecutor(1) as thread, no_standby():
        found = thread.submit(problem).result(TIMEOUT)
    assert "PostgreSQL has not confirmed the change within 0.5 seconds; start the standbys" in found


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_of_a_command_is_cut(dsn: str, proxy: Proxy, answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command fails, and takes effect when it is run again."""
    open_shard(dsn)
    execute(dsn, "UPDATE leveret.owner SET node = NULL, seen = NULL")
    settings = settings_of(dsn, proxy)
    reports: list[str] = []
    newer = Formats(KNOWN.schema, KNOWN.row + 1, KNOWN.link)
    commands: list[Callable[[], None]] = [
        lambda: postgres_formats.upgrade(settings, reports.append),
        lambda: postgres_formats.mark_restored(settings),
    ]
    with monkeypatch.context() as patched:
        patched.setattr(postgres_formats, "KNOWN", newer)
        for command in commands:
            if answers:
                proxy.cut_answer_to = b"COMMIT"
            else:
                proxy.cut_at = b"COMMIT"
            with pytest.raises(StorageFailed):
                command()
            command()
    assert execute(dsn, "SELECT row_format FROM leveret.cluster") == [(newer.row,)]
    assert len(reports) == 1 and reports[0].startswith("nothing to raise" if answers else "raised the row format")
    # If the first answer was lost, the epochs are raised twice, which is no less safe.
    assert execute(dsn, "SELECT epoch FROM leveret.owner") == [(1 + (2 if answers else 1) * RESTORED_EPOCHS,)]
