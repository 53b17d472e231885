"""The files in deploy/ and the unit of systemd: commands, settings and files that exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from leveret.cli.app import leveret
from leveret.config import load_config
from leveret.node.choices import CHOICES
from tests.support.broker import ROOT

DEPLOY = ROOT / "deploy"
UNIT = ROOT / "docs/systemd/leveret.service"
# The rating of the unit by `systemd-analyze security` in tenths: a service without any protection has 100. It depends on
# the version of systemd; docs/systemd.md has that of systemd 252.
MAX_EXPOSURE = 20
# Secrets that the operator writes, as docs/cluster.md says.
SECRETS = {"database-password", "replication-password", "database-address", "admin-password"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def containerfile() -> dict[str, list[str]]:
    """Return the arguments of each kind of instruction."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text("utf-8"))
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest)
    return found


def check_command(arguments: list[str]) -> None:
    """Check that the command line is one of `leveret`, with all its options."""
    context = leveret.make_context("leveret", [], resilient_parsing=True)
    found = leveret.get_command(context, arguments[0])
    assert found is not None, arguments
    # Raises for an unknown option.
    found.make_context(arguments[0], arguments[1:], parent=context)


def test_the_image_runs_the_broker_as_another_user_than_root() -> None:
    lines = containerfile()
    for base in lines["FROM"]:
        assert re.fullmatch(r"docker\.io/library/[a-z]+:[\w.-]*\d[\w.-]*( AS build)?", base), base
    assert lines["USER"] == ["leveret"]
    (entry,), (command,), (health,) = lines["ENTRYPOINT"], lines["CMD"], lines["HEALTHCHECK"]
    assert yaml.safe_load(entry) == ["leveret"]
    check_command(yaml.safe_load(command))
    check_command(yaml.safe_load(health.partition("CMD ")[2])[1:])


def test_the_image_has_pinned_tools_and_libraries() -> None:
    commands = [command for line in containerfile()["RUN"] for command in line.split(" && ") if "/pip " in command]
    assert len(commands) == 4
    for command in commands:
        # Without dependencies, pip installs only what the image itself has built.
        assert "--require-hashes" in command or "--no-deps" in command, command
        for file in re.findall(r"-r /(\S+)", command):
            assert (ROOT / file).is_file(), command


def test_the_nodes_of_compose(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name in compose["services"] if name.startswith("node")}
    assert len(names) == 3
    for name in names:
        node = compose["services"][name]
        check_command(node["command"])
        check_command(node["healthcheck"]["test"][2:])
        assert (DEPLOY / node["build"]["dockerfile"].removeprefix("deploy/")).exists()
        for setting, value in node["environment"].items():
            monkeypatch.setenv(setting, value)
        config = load_config(DEPLOY / "leveret.toml", flags=[], choices=CHOICES)
        assert (config.cluster.name, config.cluster.advertised) == (name, f"{name}:{config.cluster.port}")
        assert config.cluster.shards > 1 and config.storage.engine == "postgresql" and not config.cluster.unreplicated
        for path in (config.storage.dsn_file, config.users["admin"].password_file):
            assert path is not None and Path(path).parent == Path("/run/secrets") and Path(path).name in node["secrets"]
        assert node["stop_grace_period"] == "60s" and config.server.shutdown_timeout < 60
        inside = {f"{config.server.port}", f"{config.management.port}"}
        assert {port.partition(":")[2] for port in node["ports"]} == inside


def test_all_that_compose_refers_to_exists(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(compose["secrets"]) == SECRETS
    published = [port.partition(":")[0] for service in services.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published))
    for service in services.values():
        assert set(service["secrets"]) <= SECRETS
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            assert source in compose["volumes"] or (DEPLOY / source).is_file(), volume
            assert target.startswith("/")
    for name, script in (("db1", "primary.sh"), ("db2", "standby.sh")):
        path = DEPLOY / "postgresql" / script
        assert any(script in volume for volume in services[name]["volumes"])
        subprocess.run(["bash", "-n", str(path)], check=True)
        for secret in re.findall(r"/run/secrets/([\w-]+)", path.read_text("utf-8")):
            assert secret in services[name]["secrets"]
    assert "application_name=db2" in (DEPLOY / "postgresql/standby.sh").read_text("utf-8")
    page = (ROOT / "docs/cluster.md").read_text("utf-8")
    assert all(f"secrets/{secret}" in page for secret in SECRETS)


def test_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text("utf-8")
    (command,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    program, *arguments = shlex.split(command)
    check_command(arguments)
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    # The program of the unit need not be installed here.
    unit = tmp_path / "leveret.service"
    unit.write_text(text.replace(program, "/bin/true"), encoding="utf-8")
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    found = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, check=False, env=environment)
    assert not [line for line in found.stderr.splitlines() if "leveret.service" in line], found.stderr
    security = [verify, "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(unit)]
    rated = subprocess.run(security, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout + rated.stderr
