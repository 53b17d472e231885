"""The commands against a running broker: clients see their changes, which survive a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner

from leveret.cli.app import COMMANDS, leveret
from leveret.wire.amqp10.messaging import Source
from tests.cli.runner import Commands, wait_closed
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp10 import Peer

CONFIG = """
[users.root]
password = "root"
tags = ["administrator"]
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
permissions.declared = { configure = ".*", write = ".*", read = ".*" }

[vhosts.declared]
limits.max_queues = 3
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("commands talk to its control socket")
    process = LeveretProcess(tmp_path_factory.mktemp("broker"), config=CONFIG)
    process.user, process.password = "root", "root"
    process.start()
    yield process
    process.stop()
    process.check_log()


@pytest.fixture
def connection(broker: LeveretProcess) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
    yield connection
    if connection.is_open:
        connection.close()


def names(items: list[dict[str, object]], vhost: str = "/") -> list[object]:
    return [item["name"] for item in items if item["vhost"] == vhost]


def test_queues(commands: Commands, connection: pika.BlockingConnection) -> None:
    assert "declared queue 'mine'" in commands.ok("queues", "add", "mine", "--argument", "x-max-length=2")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("mine", durable=True, arguments={"x-max-length": 2})
    for _ in range(3):
        channel.basic_publish("", "mine", b"four")
    [item] = [item for item in commands.json("queues", "--vhost", "/") if item["name"] == "mine"]
    assert (item["ready"], item["ready_bytes"], item["durable"]) == (2, 8, True)
    table = commands.ok("queues", "list")
    assert table.splitlines()[0].split()[:3] == ["vhost", "name", "ready"]
    assert any(line.split()[:4] == ["/", "mine", "2", "0"] for line in table.splitlines())
    assert "has 2 messages" in commands.refused("queues", "delete", "mine", "--if-empty")
    assert "purged 2 messages from queue 'mine'" in commands.ok("queues", "purge", "mine")
    commands.ok("queues", "delete", "mine", "--if-empty")
    assert "no queue 'mine'" in commands.refused("queues", "purge", "mine")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("mine", passive=True)


def test_queues_are_changed_by_pattern(commands: Commands, connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    for name in ("match-1", "match-2", "other"):
        commands.ok("queues", "add", name)
        channel.basic_publish("", name, b"m")
    expected = "would purge 'match-1' with 1 ready messages\nwould purge 'match-2' with 1 ready messages\n"
    assert commands.ok("queues", "change-matching", "purge", "^match", "--dry-run") == expected
    assert commands.ok("queues", "change-matching", "pause", "^match").count("paused 'match-") == 2
    assert commands.ok("queues", "change-matching", "resume", "2$") == "resumed 'match-2' with 1 ready messages\n"
    assert commands.ok("queues", "change-matching", "purge", "^match").count("purged 'match-") == 2
    found = {item["name"]: (item["ready"], item["paused"]) for item in commands.json("queues", "--vhost", "/")}
    assert (found["match-1"], found["match-2"], found["other"]) == ((0, True), (0, False), (1, False))
    for name in ("match-1", "match-2", "other"):
        commands.ok("queues", "delete", name)
    assert "pattern '('" in commands.refused("queues", "change-matching", "purge", "(")


def test_streams(commands: Commands, connection: pika.BlockingConnection) -> None:
    said = commands.ok("streams", "add-super", "orders", "--partitions", "3", "--argument", "x-max-age=1h")
    assert "orders-0, orders-1, orders-2" in said
    commands.ok("streams", "add-super", "orders", "--partitions", "4", "--argument", "x-max-age=1h")
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(40):
        channel.basic_publish("orders", f"key {number % 20}", b"m")
    items = [item for item in commands.json("streams") if str(item["name"]).startswith("orders-")]
    assert len(items) == 4
    assert sum(int(str(item["messages"])) for item in items) == 40
    assert all(item["next_offset"] == item["messages"] for item in items)
    fullest = max(items, key=lambda item: int(str(item["messages"])))
    name, count = str(fullest["name"]), int(str(fullest["messages"]))

    channel.basic_qos(prefetch_count=1)
    start = {"x-stream-offset": "first", "x-stream-consumer": "me"}
    for method, _, _ in channel.consume(name, arguments=start):
        assert "is reading" in commands.refused("streams", "rewind", name, "me", "0")
        channel.basic_ack(method.delivery_tag)
        break
    channel.cancel()
    channel.close()
    [item] = commands.json("streams", "consumers", name)
    assert (item["consumer"], item["next_offset"], item["lag"], item["reading"]) == ("me", 1, count - 1, False)
    assert item["lag_bytes"] > 0
    [again] = commands.json("streams", "consumers", "orders")
    assert again == {**item, "lag_seconds": again["lag_seconds"]} and again["lag_seconds"] > item["lag_seconds"] > 0
    assert "lag time" in commands.ok("streams", "consumers", name).splitlines()[0]
    [found] = [item for item in commands.json("streams", "supers") if item["name"] == "orders"]
    assert (found["partitions"], found["messages"], found["consumers"]) == (4, 40, 1)
    assert any(line.split()[:4] == ["/", "orders", "4", "40"] for line in commands.ok("streams", "supers").splitlines())
    commands.ok("streams", "rewind", name, "me", "0")
    assert [item["lag"] for item in commands.json("streams", "consumers", name)] == [count]
    commands.ok("streams", "forget", name, "me")
    assert commands.json("streams", "consumers", name) == []
    assert "has no consumer 'me'" in commands.refused("streams", "forget", name, "me")
    assert "stream 'missing' does not exist" in commands.refused("streams", "consumers", "missing")
    assert "with 40 messages" in commands.ok("streams", "delete-super", "orders")
    assert not [item for item in commands.json("streams") if str(item["name"]).startswith("orders")]


def test_names_of_clients_do_not_reach_the_terminal_as_they_are(
    commands: Commands, connection: pika.BlockingConnection
) -> None:
    connection.channel().queue_declare("\x1b[31mred\x85", exclusive=True)
    assert "\\x1b[31mred\\x85" in commands.ok("queues")
    assert "\x1b[31mred\x85" in names(commands.json("queues"))


def test_exchanges_and_bindings(commands: Commands, connection: pika.BlockingConnection) -> None:
    commands.ok("exchanges", "add", "logs", "--type", "topic")
    commands.ok("exchanges", "add", "copy", "--type", "fanout", "--internal", "--transient")
    commands.ok("queues", "add", "log-queue")
    commands.ok("bindings", "add", "logs", "log-queue", "--routing-key", "a.#")
    commands.ok("bindings", "add", "logs", "copy", "--to-exchange", "--routing-key", "b", "--argument", 'x={"y": 1}')
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("logs", "a.b", b"x", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("logs", "c", b"x", mandatory=True)
    listed = [(item["destination"], item["kind"], item["arguments"]) for item in commands.json("bindings")]
    assert sorted(listed) == [("copy", "exchange", {"x": {"y": 1}}), ("log-queue", "queue", {})]
    assert "(default)" in commands.ok("exchanges")
    assert "in use" in commands.refused("exchanges", "delete", "logs", "--if-unused")
    commands.ok("bindings", "delete", "logs", "log-queue", "--routing-key", "a.#")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("logs", "a.b", b"x", mandatory=True)
    for name in ("logs", "copy"):
        commands.ok("exchanges", "delete", name)
    assert names(commands.json("exchanges")) == [
        "",
        "amq.direct",
        "amq.fanout",
        "amq.headers",
        "amq.leveret.events",
        "amq.match",
        "amq.rabbitmq.trace",
        "amq.topic",
        "leveret.control",
    ]


@pytest.mark.parametrize("argument", ["novalue", "=1"])
def test_arguments_are_name_and_value(commands: Commands, argument: str) -> None:
    result = commands.run("queues", "add", "x", "--argument", argument)
    assert result.exit_code == 2
    assert "expected NAME=VALUE" in result.output


def test_connections_channels_consumers(commands: Commands, connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"x")
    channel.basic_consume(queue, lambda *_: None, consumer_tag="tag")
    connection.process_data_events(time_limit=0)
    [item] = [item for item in commands.json("connections") if item["user"] == "root"]
    assert (item["vhost"], item["state"], item["channels"], item["tls"]) == ("/", "running", 1, False)
    [listed] = commands.json("channels")
    assert (listed["connection"], listed["number"], listed["consumers"]) == (item["number"], 1, 1)
    [consumer] = commands.json("consumers")
    assert (consumer["queue"], consumer["tag"], consumer["connection"], consumer["channel"]) == (
        queue,
        "tag",
        item["number"],
        1,
    )
    for command in ("connections", "channels", "consumers"):
        assert len(commands.ok(command).splitlines()) == 2
        assert len(commands.ok(command, "--vhost", "declared").splitlines()) == 1
    commands.ok("connections", "close", str(item["number"]), "--reason", "maintenance")
    closed = wait_closed(connection)
    assert closed.startswith("320") and closed.endswith("maintenance")
    assert "no connection 99999" in commands.refused("connections", "close", "99999")
    assert "user 'unknown' has no connections" in commands.refused("connections", "close", "--user", "unknown")
    assert commands.run("connections", "close").exit_code == 2


def test_links(broker: LeveretProcess, commands: Commands) -> None:
    peer = Peer(broker.host, broker.port)
    assert peer.login(response=f"\0{broker.user}\0{broker.password}".encode()) == 0
    peer.open("shop")
    session = peer.begin()
    session.sender("/queue/orders", name="out").deliver()
    taken = session.receiver(name="in", credit=5, source=Source("/queue/orders", durable=2, expiry_policy="never"))
    taken.get()
    attached = {item["name"]: item for item in commands.json("links")}
    assert (attached["in"]["state"], attached["in"]["unsettled"], attached["in"]["role"]) == ("attached", 1, "sender")
    assert (attached["out"]["durable"], attached["out"]["expiry"]) == ("none", "session-end")
    controller = session.controller()
    id = controller.declare()
    [transaction] = commands.json("transactions")
    assert (transaction["kind"], transaction["id"], transaction["state"]) == ("local", id.hex(), "open")
    assert len(commands.ok("transactions", "--vhost", "declared").splitlines()) == 1
    controller.discharge(id)
    assert "is attached" in commands.refused("links", "release", "in")
    taken.detach(closed=False)
    session.end()
    [kept] = commands.json("links")
    assert (kept["name"], kept["state"], kept["unsettled"], kept["durable"], kept["expiry"], kept["container"]) == (
        "in",
        "suspended",
        1,
        "unsettled-state",
        "never",
        "shop",
    )
    assert len(commands.ok("links").splitlines()) == 2
    assert len(commands.ok("links", "--vhost", "declared").splitlines()) == 1
    assert "released link 'in': requeued 1 messages" in commands.ok(
        "links", "release", "in", "--container", "shop", "--role", "sender"
    )
    assert [item["ready"] for item in commands.json("queues") if item["name"] == "orders"] == [1]
    assert "link 'in' does not exist" in commands.refused("links", "delete", "in", "--container", "other")
    commands.ok("links", "delete", "in")
    assert commands.json("links") == []
    peer.close()
    commands.ok("queues", "delete", "orders")


def login(broker: LeveretProcess, user: str, password: str, vhost: str = "/") -> None:
    pika.BlockingConnection(pika.URLParameters(broker.url(user=user, password=password, vhost=vhost))).close()


def test_users_and_permissions(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("first\n")
    commands.ok("users", "add", "alice", "--password-file", str(tmp_path / "password"), "--tag", "one", "--tag", "two")
    assert "already exists" in commands.refused("users", "add", "alice", "--no-password")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        login(broker, "alice", "first")
    commands.ok("permissions", "set", "alice", "--configure", "^a", "--write", "^a", "--read", "")
    login(broker, "alice", "first")
    commands.ok("users", "change", "alice", "--password-file", "-", input="second\n")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        login(broker, "alice", "first")
    login(broker, "alice", "second")
    [alice] = [user for user in commands.json("users") if user["name"] == "alice"]
    assert (alice["tags"], alice["source"], alice["vhosts"]) == (["one", "two"], "metadata", ["/"])
    with pika.BlockingConnection(pika.URLParameters(broker.url(user="alice", password="second"))) as connection:
        channel = connection.channel()
        channel.queue_declare("apple")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            channel.queue_declare("banana")
        channel = connection.channel()
        commands.ok("permissions", "set", "alice", "--configure", "^b", "--write", "", "--read", "")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            channel.queue_delete("apple")
        commands.ok("users", "delete", "alice")
        assert wait_closed(connection).startswith("320")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        login(broker, "alice", "second")
    commands.ok("queues", "delete", "apple")


def test_the_password_prompt_needs_a_terminal(commands: Commands) -> None:
    assert "--password-file" in commands.refused("users", "add", "alice")
    expected = "the first line of standard input is empty"
    assert expected in commands.refused("users", "add", "alice", "--password-file", "-", input="\n")
    assert "cannot read /nowhere/at/all" in commands.refused("users", "add", "alice", "--password-file", "/nowhere/at/all")
    assert commands.run("users", "add", "alice", "--password-file", "-", "--no-password").exit_code == 2
    assert commands.run("users", "change", "root").exit_code == 2


def test_objects_of_the_configuration_cannot_be_changed(broker: LeveretProcess, commands: Commands) -> None:
    config = str(broker.directory / "leveret.toml")
    for arguments in (
        ["users", "delete", "root"],
        ["users", "change", "root", "--no-tags"],
        ["permissions", "delete", "root"],
        ["vhosts", "delete", "declared"],
        ["vhosts", "change", "declared", "--strict"],
    ):
        assert f"is declared in {config}; change it there" in commands.refused(*arguments)
    assert [(user["name"], user["source"]) for user in commands.json("users")] == [("root", "config")]


def test_vhosts(broker: LeveretProcess, commands: Commands) -> None:
    commands.ok("vhosts", "add", "shop/eu", "--max-queues", "1", "--max-connections", "1")
    commands.ok("users", "add", "bob", "--password-file", "-", input="bob")
    commands.ok("permissions", "set", "bob", "--vhost", "shop/eu", "--configure", ".*", "--write", ".*", "--read", ".*")
    connection = pika.BlockingConnection(pika.URLParameters(broker.url(user="bob", password="bob", vhost="shop/eu")))
    channel = connection.channel()
    channel.queue_declare("first", durable=True)
    with pytest.raises(pika.exceptions.AMQPConnectionError, match="max_connections"):
        login(broker, "bob", "bob", "shop/eu")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"406.*max_queues"):
        channel.queue_declare("second", durable=True)
    commands.ok("vhosts", "change", "shop/eu", "--max-queues", "5")
    listed = {item["name"]: item for item in commands.json("vhosts")}
    assert (listed["shop/eu"]["source"], listed["shop/eu"]["queues"], listed["shop/eu"]["max_queues"]) == ("metadata", 1, 5)
    assert listed["declared"]["max_queues"] == 3
    commands.ok("vhosts", "trace", "on", "shop/eu")
    assert {item["name"]: item["tracing"] for item in commands.json("vhosts")} == {
        **dict.fromkeys(listed, False),
        "shop/eu": True,
    }
    assert "is off" in commands.ok("vhosts", "trace", "off", "shop/eu")
    assert not any(item["tracing"] for item in commands.json("vhosts"))
    assert "does not exist" in commands.refused("vhosts", "trace", "on", "missing")
    commands.ok("vhosts", "trace", "on", "declared")  # is no setting of the configuration
    commands.ok("vhosts", "trace", "off", "declared")
    commands.ok("vhosts", "delete", "shop/eu")
    assert commands.json("permissions", "--user", "bob") == []
    assert "vhost 'shop/eu' does not exist" in commands.refused("queues", "--vhost", "shop/eu")
    commands.ok("users", "delete", "bob")


def test_status(broker: LeveretProcess, commands: Commands) -> None:
    status = commands.json("status")
    assert status["pid"] == broker.pid
    assert status["listeners"] == [f"amqp://127.0.0.1:{broker.port}"]
    assert status["data_dir"] == str(broker.data_dir)
    assert status["log"]["state"] == "ok"
    lines = {line[:22].strip(): line[22:].strip() for line in commands.ok("status").splitlines()}
    assert lines["pid"] == str(broker.pid)
    assert lines["memory"].endswith("MiB")
    assert lines["log file bytes"].endswith("iB")
    assert lines["longest turn"].endswith(" ms")
    assert lines["indexed"] == "100%"
    assert not any("octets" in label for label in lines)


@pytest.mark.parametrize(
    ("command", "argument", "known"),
    [
        (["queues"], "x-max-lenght", "x-max-length"),
        (["queues"], "x-max-lengt", "x-max-length"),
        (["queues"], "x-message-ttll", "x-message-ttl"),
        (["exchanges", "--type", "x-consistent-hash"], "x-delayed-typo", "x-delayed-type"),
        (["queues"], "x-own", ""),
        (["queues"], "X-max-length", ""),
    ],
)
def test_misspelt_arguments(
    broker: LeveretProcess, commands: Commands, command: list[str], argument: str, known: str
) -> None:
    """They are stored, as in RabbitMQ, and named in a warning."""
    kind, *options = command
    result = commands.run(kind, "add", f"of-{argument}", "--durable", *options, "--argument", f"{argument}=5")
    assert result.exit_code == 0
    warning = f"unknown argument '{argument}' has no effect; did you mean '{known}'?"
    assert (f"Warning: {warning}" in result.output) == bool(known)
    assert (warning in broker.log()) == bool(known)


def test_an_unknown_option_suggests_similar_ones_only(commands: Commands) -> None:
    assert "Did you mean" not in commands.mistaken("queues", "delete", "x", "--durable")
    assert "Did you mean '--vhost'" in commands.mistaken("queues", "add", "x", "--vhots", "a")
    assert "Did you mean '--durable'?" in commands.mistaken("queues", "add", "x", "--durble")


def test_options_may_precede_the_subcommand(broker: LeveretProcess) -> None:
    for arguments in (
        ["queues", "--data-dir", str(broker.data_dir), "list", "--json"],
        [
            "queues",
            "--json",
            "list",
            "--config",
            str(broker.directory / "leveret.toml"),
            "--data-dir",
            str(broker.data_dir),
        ],
    ):
        result = CliRunner().invoke(leveret, arguments)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("[")


def test_the_broker_is_found_by_its_configuration(
    broker: LeveretProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "leveret.toml"
    config.write_text(f"[server]\ndata_dir = {str(broker.data_dir)!r}\n")
    assert CliRunner().invoke(leveret, ["status", "--config", str(config)]).exit_code == 0
    monkeypatch.setenv("LEVERET_CONFIG", str(config))
    assert CliRunner().invoke(leveret, ["status"]).exit_code == 0
    config.write_text("[serve]\n")
    result = CliRunner().invoke(leveret, ["status"])
    assert (result.exit_code, "unknown setting 'serve'" in result.output) == (1, True)


def test_without_a_broker(tmp_path: Path) -> None:
    for arguments in (["status"], ["health"], ["queues"], ["users", "list"], ["vhosts", "add", "x"]):
        result = Commands(tmp_path / "nowhere").run(*arguments)
        assert result.exit_code == 3
        assert f"no broker is running on {tmp_path}/nowhere" in result.output
        assert "leveret serve --data-dir" in result.output


def test_a_hash_for_the_configuration() -> None:
    result = CliRunner().invoke(leveret, ["users", "hash", "--password-file", "-"], input="secret\n")
    assert result.exit_code == 0
    assert result.output.startswith("$argon2id$")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(leveret, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage: leveret")
    assert COMMANDS[name][1] in CliRunner().invoke(leveret, ["--help"]).output


def test_additions_survive_a_restart(tmp_path: Path) -> None:
    leveret_only("it is stopped and started")
    process = LeveretProcess(tmp_path / "broker", config="")
    commands = Commands(process.data_dir)
    with process.start():
        added = commands.ok("users", "add", "alice", "--password-file", "-", input="secret")
        assert "removed the default user 'guest'" in added
        assert "guest" not in commands.ok("users", "add", "bob", "--no-password")
        commands.ok("vhosts", "add", "shop", "--max-queues", "4")
        commands.ok("permissions", "set", "alice", "--vhost", "shop", "--configure", ".*", "--write", ".*", "--read", ".*")
        commands.ok("queues", "add", "orders", "--vhost", "shop")
        commands.ok("exchanges", "add", "events", "--vhost", "shop", "--type", "topic")
        commands.ok("bindings", "add", "events", "orders", "--vhost", "shop", "--routing-key", "order.*")
        process.kill()  # each was on disk when its command returned
        process.start()
        login(process, "alice", "secret", "shop")
        assert names(commands.json("queues"), "shop") == ["orders"]
        assert [item["routing_key"] for item in commands.json("bindings", "--vhost", "shop")] == ["order.*"]
        [shop] = [item for item in commands.json("vhosts") if item["name"] == "shop"]
        assert shop["max_queues"] == 4
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            login(process, "guest", "guest")
