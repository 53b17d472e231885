"""The HTTP process: its settings, and its life beside the broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leveret import sync
from leveret.config import combine_config
from leveret.node.errors import StartFailed
from leveret.node.http_endpoint import HttpEndpoint
from tests.management.http.client import HttpBroker
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until


def make(directory: Path, **settings: str) -> LeveretProcess:
    environment = {f"LEVERET_MANAGEMENT__{name.upper()}": value for name, value in settings.items()}
    defaults = {"LEVERET_MANAGEMENT__ENABLED": "true", "LEVERET_MANAGEMENT__PORT": "0"}
    return LeveretProcess(directory, config=basic_config(), environment=defaults | environment)


def child_of(process: LeveretProcess) -> int:
    """Return the process id of the HTTP process."""
    return wait_until(lambda: next(_children(process.pid), None), lambda: "no HTTP process")


def _children(parent: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _parent(entry) == parent and b"http_main" in _command(entry):
            yield int(entry)


def _first_url(process: LeveretProcess) -> str:
    return str(json.loads((process.directory / "ready.json").read_text())["management"][0])


def _parent(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_restart_after_a_kill(tmp_path: Path) -> None:
    with make(tmp_path).start() as process:
        api = HttpBroker(process)
        port = api.port
        process.wait_for_log("HTTP API ready")
        seen = len(process.log())
        os.kill(child_of(process), signal.SIGKILL)
        assert api.get("/whoami") == {"name": "guest", "tags": ["administrator"]}  # the socket stayed open
        assert api.port == port
        process.wait_for_log("the HTTP process ended with code -9; restarting it", seen)


def test_the_end_of_a_killed_broker(tmp_path: Path) -> None:
    process = make(tmp_path).start()
    process.wait_for_log("HTTP API ready")
    child = child_of(process)
    process.kill()
    wait_until(lambda: b"http_main" not in _command(str(child)), lambda: "the HTTP process did not end")


def test_a_clean_stop(tmp_path: Path) -> None:
    with make(tmp_path).start() as process:
        process.wait_for_log("HTTP API ready")
        child = child_of(process)
    assert b"http_main" not in _command(str(child))
    process.check_log()
    assert "restarting" not in process.log()


def test_a_path_prefix(tmp_path: Path) -> None:
    with make(tmp_path, path_prefix="/broker").start() as process:
        assert HttpBroker(process, "/broker").get("/whoami")["name"] == "guest"
        assert _first_url(process).endswith("/broker/")
        assert _first_url(process) in process.log()
        port = HttpBroker(process, "/broker").port
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/whoami")


@pytest.mark.parametrize(
    ("setting", "what"), [("port", "HTTP API"), ("metrics_port", "listener of the metrics")], ids=["http", "metrics"]
)
def test_a_configured_port_in_use_stops_the_start(tmp_path: Path, setting: str, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=r"exit code 1") as failed:
            make(tmp_path, host="127.0.0.1", **{setting: str(port)}).start()
    reason = f"the {what} cannot listen on port {port}: Address already in use"
    assert f"{reason}; change 'management.host' or 'management.{setting}'" in str(failed.value)
    assert not (tmp_path / "ready.json").exists()


def test_a_default_port_in_use_is_replaced_by_the_next_free_one(tmp_path: Path) -> None:
    """On one address only: the listener has the same port on all addresses of its host."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for number in (port, 65500):
            config = combine_config(("test", {"management": {"port": number, "metrics_port": port}}))
            endpoint = HttpEndpoint(config, tmp_path, ("management.port",) if number == port else ())
            if number == port:
                with pytest.raises(StartFailed, match=f"the HTTP API cannot listen on port {port}"):
                    endpoint.listen()
            else:
                endpoint.listen()
                [found] = {urlsplit(url).port for url in endpoint.metrics_listeners}
                assert found is not None and found > port
            endpoint.close()


def test_the_start_shows_the_ports_that_replace_default_ports(tmp_path: Path) -> None:
    defaults = (15672, 15692)
    with ExitStack() as stack:
        for port in defaults:
            with suppress(OSError):  # another program has it
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        process = make(tmp_path)
        del process.environment["LEVERET_MANAGEMENT__PORT"], process.defaults["LEVERET_MANAGEMENT__METRICS_PORT"]
        with process.start():
            ready = json.loads((tmp_path / "ready.json").read_text())
            log = process.log()
            for urls, heading, default in zip(
                (ready["management"], ready["metrics"]), ("HTTP API", "metrics"), defaults, strict=True
            ):
                assert urls and all(urlsplit(url).port != default for url in urls)
                assert f"  {heading:<10}  {', '.join(urls)}" in log
                assert f"port {default} is in use; the " in log


def test_the_default_user(tmp_path: Path) -> None:
    environment = {"LEVERET_MANAGEMENT__ENABLED": "true", "LEVERET_MANAGEMENT__PORT": "0"}
    with LeveretProcess(tmp_path, config="", environment=environment).start() as process:
        api = HttpBroker(process)
        assert api("PUT", "/vhosts/new").status == 201
        assert api("PUT", "/queues/new/q", {}).status == 201  # with the permissions in the new vhost
        assert api("PUT", "/users/alice", {"password": "a", "tags": ""}).status == 201
        assert [user["name"] for user in api.get("/users")] == ["alice", "guest"]
        sync.connect(process.url(vhost="new")).close()
        assert api("DELETE", "/users/guest").status == 204
        assert api("GET", "/whoami").status == 401


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    with make(tmp_path / "broker", tls_cert=str(cert), tls_key=str(key)).start() as process:
        port = int(_first_url(process).rstrip("/").rpartition(":")[2])
        context = ssl.create_default_context(cafile=str(authority.path))
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/api/auth", context=context) as reply:
            assert json.load(reply) == {"oauth_enabled": False}


def test_a_missing_certificate(tmp_path: Path) -> None:
    with make(tmp_path, tls_cert=str(tmp_path / "missing.pem")).start() as process:
        line = process.wait_for_log("cannot load the certificate of 'management.tls_cert'")
        assert "No such file or directory" in line
        process.check_log()
