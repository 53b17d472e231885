"""Ages of ready messages, and timestamps of the first ones, from samples of sequence numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.broker.message import FORMAT_AMQP1, Message
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.management.ready_ages import EMPTY, READY, ReadyAges
from leveret.management.unacked_ages import HOUR, MINUTE, SampledNumbers
from leveret.protocols.message_codec import MessageCodec
from leveret.wire.amqp10.message import encode_properties
from leveret.wire.amqp10.messaging import Properties
from tests.broker.support import Taker, World

SECOND = 1000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ages(world: World) -> ReadyAges:
    return ReadyAges(MessageCodec(world.broker))


@pytest.fixture
def age(world: World, ages: ReadyAges) -> Callable[[ClassicQueue], int | None]:
    """Make a pass over a queue, and return the age of its oldest ready message."""

    def age_of(queue: ClassicQueue) -> int | None:
        since, _ = ages.note(queue)
        ages.end_pass(world.clock.now(), None)
        found = ages.age_of(queue)
        assert (found is None and not since) or found == (world.clock.unix() - since) // SECOND
        return found

    return age_of


Age = Callable[[ClassicQueue], int | None]


def test_the_oldest_message_is_as_old_as_the_pass_after_its_arrival(world: World, ages: ReadyAges, age: Age) -> None:
    queue = world.queue()
    assert age(queue) is None and ages.note(queue) == EMPTY
    world.push(queue, "a")
    assert age(queue) == 0
    world.sleep(5 * SECOND)
    world.push(queue, "b")
    assert age(queue) == 5
    world.sleep(2 * SECOND)
    taker = Taker(queue, credit=1)
    world.run()
    assert taker.history == ["a"]
    assert age(queue) == 2
    queue.purge()
    assert age(queue) is None and ages.note(queue) == EMPTY


def test_a_requeued_message_is_as_old_as_before(world: World, age: Age) -> None:
    queue = world.queue()
    world.push(queue, "a")
    age(queue)
    taker = Taker(queue, credit=1)
    world.run()
    assert age(queue) is None
    world.sleep(3 * SECOND)
    world.push(queue, "b")
    assert age(queue) == 0
    taker.requeue()
    assert age(queue) == 3


def test_the_oldest_message_may_have_a_low_priority(world: World, age: Age) -> None:
    queue = world.queue(max_priority=5)
    queue.push(world.message("low", priority=1))
    age(queue)
    world.sleep(4 * SECOND)
    queue.push(world.message("high", priority=5))
    assert age(queue) == 4


def test_delayed_messages_are_not_ready(world: World, age: Age) -> None:
    queue = world.queue()
    queue.delay(world.message("later", key=queue.name), world.clock.now() + 3 * SECOND)
    assert age(queue) is None
    world.sleep(4 * SECOND)
    assert age(queue) == 0


def test_paged_out_messages_have_ages_and_the_first_one_its_timestamp() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    ages = ReadyAges(MessageCodec(world.broker))
    for number in range(100):
        queue.push(_dated(world, 1_700_000_000 + number))
    since, timestamp = ages.note(queue)
    assert (since, timestamp) == (world.clock.unix(), 1_700_000_000)
    world.run()
    world.broker.page_down()
    world.sleep(SECOND)
    queue.push(_dated(world, 5))
    assert ages.note(queue) == (since, 1_700_000_000)


def test_without_recent_passes_ages_are_unknown(world: World, ages: ReadyAges, age: Age) -> None:
    queue = world.queue()
    world.push(queue, "a")
    assert ages.age_of(queue) is None
    assert age(queue) == 0
    world.sleep(11 * SECOND)
    assert ages.age_of(queue) is None
    world.push(queue, "b")
    assert age(queue) == 11


def test_deleted_queues_are_forgotten(world: World, ages: ReadyAges, age: Age) -> None:
    first, second = world.queue("first"), world.queue("second")
    for queue in (first, second):
        world.push(queue, "a")
        age(queue)
    world.sleep(SECOND)
    ages.end_pass(world.clock.now(), {second.id})
    ages.forget(first.id)
    assert (ages.age_of(first), ages.age_of(second)) == (0, 1)


def test_samples_of_days_are_few_and_their_errors_are_less_than_a_quarter() -> None:
    samples = SampledNumbers(READY)
    seconds = 47 * HOUR // SECOND
    for second in range(1, seconds + 1):
        samples.add(second, second * SECOND)
        assert len(samples) <= READY.max_samples
    for age in (5 * SECOND, 40 * SECOND, 5 * MINUTE, 50 * MINUTE, 11 * HOUR, 40 * HOUR):
        number = (seconds * SECOND - age) // SECOND
        found = samples.time_of(number)
        assert found is not None
        assert number * SECOND < found <= number * SECOND + max(age // 4, SECOND) + MINUTE
    assert samples.time_of(0) == SECOND


def _dated(world: World, timestamp: int | None, **properties: object) -> Message:
    codec = MessageCodec(world.broker)
    return codec.encode(b"\x00\x01q", b"body", {"timestamp": timestamp, "delivery_mode": 2, **properties}, "guest")


@pytest.mark.parametrize("timestamp", [None, 0, 1_700_000_000, 2**63])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"headers": {"a": "b" * 300, "c": {"d": 1}}},
        {"content_type": "text/plain", "content_encoding": "gzip", "priority": 3, "correlation_id": "x" * 200},
        {"reply_to": "", "expiration": "60000", "message_id": "m", "type": "t", "user_id": "guest", "app_id": "app"},
    ],
)
def test_the_timestamp_is_found_behind_other_properties(
    world: World, timestamp: int | None, properties: dict[str, object]
) -> None:
    codec = MessageCodec(world.broker)
    assert codec.timestamp(_dated(world, timestamp, **properties)) == timestamp


@pytest.mark.parametrize(("created", "timestamp"), [(None, None), (1_700_000_000_999, 1_700_000_000), (-1, None)])
def test_the_timestamp_of_a_message_of_amqp_1_0_is_its_creation_time(
    world: World, created: int | None, timestamp: int | None
) -> None:
    header = encode_properties(Properties(subject="s", creation_time=created))
    message = Message(b"\x00\x01q", header, b"", 0, False, format=FORMAT_AMQP1)
    assert MessageCodec(world.broker).timestamp(message) == timestamp


def test_malformed_sections_have_no_timestamp(world: World) -> None:
    message = Message(b"\x00\x01q", b"\x00\x53\x73\xc0\xff", b"", 0, False, format=FORMAT_AMQP1)
    assert MessageCodec(world.broker).timestamp(message) is None
