"""`leveret messages`, on the machine of the broker and over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret import sync
from leveret.cli.output import moment
from tests.cli.program import Program, on_terminal
from tests.cli.runner import Commands, http_url
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.fixtures import name
from tests.support.polling import wait_until

__all__ = ["name"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("commands talk to its control socket")
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")
    process = LeveretProcess(
        tmp_path_factory.mktemp("messages"),
        config=basic_config() + "[management]\nport = 0\nrefused_logins = 0\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield process
        process.check_log()


@pytest.fixture(params=["local", "remote"])
def commands(request: pytest.FixtureRequest, broker: LeveretProcess) -> Commands:
    return Commands(broker.data_dir, http_url(broker) if request.param == "remote" else "")


@pytest.fixture
def local(broker: LeveretProcess) -> Commands:
    return Commands(broker.data_dir)


@pytest.fixture
def channel(broker: LeveretProcess) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> Iterator[str]:
    """A queue with the messages 0 to 9, whose headers have the number too."""
    channel.queue_declare(name, durable=True)
    for number in range(10):
        publish(channel, name, f'{{"number": {number}}}', number=number, even=number % 2 == 0)
    yield name
    channel.queue_delete(name)


@pytest.fixture
def other(channel: BlockingChannel, name: str) -> Iterator[str]:
    channel.queue_declare(f"{name}-other", durable=True)
    yield f"{name}-other"
    channel.queue_delete(f"{name}-other")


def publish(channel: BlockingChannel, queue: str, payload: str, **headers: Any) -> None:
    channel.basic_publish("", queue, payload.encode(), pika.BasicProperties(headers=headers, delivery_mode=2))


def numbers(commands: Commands, queue: str, *options: str) -> list[int]:
    found = commands.json("messages", "browse", queue, "--count", "5000", *options)
    return [item["properties"]["headers"]["number"] for item in found["messages"]]


def found_by(commands: Commands, queue: str, *conditions: str) -> list[int]:
    return selected_by(commands, queue, *(word for condition in conditions for word in ("--where", condition)))


def selected_by(commands: Commands, queue: str, *options: str) -> list[int]:
    found = commands.json("messages", "search", queue, *options)
    return [item["properties"]["headers"]["number"] for item in found["messages"]]


def test_browsing_shows_messages_and_takes_none(commands: Commands, queue: str) -> None:
    found = commands.json("messages", "browse", queue, "--offset", "2", "--count", "3")
    assert [item["payload"] for item in found["messages"]] == [f'{{"number": {number}}}' for number in (2, 3, 4)]
    assert found["queue_id"] > 0
    shown = commands.run("messages", "browse", queue, "--count", "3")
    assert [line.split()[0] for line in shown.stdout.splitlines()[:2]] == ["id", str(found["messages"][0]["id"] - 2)]
    assert "3 messages shown, there may be more: use --count" in shown.stderr
    assert numbers(commands, queue) == list(range(10))
    [item] = [item for item in commands.json("queues") if item["name"] == queue]
    assert (item["ready"], item["unacked"]) == (10, 0)


def test_messages_since_an_interval(commands: Commands, channel: BlockingChannel, queue: str) -> None:
    for number, age in ((10, 7200), (11, 60)):
        properties = pika.BasicProperties(headers={"number": number}, timestamp=int(time.time()) - age)
        channel.basic_publish("", queue, b"x", properties)
    assert numbers(commands, queue, "--since", "1h") == [11]
    found = commands.json("messages", "search", queue, "--where", "headers.number", "--since", "3h")
    assert [item["properties"]["headers"]["number"] for item in found["messages"]] == [10, 11]
    assert "expected ISO 8601" in commands.run("messages", "browse", queue, "--since", "yesterday").stderr
    commands.ok("messages", "delete", queue, "--since", "1h", "--dry-run")
    assert commands.ok("messages", "delete", queue, "--since", "1h") == f"deleted 1 messages of queue '{queue}'\n"
    assert numbers(commands, queue, "--since", "3h") == [10]


def test_payloads_are_truncated_and_escaped(commands: Commands, channel: BlockingChannel, queue: str) -> None:
    channel.queue_purge(queue)
    channel.basic_publish("", queue, b"\x1b]0;x\x07" + b"y" * 100)
    [line] = commands.ok("messages", "browse", queue).splitlines()[1:]
    assert "\\x1b]0;x\\x07y" in line
    assert (line.count("y"), "106 B" in line) == (54, True)
    assert commands.ok("messages", "browse", queue, "--truncate", "7").endswith("\\x07y\n")
    assert commands.ok("messages", "browse", queue, "--encoding", "base64", "--truncate", "3").split()[-1] == "G10w"
    [item] = commands.json("messages", "browse", queue)["messages"]
    assert item["payload"].count("y") == 100


def test_unacked_messages_have_their_consumer(commands: Commands, channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="holder")
    wait_until(lambda: numbers(commands, queue) == list(range(2, 10)), "no message was delivered")
    shown = commands.ok("messages", "browse", queue, "--state", "unacked").splitlines()
    assert [("holder" in line) for line in shown] == [False, True, True]
    assert "unacked for" in shown[0]
    assert numbers(commands, queue, "--state", "unacked") == [0, 1]
    channel.cancel()
    channel.basic_cancel("holder")


def test_delayed_messages_have_the_time_at_which_they_become_ready(
    commands: Commands, broker: LeveretProcess, queue: str
) -> None:
    due = 1000 * int(time.time() + 3600)
    with sync.connect(broker.url(), protocol="1.0") as connection, connection.session().sender(queue) as sender:
        sender.send("later", annotations={"x-opt-delivery-time": due})
    heading, line = commands.ok("messages", "browse", queue, "--state", "delayed").splitlines()
    assert "ready at" in heading and moment(due) in line and "later" in line
    [item] = commands.json("messages", "search", queue, "--where", "body=later", "--state", "delayed")["messages"]
    assert item["payload"] == "later"
    assert numbers(commands, queue) == list(range(10))


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["headers.number=7"], [7]),
        (["headers.even=true", "body.number~=^[45]"], [4]),
        (["body*=: 3"], [3]),
        (["body~=(1|2)"], [1, 2]),
        (["body.number>=7", "body.number<9"], [7, 8]),
        (["headers.number>7.5", "headers.number!=8"], [9]),
        (['body["number"]<=1'], [0, 1]),
        (["headers.missing"], []),
        (["headers.even", "routing_key*=x-not-there"], []),
    ],
)
def test_conditions_of_a_search(commands: Commands, queue: str, conditions: list[str], expected: list[int]) -> None:
    assert found_by(commands, queue, *conditions) == expected


def test_a_value_may_contain_the_operators(commands: Commands, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, "a=b~=c", number=10)
    assert found_by(commands, queue, "body=a=b~=c") == [10]


def test_large_json_is_skipped(commands: Commands, channel: BlockingChannel, queue: str, other: str) -> None:
    publish(channel, queue, json.dumps({"number": 3, "more": "x" * (256 << 10)}), number=10)
    shown = commands.run("messages", "search", queue, "--where", "body.number=3")
    assert (len(shown.stdout.splitlines()), "1 messages were skipped: their JSON is too large" in shown.stderr) == (2, True)
    dry = commands.run("messages", "delete", queue, "--where", "body.number=3", "--dry-run")
    assert dry.stdout == f"would delete 1 of 11 messages of queue '{queue}'\n"
    assert "1 messages were skipped" in dry.stderr
    moved = commands.run("messages", "move", queue, "--where", "body.number=3", "--to-queue", other)
    assert (moved.exit_code, "1 messages were skipped" in moved.stderr, numbers(commands, other)) == (0, True, [3])


def test_a_selector(commands: Commands, queue: str, other: str) -> None:
    assert selected_by(commands, queue, "--selector", "number BETWEEN 3 AND 5") == [3, 4, 5]
    assert selected_by(commands, queue, "--selector", "number > 5", "--where", "headers.even=true") == [6, 8]
    refused = commands.run("messages", "search", queue, "--selector", "number >")
    assert (refused.exit_code, "invalid selector: position 8: expected" in refused.stderr) == (1, True)
    options = ("--to-queue", other, "--selector", "even AND number < 4")
    assert commands.ok("messages", "move", queue, *options, "--dry-run").startswith("would move 2 of 10 messages")
    assert "moved 2 messages" in commands.ok("messages", "move", queue, *options)
    assert numbers(commands, other) == [0, 2]


def test_messages_are_moved_in_order(commands: Commands, queue: str, other: str) -> None:
    assert "moved 5 messages" in commands.ok("messages", "move", queue, "--to-queue", other, "--where", "headers.even=true")
    assert (numbers(commands, queue), numbers(commands, other)) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    found = commands.json("messages", "browse", queue)
    chosen = [str(item["id"]) for item in found["messages"][:2]]
    dry = commands.ok("messages", "move", queue, "--to-exchange", "amq.fanout", "--routing-key", "x", "--all", "--dry-run")
    assert dry == f"would move 5 of 5 messages of queue '{queue}'\n"
    counts = commands.json(
        "messages", "move", queue, "--to-queue", other, "--id", chosen[0], "--id", chosen[1],
        "--queue-id", str(found["queue_id"]),
    )  # fmt: skip
    assert counts == {"messages": 2, "unroutable": 0, "refused": 0, "missing": 0, "examined": 2, "skipped": 0}
    assert numbers(commands, other) == [0, 2, 4, 6, 8, 1, 3]


def test_more_messages_than_one_request_shows(local: Commands, channel: BlockingChannel, queue: str, other: str) -> None:
    for number in range(10, 2500):
        publish(channel, queue, "", number=number)
    assert numbers(local, queue) == list(range(2500))
    assert "would delete 2,500 of 2,500 messages" in local.ok("messages", "delete", queue, "--all", "--dry-run")
    assert "copied 2,500 messages" in local.ok("messages", "copy", queue, "--to-queue", other, "--all")
    assert "deleted 2,500 messages" in local.ok("messages", "delete", queue, "--all")
    assert (numbers(local, queue), numbers(local, other)) == ([], list(range(2500)))


def test_messages_that_stay_make_the_result_incomplete(
    commands: Commands, channel: BlockingChannel, queue: str, name: str
) -> None:
    full = f"{name}-full"
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 4, "x-overflow": "reject-publish"})
    result = commands.run("messages", "move", queue, "--to-queue", full, "--all")
    assert (result.exit_code, "moved 4 messages" in result.stdout) == (1, True)
    assert result.stderr == "Error: 6 messages were not moved: a queue that would get them is full\n"
    result = commands.run("messages", "copy", queue, "--to-exchange", "amq.direct", "--all", "--json")
    assert (result.exit_code, json.loads(result.stdout)["unroutable"]) == (1, 6)
    assert "6 messages were not copied: no queue would get them" in result.stderr
    result = commands.run("messages", "delete", queue, "--id", "999999")
    assert (result.exit_code, "1 messages were not deleted: they are not ready any more" in result.stderr) == (1, True)
    assert numbers(commands, queue) == [4, 5, 6, 7, 8, 9]
    channel.queue_delete(full)


def test_dead_letters_return_to_their_queue(commands: Commands, channel: BlockingChannel, other: str, name: str) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
    channel.queue_declare(f"{name}-source", durable=True, arguments=arguments)
    publish(channel, f"{name}-source", "x", number=1)
    delivery, _, _ = channel.basic_get(f"{name}-source")
    assert delivery is not None
    channel.basic_reject(delivery.delivery_tag, requeue=False)
    wait_until(lambda: numbers(commands, other) == [1], "the message was not dead-lettered")
    dry = commands.json("messages", "move", other, "--to-origin", "--where", "headers.number=1", "--dry-run")
    assert dry == {"dry_run": True, "messages": 1, "examined": 1, "skipped": 0}
    commands.ok("messages", "move", other, "--to-origin", "--all")
    assert (numbers(commands, other), numbers(commands, f"{name}-source")) == ([], [1])
    channel.queue_delete(f"{name}-source")


@pytest.fixture
def letters(channel: BlockingChannel, queue: str, other: str, name: str) -> Iterator[str]:
    """A queue with dead letters: 4 with a timeout, 2 without stock, and 3 of a queue that was deleted."""
    exchange, died, deleted = f"{name}-exchange", f"{name}-died", f"{name}-deleted"
    channel.exchange_declare(exchange, "direct", durable=True)
    for one in (died, deleted):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
        channel.queue_declare(one, durable=True, arguments=arguments)
        channel.queue_bind(one, exchange, one)
    for number in range(9):
        headers = {"number": number} | ({"error": "timeout" if number < 4 else "no stock"} if number < 6 else {})
        target = died if number < 6 else deleted
        timestamp = int(time.time()) - (7200 if number < 4 else 0)
        properties = pika.BasicProperties(headers=headers, timestamp=timestamp, delivery_mode=2)
        channel.basic_publish(exchange, target, b"x", properties)
        delivery, _, _ = channel.basic_get(target)
        assert delivery is not None
        channel.basic_reject(delivery.delivery_tag, requeue=False)
    wait_until(lambda: channel.queue_declare(other, passive=True).method.message_count == 9, "the dead letters")
    channel.queue_delete(deleted)
    yield other
    channel.queue_delete(died)
    channel.exchange_delete(exchange)


def test_dead_letters_are_counted_in_groups(commands: Commands, letters: str, name: str) -> None:
    found = commands.json("messages", "dead-letters", letters, "--header", "error")
    assert (found["examined"], found["others"]) == (9, 0)
    assert [[group[key] for key in ("reason", "queue", "header", "messages", "bytes")] for group in found["groups"]] == [
        ["rejected", f"{name}-died", "timeout", 4, 4],
        ["rejected", f"{name}-deleted", None, 3, 3],
        ["rejected", f"{name}-died", "no stock", 2, 2],
    ]
    assert {group["exchange"] for group in found["groups"]} == {f"{name}-exchange"}
    groups = commands.json("messages", "dead-letters", letters, "--header", "error", "--since", "1h")["groups"]
    assert [(group["header"], group["messages"]) for group in groups] == [(None, 3), ("no stock", 2)]
    assert "expected ISO 8601" in commands.run("messages", "dead-letters", letters, "--since", "yesterday").stderr
    lines = commands.ok("messages", "dead-letters", letters, "--where", "death.reason=rejected").splitlines()
    assert lines[0].split() == ["reason", "queue", "exchange", "messages", "size"]
    assert [line.split() for line in lines[1:]] == [
        ["rejected", f"{name}-died", f"{name}-exchange", "6", "6", "B"],
        ["rejected", f"{name}-deleted", f"{name}-exchange", "3", "3", "B"],
    ]


def test_a_preview_counts_what_would_move_and_what_would_stay(commands: Commands, letters: str, other: str) -> None:
    said = commands.ok("messages", "preview", letters, "--to-queue", other, "--where", "headers.error=timeout")
    assert said == f"would move 4 messages of queue '{letters}'\n"
    for command in (("preview", letters, "--to-origin"), ("replay", letters, "--dry-run")):
        result = commands.run("messages", *command, "--all")
        assert (result.exit_code, result.stdout) == (1, f"would move 6 messages of queue '{letters}'\n")
        assert result.stderr == "Error: 3 messages would stay: no queue would get them\n"
    result = commands.run("messages", "preview", letters, "--to-origin-exchange", "--all", "--json")
    counts = {"messages": 6, "unroutable": 3, "refused": 0, "missing": 0, "examined": 9, "skipped": 0}
    assert json.loads(result.stdout) == counts
    assert numbers(commands, letters) == list(range(9))


def test_dead_letters_are_replayed_by_group(commands: Commands, letters: str, name: str) -> None:
    died = f"{name}-died"
    chosen = ("--where", f"death.queue={died}", "--where", "headers.error=timeout")
    assert commands.ok("messages", "replay", letters, *chosen) == f"replayed 4 messages of queue '{letters}'\n"
    assert (numbers(commands, letters), numbers(commands, died)) == ([4, 5, 6, 7, 8], [0, 1, 2, 3])
    result = commands.run("messages", "replay", letters, "--to-origin-exchange", "--all")
    assert (result.exit_code, "replayed 2 messages" in result.stdout) == (1, True)
    assert result.stderr == "Error: 3 messages were not replayed: no queue would get them\n"
    assert (numbers(commands, letters), numbers(commands, died)) == ([6, 7, 8], [0, 1, 2, 3, 4, 5])
    [item] = commands.json("messages", "browse", died, "--count", "1", "--offset", "4")["messages"]
    assert (item["exchange"], item["routing_key"]) == (f"{name}-exchange", died)


def test_a_message_is_edited_and_resent(
    commands: Commands, channel: BlockingChannel, queue: str, other: str, tmp_path: Path
) -> None:
    found = commands.json("messages", "browse", queue, "--count", "2")
    first, second = (str(item["id"]) for item in found["messages"])
    target = ("--exchange", "", "--routing-key", other)
    commands.ok("messages", "resend", queue, first, *target, "--payload", "changed", "--properties", '{"app_id": "me"}')
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\x00")
    said = commands.ok("messages", "resend", queue, second, *target, "--payload-file", str(file))
    assert said == f"resent 1 messages of queue '{queue}'\n"
    _, properties, body = channel.basic_get(other, auto_ack=True)
    assert (body, properties and properties.app_id, properties and properties.headers) == (b"changed", "me", None)
    _, properties, body = channel.basic_get(other, auto_ack=True)
    assert (body, properties and properties.headers) == (b"\xff\x00", {"number": 1, "even": False})
    assert numbers(commands, queue) == list(range(2, 10))
    result = commands.run("messages", "resend", queue, first, *target)
    assert (result.exit_code, "1 messages were not resent: they are not ready any more" in result.stderr) == (1, True)


def test_messages_of_a_stream_are_browsed_and_copied(
    commands: Commands, channel: BlockingChannel, other: str, name: str
) -> None:
    channel.queue_declare(f"{name}-stream", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        publish(channel, f"{name}-stream", "x", number=number)
    assert numbers(commands, f"{name}-stream", "--offset", "3") == [3, 4]
    commands.ok("messages", "copy", f"{name}-stream", "--to-queue", other, "--where", "headers.number~=[13]")
    assert numbers(commands, other) == [1, 3]
    assert "copy them" in commands.refused("messages", "move", f"{name}-stream", "--to-queue", other, "--all")
    channel.queue_delete(f"{name}-stream")


def test_a_queue_that_was_declared_again_is_refused(commands: Commands, channel: BlockingChannel, queue: str) -> None:
    found = commands.json("messages", "browse", queue)
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, "new", number=0)
    refused = commands.refused("messages", "delete", queue, "--all", "--queue-id", str(found["queue_id"]))
    assert "was deleted and declared again" in refused
    assert numbers(commands, queue) == [0]


def test_a_missing_queue_is_named(commands: Commands) -> None:
    assert "no queue 'missing' in vhost '/'" in commands.refused("messages", "browse", "missing")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["search", "q"], "expected --where or --selector"),
        (["search", "q", "--where", "=x"], "expected FIELD=VALUE, FIELD<VALUE, FIELD*=TEXT"),
        (["delete", "q"], "expected --id, --all, or --where, --selector and --since"),
        (["delete", "q", "--all", "--where", "body=x"], "expected --id, --all, or --where, --selector and --since"),
        (["delete", "q", "--id", "1", "--dry-run"], "--dry-run requires --where, --selector, --since or --all"),
        (["move", "q", "--all"], "expected one of --to-queue, --to-exchange, --to-origin and --to-origin-exchange"),
        (["move", "q", "--all", "--to-origin", "--to-origin-exchange"], "expected one of --to-queue"),
        (["preview", "q", "--to-origin"], "expected --id, --all, or --where, --selector and --since"),
        (["replay", "q"], "expected --id, --all, or --where, --selector and --since"),
        (["copy", "q", "--all", "--to-queue", "x", "--to-origin"], "expected one of --to-queue"),
        (["move", "q", "--all", "--to-queue", "x", "--routing-key", "k"], "--routing-key requires --to-exchange"),
        (["resend", "q", "1", "--properties", "[]"], "expected a JSON object"),
        (["resend", "q", "1", "--payload", "x", "--payload-file", __file__], "--payload excludes --payload-file"),
    ],
)
def test_contradictions_are_refused_before_the_broker_is_asked(
    local: Commands, arguments: list[str], expected: str
) -> None:
    assert expected in local.mistaken("messages", *arguments)


def test_unknown_fields_are_refused_by_the_broker(commands: Commands, queue: str) -> None:
    assert "unknown field 'header.x'" in commands.refused("messages", "search", queue, "--where", "header.x=1")
    assert "regular expression" in commands.refused("messages", "search", queue, "--where", "body~=(")


def test_progress_is_shown_on_a_terminal_and_cleared(broker: LeveretProcess, queue: str) -> None:
    arguments = ("messages", "search", queue, "--where", "body.number=3", "--data-dir", str(broker.data_dir))
    code, shown = on_terminal(Program(broker), *arguments)
    assert (code, "found 1 of 10 messages" in shown) == (0, True)
    progress, _, result = shown.rpartition("\r\x1b[K")
    assert ("found" in progress, "found" in result, '{"number": 3}' in result) == (True, False, True)
    assert "found" not in on_terminal(Program(broker), *arguments, "--json")[1]


# Export and import


def test_messages_are_exported_to_a_file_and_imported(
    commands: Commands, local: Commands, channel: BlockingChannel, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "messages.jsonl"
    shown = commands.ok("messages", "export", queue, "--where", "body~=[3-5]", "--output", str(file))
    assert shown == f"exported 3 messages of queue '{queue}' to {file}\n"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [json.loads(line["payload"]) for line in lines] == [{"number": number} for number in (3, 4, 5)]
    assert list(tmp_path.iterdir()) == [file]
    assert channel.queue_purge(queue).method.message_count == 10
    shown = commands.ok("messages", "import", str(file))
    assert shown == "3 messages imported, 0 unroutable, 0 lines refused; 3 lines processed\n"
    assert commands.json("messages", "import", str(file), "--queue", queue)["imported"] == 3
    assert commands.ok("messages", "import", "-", "--queue", queue, input=file.read_text()).startswith(
        "3 messages imported"
    )
    found = local.json("messages", "browse", queue)["messages"]
    assert [item["payload"] for item in found] == [line["payload"] for line in lines] * 3


def test_messages_with_ids_are_exported_as_an_array(commands: Commands, queue: str, tmp_path: Path) -> None:
    found = commands.json("messages", "browse", queue)["messages"]
    file = tmp_path / "messages.json"
    ids = ["--id", str(found[1]["id"]), "--id", "999999"]
    result = commands.run("messages", "export", queue, *ids, "--format", "array", "--output", str(file))
    assert (result.exit_code, "1 messages were left out" in result.output) == (1, True)
    assert [line["payload"] for line in json.loads(file.read_text())] == [found[1]["payload"]]
    assert "--id excludes" in commands.mistaken("messages", "export", queue, "--id", "1", "--offset", "1")
    assert "--queue excludes" in commands.mistaken("messages", "import", str(file), "--queue", "a", "--exchange", "b")


def test_an_export_goes_to_standard_output(broker: LeveretProcess, queue: str) -> None:
    program = Program(broker)
    done = program.run("messages", "export", queue, "--count", "2", "--data-dir", str(broker.data_dir))
    assert [json.loads(line)["payload"] for line in done.lines] == ['{"number": 0}', '{"number": 1}']
    assert (done.code, done.err) == (0, f"exported 2 messages of queue '{queue}'\n")


def test_large_payloads_are_exported(commands: Commands, channel: BlockingChannel, name: str, tmp_path: Path) -> None:
    channel.queue_declare(name)
    channel.basic_publish("", name, b"\xff" * 1_500_000)
    file = tmp_path / "messages.jsonl"
    commands.ok("messages", "export", name, "--output", str(file))
    line = json.loads(file.read_text())
    assert (line["payload_bytes"], line["payload"][:4], len(line["payload"])) == (1_500_000, "////", 2_000_000)
    result = commands.run("messages", "import", str(file))
    assert (result.exit_code, "publish the message with a client" in result.output) == (1, True)
    channel.queue_delete(name)


def test_lines_that_are_not_imported_are_shown(commands: Commands, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f'{{"routing_key": "nowhere"}}\n{{"routing_key": "{queue}"}}\n{{"x": 1}}\n')

    def failed(*arguments: str) -> str:
        result = commands.run("messages", "import", *arguments)
        assert result.exit_code == 1, result.output
        return result.output

    output = failed(str(file))
    assert "1 messages imported, 1 unroutable, 1 lines refused; 3 lines processed" in output
    assert "line 1: no queue would get the message" in output and "line 3: invalid message" in output
    assert "2 messages were not imported" in output
    output = failed(str(file), "--exchange", "amq.direct", "--routing-key", "nowhere")
    assert "0 messages imported, 2 unroutable" in output
    assert "no queue 'missing'" in failed(str(file), "--queue", "missing")
    assert "cannot read" in failed(str(tmp_path / "none"))
