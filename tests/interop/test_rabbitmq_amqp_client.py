"""RabbitMQ's AMQP 1.0 client for Python, unmodified, against a broker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.helpers import get, pump
from tests.security.certificates import Authority
from tests.support.broker import Broker, LeveretProcess, basic_config

rabbitmq = pytest.importorskip("rabbitmq_amqp_python_client", reason="RabbitMQ's client is not installed")

from rabbitmq_amqp_python_client import (  # noqa: E402
    AddressHelper,
    AmqpMessageRejectedException,
    AMQPMessagingHandler,
    AmqpUri,
    AsyncEnvironment,
    ClassicQueueSpecification,
    Connection,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Converter,
    Environment,
    Event,
    ExchangeCustomSpecification,
    ExchangeSpecification,
    ExchangeToExchangeBindingSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    InvalidOperationException,
    Management,
    Message,
    MessageProperties,
    OAuth2Options,
    OffsetSpecification,
    OutcomeState,
    PosixSslConfigurationContext,
    QueueType,
    QuorumConsumerOptions,
    QuorumQueueSpecification,
    RecoveryConfiguration,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
    ValidationCodeException,
)
from rabbitmq_amqp_python_client.qpid.proton._exceptions import ConnectionException, LinkException  # noqa: E402
from rabbitmq_amqp_python_client.qpid.proton.utils import LinkDetached, SendException  # noqa: E402

QUIET = RecoveryConfiguration(active_recovery=False)


@pytest.fixture(autouse=True)
def only_leveret(broker: Broker) -> None:
    if broker.kind != "leveret":
        pytest.skip("the client wants RabbitMQ 4")


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., Connection]]:
    environments: list[Environment] = []

    def open_connection(**options: Any) -> Connection:
        options.setdefault("uri", broker.url(vhost=""))
        environment = Environment(recovery_configuration=QUIET, **options)
        environments.append(environment)
        connection = environment.connection()
        connection.dial()
        return connection

    yield open_connection
    for environment in environments:
        environment.close()


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def management(connection: Connection) -> Management:
    return connection.management()


@pytest.fixture
def queue(connect: Callable[..., Connection], name: str) -> Iterator[str]:
    """A queue of a separate connection: the client closes a connection on which a consumer is refused."""
    management = connect().management()
    management.declare_queue(QuorumQueueSpecification(name=name))
    yield name
    management.delete_queue(name)


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
        yield connection.channel()


def to_queue(queue: str) -> str:
    return str(AddressHelper.queue_address(queue))


def message(body: str = "m", **properties: Any) -> Message:
    return Message(Converter.string_to_bytes(body), **properties)


def publish(connection: Connection, queue: str, *messages: Message) -> None:
    publisher = connection.publisher(to_queue(queue))
    for item in messages:
        assert publisher.publish(item).remote_state == OutcomeState.ACCEPTED
    publisher.close()


class Enough(Exception):
    """The handler has received enough."""


class Handler(AMQPMessagingHandler):
    """Keeps and settles messages, until it has received `wanted`."""

    def __init__(self, wanted: int, settle: Callable[[Handler, Event], None] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.wanted = wanted
        self.settling = settle or Handler.accept
        self.messages: list[Message] = []

    def accept(self, event: Event) -> None:  # the client's name for it has another meaning
        self.delivery_context.accept(event)

    def nothing(self, event: Event) -> None:
        pass

    def on_amqp_message(self, event: Event) -> None:
        self.messages.append(event.message)
        self.settling(self, event)
        if len(self.messages) == self.wanted:
            raise Enough

    @property
    def bodies(self) -> list[str]:
        return [Converter.bytes_to_string(item.body or b"") for item in self.messages]


def consume(connection: Connection, queue: str | None, handler: Handler, **options: Any) -> Handler:
    """Run a consumer until its handler has enough, and close it."""
    address = None if queue is None else to_queue(queue)
    consumer = connection.consumer(address, message_handler=handler, **options)
    with pytest.raises(Enough):
        consumer.run()
    consumer.close()
    return handler


class TestConnections:
    def test_product_and_version_satisfy_the_client(self, connection: Connection) -> None:
        assert connection._is_server_version_gte("4.3.0")

    def test_by_fields(self, broker: Broker, connect: Callable[..., Connection]) -> None:
        connection = connect(uri=None, amqp_uri=AmqpUri(host=broker.host, port=broker.port))
        assert connection.management().declare_queue(ClassicQueueSpecification(name="fields"))
        connection.management().delete_queue("fields")

    @pytest.mark.parametrize("vhost", ["interop", "vhöst/ü"])
    def test_vhosts(self, broker: Broker, connect: Callable[..., Connection], name: str, vhost: str) -> None:
        # The client encodes the name itself.
        management = connect(uri=broker.url(vhost="") + vhost).management()
        management.declare_queue(ClassicQueueSpecification(name=name))
        with pika.BlockingConnection(pika.URLParameters(broker.url(vhost=vhost))) as other:
            assert other.channel().queue_declare(name, passive=True).method.message_count == 0
        management.delete_queue(name)

    @pytest.mark.parametrize(
        "options", [{"oauth2_options": OAuth2Options(token="eyJhbGciOiJub25lIn0.e30.")}, {}], ids=["token", "password"]
    )
    def test_bad_credentials(self, broker: Broker, options: dict[str, Any]) -> None:
        environment = Environment(uri=broker.url(vhost="", password="wrong"), recovery_configuration=QUIET, **options)
        with pytest.raises(ConnectionException, match=r"unauthorized|Authentication failed"):
            environment.connection().dial()

    @pytest.mark.parametrize("recovery", [QUIET, RecoveryConfiguration()], ids=["without recovery", "with recovery"])
    def test_an_unknown_vhost(self, broker: Broker, recovery: RecoveryConfiguration) -> None:
        """With recovery, the client would reconnect for ever after a close."""
        environment = Environment(uri=broker.url(vhost="nowhere"), recovery_configuration=recovery)
        with pytest.raises(ValidationCodeException, match="vhost 'nowhere' does not exist"):
            environment.connection().dial()

    def test_a_new_token(self, management: Management, queue: str) -> None:
        management.refresh_token("eyJhbGciOiJub25lIn0.e30.")
        assert management.queue_info(queue).name == queue

    def test_tls(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        cert, key = authority.issue("server")
        config = basic_config() + f'\n[tls]\nport = 0\ncert = "{cert}"\nkey = "{key}"\n'
        with LeveretProcess(tmp_path / "broker", config=config) as broker:
            broker.start()
            # The plain port also accepts TLS.
            environment = Environment(
                uri=f"amqps://guest:guest@localhost:{broker.port}/",
                recovery_configuration=QUIET,
                ssl_context=PosixSslConfigurationContext(ca_cert=str(authority.path)),
            )
            connection = environment.connection()
            connection.dial()
            connection.management().declare_queue(ClassicQueueSpecification(name="q"))
            publish(connection, "q", message())
            assert connection.management().queue_info("q").message_count == 1
            environment.close()
            broker.check_log()

    def test_it_recovers_from_a_restart(self, tmp_path: Path) -> None:
        with LeveretProcess(tmp_path / "broker") as broker:
            broker.start()
            environment = Environment(
                uri=broker.url(vhost=""),
                recovery_configuration=RecoveryConfiguration(
                    back_off_reconnect_interval=timedelta(seconds=1), MaxReconnectAttempts=10
                ),
            )
            connection = environment.connection()
            connection.dial()
            connection.management().declare_queue(QuorumQueueSpecification(name="q"))
            publisher = connection.publisher(to_queue("q"))
            publisher.publish(message("before"))
            broker.stop()
            broker.start()
            # The call that notices the loss fails, and works after the reconnect.
            for _ in range(5):
                try:
                    publisher.publish(message("after"))
                    break
                except (ConnectionException, LinkException):
                    pass
            assert connection.management().queue_info("q").message_count == 2
            assert consume(connection, "q", Handler(2)).bodies == ["before", "after"]
            environment.close()


class TestManagement:
    @pytest.mark.parametrize("kind", [QueueType.quorum, QueueType.classic])
    def test_queues(self, connection: Connection, management: Management, name: str, kind: QueueType) -> None:
        specification: QuorumQueueSpecification | ClassicQueueSpecification
        if kind is QueueType.quorum:
            specification = QuorumQueueSpecification(
                name=name,
                max_len=1000,
                max_len_bytes=1 << 20,
                message_ttl=timedelta(hours=1),
                overflow_behaviour="reject-publish",
                auto_expires=timedelta(hours=1),
                dead_letter_exchange="amq.fanout",
                dead_letter_routing_key="k",
                single_active_consumer=False,
                deliver_limit=5,
                dead_letter_strategy="at-least-once",
                quorum_initial_group_size=3,
                cluster_target_group_size=3,
                leader_locator="client-local",
            )
        else:
            specification = ClassicQueueSpecification(
                name=name, is_durable=False, is_auto_delete=True, max_priority=5, is_exclusive=True
            )
        for _ in range(2):
            assert management.declare_queue(specification) == specification
        publish(connection, name, message(), message())
        info = management.queue_info(name)
        assert (info.name, info.queue_type, info.message_count, info.consumer_count) == (name, kind, 2, 0)
        assert info.is_durable == (kind is QueueType.quorum)
        assert info.is_auto_delete == info.is_exclusive == (kind is QueueType.classic)
        assert info.arguments["x-queue-type"] == kind.value
        if kind is QueueType.quorum:
            assert info.arguments["x-message-ttl"] == 3_600_000
        members: Any = info.members  # an array, not the text that its annotation says
        assert [str(member) for member in members.elements] == [info.leader]
        assert management.purge_queue(name) == 2
        management.delete_queue(name)
        management.delete_queue(name)
        with pytest.raises(ValidationCodeException, match="404"):
            management.queue_info(name)

    def test_names_with_special_characters(self, management: Management, connection: Connection, name: str) -> None:
        strange = f"{name}/ %;=?&+"
        management.declare_queue(ClassicQueueSpecification(name=strange))
        publish(connection, strange, message())
        assert management.queue_info(strange).name == strange
        assert management.purge_queue(strange) == 1
        management.delete_queue(strange)

    def test_conflicts(self, management: Management, queue: str) -> None:
        with pytest.raises(ValidationCodeException, match="ErrPreconditionFailed"):
            management.declare_queue(ClassicQueueSpecification(name=queue))

    def test_missing_objects(self, broker: Broker, management: Management, name: str) -> None:
        with pytest.raises(ValidationCodeException, match="400"):
            management.declare_queue(ClassicQueueSpecification(name=name, overflow_behaviour="explode"))
        # The client does not show the text of the reply, but the log has it.
        assert "invalid arg 'x-overflow': received 'explode'" in broker.log()  # type: ignore[attr-defined]
        with pytest.raises(ValidationCodeException, match="404"):
            management.purge_queue(name)
        with pytest.raises(ValidationCodeException, match="404"):
            management.bind(ExchangeToQueueBindingSpecification("amq.topic", name, "k"))
        with pytest.raises(ValidationCodeException, match="403"):
            management.declare_queue(ClassicQueueSpecification(name="amq.mine"))

    @pytest.mark.parametrize("kind", list(ExchangeType), ids=lambda kind: kind.value)
    def test_exchanges(self, management: Management, name: str, kind: ExchangeType) -> None:
        specification = ExchangeSpecification(name=name, exchange_type=kind, is_durable=False)
        for _ in range(2):
            management.declare_exchange(specification)
        with pytest.raises(ValidationCodeException, match="ErrPreconditionFailed"):
            management.declare_exchange(ExchangeSpecification(name=name, exchange_type=kind))
        management.delete_exchange(name)
        management.delete_exchange(name)

    def test_exchanges_of_a_custom_type(self, management: Management, name: str) -> None:
        management.declare_exchange(ExchangeCustomSpecification(name=name, exchange_type="x-consistent-hash"))
        management.delete_exchange(name)
        with pytest.raises(ValidationCodeException, match="400"):
            management.declare_exchange(ExchangeCustomSpecification(name=name, exchange_type="x-strange"))

    def test_bindings(self, connection: Connection, management: Management, queue: str, name: str) -> None:
        exchange = f"{name} x"
        management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.topic))
        specification = ExchangeToQueueBindingSpecification(exchange, queue, "key.#")
        path = management.bind(specification)
        publisher = connection.publisher(AddressHelper.exchange_address(exchange, "key.1"))
        publisher.publish(message())
        management.unbind(path)
        with pytest.raises(SendException):
            publisher.publish(message())
        management.bind(specification)
        publisher.publish(message())
        management.unbind(specification)
        publisher.close()
        assert management.purge_queue(queue) == 2
        management.delete_exchange(exchange)

    def test_bindings_between_exchanges(
        self, connection: Connection, management: Management, queue: str, name: str
    ) -> None:
        for exchange in (f"{name}.a", f"{name}.b"):
            management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.fanout))
        management.bind(ExchangeToExchangeBindingSpecification(f"{name}.a", f"{name}.b", "k"))
        management.bind(ExchangeToQueueBindingSpecification(f"{name}.b", queue))
        publisher = connection.publisher(AddressHelper.exchange_address(f"{name}.a"))
        publisher.publish(message())
        publisher.close()
        assert management.purge_queue(queue) == 1
        # The client's path names the destination as a queue, which does not exist, so nothing happens.
        management.unbind(ExchangeToExchangeBindingSpecification(f"{name}.a", f"{name}.b", "k"))
        management.delete_exchange(f"{name}.a")
        management.delete_exchange(f"{name}.b")

    def test_permissions(self, broker: Broker, connect: Callable[..., Connection]) -> None:
        management = connect(uri=broker.url(user="limited", password="secret", vhost="interop")).management()
        management.declare_queue(ClassicQueueSpecification(name="mine-1"))
        with pytest.raises(ValidationCodeException, match="403"):
            management.declare_queue(ClassicQueueSpecification(name="other"))
        assert management.queue_info("mine-1").message_count == 0
        management.delete_queue("mine-1")

    def test_a_queue_is_deleted_under_a_consumer(self, connection: Connection, management: Management, name: str) -> None:
        management.declare_queue(ClassicQueueSpecification(name=name))
        connection.consumer(to_queue(name), message_handler=Handler(1))
        # The reply comes first: the client would mistake an earlier end of the consumer for that of the request.
        management.delete_queue(name)
        # The client closes the connection if the end of a consumer is not handled.
        connection._conn.wait(lambda: bool(connection._conn._is_closed()), timeout=60)


class TestPublishing:
    def test_outcomes(self, connection: Connection, management: Management, name: str) -> None:
        management.declare_queue(ClassicQueueSpecification(name=name, max_len=1, overflow_behaviour="reject-publish"))
        publisher = connection.publisher(to_queue(name))
        assert publisher.publish(message()).remote_state == OutcomeState.ACCEPTED
        with pytest.raises(AmqpMessageRejectedException, match=f"queue '{name}' in vhost '/' is full"):
            publisher.publish(message())
        publisher.close()
        management.delete_queue(name)
        nowhere = connection.publisher(AddressHelper.exchange_address("amq.direct", name))
        with pytest.raises(SendException):
            nowhere.publish(message())
        nowhere.close()

    def test_addresses_in_messages(self, connection: Connection, queue: str, name: str) -> None:
        publisher = connection.publisher()
        there = AddressHelper.message_to_address_helper(message("there"), to_queue(queue))
        assert publisher.publish(there).remote_state == OutcomeState.ACCEPTED
        nowhere = AddressHelper.message_to_address_helper(message(), to_queue(name + " none"))
        with pytest.raises(AmqpMessageRejectedException, match="no queue"):
            publisher.publish(nowhere)
        assert publisher.publish(there).remote_state == OutcomeState.ACCEPTED
        publisher.close()

    def test_missing_addresses(self, connection: Connection, name: str) -> None:
        for address in (to_queue(name), AddressHelper.exchange_address(name)):
            with pytest.raises(LinkDetached, match=r"not-found|no queue|no exchange"):
                connection.publisher(address)

    def test_deliveries_to_0_9_1(self, connection: Connection, queue: str, channel: BlockingChannel) -> None:
        publish(connection, queue, message("text", id="1", content_type="text/plain", application_properties={"a": 1}))
        got = get(channel, queue)
        assert (got.body, got.properties.message_id, got.properties.content_type) == (b"text", "1", "text/plain")
        assert got.properties.headers["a"] == 1


class TestConsuming:
    def test_accepted(self, connection: Connection, management: Management, queue: str) -> None:
        publish(connection, queue, *(message(str(number)) for number in range(30)))
        handler = consume(connection, queue, Handler(30), credit=7)
        assert handler.bodies == [str(number) for number in range(30)]
        assert management.queue_info(queue).message_count == 0

    def test_credit_limits_unsettled_messages(self, connection: Connection, management: Management, queue: str) -> None:
        publish(connection, queue, *(message(str(number)) for number in range(30)))
        consumer = connection.consumer(to_queue(queue), message_handler=Handler(1, Handler.nothing), credit=1)
        with pytest.raises(Enough):
            consumer.run()
        # The handler occasionally gives credit for ten messages by itself.
        assert 0 < management.queue_info(queue).message_count < 30
        consumer.close()

    def test_discarded(self, connection: Connection, management: Management, queue: str, name: str) -> None:
        dead = f"{name}.dead"
        management.declare_queue(ClassicQueueSpecification(name=dead))
        source = f"{name}.source"
        management.declare_queue(
            QuorumQueueSpecification(name=source, dead_letter_exchange="", dead_letter_routing_key=dead)
        )
        publish(connection, source, message("one"), message("two"))
        annotations: dict[str, Any] = {"x-opt-why": "because"}

        def settle(handler: Handler, event: Event) -> None:
            if len(handler.messages) == 1:
                handler.delivery_context.discard(event)
            else:
                handler.delivery_context.discard_with_annotations(event, annotations)

        consume(connection, source, Handler(2, settle))
        got = consume(connection, dead, Handler(2))
        assert got.bodies == ["one", "two"]
        noted = got.messages[1].annotations
        assert noted is not None and noted["x-opt-why"] == "because"
        management.delete_queue(source)
        management.delete_queue(dead)

    def test_requeued(self, connection: Connection, queue: str) -> None:
        publish(connection, queue, message("again"))

        def settle(handler: Handler, event: Event) -> None:
            count = len(handler.messages)
            if count == 1:
                handler.delivery_context.requeue(event)
            elif count == 2:
                handler.delivery_context.requeue_with_annotations(event, {"x-opt-times": 2})
            else:
                handler.delivery_context.accept(event)

        handler = consume(connection, queue, Handler(3, settle))
        assert handler.bodies == ["again"] * 3
        noted = handler.messages[2].annotations
        assert noted is not None and noted["x-opt-times"] == 2

    def test_presettled(self, connection: Connection, management: Management, queue: str) -> None:
        publish(connection, queue, message("one"))
        refused = []

        def settle(handler: Handler, event: Event) -> None:
            try:
                handler.delivery_context.accept(event)
            except InvalidOperationException:
                refused.append(event)

        consume(connection, queue, Handler(1, settle), consumer_options=ConsumerOptions(ConsumerSettleStrategy.PreSettled))
        assert len(refused) == 1
        assert management.queue_info(queue).message_count == 0

    def test_large_messages(self, connection: Connection, queue: str) -> None:
        body = "x" * 1_000_000
        publish(connection, queue, message(body))
        assert consume(connection, queue, Handler(1)).bodies == [body]

    @pytest.mark.parametrize(
        "options",
        [
            StreamFilterOptions(message_properties=MessageProperties(subject="wanted")),
            StreamFilterOptions(application_properties={"color": "red"}),
            StreamFilterOptions(sql="properties.subject LIKE 'want%' AND color IN ('red', 'blue')"),
        ],
        ids=["properties", "application properties", "sql"],
    )
    def test_filters(
        self, connection: Connection, management: Management, queue: str, options: StreamFilterOptions
    ) -> None:
        for number in range(6):
            wanted = number % 2 == 0
            publish(
                connection,
                queue,
                message(
                    str(number),
                    subject="wanted" if wanted else "other",
                    application_properties={"color": "red" if wanted else "green"},
                ),
            )
        handler = consume(connection, queue, Handler(3), consumer_options=StreamConsumerOptions(filter_options=options))
        assert handler.bodies == ["0", "2", "4"]
        assert management.queue_info(queue).message_count == 3

    def test_a_filter_that_cannot_be_understood(self, connection: Connection, queue: str) -> None:
        options = StreamConsumerOptions(filter_options=StreamFilterOptions(sql="color LIKE"))
        with pytest.raises(LinkDetached, match=r"invalid-field|expected"):
            connection.consumer(to_queue(queue), message_handler=Handler(1), consumer_options=options)

    def test_streams(self, connection: Connection, management: Management, name: str) -> None:
        specification = StreamSpecification(
            name=name,
            max_len_bytes=1 << 30,
            max_age=timedelta(days=1),
            stream_max_segment_size_bytes=1 << 20,
            stream_filter_size_bytes=32,
            initial_group_size=3,
            leader_locator="client-local",
        )
        for _ in range(2):
            management.declare_queue(specification)
        publish(
            connection,
            name,
            *(message(str(number), annotations={"x-stream-filter-value": str(number % 2)}) for number in range(6)),
        )
        assert management.queue_info(name).queue_type is QueueType.stream
        with pytest.raises(ValidationCodeException, match="400"):
            management.purge_queue(name)
        for offset, first in ((OffsetSpecification.first, 0), (4, 4)):
            handler = consume(connection, name, Handler(6 - first), consumer_options=StreamConsumerOptions(offset))
            assert handler.bodies == [str(number) for number in range(first, 6)]
            assert handler.offset == 5
        options = StreamConsumerOptions(OffsetSpecification.first, StreamFilterOptions(values=["1"]))
        assert consume(connection, name, Handler(3), consumer_options=options).bodies == ["1", "3", "5"]
        management.delete_queue(name)

    def test_single_active_consumers_are_notified(
        self, connect: Callable[..., Connection], management: Management, name: str
    ) -> None:
        management.declare_queue(QuorumQueueSpecification(name=name, single_active_consumer=True))
        states: dict[int, list[bool]] = {1: [], 2: []}
        consumers = []
        for number in (1, 2):
            connection = connect()
            consumers.append(
                connection.consumer(
                    to_queue(name),
                    message_handler=Handler(1),
                    consumer_options=QuorumConsumerOptions(sac_state_handler=states[number].append),
                )
            )
        run_until(consumers[0], lambda: states[1] == [True])
        run_until(consumers[1], lambda: states[2] == [False])
        consumers[0].close()
        run_until(consumers[1], lambda: states[2] == [False, True])
        publish(connect(), name, message("for the second"))
        with pytest.raises(Enough):
            consumers[1].run()
        handler = consumers[1].handler
        assert isinstance(handler, Handler)
        assert handler.bodies == ["for the second"]
        consumers[1].close()
        management.delete_queue(name)


def run_until(consumer: Any, condition: Callable[[], bool]) -> None:
    consumer._conn.wait(condition, timeout=60)


class TestDirectReplyTo:
    def test_both_sides(self, connect: Callable[..., Connection], queue: str) -> None:
        asking = connect()
        options = ConsumerOptions(ConsumerSettleStrategy.DirectReplyTo)
        replies = Handler(1, Handler.nothing)
        consumer = asking.consumer(message_handler=replies, consumer_options=options)
        assert consumer.address is not None and consumer.address.startswith("/queues/amq.rabbitmq.reply-to.")
        publish(asking, queue, message("question", id="7", reply_to=consumer.address))

        answering = connect()
        asked = consume(answering, queue, Handler(1)).messages[0]
        assert asked.reply_to is not None
        publisher = answering.publisher(asked.reply_to)
        publisher.publish(message("answer", correlation_id=asked.id))
        with pytest.raises(Enough):
            consumer.run()
        assert replies.bodies == ["answer"]
        assert replies.messages[0].correlation_id == "7"
        consumer.close()
        with pytest.raises((SendException, LinkDetached, AmqpMessageRejectedException)):
            publisher.publish(message("too late"))

    def test_answered_by_0_9_1(self, connection: Connection, queue: str, channel: BlockingChannel) -> None:
        replies = Handler(1, Handler.nothing)
        consumer = connection.consumer(
            message_handler=replies, consumer_options=ConsumerOptions(ConsumerSettleStrategy.DirectReplyTo)
        )
        publish(connection, queue, message("question", id="7", reply_to=consumer.address))
        asked = get(channel, queue)
        assert asked.properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        channel.basic_publish(
            "", asked.properties.reply_to, b"answer", pika.BasicProperties(correlation_id=asked.properties.message_id)
        )
        with pytest.raises(Enough):
            consumer.run()
        assert replies.bodies == ["answer"]
        assert replies.messages[0].correlation_id == "7"
        consumer.close()

    def test_requested_over_0_9_1(self, connection: Connection, queue: str, channel: BlockingChannel) -> None:
        answers: list[bytes] = []
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *arguments: answers.append(arguments[3]), auto_ack=True)
        channel.basic_publish("", queue, b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        asked = consume(connection, queue, Handler(1)).messages[0]
        assert asked.reply_to is not None
        publisher = connection.publisher(asked.reply_to)
        publisher.publish(message("answer"))
        publisher.close()
        pump(channel.connection, lambda: answers)
        assert answers == [b"answer"]


def test_async_api(broker: Broker, name: str) -> None:
    async def run() -> None:
        async with AsyncEnvironment(uri=broker.url(vhost="")) as environment, await environment.connection() as connection:
            management = await connection.management()
            await management.declare_queue(QuorumQueueSpecification(name=name))
            publisher = await connection.publisher(destination=to_queue(name))
            assert (await publisher.publish(message())).remote_state == OutcomeState.ACCEPTED
            await publisher.close()
            assert await management.purge_queue(name) == 1
            await management.delete_queue(name)

    asyncio.run(run())
