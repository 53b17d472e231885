"""`leveret shovel queue`: moves of queues between real brokers, and kills in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import leveret.sync
from leveret.client.errors import InvalidUrl, NotFound
from leveret.management.control_client import call
from leveret.shovel.definition import DEFAULT_PREFETCH
from leveret.shovel.moves import QueueAddress, read_address
from tests.cli.program import LIMIT, Program, interruptible
from tests.shovel.test_kills import fill, has_moved, length
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until

COUNT = 10000
# Messages at the destination when the command is killed.
MOVED = 500


class Pair:
    """A source, a destination, and the command line."""

    def __init__(self, source: LeveretProcess, destination: LeveretProcess) -> None:
        self.source = source
        self.destination = destination
        self.program = Program(source)

    def arguments(self, queue: str, *options: str, to: str = "") -> tuple[str, ...]:
        urls = (f"{self.source.url()}/{queue}", f"{self.destination.url()}/{to or queue}")
        return ("shovel", "queue", *urls, *options)

    def moved(self, queue: str) -> int:
        try:
            with leveret.sync.connect(self.destination.url()) as connection, connection.channel() as channel:
                return channel.declare_queue(queue, passive=True).message_count
        except NotFound:
            return 0


def drain(url: str, queue: str) -> list[int]:
    """Take all messages."""
    with leveret.sync.connect(url) as connection, connection.channel() as channel:
        count = channel.declare_queue(queue, passive=True).message_count
        with channel.consume(queue, no_ack=True) as consumer:
            return [int(consumer.next(LIMIT).body) for _ in range(count)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("moves")
    source, destination = LeveretProcess(directory / "a").start(), LeveretProcess(directory / "b").start()
    yield Pair(source, destination)
    for broker in (source, destination):
        broker.stop()
        broker.check_log()


def test_a_queue_moves_to_a_new_queue(pair: Pair) -> None:
    fill(pair.source.url(), "plain", 300)
    done = pair.program.run(*pair.arguments("plain", "--argument", "x-max-length=500", to="a%2Fb"))
    assert done.code == 0, done.err
    assert "moved 300 messages" in done.err
    assert "the source is empty, and the destination has 300 messages more" in done.err
    [queue] = call(pair.destination.data_dir, "queues.list", {})
    assert (queue["name"], queue["durable"], queue["arguments"]) == ("a/b", True, {"x-max-length": 500})
    assert drain(pair.destination.url(), "a/b") == list(range(300))
    assert length(pair.source.url(), "plain") == 0
    # Nothing is left to do.
    assert "moved 0 messages" in pair.program.run(*pair.arguments("plain", to="a%2Fb")).err


@pytest.mark.parametrize("protocol", ["amqp091", "amqp10"])
def test_nothing_is_lost_when_the_command_is_killed(pair: Pair, protocol: str) -> None:
    queue = f"killed {protocol}"
    arguments = pair.arguments(queue.replace(" ", "%20"), "--src-protocol", protocol)
    fill(pair.source.url(), queue, COUNT)
    with pair.program.begin(*arguments) as process:
        wait_until(lambda: pair.moved(queue) >= MOVED)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert length(pair.source.url(), queue) > 0
    done = pair.program.run(*arguments)
    assert done.code == 0, done.err
    found = drain(pair.destination.url(), queue)
    assert list(dict.fromkeys(found)) == list(range(COUNT))
    # At most the prefetch limit is in both brokers.
    assert len(found) <= COUNT + DEFAULT_PREFETCH
    assert length(pair.source.url(), queue) == 0


def test_messages_of_amqp10_move_as_for_consumers(pair: Pair) -> None:
    fill(pair.source.url(), "typed", 0)
    with leveret.sync.connect(pair.source.url(), protocol="1.0") as source, source.session() as session:
        session.publish(b"5", "typed", headers={"kept": True}, type="t", persistent=True)
    done = pair.program.run(*pair.arguments("typed", "--src-protocol", "amqp10"))
    assert done.code == 0, done.err
    assert "the source is empty, and the destination has 1 message more" in done.err
    with leveret.sync.connect(pair.destination.url()) as connection, connection.channel() as channel:
        message = channel.get("typed")
        assert message is not None
        assert (message.body, message.headers["kept"], message.properties.type) == (b"5", True, "t")


def test_a_lost_connection_does_not_end_the_move(pair: Pair) -> None:
    fill(pair.source.url(), "closed", COUNT)
    with pair.program.begin(*pair.arguments("closed")) as process:
        wait_until(lambda: pair.moved("closed") >= MOVED)
        call(pair.destination.data_dir, "connections.close_user", {"user": "guest"})
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert b"continuing in 1 s" in err
    found = drain(pair.destination.url(), "closed")
    assert list(dict.fromkeys(found)) == list(range(COUNT))


def test_a_restart_of_the_source_does_not_end_the_move(pair: Pair) -> None:
    fill(pair.source.url(), "restarted", COUNT)
    with pair.program.begin(*pair.arguments("restarted")) as process:
        assert process.stderr is not None
        wait_until(lambda: pair.moved("restarted") >= MOVED)
        pair.source.kill()
        # The first failure is the lost connection, the second one is that nothing listens.
        failures = [process.stderr.readline() for _ in range(2)]
        pair.source.start()
        _, err = process.communicate(timeout=LIMIT)
    assert all(b"continuing in 1 s" in line for line in failures), failures
    assert process.returncode == 0, err
    assert list(dict.fromkeys(drain(pair.destination.url(), "restarted"))) == list(range(COUNT))


def test_the_move_ends_when_others_take_the_messages(pair: Pair) -> None:
    fill(pair.source.url(), "purged", COUNT)
    with pair.program.begin(*pair.arguments("purged")) as process:
        wait_until(lambda: pair.moved("purged") >= MOVED)
        call(pair.source.data_dir, "queues.purge", {"name": "purged"})
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert b"the source is empty" in err
    assert MOVED <= pair.moved("purged") < COUNT


def test_messages_move_to_one_queue_only(pair: Pair) -> None:
    """The header CC of a message, by which the source has routed it to other queues, too."""
    for broker in (pair.source, pair.destination):
        fill(broker.url(), "copies", 0)
    with leveret.sync.connect(pair.source.url()) as connection, connection.channel() as channel:
        channel.declare_queue("copied", durable=True)
        channel.publish(b"1", "copied", headers={"CC": ["copies"], "kept": True}, persistent=True)
    done = pair.program.run(*pair.arguments("copied"))
    assert done.code == 0, done.err
    assert (pair.moved("copied"), pair.moved("copies")) == (1, 0)
    with leveret.sync.connect(pair.destination.url()) as connection, connection.channel() as channel:
        message = channel.get("copied")
        assert message is not None and message.headers == {"kept": True}


@pytest.mark.parametrize("protocol", ["amqp091", "amqp10"])
def test_the_origin_is_kept_on_request(pair: Pair, protocol: str) -> None:
    fill(pair.source.url(), "origin", 0)
    with leveret.sync.connect(pair.source.url()) as connection, connection.channel() as channel:
        channel.bind_queue("origin", "amq.topic", "orders.#")
        channel.publish(b"1", "orders.new", "amq.topic", headers={"own": 1}, persistent=True)
    options = ("--add-origin-headers", "--src-protocol", protocol)
    assert pair.program.run(*pair.arguments("origin", *options, to="again")).code == 0
    # A second move keeps the first origin.
    again = (f"{pair.destination.url()}/again", f"{pair.destination.url()}/last")
    assert pair.program.run("shovel", "queue", *again, *options).code == 0
    with leveret.sync.connect(pair.destination.url()) as connection, connection.channel() as channel:
        message = channel.get("last", no_ack=True)
        assert message is not None
        assert message.headers == {
            "own": 1,
            "x-shovelled-exchange": "amq.topic",
            "x-shovelled-routing-key": "orders.new",
        }


def test_following_ends_with_a_signal(pair: Pair) -> None:
    fill(pair.source.url(), "followed", 10)
    with interruptible(), pair.program.begin(*pair.arguments("followed", "--follow")) as process:
        wait_until(lambda: pair.moved("followed") == 10)
        fill(pair.source.url(), "followed", 5)
        wait_until(lambda: pair.moved("followed") == 15)
        # The command counts a message before it acknowledges it.
        wait_until(lambda: has_moved(pair.source, "followed"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT
    assert b"moved 15 messages" in err


def test_what_the_destination_lacks_is_an_error(pair: Pair) -> None:
    fill(pair.source.url(), "short", 20)
    done = pair.program.run(*pair.arguments("short", "--argument", "x-max-length=8"))
    assert done.code == 1
    assert "the destination has 8 messages more, but 20 were moved" in done.err


def test_a_destination_that_refuses_keeps_the_rest_at_the_source(pair: Pair) -> None:
    fill(pair.source.url(), "full", 20)
    options = ("--argument", "x-max-length=0", "--argument", "x-overflow=reject-publish")
    done = pair.program.run(*pair.arguments("full", *options))
    assert done.code == 1
    assert "moved 0 messages" in done.err and "the server refused the message" in done.err
    assert length(pair.source.url(), "full") == 20


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("missing",), 4, "no queue 'missing'"),
        (("missing", "--src-protocol", "amqp10"), 4, "no queue 'missing'"),
        (("q/r",), 2, "expected amqp://user:password@host:port/VHOST/QUEUE"),
        (("q", "--argument", "x"), 2, "expected NAME=VALUE"),
    ],
)
def test_errors(pair: Pair, arguments: tuple[str, ...], code: int, expected: str) -> None:
    done = pair.program.run(*pair.arguments(*arguments))
    assert (done.code, expected in done.err) == (code, True), done.err


def test_consumers_of_the_source_are_named(pair: Pair) -> None:
    fill(pair.source.url(), "consumed", 1)
    with (
        leveret.sync.connect(pair.source.url()) as connection,
        connection.channel() as channel,
        channel.consume("consumed", prefetch=1) as consumer,
    ):
        consumer.next(LIMIT)
        done = pair.program.run(*pair.arguments("consumed"))
    assert "the source has 1 consumer, so that the order may be lost" in done.err


def test_a_queue_is_not_moved_to_itself(pair: Pair) -> None:
    url = f"{pair.source.url()}/itself"
    done = pair.program.run("shovel", "queue", url, url)
    assert (done.code, "SOURCE and DESTINATION are the same queue" in done.err) == (2, True), done.err


def test_an_error_does_not_show_a_part_of_a_password() -> None:
    with pytest.raises(InvalidUrl) as raised:
        read_address("amqp://user:hun/ter2@host/%2F/orders")
    assert "ter2" not in str(raised.value)
    assert "%2F, in passwords, too" in str(raised.value)


def test_addresses() -> None:
    assert read_address("amqps://u:p@h:1/%2F/a%2Fb?heartbeat=5") == QueueAddress("amqps://u:p@h:1/%2F?heartbeat=5", "a/b")
    for url in ("amqp://h/orders", "amqp://h", "amqp://h//q", "h/v/q", "http://h/v/q"):
        with pytest.raises(InvalidUrl):
            read_address(url)
