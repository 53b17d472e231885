"""The parts of the command line that need no broker: log lines, tables, properties of the machine."""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
import resource

import pytest
from click import unstyle

from leveret import cli
from leveret.cli.logs import JsonFormatter, TextFormatter
from leveret.cli.output import MAX_RICH_ROWS, show_table, size, text
from leveret.cli.running import raise_file_limit


def record(message: str, error: Exception | None = None) -> logging.LogRecord:
    made = logging.LogRecord(
        "leveret.x", logging.WARNING, __file__, 1, message, None, (type(error), error, None) if error else None
    )
    made.created = 1700000000.9996
    return made


# Logs


def test_text_log_lines() -> None:
    assert TextFormatter().format(record("hello wörld")) == "2023-11-14T22:13:20.999Z warning leveret.x: hello wörld"


def test_a_name_with_line_ends_stays_in_its_line() -> None:
    line = TextFormatter().format(record("login of 'a\n2023 error\x1b[31m\udcff' refused"))
    assert line.endswith("login of 'a\\n2023 error\\x1b[31m\\udcff' refused")


def test_json_log_lines() -> None:
    event = json.loads(JsonFormatter().format(record("a\nb\udcff", ValueError("c"))))
    assert event["message"] == "a\nb\\xff"
    assert (event["time"], event["level"], event["logger"]) == ("2023-11-14T22:13:20.999Z", "warning", "leveret.x")
    assert "ValueError: c" in event["exception"]


class Subject:
    """An argument of a message that has fields."""

    log_fields = {"connection": 7, "user": "\udcff"}

    def __str__(self) -> str:
        return "subject"


def test_json_log_lines_have_the_fields_of_arguments_and_extras() -> None:
    made = logging.LogRecord("leveret.x", logging.INFO, __file__, 1, "%s: %d", (Subject(), 5), None)
    made.__dict__["vhost"] = "/"
    event = json.loads(JsonFormatter().format(made))
    assert event["message"] == "subject: 5"
    assert {name: event.get(name) for name in ("connection", "user", "vhost", "peer")} == {
        "connection": 7,
        "user": "\\xff",
        "vhost": "/",
        "peer": None,
    }


# Output


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes_have_binary_units(number: int, shown: str) -> None:
    assert size(number) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (7, "7"),
        ({}, ""),
        ([], ""),
        ({"a": [1, "ü"]}, '{"a": [1, "ü"]}'),
        ("a\tb\x1b]0;x\x07", "a\\tb\\x1b]0;x\\x07"),
        ("\u202eabc", "\\u202eabc"),
    ],
)
def test_values_in_a_line(value: object, shown: str) -> None:
    assert text(value) == shown


def test_a_table_in_a_pipe_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([{"name": "a", "count": 5}, {"name": "longer", "count": 12345}], (("name", "name"), ("count", "n")))
    assert capsys.readouterr().out == "name        n\na           5\nlonger  12345\n"


def test_a_table_without_rows_has_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([], (("name", "name"), ("count", "n", size)))
    assert capsys.readouterr().out == "name  n\n"


@pytest.mark.parametrize("rows", [3, MAX_RICH_ROWS + 1])
def test_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_table([{"name": f"[bold]row{number}", "on": True} for number in range(rows)], (("name", "name"), ("on", "on")))
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if "row" in line] == [
        [f"[bold]row{number}", "yes"] for number in range(rows)
    ]


def test_a_table_that_is_too_wide_leaves_out_columns_that_say_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    columns = (("name", "name"), ("unacked", "unacked"), ("paused", "paused"), ("ready", "ready"), ("internal", "internal"))
    rows = [{"name": f"queue{n}", "unacked": 0, "paused": n == 1, "ready": n, "internal": False} for n in range(2)]
    monkeypatch.setenv("COLUMNS", "80")
    show_table(rows, columns)
    assert unstyle(capsys.readouterr().out).split()[:5] == [heading for _, heading in columns]
    monkeypatch.setenv("COLUMNS", "32")
    show_table(rows, columns)
    shown = unstyle(capsys.readouterr().out)
    assert [line.split() for line in shown.splitlines() if line.startswith((" name", " queue"))] == [
        ["name", "paused", "ready"],
        ["queue0", "no", "0"],
        ["queue1", "yes", "1"],
    ]
    assert shown.splitlines()[-1] == "not shown, because all are empty, 0 or no: unacked, internal"


# The machine


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        assert raise_file_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_columns_with_units() -> None:
    """Numbers with a unit have it in their cells, or in the heading."""
    words = {"age", "bytes", "idle", "memory", "octets", "announced", "seconds", "size", "timeout"}
    columns = 0
    for found in pkgutil.iter_modules(cli.__path__):
        module = importlib.import_module(f"leveret.cli.{found.name}")
        tables = [value for value in vars(module).values() if isinstance(value, tuple) and value]
        for table in tables:
            if all(isinstance(column, tuple) and len(column) in (2, 3) for column in table):
                columns += len(table)
                for column in table:
                    if isinstance(column[0], str) and words & set(column[0].split("_")):
                        assert len(column) == 3 or "/" in column[1], (found.name, column)
    assert columns > 100
