"""PostgreSQL servers for tests: private ones, on a free port and in a temporary directory, with `fsync` on.

They run the programs of Debian's newest PostgreSQL, or those of LEVERET_TEST_POSTGRES (a directory). Tests that need a
server are skipped if there are none. With LEVERET_TEST_STORE=postgresql, every broker process and durable log of the tests
keeps its messages in a database of its own (`make test-cluster`).
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import START_TIMEOUT, STOP_TIMEOUT, free_port
from tests.support.polling import wait_until

_INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
PROGRAMS = Path(os.environ.get("LEVERET_TEST_POSTGRES") or (_INSTALLED[-1].parent if _INSTALLED else "/usr/lib/postgresql"))
# Whether the suites run over PostgreSQL.
SELECTED = os.environ.get("LEVERET_TEST_STORE") == "postgresql"
_numbers = itertools.count(1)


def obstacle() -> str:
    """Return why no server can be started, "" if one can be."""
    if not (PROGRAMS / "postgres").exists():
        return f"PostgreSQL is not installed in {PROGRAMS}"
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    return ""


def require_postgres() -> None:
    """Skip the test if no server can be started."""
    why = obstacle()
    if why:
        pytest.skip(why)


def _user() -> str | None:
    """Return the user to run a server as: it refuses to run as root."""
    if os.getuid():
        return None
    for name in ("postgres", "daemon"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return None


class PostgresServer:
    """A server over one directory; `start` after `stop` or `crash` finds its data.

    settings  added to `postgresql.conf`, when the server starts
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.user = _user()
        self.directory = Path(tempfile.mkdtemp(prefix="leveret-pg-"))
        if self.user is not None:
            shutil.chown(self.directory, self.user)
        self.data = self.directory / "data"
        self.host = "127.0.0.1"
        self.port = free_port()
        self.settings = settings or {}
        self.process: subprocess.Popen[bytes] | None = None
        # Not left behind if a test run ends early.
        atexit.register(self.remove)

    def _run(self, program: str, *arguments: str) -> None:
        found = subprocess.run(
            [str(PROGRAMS / program), *arguments],
            user=self.user,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert not found.returncode, found.stdout.decode(errors="replace")

    def create(self) -> PostgresServer:
        """Create an empty cluster."""
        self._run("initdb", "-D", str(self.data), "-U", "leveret", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "-k")
        return self

    def clone(self, of: PostgresServer, name: str) -> PostgresServer:
        """Create a standby of a running server, whose application name is `name`."""
        self._run(
            "pg_basebackup", "-h", of.host, "-p", str(of.port), "-U", "leveret", "-D", str(self.data), "-c", "fast", "-N"
        )
        (self.data / "standby.signal").touch()
        self.settings["primary_conninfo"] = f"host={of.host} port={of.port} user=leveret application_name={name}"
        return self

    def start(self, timeout: float = START_TIMEOUT) -> PostgresServer:
        """Start the server and wait until it accepts connections."""
        assert self.process is None, "already running"
        lines = {
            "port": str(self.port),
            "listen_addresses": self.host,
            "unix_socket_directories": str(self.directory),
            "fsync": "on",
            "max_connections": "100",
            "shared_buffers": "32MB",
            "log_min_messages": "warning",
            # A test that waits for PostgreSQL to notice something waits less.
            "wal_retrieve_retry_interval": "100ms",
            **self.settings,
        }
        conf = self.data / "postgresql.auto.conf"
        conf.write_text("".join(f"{name} = '{value}'\n" for name, value in lines.items()))
        with open(self.directory / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [str(PROGRAMS / "postgres"), "-D", str(self.data)],
                user=self.user,
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        wait_until(self._answers, self.log, timeout)
        return self

    def _answers(self) -> bool:
        import psycopg

        assert self.process is not None and self.process.poll() is None, self.log()
        try:
            psycopg.connect(self.dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def log(self) -> str:
        """Return the output of all runs."""
        return (self.directory / "server.log").read_text("utf-8", "replace")

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            process.wait(STOP_TIMEOUT)

    def stop(self) -> None:
        """Stop the server without waiting for its clients."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Stop the server without a checkpoint: its next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def reload(self, **settings: str) -> None:
        """Change settings of the running server."""
        self.settings |= settings
        with open(self.data / "postgresql.auto.conf", "a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-D", str(self.data))
        self.settings.pop("primary_conninfo", None)

    def remove(self) -> None:
        """Stop the server and delete its files."""
        atexit.unregister(self.remove)
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def dsn(self, database: str, port: int | None = None) -> str:
        """Return the address of a database; `port` is that of a proxy."""
        return f"postgresql://leveret@{self.host}:{self.port if port is None else port}/{database}"

    def database(self) -> str:
        """Create a database and return its address."""
        name = f"test_{next(_numbers)}"
        # Creating a database makes a checkpoint with the other strategy.
        self.execute(f"CREATE DATABASE {name} STRATEGY wal_log", "postgres")
        return self.dsn(name)

    def execute(self, statement: str, database: str | None = None, dsn: str = "") -> list[tuple[Any, ...]]:
        """Run a statement as an administrator and return its rows."""
        return execute(dsn or self.dsn(database or "postgres"), statement)


def execute(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement over a connection of its own and return its rows."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        # The text of tests, not of users.
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


@cache
def shared_server() -> PostgresServer:
    """Return the server of this test process, which has no standby."""
    return PostgresServer().create().start()


def broker_environment(data_dir: Path) -> dict[str, str]:
    """Return the settings of a broker process whose log is in PostgreSQL instead of a data directory."""
    return postgres_settings(database_of(data_dir))


def postgres_settings(dsn: str) -> dict[str, str]:
    """Return the settings of a broker process with a database, of a server without standbys."""
    return {
        "LEVERET_STORAGE__ENGINE": "postgresql",
        "LEVERET_STORAGE__DSN": dsn,
        "LEVERET_CLUSTER__UNREPLICATED": "true",
    }


@cache
def database_of(path: Path) -> str:
    """Return the address of the database that takes the place of a data directory."""
    return shared_server().database()
