"""Connections of the PostgreSQL engine, and what a server must be like to be trusted with messages."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leveret.broker.errors import StorageFailed
from leveret.storage.cluster import ClusterSettings, Server, ServerAway
from leveret.storage.postgres_schema import BIGINT, BYTEA, TEXT, Statement
from leveret.storage.worker import StoreBroken, StoreFull

MIN_VERSION: Final = 150000

# Of the connection, unless the address has them: a server that is gone is noticed within seconds.
_DEFAULTS: Final = {
    "application_name": "leveret",
    "connect_timeout": 2,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 2000,
}
# Of the session: the same from the server's side. The statements use the primary keys, whatever the statistics say, and
# are planned once.
_SETTINGS: Final = (
    "SET tcp_keepalives_idle = 1; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 2;"
    " SET tcp_user_timeout = 2000; SET idle_in_transaction_session_timeout = 2000;"
    " SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_isolation = 'read committed';"
    " SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off; SET client_min_messages = warning;"
    " SET search_path = {schema}"
)
_FACTS: Final = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),"
    " current_setting('fsync'), current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),"
    " (SELECT system_identifier FROM pg_control_system()), current_setting('default_transaction_read_only'),"
    " extract(epoch FROM clock_timestamp())::float8"
)
_TIMELINE: Final = "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"

_DISK_FULL: Final = "53100"
_WAIT_CANCELLED: Final = "01000"
# Errors that say nothing about the statement: connection failures, shutdowns, cancelled queries, too few resources, a
# server that has become a standby, conflicts.
_LOST_CLASSES: Final = ("", "08", "40", "53", "57")
_LOST: Final = ("25006", "55P03")
LOCK_NOT_AVAILABLE: Final = "55P03"
# Errors of a connection have no SQLSTATE. Another attempt does not help against these; a server that words them in
# another language is waited for.
_REFUSED: Final = re.compile(
    r"for connection option|invalid port number|invalid \S+ value|password authentication failed|no password supplied"
    r"|no pg_hba\.conf entry|authentication failed for user|permission denied for database|is not permitted to log in"
    r'|(?:role|user|database) ".*" does not exist'
)
# Seconds for the server to give up a statement.
_CANCEL_TIMEOUT: Final = 1.0

_BINARY: Final = 1
_bigint: Final = struct.Struct(">q")
_length: Final = struct.Struct(">i")
_array: Final = struct.Struct(">iiiii")
_empty_array: Final = struct.Struct(">iii")


class StoreLost(Exception):
    """The connection is gone, and what became of the statement is unknown."""


class Unfit(Exception):
    """A server that must not be used, as it is now."""


class NotPrimary(Unfit):
    """A server that takes no writes, or is an old primary: a promotion may be under way."""


def bigint(value: int) -> bytes:
    """Encode a parameter of type `bigint`."""
    return _bigint.pack(value)


def _encode_array(element: int, items: Sequence[bytes]) -> bytes:
    if not items:
        return _empty_array.pack(0, 0, element)
    parts = [_array.pack(1, 0, element, len(items), 1)]
    for item in items:
        parts.append(_length.pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def bigints(values: Iterable[int]) -> bytes:
    """Encode a parameter of type `bigint[]`."""
    return _encode_array(BIGINT, [_bigint.pack(value) for value in values])


def byteas(values: Sequence[bytes]) -> bytes:
    """Encode a parameter of type `bytea[]`."""
    return _encode_array(BYTEA, values)


def texts(values: Iterable[str]) -> bytes:
    """Encode a parameter of type `text[]`."""
    return _encode_array(TEXT, [value.encode() for value in values])


def read_bigint(value: bytes | None) -> int:
    """Decode a result of type `bigint`."""
    assert value is not None
    number: int = _bigint.unpack(value)[0]
    return number


class Facts:
    """A server, as it says itself.

    version    the version of PostgreSQL
    server     its identity
    standbys   `synchronous_standby_names`
    clock      what to add to the monotonic clock of this machine for the Unix time of the server
    """

    __slots__ = ("clock", "server", "standbys", "version")

    def __init__(self, version: str, server: Server, standbys: str, clock: float) -> None:
        self.version = version
        self.server = server
        self.standbys = standbys
        self.clock = clock


def _hosts(address: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an address for each of several hosts; none if there is one host only."""
    names = [name for name in ("host", "hostaddr", "port") if name in address]
    lists = {name: str(address[name]).split(",") for name in names}
    count = max((len(values) for values in lists.values()), default=1)
    if count == 1:
        return []
    # One port may be that of all hosts.
    return [
        {**address, **{name: values[number % len(values)] for name, values in lists.items()}} for number in range(count)
    ]


class Session:
    """A connection with prepared statements, used by one thread.

    Args:
        settings: The address of the server, and whether it may be without standbys.
        schema: The schema that `execute` looks for tables in.
        known: The server that was used before; None if there was none.

    Attributes:
        facts: The server.
        warned: Whether the last statement warned that it did not wait for a standby.

    Raises:
        psycopg.Error: The server does not accept a connection.
        Unfit: The server must not be used.
    """

    def __init__(self, settings: ClusterSettings, schema: str, known: Server | None = None) -> None:
        address: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(settings.dsn)}
        self._dsn = settings.dsn
        self.warned = False
        # Held while the connection is closed, so that `abort` finds its own socket.
        self._closing = threading.Lock()
        try:
            self._connect(address, settings, schema, known)
        except Unfit:
            # Such as an old primary that is back, and is the first host which accepts writes.
            if not any(self._may_connect(host, settings, schema, known) for host in _hosts(address)):
                raise

    def _connect(self, address: dict[str, Any], settings: ClusterSettings, schema: str, known: Server | None) -> None:
        try:
            self._connection = psycopg.connect(make_conninfo("", **address), autocommit=True)
        except psycopg.errors.ConnectionTimeout as error:
            raise psycopg.errors.ConnectionTimeout(
                f"{error}: no host has answered within {address['connect_timeout']} seconds; if the server is slow, add"
                " connect_timeout to its address"
            ) from None
        self._pgconn = self._connection.pgconn
        self._connection.add_notice_handler(self._notice)
        # Prepares nothing by itself.
        self._connection.prepare_threshold = None
        try:
            self.facts = self._check(settings, known)
            self._connection.execute(_SETTINGS.format(schema=schema).encode())
        except BaseException:
            self.close()
            raise

    def _may_connect(self, address: dict[str, Any], settings: ClusterSettings, schema: str, known: Server | None) -> bool:
        """Connect if the server can be used. Return whether it can."""
        try:
            self._connect(address, settings, schema, known)
        except (psycopg.Error, Unfit):
            return False
        return True

    def _check(self, settings: ClusterSettings, known: Server | None) -> Facts:
        """Return what the server is. Raises `Unfit` if it must not be used."""
        asked = time.monotonic()
        row = self._connection.execute(_FACTS).fetchone()
        answered = time.monotonic()
        assert row is not None
        number, version, standby, fsync, synchronous, standbys, system, read_only, now = row
        if number < MIN_VERSION:
            raise Unfit(f"PostgreSQL {version} is too old; Leveret needs PostgreSQL 15 or later")
        if known is not None and system != known.system:
            raise Unfit(f"the server is another one: its system identifier is {system}; expected {known.system}")
        if standby or read_only == "on":
            raise NotPrimary(
                "the server is a standby or read-only; connect to the primary (target_session_attrs=read-write)"
            )
        if fsync != "on":
            raise Unfit("the server has fsync = off, which loses confirmed messages; set fsync = on")
        if not standbys and not settings.unreplicated:
            raise Unfit(
                "the server has no synchronous standby (synchronous_standby_names is empty), so that messages are on one"
                " disk; add a standby, or accept that with 'cluster.unreplicated' = true"
            )
        found = self._connection.execute(_TIMELINE).fetchone()
        assert found is not None
        timeline: int = found[0]
        if known is not None and timeline < known.timeline:
            raise NotPrimary(
                f"the server is on timeline {timeline}, and a standby was promoted to timeline {known.timeline} since: it"
                " is an old primary"
            )
        if synchronous != "remote_apply":
            # Whatever the defaults of the user or the database are.
            self._connection.execute("SET synchronous_commit = on")
        return Facts(version, Server(system, timeline), standbys, now - (asked + answered) / 2)

    def address(self) -> str:
        """Return the host, the port and the name of the database."""
        info = self._connection.info
        return f"{info.host}:{info.port}/{info.dbname}"

    def address_here(self) -> str:
        """Return the address with this host only, so that another connection does not try those before it again."""
        info = self._connection.info
        here: dict[str, Any] = {"host": info.host, "port": info.port}
        if info.hostaddr:  # none for a Unix socket
            here["hostaddr"] = info.hostaddr
        return make_conninfo(self._dsn, **here)

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == _WAIT_CANCELLED:
            self.warned = True

    def prepare(self, statements: Iterable[Statement]) -> None:
        """Prepare statements. Raises like `run`."""
        for statement in statements:
            self._checked(self._pgconn.prepare(statement.name, statement.text, statement.types))

    def run(self, statement: Statement, *values: bytes) -> pq.abc.PGresult:
        """Run a prepared statement with encoded parameters; its results are binary, too.

        Raises `StoreLost`, `StoreFull` or `StoreBroken`.
        """
        self.warned = False
        try:
            result = self._pgconn.exec_prepared(statement.name, values, statement.formats, _BINARY)
        except psycopg.Error as error:
            raise StoreLost(str(error)) from None
        return self._checked(result)

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            return result
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        raise translated(state, message.decode("utf-8", "replace"))

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Run a query whose parameters are written as `?`, off the hot path. Raises `psycopg.Error`."""
        return self._connection.execute(query.replace("?", "%s").encode(), parameters, binary=True)

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context in which statements are one transaction. Raises `psycopg.Error`."""
        return self._connection.transaction()

    def execute_script(self, script: str) -> None:
        """Run several statements in one transaction. Raises `psycopg.Error`."""
        with self._connection.transaction():
            self._connection.execute(script.encode())

    def has_table(self, name: str) -> bool:
        """Return whether a table exists. Raises `psycopg.Error`."""
        row = self.execute("SELECT to_regclass(?) IS NOT NULL", (name,)).fetchone()
        return row is not None and bool(row[0])

    def has_column(self, table: str, name: str) -> bool:
        """Return whether a table has a column. Raises `psycopg.Error`."""
        find = "SELECT FROM pg_attribute WHERE attrelid = to_regclass(?) AND attname = ? AND NOT attisdropped"
        return self.execute(find, (table, name)).rowcount > 0

    def copy(self, table: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows, whose columns have these types. Raises `psycopg.Error`."""
        with self._connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def replicate(self) -> None:
        """Wait until the last commit is on all disks that it must be on, if its own wait was cancelled."""
        while self.warned:
            # A wait for this commit is one for those before it, too.
            self.warned = False
            self.execute("UPDATE leveret.cluster SET version = version")

    def has_ended(self) -> bool:
        """Return whether the server has ended the connection since the last statement."""
        if self._connection.closed:
            return True
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Make the statement under way fail, as if the connection was lost. May be called from any thread."""
        # The thread of the statement may find the connection lost, and close the socket, at any time.
        with self._closing, contextlib.suppress(OSError, psycopg.Error):
            if not self._connection.closed:
                with socket.socket(fileno=os.dup(self._pgconn.socket)) as sock:
                    sock.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """Have the server give up the statement under way, or its wait for a standby. May be called from any thread."""
        with self._closing, contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_TIMEOUT)

    def close(self) -> None:
        """Close the connection. Never raises."""
        with self._closing, contextlib.suppress(psycopg.Error):
            self._connection.close()


def translated(state: str, message: str) -> StoreLost | StoreFull | StoreBroken:
    """Return the exception for an error of the server with this SQLSTATE."""
    text = " ".join(message.split())
    if state == _DISK_FULL:
        return StoreFull(f"no space is left for PostgreSQL: {text}")
    if state[:2] in _LOST_CLASSES or state in _LOST:
        return StoreLost(text or "the connection is closed")
    return StoreBroken(f"PostgreSQL: {text} (SQLSTATE {state})")


def unopened(error: BaseException) -> BaseException:
    """Return the error for a store that cannot be opened: `ServerAway` if another attempt may succeed."""
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        # Of libpq's parser; its text may contain the password.
        return StorageFailed("'storage.dsn' is not an address of PostgreSQL, such as postgresql://user@host/database")
    if isinstance(error, (psycopg.Error, Unfit, StoreLost, StoreFull, StoreBroken)):
        text = " ".join(str(error).split())
        kind = ServerAway if _may_return(error, text) else StorageFailed
        return kind(f"the log in PostgreSQL cannot be opened: {text}")
    return error


def _may_return(error: BaseException, text: str) -> bool:
    """Return whether another attempt may succeed after an error."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, (NotPrimary, StoreLost))
    return isinstance(translated(error.sqlstate or "", text), StoreLost) and not _REFUSED.search(text)
