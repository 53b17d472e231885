"""`leveret definitions`, and `management.load_definitions`."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leveret
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, basic_config, leveret_only

DOCUMENT: dict[str, Any] = {
    "users": [{"name": "mover", "password": "secret", "tags": "management"}],
    "vhosts": [{"name": "moved"}],
    "permissions": [{"user": "mover", "vhost": "moved", "configure": ".*", "write": ".*", "read": ".*"}],
    "policies": [{"vhost": "moved", "name": "p", "pattern": "^q", "definition": {"max-length": 5}}],
    "exchanges": [{"vhost": "moved", "name": "x", "type": "topic", "durable": True, "auto_delete": False}],
    "queues": [{"vhost": "moved", "name": f"q{number}", "durable": True, "arguments": {}} for number in range(250)],
    "bindings": [
        {"vhost": "moved", "source": "x", "destination": "q1", "destination_type": "queue", "routing_key": "a"},
    ],
}
BAD = {"policies": [{"vhost": "/", "name": "bad", "pattern": "(?!a)b(?=c)", "definition": {"max-length": 5}}]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("the control socket")
    process = LeveretProcess(tmp_path_factory.mktemp("definitions"), config="")
    with process.start():
        yield process
        process.check_log()


def write(directory: Path, document: object) -> str:
    path = directory / "definitions.json"
    path.write_text(json.dumps(document), "utf-8")
    return str(path)


def test_import_export_and_diff(commands: Commands, tmp_path: Path) -> None:
    file = write(tmp_path, DOCUMENT)
    output = commands.ok("definitions", "import", file, "--dry-run")
    assert "add     queue 'q7' in vhost 'moved'" in output
    assert output.endswith("256 added, 0 changed, 0 unchanged (dry run)\n")
    assert commands.run("definitions", "diff", file, "--exit-code").exit_code == 1
    assert commands.ok("definitions", "import", file) == "256 added, 0 changed, 0 unchanged\n"
    exported = tmp_path / "exported.json"
    result = commands.run("definitions", "export", str(exported), "--for", "rabbitmq")
    assert result.exit_code == 0
    assert "RabbitMQ does not know argon2id; these users need a new password there: mover" in result.output
    assert commands.ok("definitions", "diff", str(exported), "--exit-code").startswith("0 added, 0 changed, ")
    exported.unlink()
    assert commands.run("definitions", "export", str(exported)).output == ""
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert commands.ok("definitions", "diff", str(exported), "--exit-code").startswith("0 added, 0 changed, ")
    # A file with a password in clear text always sets it.
    assert commands.json("definitions", "diff", file)["changed"] == [
        {
            "kind": "user",
            "label": "user 'mover'",
            "identity": {"name": "mover"},
            "before": {"password": "***"},
            "after": {"password": "***"},
        }
    ]


def test_one_vhost_from_standard_input(commands: Commands) -> None:
    commands.ok("vhosts", "add", "single")
    document = {"rabbitmq_definition_format": "single_virtual_host", "queues": [{"name": "only"}]}
    content = json.dumps(document)
    assert "name the vhost to import them into" in commands.refused("definitions", "import", "-", input=content)
    assert commands.ok("definitions", "import", "-", "--vhost", "single", input=content).startswith("1 added")
    found = json.loads(commands.ok("definitions", "export", "-", "--vhost", "single"))
    assert [queue["name"] for queue in found["queues"]] == ["only"]
    assert "does not exist" in commands.refused("definitions", "export", "-", "--vhost", "none")
    assert "does not exist" in commands.refused("definitions", "import", "-", "--vhost", "none", input=content)


def test_a_refused_object(commands: Commands, tmp_path: Path) -> None:
    result = commands.run("definitions", "import", write(tmp_path, BAD | {"vhosts": [{"name": "refusing"}]}))
    assert result.exit_code == 1
    assert "refuse  policy 'bad' in vhost '/'" in result.output
    assert "1 added, 0 changed, 0 unchanged, 1 refused" in result.output
    assert result.output.endswith("Error: 1 of 2 definitions refused\n")


@pytest.mark.parametrize(("content", "reason"), [("{", "invalid JSON"), ("[]", "expected a JSON object")])
def test_an_invalid_file(commands: Commands, tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert reason in commands.refused("definitions", "import", str(path))
    assert "cannot read" in commands.refused("definitions", "import", str(tmp_path / "missing.json"))
    assert "cannot write" in commands.refused("definitions", "export", str(tmp_path / "no" / "directory.json"))


def test_loading_at_the_start(tmp_path: Path) -> None:
    leveret_only("load_definitions")
    file = write(tmp_path, DOCUMENT)
    process = LeveretProcess(tmp_path / "broker", config=f'[management]\nload_definitions = "{file}"\n')
    with process.start():
        commands = Commands(process.data_dir)
        assert len(commands.json("queues", "list", "--vhost", "moved")) == 250
        assert [user["name"] for user in commands.json("users")] == ["mover"]
        commands.ok("users", "change", "mover", "--password-file", "-", input="changed\n")
        process.stop()
        process.start()
        # The user keeps the password that it has got since.
        with leveret.sync.connect(process.url(user="mover", password="changed", vhost="moved")) as connection:
            connection.channel()
        process.check_log()
        assert "0 added, 0 changed, 256 unchanged" in process.log()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(BAD), "1 of 1 definitions refused: policy 'bad' in vhost '/': "),
        ("{", "invalid JSON"),
        (None, "cannot read the file: No such file or directory"),
    ],
)
def test_a_refused_file_stops_the_start(tmp_path: Path, content: str | None, reason: str) -> None:
    leveret_only("load_definitions")
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    process = LeveretProcess(tmp_path / "broker", config=basic_config() + f'\n[management]\nload_definitions = "{path}"\n')
    with pytest.raises(RuntimeError, match="exit code 1"):
        process.start()
    assert f"Error: 'management.load_definitions': {path}: {reason}" in process.log()


def test_loading_into_an_embedded_broker(tmp_path: Path) -> None:
    file = write(tmp_path, DOCUMENT)
    settings = {"management": {"load_definitions": file}}
    with leveret.Broker(config=settings) as broker, leveret.sync.connect(broker.url_of("moved")) as connection:
        assert connection.channel().declare_queue("q7", passive=True).name == "q7"
    settings = {"management": {"load_definitions": str(tmp_path / "none")}}
    with pytest.raises(leveret.StartFailed, match="cannot read the file"), leveret.Broker(config=settings):
        pass
