"""The commands of `leveret cluster` that use the database: what they say if it is not as they expect."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from leveret.cli.app import leveret
from leveret.cli.failed import REFUSED
from tests.support.postgres import execute, require_postgres, shared_server

COMMANDS = ("upgrade", "restored", "import")
UNREPLICATED = ("--set", "cluster.unreplicated=true")


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


def refusal(command: str, directory: Path, *options: str, code: int = REFUSED) -> str:
    """Run a command that fails with an exit code, and return the message."""
    arguments = [command, str(directory)] if command == "import" else [command]
    result = CliRunner().invoke(leveret, ["cluster", *arguments, *options])
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with what is read before the database is used."""
    from leveret.storage.sqlite import SqliteLog

    log = SqliteLog(tmp_path, reserve_bytes=0)
    log.open()
    log.close()
    return tmp_path


@pytest.mark.embedded("a data directory is imported")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_cannot_be_used_is_named(command: str, data: Path) -> None:
    require_postgres()
    assert "there is no database: name it with --store" in refusal(command, data, code=1)
    assert "'storage.dsn' is not an address of PostgreSQL, such as postgresql://" in refusal(command, data, "--store", "x")
    away = refusal(command, data, "--store", "postgresql://leveret:secret@127.0.0.1:1/none", *UNREPLICATED)
    assert "cannot be opened: " in away and "port 1" in away and "secret" not in away


@pytest.mark.embedded("a data directory is imported")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("upgrade", "does not know the schema 'leveret' of the database: column"),
        ("restored", "does not know the schema 'leveret' of the database: column"),
        ("import", "the database has a schema 'leveret' already; expected an empty database"),
    ],
)
def test_a_schema_of_another_program_is_refused(command: str, expected: str, data: Path, dsn: str) -> None:
    options = ("--store", dsn, *UNREPLICATED)
    if command != "import":
        assert "the database has no schema 'leveret'; start a broker on it first" in refusal(command, data, *options)
    execute(dsn, "CREATE SCHEMA leveret; CREATE TABLE leveret.cluster(other integer)")
    assert expected in refusal(command, data, *options)
    assert execute(dsn, "SELECT count(*) FROM leveret.cluster") == [(0,)]


def test_an_import_of_a_file_is_refused(tmp_path: Path, dsn: str) -> None:
    (tmp_path / "file").touch()
    message = refusal("import", tmp_path / "file", "--store", dsn, *UNREPLICATED)
    assert "is not a directory; expected the data directory of a stopped broker" in message


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_a_remote_form_says_so(command: str, tmp_path: Path) -> None:
    arguments = [command, str(tmp_path)] if command == "import" else [command]
    for options in (["--url", "http://localhost", "cluster"], ["cluster", "--url", "http://localhost"]):
        result = CliRunner().invoke(leveret, [*options, *arguments, "--store", "postgresql://leveret@127.0.0.1:1/none"])
        assert result.exit_code == 2
        assert f"cluster {command}` has no remote form; it uses the database: run it without --url" in result.stderr
