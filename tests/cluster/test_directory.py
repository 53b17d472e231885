"""The connection of a node to the list of the nodes, which is cut at each statement: what was answered is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.cluster.watch import Announcement
from leveret.storage import postgres_formats
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_formats import KNOWN, RESTORED_EPOCHS, Formats
from tests.storage.harness import postgres_log
from tests.support.broker import Broker
from tests.support.postgres import execute, require_postgres, shared_server
from tests.support.proxy import Proxy

RECORD = ("user", "guest", b"value")


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


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_is_cut_at_each_statement(dsn: str, proxy: Proxy, answers: bool) -> None:
    from leveret.cluster.directory import Directory

    async def scenario() -> None:
        directory = Directory(settings_of(dsn, proxy))

        async def cut_at(part: bytes, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            """Make a call whose connection is cut, and make it again if that fails."""
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
