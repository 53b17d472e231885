"""A node whose primary is lost: it continues with the promoted standby, and never returns to the old primary."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.broker.log import RowsAddress
from leveret.storage.cluster import ClusterSettings, Server
from leveret.storage.row_sources import POSTGRESQL, RowSource, open_source
from tests.cluster.sharded import running
from tests.cluster.test_freeze import frozen
from tests.cluster.test_nodes import Node
from tests.support.polling import DEADLINE, wait_until, wait_until_async
from tests.support.postgres import PostgresServer, execute, require_postgres
from tests.support.processes import family


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its synchronous standby."""
    require_postgres()
    primary = PostgresServer().create().start()
    standby = PostgresServer()
    try:
        standby.clone(primary, "standby").start()
        primary.reload(synchronous_standby_names="standby")
        yield primary, standby
    finally:
        standby.remove()
        primary.remove()


def sealer_rows(dsn: str, primary: str) -> RowSource:
    """Return the rows of shard 0 as its sealer reads them.

    Args:
        dsn: The address with all hosts.
        primary: The address of the primary.
    """
    from leveret.storage.postgres_rows import address_fields

    [(epoch,)] = execute(primary, "SELECT epoch FROM leveret.owner WHERE shard = 0")
    [(system,)] = execute(primary, "SELECT system_identifier FROM pg_control_system()")
    fields = address_fields(ClusterSettings(dsn, "one", 0.6, True), 0, epoch, Server(system, 1))
    return open_source(RowsAddress(POSTGRESQL, fields, is_local=False))


@pytest.mark.slow
def test_a_primary_that_hangs_is_left_for_the_promoted_standby(
    tmp_path: Path, servers: tuple[PostgresServer, PostgresServer]
) -> None:
    """Its connections stay open, as with a disk that hangs."""
    old, new = servers
    database = old.database().rpartition("/")[2]
    hosts = f"{old.host}:{old.port},{new.host}:{new.port}"
    dsn = f"postgresql://leveret@{hosts}/{database}?target_session_attrs=read-write"
    node = Node(tmp_path / "one", dsn)
    with running(node):
        node.publish("/", b"before")
        rows = sealer_rows(dsn, old.dsn(database))
        rows.check_owner()
        assert old.process is not None
        with frozen(family(old.process.pid)):
            new.promote()
            wait_until(lambda: execute(new.dsn(database), "SELECT NOT pg_is_in_recovery()")[0][0])
            node.publish("/", b"promoted")
            node.ask("users.add", name="added", password="secret")
            rows.check_owner()  # the statement waits for the old primary at first
        assert node.bodies("/") == [b"before", b"promoted"]
        assert node.log().count("a standby was promoted: leaving the old primary") == 2  # by the front and the shard


def test_an_old_primary_that_is_back_is_not_used(tmp_path: Path, servers: tuple[PostgresServer, PostgresServer]) -> None:
    old, new = servers
    database = old.database().rpartition("/")[2]
    hosts = f"{old.host}:{old.port},{new.host}:{new.port}"
    node = Node(tmp_path / "one", f"postgresql://leveret@{hosts}/{database}?target_session_attrs=read-write")
    with running(node):
        node.publish("/", b"before")
        old.crash()
        new.promote()
        wait_until(lambda: execute(new.dsn(database), "SELECT NOT pg_is_in_recovery()")[0][0])
        node.publish("/", b"promoted")
        # It is the first host, accepts writes, and has the state of before.
        old.settings["synchronous_standby_names"] = ""
        old.start()
        known = execute(old.dsn(database), "SELECT epoch, committed FROM leveret.owner")
        execute(
            new.dsn(database),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()",
        )
        node.publish("/", b"after the loss of the connections")
        # Neither does a new process.
        node.shard_pid(0, other_than=node.kill_shard(0))
        node.publish("/", b"after the loss of the process")
        assert execute(old.dsn(database), "SELECT epoch, committed FROM leveret.owner") == known
        assert node.bodies("/") == [
            b"before",
            b"promoted",
            b"after the loss of the connections",
            b"after the loss of the process",
        ]


def test_a_change_leaves_a_hung_primary_when_a_look_has_found_the_promoted_standby(
    servers: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leveret.cluster.directory import Directory
    from leveret.storage import postgres_probe

    monkeypatch.setattr(postgres_probe, "SILENCE", math.inf)
    old, new = servers
    database = old.database().rpartition("/")[2]
    hosts = f"{old.host}:{old.port},{new.host}:{new.port}"
    dsn = f"postgresql://leveret@{hosts}/{database}?target_session_attrs=read-write"

    async def scenario() -> None:
        directory = Directory(ClusterSettings(dsn, "one", 0.6, True, shards=4))
        await directory.join()
        await directory.enter("host:1")
        await directory.put([("user", "before", b"value")])
        assert old.process is not None
        with frozen(family(old.process.pid)):
            new.promote()
            change = asyncio.create_task(directory.put([("user", "after", b"value")]))
            look = asyncio.create_task(directory.look(0))
            await wait_until_async(lambda: None not in (directory._changes._begun, directory._looks._begun))
            session = directory._looks._session
            assert session is not None
            session.abort()
            await asyncio.gather(look, return_exceptions=True)
            await wait_until_async(lambda: execute(new.dsn(database), "SELECT NOT pg_is_in_recovery()")[0][0])
            await directory.look(0)
            await asyncio.wait_for(change, DEADLINE)
        assert [key for _, key, _ in (await directory.records(0))[1]] == ["before", "after"]
        directory.close()

    asyncio.run(scenario())
