"""OpenTelemetry's trace context in messages, if `opentelemetry-api` is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from leveret.client.amqp10 import Message as Amqp10Message
from leveret.client.engine.common.encoding import Body, Encoder
from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.errors import InvalidMessage, InvalidUrl
from leveret.client.properties import Headers, Properties, PropertyValue
from leveret.wire.amqp0.values import Arguments
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext

    from leveret.client.message import Message

SPANS: Final = "spans"
OFF: Final = "off"

# The value that instrumentations of AMQP clients use.
_SYSTEM: Final = "rabbitmq"
_DEFAULT_EXCHANGE: Final = "amq.default"


class Tracing:
    """Propagation of the trace context over a connection.

    Attributes:
        spans: Whether `Message.process` starts a span.
    """

    def __init__(self, spans: bool) -> None:
        self.spans = spans

    def _carrier(self) -> dict[str, str]:
        """Return the headers of the current span; empty without one."""
        if "opentelemetry.trace" not in sys.modules:
            return {}  # no span can be current before the application imports it
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            return {}  # a signal handler has interrupted another thread that was importing it

        carrier: dict[str, str] = {}
        if trace.get_current_span().get_span_context().is_valid:
            propagate.inject(carrier)
        return carrier

    def add_headers(self, properties: Properties | None, keywords: dict[str, PropertyValue]) -> dict[str, PropertyValue]:
        """Return the keywords of a publish with the current context as headers, unless the message has such headers."""
        carrier = self._carrier()
        headers = keywords.get("headers")
        if "headers" not in keywords and isinstance(properties, Properties):
            headers = properties.headers
        if not carrier or not (headers is None or isinstance(headers, dict)):
            return keywords
        return {**keywords, "headers": {**carrier, **(headers or {})}}

    def add_application_properties(self, body: Checked, fields: Arguments) -> Arguments:
        """Return the fields of an AMQP 1.0 message with the current context as application properties."""
        carrier = self._carrier()
        application = fields.get("application_properties")
        if "application_properties" not in fields and isinstance(body, Amqp10Message):
            application = body.application_properties
        if not carrier or not (application is None or isinstance(application, Mapping)):
            return fields
        return {**fields, "application_properties": {**carrier, **(application or {})}}

    @contextmanager
    def process(self, message: Message, block: AbstractContextManager[Message]) -> Iterator[Message]:
        """Run a block that processes a message in a span.

        The span is linked to the publisher's. Its parent is the current span, or the publisher's if there is none.
        """
        from opentelemetry import trace

        try:
            context: Context | None = message.trace_context()
        except InvalidMessage:
            context = None
        links = []
        if context is not None:
            publisher: SpanContext = trace.get_current_span(context).get_span_context()
            if publisher.is_valid:
                links.append(trace.Link(publisher))
        if trace.get_current_span().get_span_context().is_valid:
            context = None
        exchange, routing_key = message.exchange, message.routing_key
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": exchange or _DEFAULT_EXCHANGE,
            "messaging.message.body.size": message.size,
        }
        if routing_key:
            attributes["messaging.rabbitmq.destination.routing_key"] = routing_key
        with (
            trace.get_tracer("leveret").start_as_current_span(
                f"process {exchange or routing_key}", context, trace.SpanKind.CONSUMER, attributes, links
            ),
            block,
        ):
            yield message


class TracingEncoder(Encoder):
    """Encoder that adds the current trace context to each publish."""

    __slots__ = ("_encoder", "_tracing")

    varies = True

    def __init__(self, encoder: Encoder, tracing: Tracing) -> None:
        self._encoder = encoder
        self._tracing = tracing

    def merge(self, properties: Properties | None, keywords: dict[str, PropertyValue]) -> bytes:
        """Return the encoded properties of a publish, with the current context."""
        return self._encoder.merge(properties, self._tracing.add_headers(properties, keywords))

    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Outgoing:
        """Return an encoded publish."""
        return self._encoder.encode(body, exchange, routing_key, flags, properties)


@cache
def _is_installed() -> bool:
    return find_spec("opentelemetry") is not None


def new_tracing(mode: str) -> Tracing | None:
    """Return the propagation for a value of the option `tracing`; None if it is off or the API is not installed.

    Raises:
        InvalidUrl: Spans are wanted, but the API is not installed.
    """
    if mode == OFF:
        return None
    if not _is_installed():
        if mode == SPANS:
            raise InvalidUrl("option tracing: 'spans' requires opentelemetry-api; install it, or use 'propagate'")
        return None
    return Tracing(mode == SPANS)


def traced(encoder: Encoder, tracing: Tracing | None) -> Encoder:
    """Return an encoder that adds the current context, if the connection propagates it."""
    return encoder if tracing is None else TracingEncoder(encoder, tracing)


def context_of(headers: Headers) -> Context:
    """Return the context in the headers of a message. Raises ImportError if `opentelemetry-api` is not installed."""
    from opentelemetry import propagate
    from opentelemetry.context import Context

    return propagate.extract({name: value for name, value in headers.items() if isinstance(value, str)}, Context())
