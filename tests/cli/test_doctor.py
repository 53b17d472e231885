"""`leveret doctor`: each check finds what it is for, in real files, sockets, certificates and brokers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leveret.cli.app import leveret
from leveret.cli.checkup.disk import check_directory
from leveret.cli.checkup.machine import check_python, check_software
from leveret.config import combine_config
from tests.security.certificates import Authority
from tests.support.broker import ROOT, LeveretProcess, free_port, leveret_only
from tests.support.polling import wait_until

MEMORY = Path("/dev/shm")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory on the disk of the checkout, since temporary files may be in memory."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="doctor-") as directory:
        yield Path(directory)


def run(data_dir: Path, settings: dict[str, object] | None = None, *arguments: str) -> Result:
    given: dict[str, object] = {"server.data_dir": data_dir, "server.host": "127.0.0.1", "server.port": 0}
    given |= {"management.enabled": "false", "streams.sealing": "false"} | (settings or {})
    flags = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    return CliRunner().invoke(leveret, ["doctor", *flags, *arguments], env={"LEVERET_CONFIG": None})


def test_the_data_directory(data_dir: Path) -> None:
    """It is that of `serve`, as for the other commands."""
    missing = str(data_dir / "file" / "data")
    (data_dir / "file").touch()
    found = json.loads(run(data_dir, None, "--json", "--data-dir", missing).output)["findings"]
    assert not any(missing in one["found"] for one in found)  # --set has precedence
    result = CliRunner().invoke(leveret, ["doctor", "--json", "--data-dir", missing], env={"LEVERET_CONFIG": None})
    assert any(str(data_dir / "file") in one["found"] for one in json.loads(result.output)["findings"])


def findings(
    data_dir: Path, check: str, settings: dict[str, object] | None = None, *arguments: str
) -> list[dict[str, Any]]:
    """Return the findings of a check that are not `ok`. The exit code says whether there is an error."""
    result = run(data_dir, settings, "--json", *arguments)
    report = json.loads(result.output)
    has_error = any(found["level"] == "error" for found in report["findings"])
    assert (result.exit_code, report["healthy"]) == ((1, False) if has_error else (0, True))
    found = [one for one in report["findings"] if one["check"].startswith(check) and one["level"] != "ok"]
    assert all(one["expected"] and one["change"] for one in found)
    return found


def only(data_dir: Path, check: str, settings: dict[str, object] | None = None, *arguments: str) -> tuple[str, str]:
    """Return the level and the text of the only finding of a check."""
    [found] = findings(data_dir, check, settings, *arguments)
    return found["level"], found["found"]


def test_a_usual_machine_has_no_errors(data_dir: Path) -> None:
    result = run(data_dir)
    assert result.exit_code == 0, result.output
    for check in ("open files", "memory", "data directory", "file system", "disk speed", "disk space", "running broker"):
        assert f" {check}: " in result.output


def test_warnings_fail_if_strict(data_dir: Path) -> None:
    settings: dict[str, object] = {"limits.memory_high_watermark": 0.95}
    assert run(data_dir, settings).exit_code == 0
    assert run(data_dir, settings, "--strict").exit_code == 1


def test_an_invalid_configuration_is_an_error(data_dir: Path) -> None:
    result = run(data_dir, {"server.prot": 1})
    assert result.exit_code == 1
    assert "unknown setting 'server.prot'" in result.output


@pytest.mark.parametrize(("connections", "level"), [(0, "warning"), (1000, "error"), (100, None)])
def test_few_open_files(data_dir: Path, connections: int, level: str | None) -> None:
    flags = ["--set", f"limits.connections={connections}", "--set", f"server.data_dir={data_dir}"]
    done = subprocess.run(
        ["prlimit", "--nofile=1024:1024", sys.executable, "-m", "leveret", "doctor", "--json", *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "open files"]
    assert found["level"] == (level or "ok")
    assert found["found"] == "at most 1024 open files"


@pytest.mark.parametrize(
    ("watermark", "level"), [("0", "warning"), ("0.9", "warning"), ("1MiB", "warning"), ("900TB", "error")]
)
def test_a_watermark_that_does_not_fit_the_memory(data_dir: Path, watermark: str, level: str) -> None:
    assert only(data_dir, "memory", {"limits.memory_high_watermark": watermark})[0] == level


def test_a_data_directory_that_others_may_read(data_dir: Path) -> None:
    data_dir.chmod(0o755)
    assert only(data_dir, "data directory") == ("error", f"{data_dir} has mode 755")


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    level, text = only(tmp_path / "file", "data directory")
    assert (level, text) == ("error", f"{tmp_path / 'file'} is not a directory that this user may write")


def test_a_data_directory_that_cannot_be_reached(data_dir: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("this user may search every directory")
    data_dir.chmod(0o000)
    try:
        level, text = only(data_dir / "inner", "data directory")
    finally:
        data_dir.chmod(0o700)
    assert (level, text) == ("error", f"{data_dir} is not a directory that this user may write")


def test_a_data_directory_in_memory() -> None:
    if not MEMORY.is_dir():
        pytest.skip("no /dev/shm")
    path = MEMORY / f"leveret-doctor-{os.getpid()}"
    assert only(path, "file system")[0] == "error"
    assert findings(path, "file system", {"storage.engine": "memory"}) == []


def test_a_data_directory_on_a_network_file_system(data_dir: Path, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    beside = str(data_dir)[:-1]
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {data_dir.parent} nfs4 rw 0 0\n/dev/b {beside} ext4 rw 0 0\n")
    config = combine_config(("test", {"server": {"data_dir": data_dir}}))
    [found] = [one for one in check_directory(config, mounts=mounts) if one.check == "file system"]
    assert (found.level, found.found) == ("warning", f"{data_dir} is on nfs4")


def test_a_slow_disk(data_dir: Path) -> None:
    config = combine_config(("test", {"server": {"data_dir": data_dir}}))
    [found] = [one for one in check_directory(config, slow_sync=0.0) if one.check == "disk speed"]
    assert found.level == "warning"
    assert list(data_dir.iterdir()) == []


def test_a_full_disk(data_dir: Path) -> None:
    status = os.statvfs(data_dir)
    free = status.f_bavail * status.f_frsize
    assert only(data_dir, "disk space", {"limits.disk_free": 2 * free})[0] == "error"
    assert only(data_dir, "disk space", {"limits.disk_free": free // 2})[0] == "warning"


def test_secrets_that_others_may_read(data_dir: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o644)
    settings: dict[str, object] = {"users.a.password_file": password}
    assert only(data_dir, "secrets", settings)[0] == "error"
    password.chmod(0o640)
    assert findings(data_dir, "secrets", settings) == []
    password.unlink()
    assert "cannot be read" in only(data_dir, "secrets", settings)[1]


def test_a_configuration_with_a_password_that_others_may_read(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "leveret.toml"
    path.write_text("[users.a]\npassword = 'x'\n")
    path.chmod(0o644)
    assert "the configuration file" in only(data_dir, "secrets", {}, "--config", str(path))[1]


def test_a_clock_that_has_been_set_back(data_dir: Path) -> None:
    (data_dir / "log").touch()
    os.utime(data_dir / "log", (time.time() + 86400,) * 2)
    assert any("in the future" in found["found"] for found in findings(data_dir, "clock"))


def test_a_missing_extra(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = combine_config(("test", {"streams": {"sealing": True}, "websocket": {"enabled": True}}))
    assert [one for one in check_software(config) if one.check == "extras"] == []
    monkeypatch.setattr("leveret.cli.checkup.machine.importlib.util.find_spec", lambda name: None)
    found = [one for one in check_software(config) if one.check == "extras"]
    extras = ("management", "segments", "websocket")
    assert [one.change for one in found] == [f"make extra-{extra}" for extra in extras]


def test_plain_modules(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leveret", "doctor", "--json", "--set", f"server.data_dir={data_dir}"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "LEVERET_PURE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "software"]
    assert (found["level"], "LEVERET_PURE" in found["found"]) == ("warning", True)


@pytest.mark.parametrize(
    ("version", "level", "found", "expected"),
    [
        ((3, 11, 9), "warning", "CVE-2024-7592 (http.cookies)", "3.11.12 or later"),
        ((3, 12, 1), "warning", "CVE-2024-7592 (http.cookies)", "3.12.9 or later"),
        ((3, 13, 0), "warning", "CVE-2024-12254 (asyncio)", "3.13.2 or later"),
        ((3, 12, 9), "ok", "none known of Python 3.12.9", ""),
        ((3, 14, 0), "ok", "none known of Python 3.14.0", ""),
    ],
)
def test_vulnerabilities_of_python(version: tuple[int, int, int], level: str, found: str, expected: str) -> None:
    finding = check_python(version)
    assert (finding.level, finding.expected, found in finding.found) == (level, expected, True)


# Ports


def test_a_taken_port_names_its_process(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        level, text = only(data_dir, "ports", {"server.port": port})
    assert level == "error"
    assert f"127.0.0.1:{port} ('server.port') is used by process {os.getpid()} " in text


def test_two_listeners_with_one_port(data_dir: Path) -> None:
    port = free_port()
    settings: dict[str, object] = {"server.port": port, "management.enabled": "true", "management.port": port}
    settings |= {"management.metrics_port": 0}
    assert only(data_dir, "ports", settings) == ("error", f"'management.port' and 'server.port' are both {port}")


def test_the_port_of_websockets(data_dir: Path) -> None:
    port = free_port()
    settings: dict[str, object] = {"server.port": port, "websocket.enabled": "true", "websocket.port": port}
    assert only(data_dir, "ports", settings) == ("error", f"'websocket.port' and 'server.port' are both {port}")


def test_pages_of_every_origin(data_dir: Path) -> None:
    settings: dict[str, object] = {"websocket.enabled": "true", "websocket.port": 0}
    assert findings(data_dir, "origins", settings) == []
    level, text = only(data_dir, "origins", settings | {"websocket.allowed_origins": '["*"]'})
    assert (level, text) == ("warning", "every page that a browser shows may connect ('websocket.allowed_origins')")


def test_an_unknown_host_and_an_absent_address(data_dir: Path) -> None:
    assert only(data_dir, "ports", {"server.host": "host.invalid", "server.port": 1000})[0] == "error"


def test_a_privileged_port(data_dir: Path) -> None:
    if os.geteuid() == 0 or int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1:
        pytest.skip("this user may listen on every port")
    level, text = only(data_dir, "ports", {"server.port": 1})
    assert (level, text) == ("error", "this user may not listen on 127.0.0.1:1 ('server.port')")


# Users


def test_the_default_user_and_other_machines(data_dir: Path) -> None:
    assert only(data_dir, "default user", {"server.host": ""})[0] == "warning"
    guest: dict[str, object] = {"server.host": "", "users.guest.password": "guest"}
    assert only(data_dir, "default user", guest)[0] == "warning"
    assert only(data_dir, "default user", guest | {"auth.loopback_users": "[]"})[0] == "error"
    assert findings(data_dir, "default user", {"server.host": "", "users.a.password": "x"}) == []


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls(cert: Path, key: Path) -> dict[str, object]:
    key.chmod(0o600)
    return {"tls.cert": cert, "tls.key": key, "tls.port": 0}


def test_a_good_certificate(data_dir: Path, authority: Authority) -> None:
    settings = tls(*authority.issue("good", days=100))
    assert findings(data_dir, "TLS", settings) == []
    assert "the certificate expires in 99 days" in run(data_dir, settings).output


def test_an_expired_certificate(data_dir: Path, authority: Authority) -> None:
    level, text = only(data_dir, "TLS", tls(*authority.issue("expired", days=-1)))
    assert (level, text) == ("error", "the certificate cannot be used: certificate has expired")


def test_a_certificate_that_expires_soon(data_dir: Path, authority: Authority) -> None:
    settings: dict[str, object] = {"management.enabled": "true", "management.port": 0, "management.metrics_port": 0}
    cert, key = authority.issue("soon", days=10)
    key.chmod(0o600)
    settings |= {"management.tls_cert": cert, "management.tls_key": key, "management.host": "127.0.0.1"}
    level, text = only(data_dir, "TLS ('management.tls_cert')", settings)
    assert (level, "expires in 9 days" in text) == ("warning", True)


def test_the_key_of_another_certificate(data_dir: Path, authority: Authority) -> None:
    cert, _ = authority.issue("a", days=100)
    _, key = authority.issue("b", days=100)
    level, text = only(data_dir, "TLS", tls(cert, key))
    assert (level, "the key does not match the certificate" in text) == ("error", True)


def test_a_certificate_for_other_hosts(data_dir: Path, authority: Authority) -> None:
    settings = tls(*authority.issue("host", days=100)) | {"tls.host": "127.0.0.2"}
    level, text = only(data_dir, "TLS", settings)
    assert (level, text) == ("warning", "the certificate is for localhost, 127.0.0.1")


def test_a_certificate_without_names(data_dir: Path, authority: Authority) -> None:
    settings = tls(*authority.issue("nameless", days=100, has_names=False))
    assert only(data_dir, "TLS", settings) == ("error", "the certificate has no names")


def test_a_chain_of_another_authority(data_dir: Path, authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("chain", days=100)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(cert.read_bytes() + authority.path.read_bytes())
    assert findings(data_dir, "TLS", tls(chain, key)) == []
    chain.write_bytes(cert.read_bytes() + Authority(tmp_path, "other").path.read_bytes())
    level, text = only(data_dir, "TLS", tls(chain, key))
    assert (level, "do not sign the first one" in text) == ("error", True)


# The running broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("doctor examines it")
    with LeveretProcess(tmp_path, environment={"LEVERET_LIMITS__DISK_FREE": "900TB"}).start() as process:
        yield process


def test_the_running_broker_uses_its_port_and_has_an_alarm(broker: LeveretProcess) -> None:
    def alarmed() -> list[dict[str, Any]]:
        return findings(broker.data_dir, "running broker", {"server.port": broker.port})

    [found] = wait_until(alarmed)
    assert (found["level"], found["found"].startswith("publishers are blocked: ")) == ("error", True)
    output = run(broker.data_dir, {"server.port": broker.port}).output
    assert f"127.0.0.1:{broker.port} ('server.port') is used by the running broker (process {broker.pid})" in output
