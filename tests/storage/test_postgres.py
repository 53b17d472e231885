"""The PostgreSQL engine: ownership, lost connections, and servers that must not be used."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.log import AWAY, FAILED, FULL, OK, Log
from leveret.broker.message import Entry
from leveret.storage.batch import Commit
from leveret.storage.registry import make_logs
from leveret.storage.row_sources import SourceFailed, open_source
from leveret.storage.salvage import Salvage
from tests.storage.harness import FakeQueue, Harness, Loop, Waiter, content, postgres_log
from tests.storage.test_model import LogMachine
from tests.support.broker import Broker
from tests.support.examples import examples
from tests.support.polling import wait_until
from tests.support.postgres import PostgresServer, execute, require_postgres, shared_server
from tests.support.proxy import Pair, Proxy

# Seconds for what must not wait for a connection.
TIMEOUT = 30.0
TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'leveret' AND datname = current_database()"
)


@pytest.fixture
def server() -> PostgresServer:
    require_postgres()
    return shared_server()


@pytest.fixture
def dsn(server: PostgresServer) -> str:
    return server.database()


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(Broker(server.host, server.port))
    yield proxy
    proxy.stop()


def through(proxy: Proxy, dsn: str) -> str:
    """Return the address of a database behind a proxy."""
    return dsn.replace(f":{proxy.broker.port}/", f":{proxy.port}/")


def states_of(log: Log) -> list[str]:
    """Return the list that gets each new state of a log."""
    states: list[str] = []
    log.on_state = lambda: states.append(log.state)
    return states


def wait_for_failure(harness: Harness) -> str:
    """Wait until the log has failed for good, and return why."""
    harness.loop.run_until(lambda: harness.log.state == FAILED)
    assert not harness.log.may_reopen
    with pytest.raises(StorageFailed, match="not closed properly"):
        harness.log.close()
    return harness.log.reason


def elsewhere(harness: Harness, call: Callable[[], Any]) -> Any:
    """Run a blocking call in a thread while the event loop of a log runs."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(call)
        future.add_done_callback(lambda _: harness.loop.post(lambda: None))
        harness.loop.run_until(future.done)
        return future.result()


# Ownership


def test_a_second_broker_is_refused_while_the_owner_lives(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn, node="one"))
    # Without a commit: the owner's signs of life are enough.
    with pytest.raises(StorageFailed, match=r"shard 0 in PostgreSQL is owned by node 'one', which is alive"):
        elsewhere(harness, postgres_log(dsn, node="two").open)
    harness.publish(FakeQueue(1), b"more")
    harness.commit()
    harness.log.close()


def test_a_released_shard_is_claimed_without_waiting(dsn: str) -> None:
    # A lease that no test would survive.
    harness = Harness(lambda: postgres_log(dsn, lease=10_000))
    assert harness.reopen().clean
    harness.log.close()


def test_a_broker_that_ends_during_its_start_leaves_the_recovery_to_the_next_one(dsn: str) -> None:
    old = Harness(lambda: postgres_log(dsn, node="old"))
    old.publish(FakeQueue(1), b"kept")
    old.commit()
    for _ in range(2):
        log = postgres_log(dsn, node="new")
        assert not log.open().clean
        log.close()


def test_a_broker_whose_event_loop_hangs_loses_the_shard(dsn: str) -> None:
    old = Harness(lambda: postgres_log(dsn, node="old"))
    queue = FakeQueue(1)
    old.publish(queue, b"confirmed")
    old.commit()
    new = Harness(lambda: postgres_log(dsn, node="new"))
    assert not new.recovery.clean
    assert new.bodies(1) == [b"confirmed"]
    old.publish(queue, b"late")
    waiter = Waiter(old.log)
    old.log.flush()
    assert "node 'new' has taken over shard 0 (epoch 2; this broker had 1)" in wait_for_failure(old)
    assert not waiter.batches
    new.reopen()
    assert new.bodies(1) == [b"confirmed"]
    new.log.close()


def test_an_idle_broker_notices_that_it_was_taken_over(dsn: str) -> None:
    old = Harness(lambda: postgres_log(dsn, node="old"))
    new = Harness(lambda: postgres_log(dsn, node="new"))
    assert "node 'new' has taken over" in wait_for_failure(old)
    new.log.close()


def test_a_large_body_of_a_broker_that_was_taken_over_leaves_nothing_behind(dsn: str) -> None:
    old = Harness(lambda: postgres_log(dsn, node="old"))
    new = Harness(lambda: postgres_log(dsn, node="new"))
    old.publish(FakeQueue(1), b"x" * 3_000_000)
    Waiter(old.log)
    old.log.flush()
    wait_for_failure(old)
    assert execute(dsn, "SELECT count(*) FROM leveret_s0.chunk") == [(0,)]
    new.log.close()


def claimed(dsn: str, tmp_path: Path, lease: float) -> Any:
    """Return a store that has claimed its shard."""
    from leveret.storage.cluster import ClusterSettings
    from leveret.storage.postgres_marker import Marker
    from leveret.storage.postgres_store import PostgresStore

    store = PostgresStore(ClusterSettings(dsn, "test", lease, True), 0, Salvage(), Marker(tmp_path / "marker"))
    store.claim()
    return store


def test_each_chunk_of_a_large_body_is_a_sign_of_life(dsn: str) -> None:
    """They may take longer than the lease."""
    harness = Harness(lambda: postgres_log(dsn, lease=10_000))
    execute(
        dsn,
        "CREATE TABLE sign(chunks bigint);"
        " CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO leveret.sign SELECT count(*) FROM leveret_s0.chunk; RETURN NULL; END $$;"
        " CREATE TRIGGER note AFTER UPDATE OF seen ON leveret.owner FOR EACH ROW EXECUTE FUNCTION note()",
    )
    harness.publish(FakeQueue(1), b"x" * 3_000_000)
    harness.commit()
    assert execute(dsn, "SELECT count(*), max(chunks) FROM sign") == [(4, 3)]
    harness.log.close()


def test_a_sign_of_life_is_as_old_as_its_question(dsn: str, tmp_path: Path) -> None:
    """A process that was frozen while it waited for the answer may have been taken over meanwhile."""
    import psycopg

    store = claimed(dsn, tmp_path, 10_000)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    for sign in (store.beat, partial(store.commit, Commit(1))):
        with ThreadPoolExecutor(1) as threads, psycopg.connect(dsn) as blocker:
            blocker.execute("SELECT FROM leveret.owner FOR UPDATE")
            answered = threads.submit(sign)
            wait_until(lambda: execute(dsn, waiting) == [(1,)])
            asked = time.monotonic()
            blocker.rollback()
            answered.result()
        assert store.beaten < asked
    store.close()


def test_aborting_a_connection_whose_socket_was_closed(dsn: str, tmp_path: Path) -> None:
    """The thread of the statement may close it at the same time, and another file may have its number then."""
    store = claimed(dsn, tmp_path, 10_000)
    session = store.session
    with open(os.devnull, "rb") as other:
        os.dup2(other.fileno(), session._pgconn.socket)
    session.abort()
    store.close()


def test_signs_of_life_during_the_recovery_continue_over_another_connection(dsn: str, tmp_path: Path) -> None:
    store = claimed(dsn, tmp_path, 0.6)

    def seen() -> Any:
        return execute(dsn, "SELECT seen FROM leveret.owner")

    for _ in range(2):
        known = seen()
        wait_until(partial(lambda known: seen() != known, known))
        execute(dsn, TERMINATE)
    store.close()


def test_signs_of_life_do_not_wait_for_a_host_that_does_not_answer(
    server: PostgresServer, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leveret.storage import postgres_store

    with socket.socket() as hung:
        hung.bind((server.host, 0))  # refuses connections

        class Later(postgres_store.Keeper):
            """Connects when the first host accepts connections, but does not answer."""

            def __init__(self, *arguments: Any) -> None:
                hung.listen()
                super().__init__(*arguments)

        monkeypatch.setattr(postgres_store, "Keeper", Later)
        hosts = f"{server.host}:{hung.getsockname()[1]},{server.host}:{server.port}"
        store = claimed(f"{dsn.replace(f'{server.host}:{server.port}', hosts)}?connect_timeout=600", tmp_path, 0.6)
        known = execute(dsn, "SELECT seen FROM leveret.owner")
        wait_until(lambda: execute(dsn, "SELECT seen FROM leveret.owner") != known, within=TIMEOUT)
        store.close()


class FirstOnly(Proxy):
    """A proxy whose first connection works. It never answers the others, as a host whose machine hangs."""

    def _accept(self) -> None:
        client = self.listener.accept()[0]
        pair = Pair(client, socket.create_connection((self.broker.host, self.broker.port)))
        self.pairs.append(pair)
        for to_server in (True, False):
            threading.Thread(target=self._pump, args=(pair, to_server, None), daemon=True).start()


def test_a_start_does_not_wait_for_the_connection_of_its_signs_of_life(server: PostgresServer, dsn: str) -> None:
    proxy = FirstOnly(Broker(server.host, server.port))
    log = postgres_log(f"{through(proxy, dsn)}?connect_timeout=600")
    log.open()
    started = threading.Thread(target=log.start, args=(Loop().post,), daemon=True)
    started.start()
    started.join(TIMEOUT)
    assert not started.is_alive()
    log.close()
    proxy.stop()


def test_brokers_create_the_schema_at_the_same_time(dsn: str) -> None:
    def open_log(number: int) -> str:
        log = postgres_log(dsn, node=str(number))
        try:
            log.open()
        except StorageFailed as error:
            return str(error)
        log.close()
        return ""

    with ThreadPoolExecutor(4) as threads:
        errors = list(threads.map(open_log, range(4)))
    assert "" in errors
    assert all(not error or "node" in error for error in errors), errors


def test_orphaned_chunks_are_deleted(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    execute(dsn, "INSERT INTO leveret_s0.chunk SELECT id, '', 0 FROM generate_series(5, 150) id")
    harness.reopen()
    harness.publish(FakeQueue(1), b"x" * 1_500_000)
    harness.commit()
    harness.log.close()
    assert execute(dsn, "SELECT id FROM leveret_s0.chunk ORDER BY id") == [(151,), (152,)]


# Lost connections


def publish_over(proxy: Proxy, dsn: str, lose: Callable[[Harness], object]) -> None:
    """Publish while the connection is lost in some way: each message is confirmed and stored once."""
    harness = Harness(lambda: postgres_log(through(proxy, dsn)))
    states = states_of(harness.log)
    queue = FakeQueue(1)
    harness.publish(queue, b"before")
    harness.commit()
    lose(harness)
    harness.publish(queue, b"meanwhile")
    harness.commit()
    harness.publish(queue, b"after")
    harness.commit()
    assert states == [AWAY, OK]
    assert harness.log.statistics()["reconnects"] == 1
    assert harness.reopen().clean
    assert harness.bodies(1) == [b"before", b"meanwhile", b"after"]
    harness.log.close()


def test_a_connection_that_is_cut_before_a_commit(proxy: Proxy, dsn: str) -> None:
    def lose(harness: Harness) -> None:
        proxy.cut_at = b"meanwhile"

    publish_over(proxy, dsn, lose)


def test_a_connection_that_is_cut_after_a_commit(proxy: Proxy, dsn: str) -> None:
    def lose(harness: Harness) -> None:
        proxy.cut_answers = 1

    publish_over(proxy, dsn, lose)


def test_connections_that_are_cut_anywhere(proxy: Proxy, dsn: str) -> None:
    """Within the handshake, statements and answers: each message is confirmed and stored once."""
    harness = Harness(lambda: postgres_log(through(proxy, dsn)))
    states_of(harness.log)
    queue = FakeQueue(1)
    harness.publish(queue, b"first")
    harness.commit()
    proxy.cut()
    to_server, to_client = proxy.to_server, proxy.to_client
    harness.publish(queue, b"second")
    harness.commit()
    # Bytes of a connection before the message.
    to_server, to_client = proxy.to_server - to_server - 500, proxy.to_client - to_client - 100
    bodies = [b"first", b"second"]
    choose = random.Random(1)
    cuts: list[tuple[int | None, int | None]] = []
    for _ in range(6):
        cuts += [(to_server + choose.randint(0, 600), None), (None, to_client + choose.randint(0, 150))]
    cuts += [(choose.randint(1, to_server), None), (None, choose.randint(1, to_client))]
    for cut in cuts:
        proxy.next_cuts.append(cut)
        proxy.cut()
        for _ in range(3):
            bodies.append(b"%d" % len(bodies) * 100)
            harness.publish(queue, bodies[-1])
            harness.commit()
    # Besides the connections before them, which this test has cut.
    assert not proxy.next_cuts and proxy.accepted >= 2 * len(cuts), proxy.accepted
    assert harness.reopen().clean
    assert harness.bodies(1) == bodies
    harness.log.close()


def test_a_terminated_backend(proxy: Proxy, dsn: str) -> None:
    publish_over(proxy, dsn, lambda harness: execute(dsn, TERMINATE))


def test_a_commit_that_arrives_late_is_not_repeated(server: PostgresServer, proxy: Proxy, dsn: str) -> None:
    """The broker connects again before the old connection's commit has been executed, which then waits for a lock."""
    harness = Harness(lambda: postgres_log(through(proxy, dsn)))
    queue = FakeQueue(1)
    harness.publish(queue, b"before")
    harness.commit()
    import psycopg

    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT FROM leveret.owner FOR UPDATE")
        harness.publish(queue, b"late")
        Waiter(harness.log)
        harness.log.flush()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while server.execute(waiting) != [(1,)]:
            pass
        proxy.cut()
        # The broker's question waits behind its commit.
        while server.execute(waiting) != [(2,)]:
            pass
        blocker.rollback()
    harness.commit()
    harness.reopen()
    assert harness.bodies(1) == [b"before", b"late"]
    harness.log.close()


def test_rows_are_read_over_a_new_connection(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    entries = harness.publish(FakeQueue(1), b"small", b"x" * 2_000_000)
    harness.commit()
    execute(dsn, TERMINATE)
    assert [len(content(item.message)) for item in harness.load_entries(entries)] == [5, 2_000_000]
    harness.log.close()


@pytest.mark.slow
def test_an_old_primary_and_another_server_are_not_trusted() -> None:
    require_postgres()
    first, stranger = PostgresServer().create().start(), PostgresServer().create().start()
    dsn = first.database()
    stranger.execute(f"CREATE DATABASE {dsn.rpartition('/')[2]}")
    second = PostgresServer().clone(first, "second").start()
    proxy = Proxy(Broker(first.host, first.port))
    address = through(proxy, dsn)
    harness = Harness(lambda: postgres_log(address))
    log = harness.log
    queue = FakeQueue(1)

    def switch(server: PostgresServer) -> None:
        """Pass new connections on to another server, and cut the others."""
        proxy.broker = Broker(server.host, server.port)
        proxy.cut()

    def confirmed(body: bytes) -> None:
        harness.publish(queue, body)
        harness.commit()

    try:
        confirmed(b"before")
        wal = f"SELECT pg_last_wal_replay_lsn() >= '{first.execute('SELECT pg_current_wal_lsn()')[0][0]}'"
        wait_until(lambda: second.execute(wal) == [(True,)], second.log)
        second.promote()
        wait_until(lambda: second.execute("SELECT pg_is_in_recovery()") == [(False,)], second.log)
        switch(second)
        confirmed(b"after the promotion")
        place = log.rows_address()
        assert place is not None
        rows = open_source(place)
        rows.check_owner()
        rows.close()
        switch(first)
        # The epoch is the same there.
        with pytest.raises(SourceFailed, match="an old primary"):
            open_source(place).check_owner()
        harness.publish(queue, b"while an old primary answers")
        waiter = Waiter(log)
        log.flush()
        harness.loop.run_until(lambda: "an old primary" in log.reason)
        switch(stranger)
        harness.loop.run_until(lambda: "its system identifier is" in log.reason)
        assert not waiter.batches
        switch(second)
        harness.loop.run_until(lambda: bool(waiter.batches))
        assert log.state == OK
        harness.reopen()
        assert harness.bodies(1) == [b"before", b"after the promotion", b"while an old primary answers"]
    finally:
        harness.log.close()
        proxy.stop()
        for server in (first, second, stranger):
            server.remove()


def test_a_broker_stops_while_the_server_is_away(proxy: Proxy, dsn: str) -> None:
    harness = Harness(lambda: postgres_log(through(proxy, dsn)))
    proxy.stop()
    harness.publish(FakeQueue(1), b"never confirmed")
    waiter = Waiter(harness.log)
    harness.log.flush()
    harness.loop.run_until(lambda: harness.log.state == AWAY)
    with pytest.raises(StorageFailed, match="the broker stops while PostgreSQL is away"):
        harness.log.close()
    assert not waiter.batches


def test_lost_commits_are_refused_until_an_operator_accepts_them(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    queue = FakeQueue(1)
    for number in range(3):
        harness.publish(queue, b"%d" % number)
        harness.commit()
    # As on a server that was restored, or a standby that was promoted too early.
    execute(dsn, "UPDATE leveret.owner SET committed = committed - 2; DELETE FROM leveret_s0.log WHERE id > 1")
    execute(dsn, TERMINATE)
    why = "PostgreSQL has lost confirmed commits: shard 0 is at commit 1, and commit 3 of epoch 1 was confirmed"
    assert wait_for_failure(harness) == why
    with pytest.raises(StorageFailed, match=why + ".*--accept-missing"):
        postgres_log(dsn).open()
    harness = Harness(lambda: postgres_log(dsn, salvage=Salvage(accept_missing=True)))
    assert harness.bodies(1) == [b"0"]
    harness.log.close()
    # Files that the lost part may refer to are kept.
    harness.begin()
    assert {kind for kind, _ in harness.recovery.metadata} == {"salvaged"}
    harness.log.close()


def test_a_lost_claim_is_a_lost_commit(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    execute(dsn, "UPDATE leveret.owner SET epoch = 0")
    execute(dsn, TERMINATE)
    assert "has lost confirmed commits" in wait_for_failure(harness)


def test_a_start_notices_that_commits_are_lost(dsn: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    harness = Harness(lambda: postgres_log(dsn, marker=marker))
    harness.publish(FakeQueue(1), b"1")
    harness.commit()
    harness.log.close()
    # As on a server that was restored while no broker ran.
    execute(dsn, "UPDATE leveret.owner SET committed = committed - 1")
    why = "PostgreSQL has lost confirmed commits: it is at commit 1 of epoch 1, and commit 2 of epoch 1 was confirmed"
    for _ in range(2):
        with pytest.raises(StorageFailed, match=why):
            postgres_log(dsn, marker=marker).open()
    Harness(lambda: postgres_log(dsn, marker=marker, salvage=Salvage(accept_missing=True))).log.close()
    Harness(lambda: postgres_log(dsn, marker=marker)).log.close()


def test_an_empty_database_in_place_of_another_is_refused(server: PostgresServer, dsn: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    harness = Harness(lambda: postgres_log(dsn, marker=marker))
    execute(dsn, "DROP SCHEMA leveret CASCADE; DROP SCHEMA leveret_s0 CASCADE")
    execute(dsn, TERMINATE)
    assert "has lost confirmed commits" in wait_for_failure(harness)
    with pytest.raises(StorageFailed, match=r"has its messages in another database; .*--accept-missing"):
        postgres_log(dsn, marker=marker).open()


def test_another_owner_with_the_same_epoch_is_recognized(dsn: str) -> None:
    """A server that has lost the claim of this broker may have accepted that of another one since."""
    harness = Harness(lambda: postgres_log(dsn))
    execute(dsn, "UPDATE leveret.owner SET node = 'other', incarnation = gen_random_uuid()")
    execute(dsn, TERMINATE)
    assert "node 'other' has taken over shard 0" in wait_for_failure(harness)


# No space


def test_publishers_wait_while_the_disk_of_the_server_is_full(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    states = states_of(harness.log)
    execute(
        dsn,
        "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    )
    execute(dsn, "CREATE TRIGGER no_space BEFORE INSERT ON leveret_s0.log EXECUTE FUNCTION no_space()")
    harness.publish(FakeQueue(1), b"kept")
    waiter = Waiter(harness.log)
    harness.log.flush()
    harness.loop.run_until(lambda: bool(states))
    assert harness.log.reason == "no space is left for PostgreSQL: could not extend file: No space left on device"
    # Its signs of life continue meanwhile.
    with pytest.raises(StorageFailed, match="is alive"):
        elsewhere(harness, postgres_log(dsn, node="two").open)
    execute(dsn, "DROP TRIGGER no_space ON leveret_s0.log")
    harness.loop.run_until(lambda: bool(waiter.batches) and harness.log.state == OK)
    assert states == [FULL, OK]
    harness.reopen()
    assert harness.bodies(1) == [b"kept"]
    harness.log.close()


# Damage


def test_damaged_rows_are_refused(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    entries = harness.publish(FakeQueue(1), b"body")
    harness.commit()
    execute(dsn, "UPDATE leveret_s0.log SET data = set_byte(data, octet_length(data) - 1, 0)")
    harness.log.load([entries[0].row.id], [entries[0].slot], lambda found: None)  # type: ignore[arg-type, union-attr]
    harness.loop.run_until(lambda: harness.log.state == FAILED)
    assert harness.log.reason == "row 1 of the log in PostgreSQL is damaged: the checksum of its data is wrong"
    with pytest.raises(StorageFailed):
        harness.log.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE leveret_s0.log SET entries = set_byte(entries, 30, 99)", "the checksum of its index is wrong"),
        ("UPDATE leveret_s0.metadata SET value = 'other'", "the definition of kind .*key.* is damaged"),
        ("UPDATE leveret_s0.mark SET seq = 2", "the highest sequence number of queue 1 is damaged"),
    ],
)
def test_damage_is_found_at_the_start(dsn: str, change: str, what: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    harness.publish(FakeQueue(1), b"body")
    harness.log.put("kind", "key", b"value")
    harness.commit()
    harness.log.close()
    execute(dsn, change)
    with pytest.raises(StorageFailed, match=f"{what}.*restore the database from a backup"):
        postgres_log(dsn).open()


# Refused servers and settings


def test_a_server_without_a_standby_needs_consent(dsn: str, tmp_path: Path) -> None:
    from leveret.storage.cluster import ClusterSettings
    from leveret.storage.postgres import PostgresLog

    with pytest.raises(StorageFailed, match=r"no synchronous standby .* accept that with 'cluster.unreplicated' = true"):
        PostgresLog(ClusterSettings(dsn, "node", 0.6, False), tmp_path / "marker").open()


def test_a_newer_format_is_refused(dsn: str) -> None:
    Harness(lambda: postgres_log(dsn)).log.close()
    execute(dsn, "UPDATE leveret.cluster SET format = 2")
    with pytest.raises(StorageFailed, match=r"uses schema format 2, and this version of Leveret knows up to 1"):
        postgres_log(dsn).open()


def test_an_error_names_the_privilege_that_a_user_lacks(server: PostgresServer, dsn: str) -> None:
    execute(dsn, "CREATE ROLE visitor LOGIN")
    with pytest.raises(StorageFailed, match=r"may not create a schema.*grant it CREATE on the database"):
        postgres_log(dsn.replace("leveret@", "visitor@")).open()
    execute(dsn, "DROP ROLE visitor")


def test_a_user_who_may_not_add_a_missing_column_learns_who_may(dsn: str) -> None:
    Harness(lambda: postgres_log(dsn)).log.close()
    execute(dsn, "ALTER TABLE leveret.node DROP COLUMN unreachable")
    execute(dsn, "CREATE ROLE visitor LOGIN")
    execute(dsn, "GRANT USAGE ON SCHEMA leveret TO visitor")
    execute(dsn, "GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA leveret TO visitor")
    with pytest.raises(
        StorageFailed, match=r"may not change a table.*start the broker as the owner of the schema 'leveret'"
    ):
        postgres_log(dsn.replace("leveret@", "visitor@")).open()
    execute(dsn, "DROP OWNED BY visitor")
    execute(dsn, "DROP ROLE visitor")


def test_errors_do_not_show_the_password(server: PostgresServer) -> None:
    for dsn in ("postgresql://u:secr%zzet@h/d", f"postgresql://leveret:secret@{server.host}:{server.port}/missing"):
        with pytest.raises(StorageFailed) as caught:
            postgres_log(dsn).open()
        assert "secr" not in str(caught.value)


def test_the_engine_refuses_what_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"without 'storage.dsn'"):
        make_logs("postgresql", tmp_path)


def test_a_data_directory_with_another_log_is_refused(dsn: str, tmp_path: Path) -> None:
    from leveret.storage.cluster import ClusterSettings

    settings = ClusterSettings(dsn, "node", 0.6, True)
    with pytest.raises(StorageFailed, match=r"--drop-damaged is not for 'storage.engine' 'postgresql'"):
        make_logs("postgresql", tmp_path, cluster=settings, salvage=Salvage(drop_damaged=True))
    (tmp_path / "log-0.sqlite").touch()
    with pytest.raises(StorageFailed, match="has a log in SQLite"):
        make_logs("postgresql", tmp_path, cluster=settings)


# Against the model


class PostgresMachine(LogMachine):
    """The same records, commits, restarts and crashes as with SQLite."""

    def make_log(self) -> Callable[[], Log]:
        require_postgres()
        dsn = shared_server().database()
        return lambda: postgres_log(dsn)

    def kill(self) -> None:
        log = self.log
        log._worker.close()
        log._store.close()
        # The owner is dead, so that the next one need not wait for its lease.
        execute(log._settings.dsn, "UPDATE leveret.owner SET node = NULL")


PostgresMachine.TestCase.settings = examples(12, stateful_step_count=30, deadline=None)
test_log = PostgresMachine.TestCase


def test_entries_survive_many_terminated_backends(dsn: str) -> None:
    harness = Harness(lambda: postgres_log(dsn))
    queue = FakeQueue(1)
    alive: list[Entry] = []
    published = 0

    def reconnects() -> int:
        return harness.log.statistics()["reconnects"]

    def terminate() -> None:
        for _ in range(10):
            known = reconnects()
            execute(dsn, TERMINATE)
            wait_until(partial(lambda known: reconnects() > known, known), "the log has connected again")

    with ThreadPoolExecutor() as executor:
        terminating = executor.submit(terminate)
        while not terminating.done():
            alive += harness.publish(queue, b"%d" % published)
            published += 1
            if published % 3 == 0:
                harness.log.settle(alive.pop(0))
            harness.commit()
        terminating.result()
    harness.reopen()
    assert harness.bodies(1) == [b"%d" % number for number in range(published // 3, published)]
    harness.log.close()
