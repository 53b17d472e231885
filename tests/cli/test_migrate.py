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
from leveret.cli.migration.plan import findings, only_vhost
from leveret.cli.migration.source import with_vhost
from leveret.management.control_client import call
from leveret.management.definitions.document import Document
from tests.cli.program import Done, Program, interruptible
from tests.cli.runner import http_url
from tests.management.http.client import send
from tests.shovel.test_kills import fill, length
from tests.shovel.test_moves import drain
from tests.support import rabbitmq
from tests.support.broker import LeveretProcess, basic_config, free_port
from tests.support.polling import wait_until

COUNT = 10000
# Messages at the destination when the command is killed.
MOVED = 300
KEPT = pika.BasicProperties(delivery_mode=2)
APP = {"name": "app", "password": "secret", "tags": ""}


class Migration:
    """A broker with a management API, a new broker, and the command line."""

    def __init__(self, source: str, source_url: str, destination: LeveretProcess) -> None:
        self.source = source
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
        value = {"src-uri": "amqp://127.0.0.1:1", "src-queue": "a", "dest-uri": "amqp://", "reconnect-delay": 0}
        call(source.data_dir, "parameters.set", {"component": "shovel", "name": "s", "value": value})
        yield Migration(source.url(), http_url(source), destination)
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
    assert "shovel 's' in vhost '/'" in text and "not imported" in text
    assert "1 quorum queues" in text
    assert "stream 'log' in vhost '/'" in text
    assert "(dry run)" in text
    assert "nothing was changed" in text
    found = migration.json()
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
    done = migration.run("--definitions", "--messages")
    assert done.code == 0, done.err
    assert "queue 'deep' in vhost '/': moved 200 messages" in done.err
    assert b"moved 200 messages; 0 are left at the source" in done.out
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
    assert "queue 'deep' in vhost '/': it has consumers at the source (1); stop them first" in done.err
    assert migration.there("deep") == 0
    with interruptible(), migration.program.begin(*migration.arguments("--messages", "--follow")) as process:
        assert process.stderr is not None
        # The plan and the reason come first.
        assert any(b"stop them first" in line for line in process.stderr)
        connection.close()
        wait_until(lambda: migration.there("deep") == 50)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert b"moved 50 messages; 0 are left at the source" in out
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
    queue = {"vhost": "/", "name": "q", "type": "classic", "durable": True, "exclusive": False}
    rows = [queue, {**queue, "name": "t", "durable": False}, {**queue, "name": "e", "exclusive": True}]
    document = Document({"parameters": [{"component": "federation-upstream", "name": "f", "vhost": "v"}]})
    found = {item.object: item.effect for item in findings(document, {"rabbitmq_mqtt", "rabbitmq_top"}, rows)}
    assert found == {
        "plugin rabbitmq_mqtt": "Leveret does not speak MQTT",
        "federation-upstream 'f' in vhost 'v'": "imported, without effect",
        "queue 't' in vhost '/'": "not moved: it is transient, and its clients declare it again",
        "queue 'e' in vhost '/'": "not moved: it is exclusive, and its client declares it again",
    }


def test_uris() -> None:
    assert with_vhost("amqp://u:p@h:1/?heartbeat=5", "a/b") == "amqp://u:p@h:1/a%2Fb?heartbeat=5"


@pytest.mark.parametrize(
    ("url", "code", "expected"),
    [
        ("http://127.0.0.1:1", 3, "no management API answers at http://127.0.0.1:1"),
        ("amqp://127.0.0.1", 2, "expected http:// or https://"),
        ("http://guest:wrong@HOST", 4, "refuses user 'guest'"),
    ],
)
def test_sources_that_cannot_be_read(migration: Migration, url: str, code: int, expected: str) -> None:
    url = url.replace("HOST", migration.source_url.rpartition("@")[2])
    done = migration.program.run("migrate", "--from", url, "--data-dir", str(migration.destination.data_dir))
    assert (done.code, expected in done.err, "wrong" in done.err) == (code, True, False), done.err


@pytest.mark.slow
def test_a_rabbitmq_migrates(tmp_path: Path) -> None:
    """The documented procedure, with kills of the command while messages move."""
    if not rabbitmq.available():
        pytest.skip("rabbitmq-server is not installed")
    port = free_port()
    settings = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
    plugins = ("rabbitmq_management", "rabbitmq_stomp")
    with (
        rabbitmq.RabbitProcess(tmp_path / "old", plugins, settings + "stomp.listeners.tcp = none\n").start() as rabbit,
        LeveretProcess(tmp_path / "new", config="[server]\n").start() as new,
    ):
        _prepare(rabbit)
        migration = Migration(rabbit.url(), f"http://guest:guest@127.0.0.1:{port}", new)
        wait_until(lambda: _answers(port))
        plan = wait_until(lambda: _plan_with(migration, "orders"))
        effects = {item["object"]: item["effect"] for item in plan["findings"]}
        assert "plugin rabbitmq_stomp" in effects
        assert effects["policy 'ha' in vhost '/'"] == "imported; without effect: ha-mode"
        assert "1 quorum queues" in effects
        assert [item["label"] for item in plan["definitions"]["refused"]] == ["policy 'odd' in vhost '/'"]
        assert "policy 'odd' in vhost '/'" in migration.run("--definitions").err
        assert migration.there("orders") == 0
        done = migration.run("--definitions", "--accept-unsupported")
        assert done.code == 0, done.err
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
