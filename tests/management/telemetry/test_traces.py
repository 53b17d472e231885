"""Traces from publishers through the broker to consumers: real processes, clients and spans."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext, Tracer, format_span_id, format_trace_id

import leveret
from leveret import sync
from leveret.client import amqp10
from tests.docs.pages import blocks
from tests.management.telemetry.collector import Collector, Span, unreachable
from tests.management.telemetry.conftest import start_broker
from tests.support.broker import ROOT, LeveretProcess
from tests.support.polling import wait_until

PROTOCOLS = ("0-9-1", "1.0", "0-9")
PARENT = "00f067aa0ba902b7"


def new_trace() -> str:
    return os.urandom(16).hex()


def traceparent(trace_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-{PARENT}-{flags}"


def header_of(context: SpanContext) -> str:
    """Return the `traceparent` of a span."""
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


@contextmanager
def opened(broker: LeveretProcess, protocol: str, tracing: str = "propagate") -> Iterator[Any]:
    """Open a channel, or a session of AMQP 1.0."""
    connected: Any = sync.connect(broker.url(), protocol=protocol, tracing=tracing)
    with connected as connection, connection.session() if protocol == "1.0" else connection.channel() as channel:
        yield channel


def one(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def publish(broker: LeveretProcess, queue: str, headers: dict[str, Any], **arguments: Any) -> None:
    """Declare a queue and publish a message to it."""
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(queue, **arguments)
        channel.publish("hello", queue, headers=headers)


def take(broker: LeveretProcess, queue: str) -> None:
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        message = channel.get(queue)
        assert message is not None
        message.ack()


class TestPropagation:
    @pytest.mark.parametrize("consumer", PROTOCOLS)
    @pytest.mark.parametrize("publisher", PROTOCOLS)
    def test_one_trace_from_publisher_to_consumer(
        self, broker: LeveretProcess, collector: Collector, tracer: Tracer, name: str, publisher: str, consumer: str
    ) -> None:
        with opened(broker, publisher) as channel:
            channel.declare_queue(name)
            with tracer.start_as_current_span("order", kind=trace.SpanKind.PRODUCER) as span:
                channel.publish("hello", name)
        context = span.get_span_context()
        trace_id, parent = format_trace_id(context.trace_id), format_span_id(context.span_id)
        with opened(broker, consumer, "spans") as channel, channel.consume(name) as messages:
            message = messages.next()
            assert message.headers["traceparent"] == header_of(context)
            with message.process():
                pass
        steps = ["publish amq.default", *(f"{step} {name}" for step in ("route", "deliver", "settle"))]
        spans = collector.wait_spans(trace_id, steps)
        assert {span.parent_id for span in spans} == {parent}
        (process,) = wait_until(
            lambda: [span for span in collector.spans(trace_id) if span.name == f"process {name}"], "the consumer's span"
        )
        assert (process.service, process.parent_id, process.links) == ("shop", parent, [parent])
        versions = {"0-9-1": "0.9.1", "1.0": "1.0", "0-9": "0.9"}
        for step, protocol in (
            ("publish amq.default", publisher),
            (f"route {name}", publisher),
            (f"settle {name}", consumer),
        ):
            assert one(spans, step).attributes["network.protocol.version"] == versions[protocol]

    @pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
    def test_tasks_have_contexts_of_their_own(
        self, broker: LeveretProcess, collector: Collector, tracer: Tracer, name: str, protocol: str
    ) -> None:
        async def order(channel: Any, number: int) -> SpanContext:
            with tracer.start_as_current_span("order") as span:
                await channel.publish(str(number), name)
            return span.get_span_context()

        async def run() -> tuple[list[SpanContext], dict[int, SpanContext]]:
            connected: Any = leveret.connect(broker.url(), protocol=protocol, tracing="spans")
            async with (
                connected as connection,
                connection.session() if protocol == "1.0" else connection.channel() as channel,
            ):
                await channel.declare_queue(name)
                orders = await asyncio.gather(*(order(channel, number) for number in range(5)))
                processed = {}
                async with channel.consume(name) as messages:
                    for _ in orders:
                        message = await messages.next()
                        with message.process():
                            processed[int(message.body)] = trace.get_current_span().get_span_context()
                return orders, processed

        orders, processed = asyncio.run(run())
        assert [context.trace_id for context in orders] == [processed[number].trace_id for number in range(5)]
        for context in orders:
            steps = ["publish amq.default", *(f"{step} {name}" for step in ("route", "deliver", "settle"))]
            collector.wait_spans(format_trace_id(context.trace_id), steps)

    def test_attributes_and_times(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_exchange(name, "topic")
            channel.declare_queue(name)
            channel.bind_queue(name, name, "a.*")
            channel.publish("hello", "a.b", name, headers={"traceparent": traceparent(trace_id)})
        take(broker, name)
        spans = collector.wait_spans(trace_id, [f"{step} {name}" for step in ("publish", "route", "deliver", "settle")])
        published, routed, delivered, settled = (
            one(spans, f"{step} {name}") for step in ("publish", "route", "deliver", "settle")
        )
        common = {
            "messaging.system": "rabbitmq",
            "messaging.destination.name": name,
            "messaging.rabbitmq.destination.routing_key": "a.b",
            "messaging.message.body.size": 5,
            "leveret.vhost": "/",
        }
        assert published.attributes == common | {
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "network.protocol.name": "amqp",
            "network.protocol.version": "0.9.1",
            "leveret.outcome": "routed",
            "leveret.queues": 1,
        }
        assert delivered.attributes == common | {
            "messaging.operation.name": "deliver",
            "messaging.operation.type": "receive",
            "messaging.destination.publish.name": name,
        }
        assert settled.attributes["messaging.operation.type"] == "settle"
        assert settled.attributes["leveret.outcome"] == "accepted"
        assert "messaging.operation.type" not in routed.attributes
        assert (published.began, published.ended) == (routed.began, routed.ended)
        assert routed.ended == delivered.began < delivered.ended == settled.began < settled.ended

    def test_fan_out(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        queues = [f"{name}.{number}" for number in range(3)]
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_exchange(name, "fanout")
            for queue in queues:
                channel.declare_queue(queue)
                channel.bind_queue(queue, name)
            channel.publish("hello", "", name, headers={"traceparent": traceparent(trace_id)})
        spans = collector.wait_spans(trace_id, [f"publish {name}", *(f"route {queue}" for queue in queues)])
        assert one(spans, f"publish {name}").attributes["leveret.queues"] == 3

    def test_a_publish_inside_a_publisher_window(
        self, broker: LeveretProcess, collector: Collector, tracer: Tracer, name: str
    ) -> None:
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue(name)
            with channel.publisher(routing_key=name, persistent=True) as publisher:
                ids = []
                for _ in range(2):
                    with tracer.start_as_current_span("order") as span:
                        publisher.publish("hello")
                    ids.append(format_trace_id(span.get_span_context().trace_id))
                publisher.publish("without a span")
            found = [channel.get(name, no_ack=True) for _ in range(3)]
        headers = [message.headers.get("traceparent", "") for message in found if message is not None]
        assert [header[3:35] for header in headers] == [*ids, ""]

    def test_a_routing_key_that_is_not_utf8(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue(name)
            channel.bind_queue(name, "amq.fanout")
            channel.publish("hello", "key\udcff", "amq.fanout", headers={"traceparent": traceparent(trace_id)})
            channel.delete_queue(name)
        spans = collector.wait_spans(trace_id, ["publish amq.fanout", f"route {name}"])
        assert {span.attributes["messaging.rabbitmq.destination.routing_key"] for span in spans} == {"key\\xff"}

    def test_a_transaction(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with sync.connect(broker.url()) as connection, connection.channel(transactional=True) as channel:
            channel.declare_queue(name)
            with channel.transaction():
                channel.publish("hello", name, headers={"traceparent": traceparent(trace_id)})
        collector.wait_spans(trace_id, ["publish amq.default", f"route {name}"])


class TestSteps:
    def test_a_dead_letter(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        dead = f"{name}.dead"
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue(dead)
            channel.declare_queue(name, arguments=arguments)
            channel.publish("hello", name, headers={"traceparent": traceparent(trace_id)})
            message = channel.get(name)
            assert message is not None
            message.reject()
            wait_until(lambda: channel.get(dead), "the dead letter").ack()
        steps = ["publish amq.default"]
        steps += [f"{step} {name}" for step in ("route", "deliver", "settle", "dead-letter")]
        steps += [f"{step} {dead}" for step in ("route", "deliver", "settle")]
        spans = collector.wait_spans(trace_id, steps)
        assert one(spans, f"settle {name}").attributes["leveret.outcome"] == "rejected"
        dead_letter = one(spans, f"dead-letter {name}").attributes
        assert (dead_letter["leveret.reason"], dead_letter["leveret.outcome"]) == ("rejected", "routed")
        assert {span.parent_id for span in spans} == {PARENT}

    def test_an_expired_message(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        publish(broker, name, {"traceparent": traceparent(trace_id)}, arguments={"x-message-ttl": 1})
        spans = collector.wait_spans(trace_id, ["publish amq.default", f"route {name}", f"expire {name}"])
        expired = one(spans, f"expire {name}")
        assert expired.attributes["leveret.reason"] == "expired"
        assert expired.ended - expired.began >= 1_000_000  # the time in the queue

    def test_a_full_queue_drops_its_oldest_message(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        publish(broker, name, {"traceparent": traceparent(trace_id)}, arguments={"x-max-length": 1})
        publish(broker, name, {}, arguments={"x-max-length": 1})
        spans = collector.wait_spans(trace_id, ["publish amq.default", f"route {name}", f"drop {name}"])
        assert one(spans, f"drop {name}").attributes["leveret.reason"] == "maxlen"

    def test_a_released_message_is_delivered_again(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        publish(broker, name, {"traceparent": traceparent(trace_id)})
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            for settle in ("nack", "ack"):
                message = wait_until(lambda: channel.get(name), "the message")
                getattr(message, settle)()
        steps = ["publish amq.default", *(f"{step} {name}" for step in ("route", "deliver", "settle", "deliver", "settle"))]
        spans = collector.wait_spans(trace_id, steps)
        released, accepted = (span for span in spans if span.name == f"settle {name}")
        assert (released.attributes["leveret.outcome"], accepted.attributes["leveret.outcome"]) == ("released", "accepted")
        again = [span for span in spans if span.name == f"deliver {name}"][1]
        assert again.began == released.ended

    def test_an_unroutable_message(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.publish("hello", name, headers={"traceparent": traceparent(trace_id)})
        (span,) = collector.wait_spans(trace_id, ["publish amq.default"])
        assert span.attributes["leveret.outcome"] == "unroutable"

    def test_a_stream(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        arguments = {"x-queue-type": "stream"}
        publish(broker, name, {"traceparent": traceparent(trace_id)}, durable=True, arguments=arguments)
        with (
            sync.connect(broker.url()) as connection,
            connection.channel() as channel,
            channel.consume(name, arguments={"x-stream-offset": "first"}) as messages,
        ):
            messages.next().ack()
        steps = ["publish amq.default", *(f"{step} {name}" for step in ("route", "deliver", "settle"))]
        collector.wait_spans(trace_id, steps)

    def test_events_of_a_traced_queue(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue(name)
            events = channel.declare_queue(f"{name}.events")
            channel.bind_queue(events, "amq.leveret.events", f"routed.{name}")
            channel.publish("hello", name, headers={"traceparent": traceparent(trace_id)})
            event = wait_until(lambda: channel.get(events, no_ack=True), "the event")
            assert json.loads(event.body)["event"] == "routed"
            channel.unbind_queue(events, "amq.leveret.events", f"routed.{name}")
        take(broker, name)
        steps = ["publish amq.default", *(f"{step} {name}" for step in ("route", "deliver", "settle"))]
        collector.wait_spans(trace_id, steps)


class TestHeaders:
    def check_ignored(self, broker: LeveretProcess, collector: Collector, trace_id: str, queue: str) -> None:
        """Check that a trace has no spans, after a traced message that was published later has."""
        later = new_trace()
        publish(broker, queue, {"traceparent": traceparent(later)})
        collector.wait_spans(later, ["publish amq.default", f"route {queue}"])
        assert not collector.spans(trace_id)

    def test_an_unsampled_trace_has_no_spans(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        publish(broker, name, {"traceparent": traceparent(trace_id, "00")})
        self.check_ignored(broker, collector, trace_id, name)

    @pytest.mark.parametrize(
        "form",
        [
            "00-{}-00f067aa0ba902b7",
            "00-{}-00f067aa0ba902b7-01-more",
            "ff-{}-00f067aa0ba902b7-01",
            "00-{}-0000000000000000-01",
            "00-{}-00f067aa0ba902b7-0g",
            "00-{}-00f067aa0ba902b7-01 ",
            "0-{}-00f067aa0ba902b7-01",
            "",
        ],
    )
    def test_a_malformed_traceparent_is_ignored(
        self, broker: LeveretProcess, collector: Collector, name: str, form: str
    ) -> None:
        trace_id = new_trace()
        publish(broker, name, {"traceparent": form.format(trace_id)})
        self.check_ignored(broker, collector, trace_id, name)

    @pytest.mark.parametrize("value", [7, b"\xff" * 55, ["00"], {"traceparent": "x"}, None])
    def test_other_types_are_ignored(self, broker: LeveretProcess, collector: Collector, name: str, value: object) -> None:
        publish(broker, name, {"traceparent": value})
        self.check_ignored(broker, collector, new_trace(), name)

    def test_a_nested_header_is_ignored(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        publish(broker, name, {"original": {"traceparent": traceparent(trace_id)}})
        self.check_ignored(broker, collector, trace_id, name)

    def test_a_later_version_with_more_fields(self, broker: LeveretProcess, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        publish(broker, name, {"before": 1, "traceparent": f"cc-{trace_id}-{PARENT}-01-more", "after": "x"})
        collector.wait_spans(trace_id, ["publish amq.default", f"route {name}"])

    def test_a_sender_of_amqp10(self, broker: LeveretProcess, collector: Collector, tracer: Tracer, name: str) -> None:
        with sync.connect(broker.url(), protocol="1.0") as connection, connection.session() as session:
            session.declare_queue(name)
            with session.sender(f"/queues/{name}") as sender, tracer.start_as_current_span("order") as span:
                sender.send(b"bytes")
                sender.send(amqp10.Message(body="a message", application_properties={"own": 1}))
            with session.consume(name, no_ack=True) as messages:
                found = [messages.next().headers for _ in range(2)]
        expected = header_of(span.get_span_context())
        assert found == [{"traceparent": expected}, {"traceparent": expected, "own": 1}]


class TestLimits:
    def test_a_share_of_the_traces(self, tmp_path: Path, collector: Collector, name: str) -> None:
        below, above = "1" * 16 + "7" + "f" * 15, "1" * 16 + "8" + "0" * 15
        with start_broker(tmp_path, collector.url, sample="0.5") as broker:
            publish(broker, name, {"traceparent": traceparent(above)})
            publish(broker, name, {"traceparent": traceparent(below)})
            collector.wait_spans(below, ["publish amq.default", f"route {name}"])
        assert not collector.spans(above)

    def test_no_traces(self, tmp_path: Path, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with start_broker(tmp_path, collector.url, traces="false", service_name="untraced", metrics_interval="1") as broker:
            publish(broker, name, {"traceparent": traceparent(trace_id)})
            requests = collector.requests
            wait_until(lambda: collector.requests > requests + 1, "metrics")
        assert not collector.spans(trace_id)

    def test_the_last_spans_before_a_stop(self, tmp_path: Path, collector: Collector, name: str) -> None:
        trace_id = new_trace()
        with start_broker(tmp_path, collector.url) as broker:
            broker.wait_for_log("exporting to")
            publish(broker, name, {"traceparent": traceparent(trace_id)})
        assert sorted(span.name for span in collector.spans(trace_id)) == ["publish amq.default", f"route {name}"]

    def test_an_unreachable_collector(self, tmp_path: Path, name: str) -> None:
        with unreachable() as (endpoint, start), start_broker(tmp_path, endpoint, metrics="false") as broker:
            with sync.connect(broker.url()) as connection, connection.channel() as channel:
                channel.declare_queue(name)
                with channel.publisher(routing_key=name, headers={"traceparent": traceparent(new_trace())}) as publisher:
                    for _ in range(500):
                        publisher.publish("hello")
                broker.wait_for_log("cannot export to the collector")
                trace_id = new_trace()
                collector = start()
                channel.publish("hello", name, headers={"traceparent": traceparent(trace_id)})
                collector.wait_spans(trace_id, ["publish amq.default", f"route {name}"])
            broker.wait_for_log("answers again; 1000 spans were lost")
            assert broker.log().count("leveret.telemetry") == 3


def test_the_program_of_the_documentation(broker: LeveretProcess, collector: Collector) -> None:
    program = blocks(ROOT / "docs" / "tracing.md", "python")[0].text.replace("amqp://localhost", broker.url())
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("processed in the trace of the order\n", "")
    (order,) = [span for span in collector.spans() if span.name == "place order"]
    steps = ["publish amq.default", *(f"{step} orders" for step in ("route", "deliver", "settle"))]
    collector.wait_spans(order.trace_id, steps)
    assert "process orders" in [span.name for span in collector.spans(order.trace_id)]
