"""`leveret serve` as a process: its output, its stop, refused starts, and the effect of SIGHUP."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pika
import pika.credentials
import pika.exceptions
import pytest

from tests.cli.runner import Commands, wait_closed
from tests.security.certificates import Authority
from tests.support.broker import ROOT, LeveretProcess, leveret_only
from tests.support.polling import wait_until

DEADLINE = 120.0
GUEST_IS_DEFAULT = ""
NOTHING_PLAIN = "[server]\nplain = false\n"


@pytest.fixture(autouse=True)
def own_broker() -> None:
    leveret_only("these tests start and stop it")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker with the default configuration, not started yet."""
    process = LeveretProcess(tmp_path / "broker", config=GUEST_IS_DEFAULT)
    yield process
    process.kill()
    process.check_log()


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `leveret serve` to its end."""
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment
    return subprocess.run(
        [sys.executable, "-m", "leveret", "serve", *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def connect(process: LeveretProcess, **more: Any) -> pika.BlockingConnection:
    parameters = pika.URLParameters(process.url())
    for name, value in more.items():
        setattr(parameters, name, value)
    return pika.BlockingConnection(parameters)


def until(process: LeveretProcess, text: str, after: int = 0) -> str:
    """Wait until the process has logged a text; the log from `after` on."""
    wait_until(lambda: text in process.log()[after:] or not process.alive(), process.log)
    assert text in process.log()[after:], process.log()
    return process.log()[after:]


def reload(process: LeveretProcess, config: str) -> str:
    """Change the configuration file, send SIGHUP, and return the log lines about it."""
    (process.directory / "leveret.toml").write_text(config, "utf-8")
    after = len(process.log())
    assert process.process is not None
    process.process.send_signal(signal.SIGHUP)
    expected = "configuration not reloaded" if "[oops" in config else "reloaded certificates, users, vhosts and limits"
    return until(process, expected, after)


# Start


@pytest.mark.one_process("the first lines are those of the shards")
@pytest.mark.embedded("is about the engines `sqlite` and `memory`")
def test_the_first_lines_name_version_directories_and_listeners(process: LeveretProcess) -> None:
    process.start()
    lines = until(process, "ready").splitlines()
    assert lines[0].startswith("Leveret 0.")
    assert lines[1].split() == ["listens", "on", f"amqp://127.0.0.1:{process.port}"]
    assert lines[2].split() == ["data", str(process.data_dir)]
    assert lines[3].endswith(f"amqp://guest:guest@127.0.0.1:{process.port}/")
    assert lines[4].split() == ["manage", "leveret", "status", "--data-dir", str(process.data_dir)]
    connect(process).close()


def test_a_start_is_quick_and_logs_its_duration(process: LeveretProcess) -> None:
    process.start()
    assert re.search(r"ready in [0-9]+\.[0-9]{2} s: amqp://", until(process, "ready in"))
    assert process.cpu_seconds() < 1


def test_the_first_lines_name_the_users_there_are(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path, config="".join(f"[users.u{number}]\n" for number in range(7))) as process:
        assert "as one of 7 users: u0, u1, u2, u3, u4 and 2 more" in process.start().log()


@pytest.mark.one_process("the file of a broker with shards also has their processes")
def test_the_ready_file(process: LeveretProcess) -> None:
    process.start()
    ready = json.loads((process.directory / "ready.json").read_text())
    assert ready == {
        "host": "127.0.0.1",
        "port": process.port,
        "pid": process.pid,
        "control": str(process.data_dir / "control.sock"),
        "listeners": [f"amqp://127.0.0.1:{process.port}"],
        "management": [],
        "metrics": [],
    }


def test_localhost_is_every_loopback_address(process: LeveretProcess) -> None:
    process.host = "localhost"
    process.start()
    addresses = {info[4][0] for info in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)}
    listeners = json.loads((process.directory / "ready.json").read_text())["listeners"]
    for address in addresses:
        try:
            with socket.socket(socket.AF_INET6 if ":" in str(address) else socket.AF_INET) as probe:
                probe.bind((address, 0))
        except OSError:
            continue  # not an address of this machine
        assert any(str(address) in listener for listener in listeners)
        socket.create_connection((str(address), process.port), DEADLINE).close()


def test_an_empty_host_is_every_address(process: LeveretProcess) -> None:
    process.host = ""
    process.start()
    assert f"amqp://0.0.0.0:{process.port}" in process.log()
    socket.create_connection(("127.0.0.1", process.port), DEADLINE).close()


def test_flags_and_environment_configure(tmp_path: Path) -> None:
    with LeveretProcess(
        tmp_path, config="[amqp]\nheartbeat = 7\nchannel_max = 9\n", environment={"LEVERET_AMQP__HEARTBEAT": "8"}
    ) as process:
        process.start()
        with connect(process, heartbeat=lambda connection, proposed: proposed) as connection:
            assert connection._impl.params.heartbeat == 8
            assert connection._impl.params.channel_max == 9


@pytest.mark.embedded("is about the engines `sqlite` and `memory`")
def test_a_broker_in_memory_warns_of_data_loss(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path, config="[storage]\nengine = 'memory'\n") as process:
        assert "in memory only, lost on restart" in process.start().log()


# Refused starts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "server.prot=1"], "unknown setting 'server.prot': did you mean 'server.port'?"),
        (["--set", "tls.port=x"], "--set: tls.port: got 'x', expected an integer, 0 to 65535"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: cannot read the configuration file: No such file or directory"),
        (["--data-dir", "/proc/nowhere"], "cannot create data directory /proc/nowhere"),
        (["--set", "tls.cert=/nowhere.pem"], "[tls]: /nowhere.pem cannot be read"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1:0"),
        (["--host", "no such host"], "cannot resolve 'server.host' 'no such host'"),
        (["--set", 'users.a.permissions={"/" = {write = "("}}'], "user 'a', vhost '/': write permission '('"),
        (["--set", "users.a.password_file=/nowhere"], "users.a.password_file: /nowhere cannot be read"),
    ],
)
def test_a_refused_start_gives_the_reason(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = serve("--port", "0", "--data-dir", str(tmp_path / "data"), *arguments)
    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_environment_variables_are_refused_by_name(tmp_path: Path) -> None:
    result = serve("--data-dir", str(tmp_path / "data"), LEVERET_SERVER__PROT="1")
    assert (result.returncode, "LEVERET_SERVER__PROT: unknown setting 'server.prot'" in result.stderr) == (1, True)


def test_a_port_in_use(process: LeveretProcess, tmp_path: Path) -> None:
    process.start()
    result = serve("--host", "127.0.0.1", "--port", str(process.port), "--data-dir", str(tmp_path / "other"))
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{process.port}: Address already in use; change" in result.stderr
    assert "--port (0 picks a free port)" in result.stderr


@pytest.mark.parametrize("engine", ["sqlite", "memory"])
def test_a_data_directory_in_use(process: LeveretProcess, engine: str) -> None:
    process.config = f"[storage]\nengine = '{engine}'\n"
    process.start()
    result = serve("--port", "0", "--data-dir", str(process.data_dir), "--set", f"storage.engine={engine}")
    assert result.returncode == 1
    assert str(process.data_dir) in result.stderr
    assert "Traceback" not in result.stderr
    # The broker that holds the directory still runs, and so does its control socket.
    assert Commands(process.data_dir).json("status")["pid"] == process.pid


# Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_connections_with_320(process: LeveretProcess, number: signal.Signals) -> None:
    process.start()
    connection = connect(process)
    connection.channel().queue_declare("q", durable=True)
    assert process.process is not None
    process.process.send_signal(number)
    assert wait_closed(connection).startswith("320")
    assert process.process.wait(DEADLINE) == 0
    assert not (process.data_dir / "control.sock").exists()
    with pytest.raises(OSError, match="refused"):
        process.connect()
    process.process = None
    process.start()
    with connect(process) as again:
        again.channel().queue_declare("q", durable=True, passive=True)


def test_a_client_that_does_not_answer_delays_the_stop_no_longer_than_configured(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path, config="[server]\nshutdown_timeout = 0.2\n") as process:
        process.start()
        silent = process.connect()
        silent.sendall(b"AMQP\0\0\x09\x01")
        assert silent.recv(8)
        mute = amqp.Connection(f"127.0.0.1:{process.port}")
        mute.connect()
        process.stop(DEADLINE)
        silent.close()
        mute.transport.close()


# SIGHUP: users


def test_sighup_reloads_users(tmp_path: Path) -> None:
    old = '[users.old]\npassword = "x"\npermissions."/" = {}\n'
    with LeveretProcess(tmp_path, config=old) as process:
        process.user, process.password = "old", "x"
        process.start()
        connection = connect(process)
        reload(process, '[users.new]\npassword = "y"\npermissions."/" = {}\n[amqp]\nheartbeat = 5\n')
        closed = wait_closed(connection)
        assert closed.startswith("320") and closed.endswith("user 'old' was deleted")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(process)
        process.user, process.password = "new", "y"
        connect(process).close()
        assert "setting 'amqp.heartbeat' has changed; restart the broker to apply it" in process.log()


VHOSTS = """
[users.guest]
password = "guest"
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
permissions.going = { configure = ".*", write = ".*", read = ".*" }
permissions.coming = { configure = ".*", write = ".*", read = ".*" }
permissions.staying = { configure = ".*", write = ".*", read = ".*" }
"""


def declare(connection: pika.BlockingConnection, count: int) -> None:
    channel = connection.channel()
    for _ in range(count):
        channel.queue_declare("", exclusive=True)


@pytest.mark.one_process("shards reload after the front has")
def test_sighup_reloads_vhosts(tmp_path: Path) -> None:
    old = VHOSTS + "[vhosts.going]\nlimits.max_queues = 1\n[vhosts.staying]\nlimits.max_queues = 1\n"
    with LeveretProcess(tmp_path, config=old) as process:
        process.start()
        commands = Commands(process.data_dir)
        held = {vhost: connect(process, virtual_host=vhost) for vhost in ("going", "staying")}
        for connection in held.values():
            declare(connection, 1)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
                declare(connection, 1)
        with pytest.raises(pika.exceptions.AMQPConnectionError, match="coming"):
            connect(process, virtual_host="coming")
        said = reload(
            process, VHOSTS + "[vhosts.staying]\nlimits.max_queues = 3\n[vhosts.coming]\nlimits.max_connections = 1\n"
        )
        assert "vhost 'going' was removed from" in said and "vhosts has changed" not in said
        declare(held["staying"], 2)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
            declare(held["staying"], 1)
        declare(held["going"], 3)
        held["coming"] = connect(process, virtual_host="coming")
        with pytest.raises(pika.exceptions.AMQPConnectionError, match="max_connections"):
            connect(process, virtual_host="coming")
        listed = {item["name"]: (item["source"], item["max_queues"]) for item in commands.json("vhosts")}
        assert listed == {"/": ("default", 0), "going": ("metadata", 0), "staying": ("config", 3), "coming": ("config", 0)}
        commands.refused("vhosts", "delete", "coming")
        commands.ok("vhosts", "delete", "going")
        assert wait_closed(held["going"]).startswith("320")


def test_sighup_reloads_limits(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path, config="[limits]\nconnections_per_user = 1\nconsumers_per_channel = 1\n") as process:
        process.start()
        commands = Commands(process.data_dir)
        held = connect(process)
        channel = held.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_consume(queue, lambda *_: None)
        with pytest.raises(pika.exceptions.AMQPConnectionError, match="connections_per_user"):
            connect(process)
        said = reload(
            process,
            "[limits]\nconnections_per_user = 2\nconsumers_per_channel = 2\nqueues_per_vhost = 2\n"
            "memory_high_watermark = 1000\n",
        )
        assert "applies after a restart" not in said
        until(process, "memory alarm: publishers blocked")
        assert commands.json("status")["memory_limit"] == 1000
        channel.basic_consume(queue, lambda *_: None)
        second = connect(process)
        declare(second, 1)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queues_per_vhost"):
            declare(second, 1)
        reload(process, "[limits]\nmemory_high_watermark = 0\n")
        until(process, "memory alarm cleared: publishers resumed")
        for connection in (held, second, connect(process)):
            connection.close()


@pytest.mark.parametrize(
    "mistake",
    [
        "[oops\n",
        "[oops]\n",
        "[users.a]\npassword = 1\n#[oops",
        '[users.a]\npermissions."/" = {write = "("}\n#[oops',
    ],
)
def test_an_invalid_file_at_sighup_changes_nothing(tmp_path: Path, mistake: str) -> None:
    with LeveretProcess(tmp_path, config='[users.old]\npassword = "x"\npermissions."/" = {}\n') as process:
        process.user, process.password = "old", "x"
        process.start()
        assert "error" in reload(process, mistake)
        connect(process).close()


# TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_config(authority: Authority, certificate: tuple[Path, Path], more: str = "") -> str:
    return (
        f'[server]\nplain = false\n[tls]\nport = 0\ncert = "{certificate[0]}"\nkey = "{certificate[1]}"\n'
        f'ca = "{authority.path}"\n{more}'
    )


def tls_options(authority: Authority, certificate: tuple[Path, Path] | None = None) -> pika.SSLOptions:
    context = ssl.create_default_context(cafile=str(authority.path))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return pika.SSLOptions(context, "localhost")


def server_subject(process: LeveretProcess, authority: Authority) -> Any:
    with process.connect() as plain:
        context = ssl.create_default_context(cafile=str(authority.path))
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            certificate = secure.getpeercert()
            assert certificate is not None
            return certificate["subject"][0][0][1]


def test_a_broker_with_tls_only(tmp_path: Path, authority: Authority) -> None:
    with LeveretProcess(tmp_path / "broker", config=tls_config(authority, authority.issue("server"))) as process:
        process.start()
        assert f"amqps://127.0.0.1:{process.port}" in process.log()
        with connect(process, ssl_options=tls_options(authority)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            queue = channel.queue_declare("", exclusive=True).method.queue
            body = os.urandom(300_000)
            channel.basic_publish("", queue, body)
            assert channel.basic_get(queue)[2] == body
            assert Commands(process.data_dir).json("connections")[0]["tls"]
        # A client that does not use TLS affects only itself.
        with process.connect() as plain:
            plain.sendall(b"AMQP\0\0\x09\x01" + b"\0" * 100)
            plain.settimeout(DEADLINE)
            try:
                assert not plain.recv(1000).startswith(b"\x01\0\0")
            except ConnectionError:
                pass
        connect(process, ssl_options=tls_options(authority)).close()


def test_tls_in_addition_to_the_plain_listener(tmp_path: Path, authority: Authority) -> None:
    config = tls_config(authority, authority.issue("server")).replace("plain = false", "")
    with LeveretProcess(tmp_path / "broker", config=config) as process:
        process.start()
        connect(process).close()
        listeners = json.loads((process.directory / "ready.json").read_text())["listeners"]
        assert [listener.partition(":")[0] for listener in listeners] == ["amqp", "amqps"]
        # The plain listener detects TLS.
        with connect(process, ssl_options=tls_options(authority)):
            assert Commands(process.data_dir).json("connections")[0]["tls"]
        process.port = int(listeners[1].rpartition(":")[2])
        connect(process, ssl_options=tls_options(authority)).close()
        process.port = 0


@pytest.mark.parametrize(("setting", "user"), [("common-name", "shop"), ("subject", "CN=shop")])
def test_external_by_client_certificate(tmp_path: Path, authority: Authority, setting: str, user: str) -> None:
    config = tls_config(
        authority,
        authority.issue("server"),
        f"""verify = "optional"
[auth]
mechanisms = ["EXTERNAL", "PLAIN"]
external_name = "{setting}"
[users."{user}"]
permissions."/" = {{ configure = "", write = "", read = "" }}
[users.person]
password = "secret"
permissions."/" = {{ configure = "", write = "", read = "" }}
""",
    )
    external = pika.credentials.ExternalCredentials()
    with LeveretProcess(tmp_path / "broker", config=config) as process:
        process.start()
        shop, stranger = authority.issue("shop"), authority.issue("stranger")
        with connect(process, credentials=external, ssl_options=tls_options(authority, shop)):
            assert [item["user"] for item in Commands(process.data_dir).json("connections")] == [user]
        for certificate in (None, stranger):
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                connect(process, credentials=external, ssl_options=tls_options(authority, certificate))
        process.user, process.password = "person", "secret"
        connect(process, ssl_options=tls_options(authority)).close()


def test_a_client_without_the_required_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    config = tls_config(authority, authority.issue("server"), 'verify = "required"\n')
    with LeveretProcess(tmp_path / "broker", config=config) as process:
        process.start()
        connect(process, ssl_options=tls_options(authority, authority.issue("client"))).close()
        with pytest.raises((pika.exceptions.AMQPConnectionError, OSError)):
            connect(process, ssl_options=tls_options(authority))


def test_sighup_reloads_certificates(tmp_path: Path, authority: Authority) -> None:
    config = tls_config(authority, authority.issue("server"))
    with LeveretProcess(tmp_path / "broker", config=config) as process:
        process.start()
        held = connect(process, ssl_options=tls_options(authority))
        assert server_subject(process, authority) == "server"
        reload(process, tls_config(authority, authority.issue("renewed")))
        assert server_subject(process, authority) == "renewed"
        (tmp_path / "renewed.crt").write_text("broken")
        after = len(process.log())
        assert process.process is not None
        process.process.send_signal(signal.SIGHUP)
        assert "renewed.crt does not contain a CERTIFICATE" in until(process, "configuration not reloaded", after)
        assert server_subject(process, authority) == "renewed"
        held.channel().queue_declare("", exclusive=True)  # existing connections stay open
        held.close()


# Mechanisms over the network


def test_amqplain(process: LeveretProcess) -> None:
    process.start()
    for password, accepted in (("guest", True), ("wrong", False)):
        client = amqp.Connection(f"127.0.0.1:{process.port}", "guest", password, login_method="AMQPLAIN")
        if accepted:
            client.connect()
            client.close()
        else:
            with pytest.raises((amqp.exceptions.AccessRefused, OSError)):
                client.connect()


class AnonymousCredentials:
    """An object as pika expects it."""

    TYPE = "ANONYMOUS"
    erase_on_connect = False

    def response_for(self, start: Any) -> tuple[str | None, bytes | None]:
        return ("ANONYMOUS", b"trace") if b"ANONYMOUS" in start.mechanisms else (None, None)

    def erase_credentials(self) -> None:
        pass


def test_anonymous_is_off_unless_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pika.credentials, "VALID_TYPES", [*pika.credentials.VALID_TYPES, AnonymousCredentials])
    on = (
        '[auth]\nmechanisms = ["ANONYMOUS"]\nanonymous_user = "visitor"\n'
        '[users.visitor]\npermissions."/" = { read = "^public" }\n'
    )
    for config, accepted in (("", False), (on, True)):
        with LeveretProcess(tmp_path / str(accepted), config=config) as process:
            process.start()
            if not accepted:
                with pytest.raises(pika.exceptions.AMQPConnectionError):
                    connect(process, credentials=AnonymousCredentials())
                continue
            connection = connect(process, credentials=AnonymousCredentials())
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                connection.channel().queue_declare("mine")
            connection.close()


# First run


def test_a_terminal_shows_how_to_publish_the_first_message(tmp_path: Path) -> None:
    """The command works as it is in a shell."""
    leaf = tmp_path / "it's data"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 400, 0, 0))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "LEVERET_MANAGEMENT__ENABLED": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "leveret", "serve", "--host", "", "--port", "0", "--data-dir", str(leaf)],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    os.close(theirs)
    try:
        shown = ""
        while "try it" not in shown or not shown.endswith("\n"):
            shown += os.read(ours, 1 << 16).decode()
        [line] = [line for line in shown.splitlines() if "try it" in line]
        function = f'leveret() {{ {shlex.quote(sys.executable)} -m leveret "$@"; }}\n'
        done = subprocess.run(
            ["bash", "-c", function + line.split("try it")[1]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "Hello, world"
    finally:
        os.close(ours)
        process.terminate()
        process.wait(DEADLINE)


def test_logs_have_no_command_to_try(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path / "guest", config=GUEST_IS_DEFAULT) as process:
        assert "try it" not in process.start().log()


@pytest.mark.parametrize(
    ("log_format", "line"),
    [("text", "  console     http://127.0.0.1:{port}\n"), ("json", '"console: http://127.0.0.1:{port}"')],
)
def test_the_output_has_the_address_of_the_console(tmp_path: Path, log_format: str, line: str) -> None:
    environment = {
        "LEVERET_SERVER__LOG_FORMAT": log_format,
        "LEVERET_MANAGEMENT__ENABLED": "true",
        "LEVERET_MANAGEMENT__HOST": "0.0.0.0",
        "LEVERET_MANAGEMENT__PORT": "0",
        "LEVERET_MANAGEMENT__PATH_PREFIX": "/mq",
    }
    with LeveretProcess(tmp_path, config=GUEST_IS_DEFAULT, environment=environment) as process:
        process.start()
        port = json.loads((tmp_path / "ready.json").read_text())["management"][0].split(":")[-1]
        assert line.format(port=port) in process.log()
