"""RabbitMQ's command line tools: rabbitmqadmin as the management plugin ships it, and version 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leveret import sync
from tests.interop.programs import build_directory, prepare
from tests.management.http.client import HttpBroker
from tests.management.tools.commands import COMMANDS
from tests.support.polling import wait_until

# The script of the management plugin, where Debian's package has it.
SCRIPT = Path("/usr/bin/rabbitmqadmin")
VERSION = "2.35.0"

pytestmark = pytest.mark.interop


class Script:
    """The script, which reports errors by its exit code."""

    def __init__(self, port: int, vhost: str) -> None:
        self._options = [sys.executable, str(SCRIPT), "-H", "127.0.0.1", "-P", str(port), "-V", vhost]

    def __call__(self, *arguments: str) -> str:
        ran = subprocess.run(
            [*self._options, *arguments], capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )
        assert ran.returncode == 0, (arguments, ran.stdout + ran.stderr)
        return ran.stdout

    def listed(self, *arguments: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self("-f", "raw_json", "list", *arguments))
        return found


@pytest.fixture
def script(api: HttpBroker) -> Script:
    if not SCRIPT.exists():
        pytest.skip("rabbitmqadmin of the management plugin is not installed")
    run = Script(api.port, "script")
    run("declare", "vhost", "name=script")
    run("declare", "permission", "vhost=script", "user=guest", "configure=.*", "write=.*", "read=.*")
    return run


@pytest.mark.slow
def test_the_script_of_the_management_plugin(api: HttpBroker, script: Script, tmp_path: Path) -> None:
    script("declare", "user", "name=scripted", "password=secret", "tags=monitoring")
    script("declare", "queue", "name=q1", "durable=true", 'arguments={"x-max-length": 5}')
    script("declare", "exchange", "name=x1", "type=topic")
    script("declare", "binding", "source=x1", "destination=q1", "routing_key=a.#")
    script("declare", "policy", "name=p1", "pattern=^q", 'definition={"max-length": 3}', "apply-to=queues")
    script("declare", "operator_policy", "name=p1", "pattern=^q", 'definition={"max-length": 4}')
    script("declare", "parameter", "component=vhost-limits", "name=limits", 'value={"max-queues": 10}')
    script("declare", "vhost_limit", "vhost=script", "name=max-connections", "value=5")
    assert "Message published" in script("publish", "exchange=x1", "routing_key=a.b", "payload=hello")
    assert "hello" in script("get", "queue=q1", "ackmode=ack_requeue_true")
    (queue,) = script.listed("queues", "name", "messages", "policy", "arguments")
    assert queue == {"name": "q1", "messages": 1, "policy": "p1", "arguments": {"x-max-length": 5}}
    assert [row["properties_key"] for row in script.listed("bindings")] == ["q1", "a.%23"]
    assert {"guest", "scripted"} <= {row["name"] for row in script.listed("users")}
    assert script.listed("vhost_limits")[0]["value"] == {"max-connections": 5, "max-queues": 10}
    with sync.connect(api.process.url()):
        wait_until(lambda: script.listed("connections"), "the connection")
    for kind in ("exchanges", "permissions", "nodes", "parameters", "policies", "operator_policies", "vhosts"):
        assert script.listed(kind), kind
    for style in ("long", "pretty_json", "kvp", "tsv", "bash", "table"):
        assert "q1" in script("-f", style, "list", "queues"), style
    assert "rabbit@" in script("show", "overview")
    script("export", str(tmp_path / "definitions.json"))
    script("purge", "queue", "name=q1")
    script("delete", "binding", "source=x1", "destination=q1", "destination_type=queue", "properties_key=a.%23")
    script("delete", "policy", "name=p1")
    script("delete", "operator_policy", "name=p1")
    script("delete", "queue", "name=q1")
    script("delete", "exchange", "name=x1")
    script("import", str(tmp_path / "definitions.json"))
    assert [row["name"] for row in script.listed("queues")] == ["q1"]
    script("delete", "user", "name=scripted")
    script("delete", "vhost", "name=script")


@pytest.fixture(scope="session")
def version2() -> str:
    """Return the path of rabbitmqadmin 2, which takes minutes to build the first time."""
    directory = build_directory(f"rabbitmqadmin-{VERSION}")
    program = directory / "bin" / "rabbitmqadmin"
    if not program.exists():
        if shutil.which("cargo") is None:
            pytest.skip("Rust is not installed")
        options = ["--version", VERSION, "--debug", "--locked", "--root", str(directory)]
        # Debugging information takes a part of the time.
        environment = {**os.environ, "CARGO_PROFILE_DEV_DEBUG": "0"}
        command = ["cargo", "install", "rabbitmqadmin", *options]
        prepare(command, "rabbitmqadmin cannot be built", env=environment, timeout=1500)
    return str(program)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_version_2(api: HttpBroker, version2: str, tmp_path: Path) -> None:
    node = api.get("/overview")["node"]
    names = {"NODE": node, "AMQP": str(api.process.port), "FILE": str(tmp_path / "definitions.json")}
    names["FILE-vhost"] = names["FILE"] + "-vhost"
    options = ["--non-interactive", "-H", "127.0.0.1", "-P", str(api.port), "-V", "tools"]
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.declare_queue("version2")
        channel.consume("version2").__enter__()
        wait_until(lambda: api.get("/channels"), "the channel")
        name = api.get("/connections")[0]["name"]
        for command in COMMANDS:
            arguments = [names.get(part, part) for part in command]
            ran = subprocess.run([version2, *options, *arguments], capture_output=True, text=True, timeout=120, check=False)
            assert ran.returncode == 0, (command, ran.stdout + ran.stderr)
        # The commands close this connection.
        wait_until(lambda: name not in [row["name"] for row in api.get("/connections")], "the connection to close")
    assert api("GET", "/vhosts/tools").status == 404
