"""`leveret config`: the effective configuration, all its errors, and its differences."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from leveret.cli.app import leveret
from leveret.config import Config, combine_config
from leveret.config.flat import flat_settings
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, leveret_only

SECRET = "correct horse"


def run(*arguments: object, **environment: str) -> Result:
    variables = {"LEVERET_CONFIG": None, "LEVERET_MANAGEMENT__ENABLED": None, **environment}
    return CliRunner().invoke(leveret, ["config", *map(str, arguments)], env=variables)


def ok(*arguments: object, **environment: str) -> str:
    result = run(*arguments, **environment)
    assert result.exit_code == 0, result.output
    return result.output


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "leveret.toml"
    path.write_text(text, "utf-8")
    return path


def test_show_names_the_source_of_each_setting(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nhost = 'a'\n[limits]\nmemory_high_watermark = '30%'\n")
    shown = ok("show", "--config", path, "--set", "amqp.heartbeat=5", LEVERET_SERVER__PORT="2").splitlines()
    assert "server.port = 2  # environment variable LEVERET_SERVER__PORT" in shown
    assert f'server.host = "a"  # {path}' in shown
    assert "amqp.heartbeat = 5  # --set" in shown
    assert f"limits.memory_high_watermark = 0.3  # {path}" in shown
    assert "server.plain = true  # default" in shown
    assert "# tls.cert = (not set)  # default" in shown


def test_show_reads_the_file_of_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\n")
    assert ok("show", "--changed", LEVERET_CONFIG=str(path)) == f"server.port = 1  # {path}\n"


def test_show_prints_a_configuration_file(tmp_path: Path) -> None:
    """Loading the output has the same effect."""
    text = (
        '[users."a.b"]\ntags = ["x\\u007f", "ü\\n"]\npermissions."/" = { read = ".*" }\n[vhosts.v]\nlimits.max_queues = 3\n'
        '[server]\ndata_dir = "/d"\n'
    )
    path = write(tmp_path, text)
    loaded = combine_config(("file", path))
    again = combine_config(("shown", tomllib.loads(ok("show", "--config", path))))
    assert flat_settings(again) == flat_settings(loaded) != flat_settings(Config())


def test_no_command_prints_secrets(tmp_path: Path) -> None:
    path = write(tmp_path, f"[users.a]\npassword = '{SECRET}'\n[storage]\nengine = 'postgresql'\ndsn = '{SECRET}'\n")
    for command in ("show", "diff"):
        for form in ([], ["--json"]):
            assert SECRET not in ok(command, "--config", path, *form)
    assert "# users.a.password = (hidden)  #" in ok("show", "--config", path)


def test_the_data_directory(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    assert f'server.data_dir = "{directory}"  # --data-dir' in ok("show", "--data-dir", directory)
    assert directory in ok("diff", "--data-dir", directory)
    assert "no broker" in run("diff", "--running", "--data-dir", directory).output.lower()


def test_check_prints_all_errors(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nprot = 1\nhost = 3\n[tls]\nverify = 'maybe'\n[nonsense]\n")
    result = run(
        "check", "--config", path, "--set", "amqp.heartbeat=-1", "--set", "x=1", LEVERET_LIMITS__CONNECTIONS="many"
    )
    assert result.exit_code == 1
    for part in (
        "server.prot",
        "server.host",
        "tls.verify",
        "'nonsense'",
        "amqp.heartbeat",
        "--set: unknown setting 'x'",
        "limits.connections",
    ):
        assert sum(part in line for line in result.output.splitlines()) == 1, part
    assert len(result.output.splitlines()) == 7


def test_check_prints_all_conflicts(tmp_path: Path) -> None:
    path = write(tmp_path, "[tls]\nkey = 'k'\nverify = 'required'\n[users.a]\npassword = ''\n[management]\ntls_key = 'k'\n")
    result = run("check", "--config", path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert not found["valid"]
    expected = ["'tls.key'", "'tls.verify'", "'users.a.password'", "'management.tls_key'"]
    assert len(found["errors"]) == len(expected)
    assert all(part in error for part, error in zip(expected, found["errors"], strict=True))


def test_check_reads_the_files_and_patterns_of_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, _ = authority.issue("one")
    _, key = authority.issue("two")
    path = write(
        tmp_path,
        f"[tls]\ncert = '{cert}'\nkey = '{key}'\n"
        "[users.a]\npassword_file = 'missing'\n[users.b]\npassword_file = 'missing'\n"
        f"[vhosts.v.realms.r]\nresources = '('\n[management]\ntls_cert = '{key}'\nmask = ['nothing']\n",
    )
    result = run("check", "--config", path)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert ["users.a" in lines[0], "users.b" in lines[1], "realms.r" in lines[2]] == [True] * 3
    assert "the key does not match the certificate" in lines[3]
    assert "'management.tls_cert'" in lines[4]
    assert "'management.mask'" in lines[5]
    assert len(lines) == 6


def test_check_names_the_settings_of_shovels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[shovels.a]\nsrc_uri = 'amqp://'\ndest_uri = 'amqp://'\n"
        "[shovels.b]\nsrc_uri = 'amqp://'\nsrc_queue = 'q'\ndest_uri = 'http://u:hunter2@far'\n"
        "[shovels.c]\nsrc_uri = ['amqp://']\nsrc_queue = 'q'\nsrc_exchange = 'x'\ndest_uri = 'amqp://'\n"
        "[shovels.d]\nsrc_uri = 'amqp://'\nsrc_address = '/queues/q'\ndest_uri = 'amqp://'\n",
    )
    result = run("check", "--config", path)
    lines = result.output.splitlines()
    expected = (
        "expected 'shovels.a.src_queue' or 'shovels.a.src_exchange'",
        "'shovels.b.dest_uri': ",
        "'shovels.c.src_queue' and 'shovels.c.src_exchange' are both given",
        "'shovels.d.src_address' is unknown with src-protocol 'amqp091'",
    )
    assert len(lines) == len(expected)
    assert all(part in line for part, line in zip(expected, lines, strict=True))
    assert "hunter2" not in result.output
    types = write(tmp_path, "[shovels.a]\nack_mode = 'maybe'\nsrc_queue_args = 1\nsrc_uri = 5\n")
    lines = run("check", "--config", types).output.splitlines()
    assert ["shovels.a.ack_mode: got 'maybe'" in line for line in lines] == [True, False, False]
    assert "shovels.a.src_queue_args: got 1, expected a table" in lines[1]
    assert "shovels.a.src_uri: got a value of type int, expected a URI, or a list of URIs" in lines[2]


def test_uris_of_shovels_are_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "[shovels.a]\nsrc_uri = 'amqp://u:hunter2@far'\nsrc_queue_args = { x-max-length = 5 }\n")
    shown = ok("show", "--changed", "--config", path, LEVERET_SHOVELS__a__DEST_QUEUE_ARGS='{"x-expires": 7}')
    assert "hunter2" not in shown
    assert 'shovels.a.src_queue_args = { "x-max-length" = 5 }' in shown
    assert 'shovels.a.dest_queue_args = { "x-expires" = 7 }' in shown


def test_check_accepts_a_valid_configuration(tmp_path: Path) -> None:
    assert ok("check", "--config", write(tmp_path, "[server]\nport = 1\n")) == "the configuration is valid\n"


def test_diff_lists_what_is_not_a_default(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nplain = true\n")
    [row] = json.loads(ok("diff", "--config", path, "--json"))
    assert row == {"setting": "server.port", "default": 5672, "value": 1, "source": str(path)}
    assert ok("diff") == "no differences from the defaults\n"


def test_diff_with_the_running_broker_says_what_needs_a_restart(tmp_path: Path) -> None:
    leveret_only("it compares with the configuration of the broker")
    with LeveretProcess(tmp_path, config="[users.a]\npassword = 'x'\n[limits]\nconnections = 5\n") as process:
        process.start()
        shards = process.defaults.get("LEVERET_CLUSTER__SHARDS", "1")
        where = ("--set", f"server.data_dir={process.data_dir}", "--set", f"server.port={process.port}")
        same = (
            "--set",
            f"cluster.shards={shards}",
            "--set",
            "server.host=127.0.0.1",
            "--set",
            "server.shutdown_timeout=10",
            "--set",
            "management.enabled=false",
        )
        arguments = ("diff", "--running", *where, *same, "--set", "management.metrics_port=0")
        path = tmp_path / "leveret.toml"
        assert ok(*arguments, "--config", path) == "no differences from the running broker\n"
        path.write_text("[users.a]\npassword = 'y'\n[amqp]\nheartbeat = 3\n[vhosts.v]\ntags = ['t']\n", "utf-8")
        rows = {row["setting"]: row for row in json.loads(ok(*arguments, "--config", path, "--json"))}
        assert rows["limits.connections"] == {
            "setting": "limits.connections",
            "running": 5,
            "value": 0,
            "applied_by": "reload",
            "source": "default",
        }
        assert rows["amqp.heartbeat"]["applied_by"] == "restart"
        assert rows["vhosts.v.tags"]["applied_by"] == "reload"
    result = run(*arguments, "--config", path)
    assert result.exit_code == 3, result.output


def test_a_missing_file_is_an_error() -> None:
    for command in ("show", "check", "diff"):
        result = run(command, "--config", "/nonexistent/leveret.toml")
        assert result.exit_code == 1
        assert "cannot read the configuration file" in result.output


def test_a_setting_without_a_value_is_a_usage_error() -> None:
    assert run("show", "--set", "server.port").exit_code == 2


@pytest.mark.parametrize("cert", [None, "cert.pem"])
def test_certificates_are_reloaded_if_there_was_a_listener(cert: str | None) -> None:
    from leveret.cli.serving import needs_restart

    assert needs_restart("tls.cert", {"tls.cert": cert}, {"tls.cert": "new.pem"}) == (cert is None)
    assert needs_restart("tls.port", {"tls.cert": cert}, {"tls.cert": cert})


def test_an_error_names_the_flag() -> None:
    for arguments, message in (
        (["--port", "70000"], "--port: server.port: got 70000, expected"),
        (["--set", "server.port=70000"], "--set: server.port: got 70000, expected"),
        (["--set", "tls.ca="], "--set: tls.ca: got '', expected"),
        (["--store", "postgresql://h/d", "--set", "storage.synchronous=extra"], "--set: 'storage.synchronous' is 'extra'"),
    ):
        result = CliRunner().invoke(leveret, ["serve", *arguments])
        assert (result.exit_code, message in result.output) == (1, True), result.output


def _parameters(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters of a command and its subcommands, each with the command's name."""
    yield from ((path, parameter) for parameter in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _parameters(inner, f"{path} {name}")


def test_an_empty_path_is_refused() -> None:
    taken = []
    paths = [(path, item) for path, item in _parameters(leveret, "leveret") if isinstance(item.type, click.Path)]
    for path, parameter in paths:
        try:
            parameter.type.convert("", parameter, None)
        except click.BadParameter as refused:
            assert "the path is empty" in str(refused)
        else:
            taken.append(f"{path} {parameter.name}")
    assert paths and not taken
    result = CliRunner().invoke(leveret, ["serve", "--data-dir", ""])
    assert (result.exit_code, "the path is empty" in result.output) == (2, True), result.output
