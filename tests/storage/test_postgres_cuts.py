"""The connection to PostgreSQL is cut at each statement of the store: before the server gets it, or before its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.message import Entry
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_schema import Statements
from leveret.storage.sqlite import SqliteLog
from tests.storage.harness import FakeQueue, Harness, content, postgres_log
from tests.support.broker import Broker
from tests.support.postgres import execute, require_postgres, shared_server
from tests.support.proxy import Proxy

# Parts of the statements of a start. The last one reads the rows.
START = (
    b"SELECT format, row_format",
    b"SELECT identity, importing",
    b"SELECT epoch, committed",
    b"SET lock_timeout = '200ms'",
    b"WITH claimed",
    b"SET lock_timeout = 0",
    b"\0confirm\0",
    b"pg_advisory_lock_shared",
    b"SELECT max(id) FROM log",
    b"\0size\0",
    b"FROM metadata",
    b"FROM mark",
    b"FROM log WHERE id",
)
# Parts of the statements of an import before the commit that completes it. The first ones leave what others remove.
IMPORT = (
    b"to_regclass($1)",
    b"CREATE SCHEMA leveret;",
    b"SET importing = $1",
    b"COMMIT",
    b"CREATE SCHEMA leveret_s0;",
    b"FOR SHARE",
    b"COPY leveret_s0.log",
    b"FROM pg_attribute",
    b"SELECT importing FROM leveret.cluster FOR UPDATE",
    b"SELECT nspname",
    b"DROP SCHEMA leveret_s0",
    b"DROP SCHEMA leveret CASCADE",
    b"COPY leveret_s0.chunk",
    b"COPY leveret_s0.metadata",
    b"SELECT count(*), coalesce",
    b"SET next_row",
    b"INSERT INTO leveret.shared",
    b"SET importing = NULL",
)


def cut_at(proxy: Proxy, part: bytes, *, answers: bool) -> None:
    """Cut the connection at the next statement with this part, or its answer, once."""
    if answers:
        proxy.cut_answer_to = part
    else:
        proxy.cut_at = part


def is_cut(proxy: Proxy) -> bool:
    return not (proxy.cut_at or proxy.cut_answer_to)


class Cutting:
    """A log behind a proxy that cuts its connection.

    Args:
        dsn: The database.
        proxy: The proxy in front of it.
        answers: Whether the answers are cut off, instead of the statements.
    """

    def __init__(self, dsn: str, proxy: Proxy, *, answers: bool) -> None:
        self.dsn = dsn
        self.proxy = proxy
        self.answers = answers
        self.queue = FakeQueue(1)
        self.expected: list[bytes] = []
        self.entries: list[Entry] = []
        self.harness = Harness(lambda: postgres_log(dsn.replace(f":{proxy.broker.port}/", f":{proxy.port}/")))

    def cut_at(self, part: bytes) -> None:
        cut_at(self.proxy, part, answers=self.answers)

    def is_cut(self) -> bool:
        return is_cut(self.proxy)

    def publish(self, body: bytes) -> None:
        self.entries += self.harness.publish(self.queue, body)
        self.expected.append(body)

    def settle(self) -> None:
        """Settle the first entry."""
        self.harness.log.settle(self.entries.pop(0))
        del self.expected[0]

    # The work that executes each statement

    def insert(self) -> None:
        self.publish(b"%d" % self.queue.seq)
        self.harness.commit()

    def insert_and_delete(self) -> None:
        self.settle()
        self.insert()

    def delete(self) -> None:
        self.settle()
        self.harness.commit()

    def write(self) -> None:
        self.harness.log.put("kind", "key", b"%d" % self.queue.seq)
        self.harness.commit()

    def chunk(self) -> None:
        self.publish(b"%d" % self.queue.seq * 1_200_000)
        self.harness.commit()

    def load(self) -> None:
        loaded = self.harness.load_entries(self.entries)
        assert [content(item.message) for item in loaded] == self.expected

    def takers(self) -> None:
        answers: list[bool] = []
        self.harness.log.find_takers(answers.append)
        self.harness.loop.run_until(lambda: bool(answers))
        assert answers == [False]

    def beat(self) -> None:
        self.harness.loop.run_until(self.is_cut)

    def confirm(self) -> None:
        self.proxy.cut()
        self.insert()

    def release(self) -> None:
        self.harness.log.close()
        assert execute(self.dsn, "SELECT clean, node FROM leveret.owner") == [(True, None)]
        self.begin()

    def size(self) -> None:
        """Start again. Its recovery measures the tables."""
        self.release()

    def begin(self) -> None:
        self.harness.begin()
        recovered = self.harness.load_queue(1)
        assert [content(item.message) for item in recovered] == self.expected


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    require_postgres()
    server = shared_server()
    proxy = Proxy(Broker(server.host, server.port))
    yield proxy
    proxy.stop()


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_is_cut_at_each_statement(proxy: Proxy, answers: bool) -> None:
    cutting = Cutting(shared_server().database(), proxy, answers=answers)
    steps: dict[str, Callable[[], None]] = {
        "insert": cutting.insert,
        "insert_and_delete": cutting.insert_and_delete,
        "delete": cutting.delete,
        "write": cutting.write,
        "chunk": cutting.chunk,
        "read_row": cutting.load,
        "read_chunks": cutting.load,
        "takers": cutting.takers,
        "beat": cutting.beat,
        "confirm": cutting.confirm,
        "release": cutting.release,
        "size": cutting.size,
    }
    assert steps.keys() == {statement.name.decode() for statement in Statements(0).all()}
    for _ in range(3):
        cutting.insert()
    for name, step in steps.items():
        cutting.cut_at(b"\0%s\0" % name.encode())
        step()
        assert cutting.is_cut(), name
    # The lock of a session is one of the statements after each connection, too.
    cutting.cut_at(b"pg_advisory_lock_shared")
    cutting.confirm()
    assert cutting.is_cut()
    cutting.harness.log.close()


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_is_cut_at_each_statement_of_a_start(proxy: Proxy, answers: bool) -> None:
    """The start fails, or connects again; the next one finds everything, also what a claim without its answer has left."""
    cutting = Cutting(shared_server().database(), proxy, answers=answers)
    for _ in range(3):
        cutting.insert()
    cutting.write()
    for part in START:
        cutting.harness.log.close()
        cutting.cut_at(part)
        try:
            cutting.begin()
        except StorageFailed as error:
            assert "the log in PostgreSQL cannot be opened" in str(error)
            cutting.begin()
        assert cutting.is_cut(), part
        cutting.insert()
    cutting.harness.log.close()


@pytest.mark.embedded("a data directory is imported")
@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
def test_the_connection_is_cut_at_each_statement_of_an_import(proxy: Proxy, answers: bool, tmp_path: Path) -> None:
    """The import fails, and the next one starts from the beginning, unless the database is complete."""
    from leveret.cluster.importing import import_directory

    bodies = [b"small", b"large" * 600_000]
    source = Harness(lambda: SqliteLog(tmp_path, reserve_bytes=0))
    source.publish(FakeQueue(1), *bodies)
    source.log.put("kind", "key", b"value")
    source.commit()
    source.log.close()
    dsn = shared_server().database()
    settings = ClusterSettings(dsn.replace(f":{proxy.broker.port}/", f":{proxy.port}/"), "import", 0.6, True)

    def failure(report: Callable[[str], None]) -> str:
        with pytest.raises(StorageFailed) as failed:
            import_directory(tmp_path, settings, report)
        assert is_cut(proxy)
        return str(failed.value)

    def cut_at_last_commit(progress: str) -> None:
        if "copied and compared" in progress:
            cut_at(proxy, b"COMMIT", answers=answers)

    for part in IMPORT:
        cut_at(proxy, part, answers=answers)
        assert "the import has failed" in failure(lambda progress: None), part
    assert failure(cut_at_last_commit).endswith("start the broker, which says whether the import is complete")
    if not answers:
        with pytest.raises(StorageFailed, match="is not complete"):
            postgres_log(dsn).open()
        import_directory(tmp_path, settings, lambda progress: None)
    harness = Harness(lambda: postgres_log(dsn))
    assert harness.bodies(1) == bodies
    harness.log.close()
