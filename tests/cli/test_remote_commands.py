"""Commands over the HTTP API of a broker, as on another machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import click
import pytest
from click.testing import CliRunner, Result

from leveret.cli.app import COMMANDS, NOT_REMOTE, leveret
from tests.cli.runner import Commands, http_url
from tests.management.http.brokers import USERS
from tests.management.http.client import HttpBroker
from tests.security.certificates import Authority
from tests.server.test_server import Wire
from tests.support.broker import LeveretProcess, basic_config, free_port, leveret_only
from tests.support.peers.websocket import connect
from tests.support.polling import wait_until

ALL = "leveret.tag:administrator"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("the HTTP API")
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")
    settings = '[management]\nport = 0\npath_prefix = "/broker"\nrefused_logins = 0\n'
    process = LeveretProcess(
        tmp_path_factory.mktemp("remote"),
        config=basic_config() + USERS + settings,
        environment={
            "LEVERET_MANAGEMENT__ENABLED": "true",
            "LEVERET_WEBSOCKET__ENABLED": "true",
            "LEVERET_WEBSOCKET__PORT": str(free_port()),
            "LEVERET_WEBSOCKET__TRUSTED_PROXIES": "127.0.0.1",
        },
    )
    with process.start():
        yield process
        process.check_log()


def run(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    given = {"LEVERET_URL": "", "LEVERET_TOKEN": ""} | (environment or {})
    return CliRunner().invoke(leveret, list(arguments), env=given)


def ok(*arguments: str, environment: dict[str, str] | None = None) -> str:
    result = run(*arguments, environment=environment)
    assert result.exit_code == 0, result.output
    return result.output


def test_commands_do_the_same_as_on_the_machine_of_the_broker(broker: LeveretProcess, tmp_path: Path) -> None:
    url = http_url(broker)
    local = Commands(broker.data_dir)
    ok("--url", url, "queues", "add", "remote-queue", "--argument", "x-max-length=7")
    ok("queues", "add", "other-queue", "--url", url)
    assert json.loads(ok("--url", url, "queues", "--json")) == local.json("queues")
    ok("--url", url, "exchanges", "add", "remote-exchange", "--type", "topic")
    ok("--url", url, "bindings", "add", "remote-exchange", "remote-queue", "--routing-key", "a.#")
    assert local.json("bindings") == json.loads(ok("--url", url, "bindings", "--json"))
    ok("--url", url, "policies", "set", "short", "^remote", '{"max-length": 3}')
    assert [policy["name"] for policy in local.json("policies")] == ["short"]
    assert "remote-queue" in ok("--url", url, "queues")
    assert broker.kind in ok("--url", url, "status").lower()
    ok("--url", url, "users", "add", "remote-user", "--no-password")
    assert "remote-user" in {user["name"] for user in local.json("users")}
    ok("--url", url, "permissions", "set", "remote-user", "--configure", ".*", "--write", "", "--read", "")
    file = tmp_path / "definitions.json"
    ok("--url", url, "definitions", "export", str(file))
    assert "remote-queue" in file.read_text("utf-8")
    ok("--url", url, "definitions", "import", str(file))
    ok("--url", url, "queues", "delete", "remote-queue")
    ok("--url", url, "queues", "delete", "other-queue")
    assert local.json("queues") == []


def groups() -> list[list[str]]:
    """The commands that print a list or an object without arguments."""
    context = click.Context(leveret)
    found = []
    for name in COMMANDS:
        command = leveret.get_command(context, name) if isinstance(leveret, click.Group) else None
        # `cluster` is refused without PostgreSQL (tests/cluster/test_nodes.py).
        if name not in (*NOT_REMOTE, "cluster") and isinstance(command, click.Group) and command.invoke_without_command:
            found.append([name])
    return found


@pytest.mark.parametrize("command", groups(), ids=" ".join)
def test_every_list_has_a_remote_form(broker: LeveretProcess, command: list[str]) -> None:
    remote = json.loads(ok("--url", http_url(broker), *command, "--json"))
    local = Commands(broker.data_dir).json(*command)
    for row in (*remote, *local) if command == ["shards"] else ():
        assert row.pop("memory") > 0  # changes between the two
    assert remote == local


def test_top(broker: LeveretProcess) -> None:
    url = http_url(broker)
    local = Commands(broker.data_dir)
    local.ok("queues", "add", "shown")
    options = ("top", "--json", "--interval", "0.1")
    changing = ("uptime", "memory")
    remote, here = (
        {key: value for key, value in json.loads(shown).items() if key not in changing}
        for shown in (ok("--url", url, *options), local.ok(*options))
    )
    assert remote == here
    assert [queue["name"] for queue in remote["queues"]] == ["shown"]
    assert "shown" in ok("top", "--once", "--interval", "0.1", environment={"LEVERET_URL": url})
    local.ok("queues", "delete", "shown")
    assert "Not administrator user" in run("--url", http_url(broker, "monitor"), "top", "--once").output
    # Its operations are not in the log at the default level, which would have one each second.
    assert "statistics.changes" not in broker.log()


def test_lists_show_connections_over_websocket_with_the_client_that_a_proxy_names(broker: LeveretProcess) -> None:
    url, port = http_url(broker), int(broker.environment["LEVERET_WEBSOCKET__PORT"])

    async def test() -> None:
        peer = await connect("127.0.0.1", port)
        await peer.upgrade(forwarded_for=["192.0.2.1, 203.0.113.7:4711"])
        await Wire(cast(Any, peer), cast(Any, peer)).open("plain")
        own = peer.writer.get_extra_info("sockname")[1]
        await asyncio.to_thread(check, f"203.0.113.7:4711 via 127.0.0.1:{own} -> 127.0.0.1:{port}")
        peer.writer.close()

    def check(name: str) -> None:
        (listed,) = json.loads(ok("--url", url, "connections", "--json"))
        assert (listed["name"], listed["websocket_path"], listed["tls"]) == (name, "/ws", False)
        assert "/ws" in ok("--url", url, "connections").split()
        row = HttpBroker(broker, "/broker").get("/connections/" + quote(name, safe=""))
        assert (row["peer_host"], row["peer_port"], row["host"], row["port"]) == ("203.0.113.7", 4711, "127.0.0.1", port)
        assert (row["websocket_path"], row["ssl"], row["protocol"]) == ("/ws", False, "AMQP 0-9-1")

    asyncio.run(asyncio.wait_for(test(), 60))
    wait_until(lambda: json.loads(ok("--url", url, "connections", "--json")) == [])


def test_the_environment_selects_the_broker(broker: LeveretProcess) -> None:
    environment = {"LEVERET_URL": http_url(broker)}
    assert "guest" in ok("users", environment=environment)
    # Options for a broker of this machine take precedence.
    assert run("users", "--data-dir", "/nonexistent", environment=environment).exit_code == 3
    # The clients of AMQP use the same variable for other URLs.
    assert run("users", "--config", "/nonexistent", environment={"LEVERET_URL": "amqp://localhost"}).exit_code == 1


@pytest.mark.parametrize("name", NOT_REMOTE)
def test_a_command_without_a_remote_form_says_so(name: str) -> None:
    result = run("--url", "http://localhost", name)
    assert result.exit_code == 2
    assert f"`leveret {name}`" in result.output
    assert "has no remote form" in result.output or "is an AMQP client" in result.output


def test_refusals_have_the_reason_of_the_broker(broker: LeveretProcess) -> None:
    result = run("--url", http_url(broker), "queues", "delete", "missing")
    assert (result.exit_code, "queue 'missing'" in result.output) == (1, True)
    result = run("--url", http_url(broker, password="wrong"), "queues")
    assert (result.exit_code, "/ refused user 'guest': Login failed; expected" in result.output) == (4, True)
    assert "refused user '%d': Login failed" in run("--url", http_url(broker, "%25d"), "queues").output
    for user in ("monitor", "plain", "viewer"):
        result = run("--url", http_url(broker, user), "queues")
        assert result.exit_code == 4, user
    assert "Not administrator user" in run("--url", http_url(broker, "monitor"), "queues").output
    assert "read-only" in run("--url", http_url(broker, "viewer"), "queues").output


@pytest.mark.parametrize(
    ("url", "code", "reason"),
    [
        ("http://127.0.0.1:1", 3, "no HTTP API answers at http://127.0.0.1:1/"),
        (f"http://{'a' * 70}", 2, "its host or port is invalid"),
        ("http://user:secret\udcff@127.0.0.1:1", 3, "no HTTP API answers at http://127.0.0.1:1/"),
        ("amqp://127.0.0.1", 2, "expected http:// or https://"),
        ("http://", 2, "expected http:// or https://"),
        ("http://h:99999999", 2, "invalid URL"),
        ("http://[::1", 2, "invalid URL"),
        ("x", 2, "expected http:// or https://"),
        ("http://a..b", 2, "its host or port is invalid"),
        ("http://user:1/secret@h", 2, "'#' and '@' in passwords as %2F, %3F, %23, %40"),
        ("http://user:1?secret@h", 2, "it has '@' after the host"),
        ("http://user:1#secret@h", 2, "it has '@' after the host"),
        ("http://user:secret/@h", 2, "its host or port is invalid"),
        ("http://h\x7f", 2, "control characters"),
        ("http://h/a b", 2, "control characters"),
        ("http://h/\xfc", 2, "the path is not ASCII"),
    ],
)
def test_unusable_urls_are_refused_without_the_password(url: str, code: int, reason: str) -> None:
    shown = url.replace("http://127", "http://user:secret@127")
    result = run("--url", shown, "queues")
    assert (result.exit_code, reason in result.output, "secret" in result.output) == (code, True, False)


@pytest.mark.parametrize("token", ["a\nb", "\u2603"])
def test_tokens_that_are_no_header_are_refused(token: str) -> None:
    result = run("--url", "http://127.0.0.1:1", "--token", token, "queues")
    assert (result.exit_code, "(--token, LEVERET_TOKEN)" in result.output) == (2, True)


def test_a_wrong_path_is_refused_with_what_was_expected(broker: LeveretProcess) -> None:
    result = run("--url", http_url(broker).replace("/broker", "/other"), "queues")
    assert (result.exit_code, "has no operations of Leveret" in result.output) == (1, True)


def test_tls_with_an_own_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    settings = {"ENABLED": "true", "PORT": "0", "TLS_CERT": str(certificate), "TLS_KEY": str(key)}
    environment = {f"LEVERET_MANAGEMENT__{name}": value for name, value in settings.items()}
    with LeveretProcess(tmp_path / "broker", config=basic_config(), environment=environment).start() as process:
        url = http_url(process)
        assert "CERTIFICATE_VERIFY_FAILED" in run("--url", url, "users").output
        assert "guest" in ok("--url", url, "--ca", str(authority.path), "users")
        assert "cannot read" in run("--url", url, "--ca", str(tmp_path / "missing"), "users").output


def test_an_access_token_takes_the_place_of_a_password(tmp_path: Path) -> None:
    pytest.importorskip("joserfc", reason="the extra leveret[oauth] is not installed")
    from tests.support.oidc import run_provider

    with run_provider() as provider:
        config = basic_config() + provider.config() + "[management]\nport = 0\n"
        environment = {"LEVERET_MANAGEMENT__ENABLED": "true"}
        with LeveretProcess(tmp_path, config=config, environment=environment).start() as process:
            url = http_url(process).replace("guest:guest@", "")
            token = provider.token(ALL)
            assert "guest" in ok("--url", url, "--token", token, "users")
            assert "guest" in ok("users", environment={"LEVERET_URL": url, "LEVERET_TOKEN": token})
            assert "/ refused the access token: Login failed" in run("--url", url, "--token", "wrong", "users").output


@pytest.mark.parametrize("name", ["users.authenticate", "users.resume", "backup.start"])
def test_internal_operations_are_not_available(broker: LeveretProcess, name: str) -> None:
    from leveret.management.control_client import CallFailed
    from leveret.management.http_client import HttpControl

    with pytest.raises(CallFailed, match="not available over HTTP"):
        HttpControl(http_url(broker)).call(name, {})


def test_unknown_operations_and_arguments_are_refused(broker: LeveretProcess) -> None:
    from leveret.management.control_client import CallFailed
    from leveret.management.http_client import HttpControl

    control: Any = HttpControl(http_url(broker))
    with pytest.raises(CallFailed, match="unknown call 'x'"):
        control.call("x", {})
    with pytest.raises(CallFailed, match="unknown field"):
        control.call("queues.list", {"x": 1})
