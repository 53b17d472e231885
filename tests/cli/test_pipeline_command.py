"""`leveret pipeline` without Spark: errors that name file, line and key, and the display of a state."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from zipfile import ZipFile

import click
import pytest
from click.testing import CliRunner

from leveret.cli.app import leveret
from leveret.cli.pipeline import pipeline
from leveret.spark.pipeline import model
from leveret.spark.pipeline.decoding.registry import FORMAT_NAMES
from leveret.spark.pipeline.kinds.masking import Rule
from leveret.spark.pipeline.kinds.registry import KINDS
from leveret.spark.pipeline.state import FlowState, StateFile
from tests.support.broker import ROOT

GOOD = """\
name = "shop"
directory = "state"

[broker]
url = "amqp://jo:secret@localhost/"

[flows.orders]
capture = { exchange = "orders", keys = ["order.#"] }

[flows.orders.decode]
format = "json"
schema = "id BIGINT"
quarantine = "bad"

[[flows.orders.tables]]
path = "one"

[[flows.orders.tables]]
path = "two"
"""


def refused(tmp_path: Path, text: str) -> str:
    """Return what `leveret pipeline run` prints about a file before it starts Spark."""
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    result = CliRunner().invoke(leveret, ["pipeline", "run", str(path)])
    assert result.exit_code == 1, result.output
    return result.output.strip().removeprefix(f"Error: {path}")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("exchange =", "exchnge =", ":8: flows.orders.capture.exchnge is unknown; did you mean exchange?"),
        (
            'path = "two"',
            'path = "two"\npartitin = []',
            ":20: flows.orders.tables[2].partitin is unknown; did you mean partition?",
        ),
        (
            'path = "two"',
            'path = "two"\npartition = ["week(x)"]',
            ":20: flows.orders.tables[2].partition[1] is 'week(x)'; expected day(COLUMN), hour(COLUMN), month(COLUMN) or a "
            "column",
        ),
        ('"json"', '"jsn"', ":11: flows.orders.decode.format is 'jsn'; expected one of avro, json, protobuf, raw"),
        (
            'schema = "id BIGINT"',
            "schema = 3",
            ":12: flows.orders.decode.schema is invalid: expected `str | null`, got `int`",
        ),
        (
            'schema = "id BIGINT"\n',
            "",
            ':10: flows.orders.decode with format "json" needs exactly one of schema and schema_file',
        ),
        (
            'quarantine = "bad"',
            "",
            ':10: flows.orders.decode.quarantine is not set, but on_error is "quarantine"; set it to '
            'a table\'s directory, or set on_error to "fail" or "drop"',
        ),
        (
            'exchange = "orders", ',
            'exchange = "orders", queue = "q", ',
            ":8: flows.orders.capture has exchange and queue; "
            "expected exactly one of exchange, queue, stream, super_stream and stream_pattern",
        ),
        (
            "[flows.orders]",
            '[flows.orders]\nkind = "enrch"',
            ":8: flows.orders.kind is 'enrch'; expected one of flow, archive, traffic, enrich, scrub",
        ),
        ('name = "shop"', "", ": the pipeline is invalid: the field 'name' is missing"),
        ('name = "shop"', "name = ", ": not valid TOML: Invalid value (at line 1, column 8)"),
    ],
    ids=[
        "unknown",
        "unknown-in-array",
        "partition",
        "choice",
        "type",
        "missing",
        "quarantine",
        "two-sources",
        "kind",
        "name",
        "toml",
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert refused(tmp_path, GOOD.replace(old, new)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "maxMessagesPerTriger = 5",
            "flows.orders: unknown option 'maxMessagesPerTriger'; did you mean maxMessagesPerTrigger",
        ),
        ("maxMessagesPerTrigger = -5", "flows.orders: option maxMessagesPerTrigger: '-5' is invalid"),
        ("queue = 'x'", ":8: flows.orders.capture.options.queue has a key of its own in the capture; set that instead"),
    ],
)
def test_an_option_of_the_source_that_is_wrong(tmp_path: Path, options: str, expected: str) -> None:
    text = GOOD.replace('keys = ["order.#"]', f"options = {{ {options} }}")
    said = refused(tmp_path, text)
    assert expected in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nowhere:clean", "nowhere cannot be imported: ModuleNotFoundError: No module named 'nowhere'; looked for in"),
        ("broken_module:clean", "broken_module cannot be imported: ZeroDivisionError: division by zero"),
        ("good_module:cleen", "has no function cleen"),
    ],
)
def test_a_function_that_is_not_there(tmp_path: Path, function: str, expected: str) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    (tmp_path / "good_module.py").write_text("def clean(df): return df")
    assert expected in refused(tmp_path, f'{GOOD}[flows.orders.transform]\nfunction = "{function}"\n')


def test_status(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(GOOD)
    command = ["pipeline", "status", str(tmp_path / "pipeline.toml")]
    result = CliRunner().invoke(leveret, command)
    assert result.exit_code == 1 and "has never run" in result.output
    file = StateFile(str(tmp_path / "state"), "shop", "local[*]")
    file.write("running", {"orders": FlowState("running", 7, 1234, 56.7, 8, 90, offsets=[{"s": 1}])})
    assert (tmp_path / "state" / "status.json").stat().st_mode & 0o777 == 0o600
    result = CliRunner().invoke(leveret, command)
    assert f"pipeline shop on local[*]: running, process {os.getpid()}" in result.output
    heading, row = result.output.splitlines()[1:]
    assert heading.split()[:6] == ["flow", "state", "batch", "rows", "rows/s", "lag"]
    assert row.split()[:6] == ["orders", "running", "7", "1234", "57", "8"]
    state = json.loads(CliRunner().invoke(leveret, [*command, "--json"]).output)
    assert state["alive"] and state["flows"]["orders"]["offsets"] == [{"s": 1}]
    path = tmp_path / "state" / "status.json"
    path.write_text(json.dumps({**state, "pid": 2**22 + 1}))
    assert "crashed" in CliRunner().invoke(leveret, command).output
    assert time.time() - state["updated"] < 60


def test_a_package_has_its_dependencies_and_no_relative_paths(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("def clean(df): return df")
    (tmp_path / "order.ddl").write_text("id BIGINT")
    text = GOOD.replace('schema = "id BIGINT"', 'schema_file = "order.ddl"')
    text += '[flows.orders.transform]\nfunction = "functions:clean"\n[spark.conf]\n"spark.executor.memory" = "1g"\n'
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    command = ["pipeline", "package", str(path), "--to", str(tmp_path / "out"), "--master", "spark://host:7077"]
    result = CliRunner().invoke(leveret, command)
    assert result.exit_code == 1 and "'state' is a relative path" in result.output
    for name in ("state", "bad", "one", "two"):
        text = text.replace(f'"{name}"', f'"/data/{name}"')
    path.write_text(text)
    result = CliRunner().invoke(leveret, command)
    assert result.exit_code == 0, result.output
    assert result.output == f"{tmp_path / 'out' / 'submit.sh'}\n"
    script = (tmp_path / "out" / "submit.sh").read_text()
    assert (
        "\nexec spark-submit --master spark://host:7077 --deploy-mode client --name shop "
        '--conf spark.executor.memory=1g --py-files "$here/packages.zip"'
    ) in script
    with ZipFile(tmp_path / "out" / "packages.zip") as packed:
        names = set(packed.namelist())
    assert {"functions.py", "pyspark_amqp/__init__.py", "leveret/spark/pipeline/run.py"} <= names
    assert not any(name.endswith((".so", ".pyc")) for name in names)
    assert (tmp_path / "out" / "order.ddl").read_text() == "id BIGINT"
    assert 'schema_file = "order.ddl"' in (tmp_path / "out" / "pipeline.toml").read_text()


def test_every_format_of_bodies_is_a_choice_of_the_commands() -> None:
    commands = [command for command in pipeline.commands.values() if "body_format" in {one.name for one in command.params}]
    assert commands
    for command in commands:
        (option,) = (one for one in command.params if one.name == "body_format")
        assert isinstance(option.type, click.Choice)
        assert sorted(option.type.choices) == list(FORMAT_NAMES)


def test_every_key_is_documented() -> None:
    page = (ROOT / "docs" / "pipeline-file.md").read_text("utf-8")
    sections = {
        "broker": model.Broker,
        "spark": model.Spark,
        "supervision": model.Supervision,
        "capture": model.Capture,
        "decode": model.Decode,
        "transform": model.Transform,
        "tables": model.TableOutput,
        "exchanges": model.ExchangeOutput,
        "rules": Rule,
    }
    for section, struct in sections.items():
        for name in struct.__struct_fields__:
            assert f"`{section}.{name}`" in page, f"{section}.{name}"
    for kind in KINDS.values():
        for name in kind.__struct_fields__:
            assert f"`{name}`" in page, name
