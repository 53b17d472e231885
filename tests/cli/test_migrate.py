"""`leveret migrate`: from another Leveret, whose API is that of RabbitMQ, and from a RabbitMQ."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

import leveret.sync
from leveret.cli import migrate
from leveret.cli.migration import source as source_module
from leveret.cli.migration.plan import findings, only_vhost
from leveret.cli.migration.shovels import DynamicShovels
from leveret.cli.migration.source import Source, with_vhost
from leveret.management.control_client import call
from leveret.management.definitions.document import Document
from tests.cli.program import LIMIT, Done, Program, interruptible
from tests.cli.runner import http_url
from tests.management.http.client import send
from tests.shovel.test_kills import fill, has_moved, length
from tests.shovel.test_moves import drain
from tests.support import rabbitmq
from tests.support.broker import Broker, LeveretProcess, basic_config, free_port
from tests.support.polling import wait_until

COUNT = 10000
# Messages at the destination when the command is killed.
MOVED = 300
KEPT = pika.BasicProperties(delivery_mode=2)
FULL = "vhöst/ü"


class Migration:
    """A broker with a management API, a new broker, and the command line."""

    def __init__(self, process: Broker, source_url: str, destination: LeveretProcess) -> None:
        self.process = process
        self.source = process.url()
        self.source_url = source_url
        self.destination = destination
        self.program = Program(destination)

    def arguments(self, *options: str) -> tuple[str, ...]:
        return ("migrate", "--from", self.source_url, "--data-dir", str(self.destination.data_dir), *options)

    def run(self, *options: str) -> Done:
        return self.program.run(*self.arguments(*options))

    def json(self, *options: str) -> Any:
        done = self.run("--json", *options)
        assert done.out, done.err
        return json.loads(done.out)

    def at_source(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of a Leveret at the source."""
        assert isinstance(self.process, LeveretProcess)
        return call(self.process.data_dir, operation, arguments)

    def declare(self, vhost: str, name: str, **keywords: Any) -> None:
        """Declare a queue at a Leveret at the source, and wait until its API lists the queue."""
        self.at_source("queues.add", vhost=vhost, name=name, **keywords)
        api = Source(self.source_url, None)
        wait_until(lambda: (vhost, name) in map(source_module.key_of, api.queues()))

    def there(self, queue: str) -> int:
        """The number of messages of a queue at the destination, 0 if there is none."""
        rows = call(self.destination.data_dir, "queues.list", {})
        return next((int(row["ready"]) for row in rows if row["name"] == queue), 0)

    def has(self, queue: str, count: int) -> bool:
        return self.there(queue) >= count


def publish(url: str, queue: str, count: int) -> None:
    """Publish numbers to a queue that exists."""
    with (
        leveret.sync.connect(url) as connection,
        connection.channel() as channel,
        channel.publisher("", queue) as publisher,
    ):
        for number in range(count):
            publisher.publish(str(number), persistent=True)


@pytest.fixture(scope="module")
def migration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")
    directory = tmp_path_factory.mktemp("migrate")
    source = LeveretProcess(
        directory / "old",
        config=basic_config() + "[management]\nport = 0\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    destination = LeveretProcess(directory / "new")
    with source.start(), destination.start():
        arguments = {"name": "deep", "arguments": {"x-queue-type": "quorum"}}
        call(source.data_dir, "queues.add", arguments)
        call(source.data_dir, "queues.add", {"name": "log", "arguments": {"x-queue-type": "stream"}})
        definition = {"max-length": 100000, "queue-mode": "lazy"}
        call(source.data_dir, "policies.set", {"name": "short", "pattern": "^d", "definition": definition})
        value = {
            "src-uri": "amqp://me:hunter2@127.0.0.1:1",
            "src-queue": "a",
            "dest-uri": "amqp://me:hunter2@",
            "reconnect-delay": 0,
        }
        call(source.data_dir, "parameters.set", {"component": "shovel", "name": "s/1", "value": value})
        api = Source(http_url(source), None)
        wait_until(lambda: len(api.queues()) == 2)
        yield Migration(source, http_url(source), destination)
        source.check_log()
        destination.check_log()


def _answers(port: int) -> bool:
    try:
        return send(port, "GET", "/api/auth").status == 200
    except OSError:
        return False


def test_a_plan_changes_nothing(migration: Migration) -> None:
    done = migration.run()
    assert done.code == 0, done.err
    text = done.out.decode()
    assert "policy 'short' in vhost '/'" in text and "without effect: queue-mode" in text
    assert "shovel 's/1' in vhost '/'" in text and "moved by --shovels" in text
    assert "its destination logs in as user 'me', which the source does not have" in text
    assert "1 quorum queue " in text
    assert "stream 'log' in vhost '/'" in text
    assert "(dry run)" in text
    assert "nothing was changed" in text
    found = migration.json()
    assert "hunter2" not in text + done.err + json.dumps(found)
    assert [item["name"] for item in found["queues"]] == ["deep", "log"]
    assert [item["label"] for item in found["definitions"]["added"] if item["kind"] == "policy"] == [
        "policy 'short' in vhost '/'"
    ]
    for operation in ("queues.list", "policies.list"):
        assert call(migration.destination.data_dir, operation, {}) == []


def test_the_destination_may_be_an_http_api(migration: Migration) -> None:
    """Here the source itself, so that nothing differs."""
    done = migration.program.run("migrate", "--from", migration.source_url, "--to", migration.source_url, "--json")
    report = json.loads(done.out)["definitions"]
    assert (report["added"], report["changed"], report["unchanged"] > 0) == ([], [], True)


def test_messages_need_definitions(migration: Migration) -> None:
    done = migration.run("--messages")
    assert done.code == 1
    assert "the destination does not have queue 'deep' in vhost '/'" in done.err
    assert "--definitions" in done.err


def test_definitions_and_messages(migration: Migration) -> None:
    publish(migration.source, "deep", 200)
    done = migration.run("--definitions", "--messages", "--add-origin-headers")
    assert done.code == 0, done.err
    assert "queue 'deep' in vhost '/': moved 200 messages" in done.err
    with leveret.sync.connect(migration.destination.url()) as connection, connection.channel() as channel:
        message = channel.get("deep")
        assert message is not None
        origin = message.headers["x-shovelled-exchange"], message.headers["x-shovelled-routing-key"]
        assert origin == ("", "deep")
        message.nack()
    assert b"moved 200 messages; 0 left at the source" in done.out
    assert drain(migration.destination.url(), "deep") == list(range(200))
    rows = {row["name"]: row for row in call(migration.destination.data_dir, "queues.list", {})}
    assert rows["deep"]["policy"] == "short"
    assert rows["deep"]["durable"]
    assert call(migration.destination.data_dir, "parameters.list", {"component": "shovel"}) == []


def test_queues_with_consumers_wait_for_their_end(migration: Migration) -> None:
    migration.run("--definitions")
    publish(migration.source, "deep", 50)
    connection = pika.BlockingConnection(pika.URLParameters(migration.source))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume("deep", lambda *_: None)
    channel.connection.process_data_events(0)
    done = migration.run("--messages")
    assert done.code == 1
    assert "queue 'deep' in vhost '/': it has 1 consumer at the source; stop them first" in done.err
    assert migration.there("deep") == 0
    with interruptible(), migration.program.begin(*migration.arguments("--messages", "--follow")) as process:
        assert process.stderr is not None
        # The plan and the reason come first.
        assert any(b"stop them first" in line for line in process.stderr)
        connection.close()
        wait_until(lambda: migration.there("deep") == 50)
        # The command counts a message before it acknowledges it.
        assert isinstance(migration.process, LeveretProcess)
        wait_until(partial(has_moved, migration.process, "deep"))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT
    assert b"moved 50 messages; 0 left at the source" in out
    assert drain(migration.destination.url(), "deep") == list(range(50))


def test_only_a_vhost_of_definitions() -> None:
    document = Document(
        {
            "users": [{"name": "a"}, {"name": "b"}],
            "vhosts": [{"name": "v"}, {"name": "w"}],
            "permissions": [{"user": "a", "vhost": "v"}, {"user": "b", "vhost": "w"}],
            "queues": [{"vhost": "v", "name": "q"}, {"vhost": "w", "name": "r"}, "odd"],
            "global_parameters": [{"name": "g"}],
        }
    )
    assert only_vhost(document, None) is document
    assert only_vhost(document, "v").sections == {
        "users": [{"name": "a"}],
        "vhosts": [{"name": "v"}],
        "permissions": [{"user": "a", "vhost": "v"}],
        "queues": [{"vhost": "v", "name": "q"}],
        "global_parameters": [],
    }


def test_what_is_not_supported() -> None:
    queue = {"vhost": "/", "name": "q", "type": "classic", "durable": True, "exclusive": False, "auto_delete": False}
    rows = [
        queue,
        {**queue, "name": "t", "durable": False},
        {**queue, "name": "e", "exclusive": True},
        {**queue, "name": "a", "auto_delete": True},
        {**queue, "name": "m", "type": "MQTT QoS 0"},
    ]
    operator_policy: dict[str, object] = {
        "component": "operator_policy",
        "name": "o",
        "vhost": "v",
        "value": {"definition": {"ha-mode": "all"}},
    }
    document = Document({"parameters": [{"component": "federation-upstream", "name": "f", "vhost": "v"}, operator_policy]})
    plugins = {"rabbitmq_mqtt", "rabbitmq_top", "ours", "rabbitmq_peer_discovery_k8s"}
    found = {item.object: item.effect for item in findings(document, plugins, rows)}
    assert found.keys() == {
        "plugin rabbitmq_mqtt",
        "plugin ours",
        "federation-upstream 'f' in vhost 'v'",
        "operator policy 'o' in vhost 'v'",
        "queue 't' in vhost '/'",
        "queue 'e' in vhost '/'",
        "queue 'a' in vhost '/'",
        "queue 'm' in vhost '/'",
    }


def test_shovels_that_are_not_migrated() -> None:
    def parameter(name: str, **more: Any) -> dict[str, Any]:
        value = {"src-uri": "amqp://app@", "src-queue": "a", "dest-uri": "amqp://app:x@old/v", "dest-queue": "b", **more}
        return {"component": "shovel", "vhost": "v", "name": name, "value": value}

    kept = {"component": "vhost-limits", "vhost": "v", "name": "limits", "value": {}}
    plain, nameless = parameter("plain"), parameter("nameless", **{"src-uri": "amqp://", "dest-uri": "amqp://new"})
    parameters: list[object] = [
        plain,
        parameter("mqtt", **{"src-protocol": "mqtt"}),
        parameter("once", **{"src-delete-after": 5}),
        nameless,
        {"component": "federation-upstream", "vhost": "v", "name": "u", "value": {"uri": "amqp://far"}},
        kept,
    ]
    shovels = DynamicShovels(Document({"users": [{"name": "app"}], "parameters": parameters}), "old")
    effects = {item.object: item.effect for item in shovels.findings()}
    moved = "moved by --shovels: set here, and deleted at the source; its destination is the broker to migrate from"
    assert effects["shovel 'plain' in vhost 'v'"] == moved
    assert "not migrated: shovel 'mqtt': 'src-protocol' is 'mqtt'" in effects["shovel 'mqtt' in vhost 'v'"]
    assert "not migrated: it ends when it has moved its messages" in effects["shovel 'once' in vhost 'v'"]
    assert effects["shovel 'nameless' in vhost 'v'"].endswith(
        "its destination has no user for 'new', without which it does not run"
    )
    assert shovels.migrated().sections == {"parameters": [plain, nameless]}
    assert shovels.others().of("parameters") == [kept]


def test_a_list_of_queues_has_several_pages(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PAGE_SIZE", 1)
    assert [row["name"] for row in Source(migration.source_url, None).queues()] == ["deep", "log"]


def test_unacked_messages_are_left(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(migrate, "_STATISTICS_TIMEOUT", 0)
    publish(migration.source, "deep", 2)
    at_source = Source(migration.source_url, None)
    with leveret.sync.connect(migration.source) as connection, connection.channel() as channel:
        for _ in range(2):
            assert channel.get("deep") is not None
        rows = wait_until(lambda: [row for row in at_source.queues() if row["messages_unacknowledged"] == 2])
        assert migrate._check_left(at_source, rows, [("/", "deep")]) == 1
    assert "queue 'deep' in vhost '/': 2 unacked messages left at the source" in capsys.readouterr().err
    wait_until(lambda: at_source.queues()[0]["messages_ready"] == 2)
    drain(migration.source, "deep")


def test_a_password_that_leveret_has_hashed_again_stays(migration: Migration) -> None:
    hashed = migration.at_source("users.hash_password", password="secret")
    migration.at_source("users.set", name="app", tags=[], **hashed)
    migration.at_source("permissions.set", user="app", vhost="/", configure="", write="", read="")
    assert migration.run("--definitions").code == 0

    def has_changed() -> bool:
        rows = call(migration.destination.data_dir, "users.list", {})
        found = next(row for row in rows if row["name"] == "app")
        return bool(found.get("password_hash") != hashed["password_hash"])

    with leveret.sync.connect(migration.destination.url(user="app", password="secret")):
        wait_until(has_changed)
    assert migration.json()["definitions"]["changed"] == []
    migration.at_source("users.delete", name="app")


def test_a_refusal_of_the_import_is_an_error(migration: Migration) -> None:
    """The limit of a vhost, which a dry run does not check."""
    for name in ("a", "b"):
        migration.declare(FULL, name)
    limits = {"vhost": FULL, "component": "vhost-limits", "name": "limits"}
    migration.at_source("parameters.set", **limits, value={"max-queues": 1})
    publish(migration.process.url(vhost=FULL), "b", 1)
    done = migration.run("--vhost", FULL, "--definitions")
    assert done.code == 1
    assert f"queue 'b' in vhost '{FULL}': " in done.err and "limit" in done.err
    # Objects that the destination lacks can be left behind.
    done = migration.run("--vhost", FULL, "--messages")
    assert (done.code, "--accept-unsupported" in done.err) == (1, True), done.err
    done = migration.run("--vhost", FULL, "--messages", "--accept-unsupported")
    assert done.code == 1
    assert f"queue 'b' in vhost '{FULL}': not moved, because the destination does not have it" in done.err
    for broker in (migration.process, migration.destination):
        assert isinstance(broker, LeveretProcess)
        call(broker.data_dir, "parameters.delete", limits)
        for row in call(broker.data_dir, "queues.list", {"vhost": FULL}):
            call(broker.data_dir, "queues.delete", {"vhost": FULL, "name": row["name"]})


def test_queues_with_auto_delete_stay(migration: Migration) -> None:
    migration.declare("/", "brief", auto_delete=True)
    publish(migration.source, "brief", 3)
    done = migration.run("--definitions", "--messages")
    assert done.code == 0, done.err
    assert b"queue 'brief' in vhost '/'" in done.out
    rows = {row["name"]: row for row in migration.at_source("queues.list")}
    assert rows["brief"]["ready"] == 3
    migration.at_source("queues.delete", name="brief")


def test_shovels_move(migration: Migration) -> None:
    before = migration.at_source("parameters.list", component="shovel")
    done = migration.run("--shovels")
    assert (done.code, b"moved 1 shovel\n" in done.out) == (0, True), done.err
    assert call(migration.destination.data_dir, "parameters.list", {"component": "shovel"}) == before
    assert migration.at_source("parameters.list", component="shovel") == []
    call(migration.destination.data_dir, "parameters.delete", {"component": "shovel", "name": "s/1"})
    assert migration.run("--shovels").code == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--vhost", "missing"), "the source has no vhost 'missing'"),
        (("--to-amqp", "amqp://u:hunter2@h/v"), "--to-amqp: the URL has a vhost; expected amqp://"),
        (("--from-amqp", "amqp://u:hunter2@h?heartbet=5"), "--from-amqp: unknown option 'heartbet'"),
        (("--follow",), "need --messages"),
    ],
)
def test_invalid_options(migration: Migration, options: tuple[str, ...], expected: str) -> None:
    done = migration.run(*options)
    assert (done.code != 0, expected in done.err, "hunter2" in done.err) == (True, True, False), done.err


def test_uris() -> None:
    assert with_vhost("amqp://u:p@h:1/?heartbeat=5", "a/b") == "amqp://u:p@h:1/a%2Fb?heartbeat=5"


@pytest.mark.parametrize(
    ("url", "code", "expected"),
    [
        ("http://127.0.0.1:1", 3, "no management API answers at http://127.0.0.1:1"),
        ("amqp://127.0.0.1", 2, "expected http:// or https://"),
        ("http://guest:wrong@HOST", 4, "refuses user 'guest'"),
        ("http://guest:wro/ng@127.0.0.1", 2, "with '/', '?', '#' and '@' in passwords as %2F"),
    ],
)
def test_sources_that_cannot_be_read(migration: Migration, url: str, code: int, expected: str) -> None:
    url = url.replace("HOST", migration.source_url.rpartition("@")[2])
    done = migration.program.run("migrate", "--from", url, "--data-dir", str(migration.destination.data_dir))
    assert (done.code, expected in done.err) == (code, True), done.err
    assert "wro" not in done.err


@pytest.mark.slow
def test_a_rabbitmq_migrates(tmp_path: Path) -> None:
    """The documented procedure, with kills of the command while messages move."""
    if not rabbitmq.available():
        pytest.skip("rabbitmq-server is not installed")
    port = free_port()
    settings = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
    plugins = ("rabbitmq_management", "rabbitmq_stomp", "rabbitmq_shovel")
    with (
        rabbitmq.RabbitProcess(tmp_path / "old", plugins, settings + "stomp.listeners.tcp = none\n").start() as rabbit,
        LeveretProcess(tmp_path / "new", config="[server]\n").start() as new,
    ):
        _prepare(rabbit)
        migration = Migration(rabbit, f"http://guest:guest@127.0.0.1:{port}", new)
        wait_until(lambda: _answers(port))
        plan = wait_until(lambda: _plan_with(migration, "orders"))
        effects = {item["object"]: item["effect"] for item in plan["findings"]}
        assert "plugin rabbitmq_stomp" in effects
        assert "moved by --shovels" in effects["shovel 'far' in vhost '/'"]
        assert "not migrated: it ends" in effects["shovel 'once' in vhost '/'"]
        assert effects["policy 'ha' in vhost '/'"] == "imported; without effect: ha-mode"
        assert "1 quorum queue" in effects
        assert [item["label"] for item in plan["definitions"]["refused"]] == ["policy 'odd' in vhost '/'"]
        assert "policy 'odd' in vhost '/'" in migration.run("--definitions").err
        assert migration.there("orders") == 0
        done = migration.run("--definitions", "--accept-unsupported")
        assert done.code == 0, done.err
        done = migration.run("--shovels")
        assert (done.code, b"moved 1 shovel\n" in done.out) == (0, True), done.err
        shovels = call(new.data_dir, "parameters.list", {"component": "shovel"})
        assert [shovel["name"] for shovel in shovels] == ["far"]
        assert shovels[0]["value"]["dest-uri"] == "amqp://me:hunter2@127.0.0.1:1"
        assert "far" not in rabbit.control("list_parameters", "-p", "/") and "hunter2" not in done.out.decode() + done.err
        # The password of the user is still valid.
        with leveret.sync.connect(new.url(user="app", password="secret")) as connection:
            assert connection.is_open
        for wanted in (MOVED, COUNT // 2):
            assert migration.there("orders") < COUNT
            with migration.program.begin(*migration.arguments("--messages")) as process:
                wait_until(partial(migration.has, "orders", wanted))
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        # RabbitMQ returns the messages in transit when it notices the lost connection.
        wait_until(lambda: length(rabbit.url(), "orders") + migration.there("orders") >= COUNT)
        done = migration.run("--messages")
        assert done.code == 0, done.err
        for url, queue, count in (
            (new.url(), "orders", COUNT),
            (new.url(), "quorum", 100),
            (new.url(vhost="interop"), "other", 10),
        ):
            found = drain(url, queue)
            assert list(dict.fromkeys(found)) == list(range(count))
            # Each kill leaves at most the prefetch limit in both brokers.
            assert len(found) <= count + min(2 * count, 2000)
        assert length(rabbit.url(), "orders") == 0


def _prepare(rabbit: rabbitmq.RabbitProcess) -> None:
    rabbit.control("add_user", "app", "secret")
    rabbit.control("set_permissions", "app", ".*", ".*", ".*")
    rabbit.control("set_policy", "ha", "^orders$", '{"ha-mode":"all"}')
    rabbit.control("set_policy", "odd", "(?=a)", '{"max-length":5}')
    shovel = {"src-uri": "amqp://", "src-queue": "none", "dest-uri": "amqp://me:hunter2@127.0.0.1:1", "dest-queue": "none"}
    rabbit.control("set_parameter", "shovel", "far", json.dumps(shovel))
    rabbit.control("set_parameter", "shovel", "once", json.dumps({**shovel, "src-delete-after": 1000}))
    fill(rabbit.url(), "orders", COUNT)
    with leveret.sync.connect(rabbit.url()) as connection, connection.channel() as channel:
        channel.declare_queue("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    publish(rabbit.url(), "quorum", 100)
    with leveret.sync.connect(rabbit.url(vhost="interop")) as connection, connection.channel() as channel:
        channel.declare_queue("other", durable=True)
    publish(rabbit.url(vhost="interop"), "other", 10)


def _plan_with(migration: Migration, queue: str) -> Any:
    """The plan, once the management API knows a queue."""
    found = migration.json()
    return found if queue in {row["name"] for row in found["queues"]} else None
