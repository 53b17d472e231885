"""The trace context of the client library, without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from leveret.client import InvalidUrl, Parameters, Properties
from leveret.client import tracing as client_tracing
from leveret.client.amqp10 import Message
from leveret.client.engine.amqp091.encoding import Amqp091Encoder
from leveret.client.properties import decode_properties
from leveret.client.tracing import Tracing, context_of, new_tracing, traced
from tests.support.broker import ROOT

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
CARRIER = {"traceparent": TRACEPARENT, "tracestate": "vendor=value"}


@pytest.fixture
def span() -> Iterator[None]:
    """Make a span with a state the current one."""
    state = TraceState([("vendor", "value")])
    span = NonRecordingSpan(
        SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, False, TraceFlags(1), state)
    )
    token = context.attach(trace.set_span_in_context(span))
    yield
    context.detach(token)


def test_without_a_span_nothing_is_added() -> None:
    keywords = {"headers": {"own": 1}}
    assert Tracing(False).add_headers(None, keywords) is keywords


@pytest.mark.usefixtures("span")
class TestHeaders:
    def test_a_message_without_headers(self) -> None:
        assert Tracing(False).add_headers(None, {"persistent": True}) == {"persistent": True, "headers": CARRIER}

    def test_headers_of_the_message_win(self) -> None:
        headers = {"traceparent": "own", "other": 1}
        assert Tracing(False).add_headers(None, {"headers": headers}) == {"headers": CARRIER | headers}
        assert headers == {"traceparent": "own", "other": 1}

    def test_headers_of_properties(self) -> None:
        properties = Properties(headers={"a": 1})
        assert Tracing(False).add_headers(properties, {}) == {"headers": CARRIER | {"a": 1}}
        assert Tracing(False).add_headers(properties, {"headers": None}) == {"headers": CARRIER}
        assert properties.headers == {"a": 1}

    def test_invalid_headers_are_left_to_the_encoder(self) -> None:
        keywords = {"headers": 7}
        assert Tracing(False).add_headers(None, keywords) is keywords

    def test_application_properties(self) -> None:
        add = Tracing(False).add_application_properties
        assert add(b"", {}) == {"application_properties": CARRIER}
        assert add(Message(application_properties={"a": 1}), {}) == {"application_properties": CARRIER | {"a": 1}}
        assert add(b"", {"application_properties": {"b": 2}, "subject": "s"}) == {
            "application_properties": CARRIER | {"b": 2},
            "subject": "s",
        }

    def test_an_encoder(self) -> None:
        encoder = traced(Amqp091Encoder(), new_tracing("propagate"))
        header = encoder.encode(b"body", "", "q", 0, encoder.merge(None, {})).describe()[2]
        assert header is not None and header.headers == CARRIER
        assert encoder.varies

    def test_off_is_the_plain_encoder(self) -> None:
        encoder = Amqp091Encoder()
        assert traced(encoder, new_tracing("off")) is encoder and not encoder.varies
        assert decode_properties(b"\0\x3c\0\0" + bytes(8) + encoder.merge(None, {})).headers is None


def test_the_context_of_headers() -> None:
    found = trace.get_current_span(context_of({**CARRIER, "number": 7})).get_span_context()
    assert f"{found.trace_id:032x}-{found.span_id:016x}" == TRACEPARENT[3:52]
    assert found.is_remote and found.trace_state.get("vendor") == "value"


@pytest.mark.usefixtures("span")
def test_the_context_of_headers_does_not_include_the_current_span() -> None:
    assert not trace.get_current_span(context_of({"traceparent": "malformed"})).get_span_context().is_valid


def test_options() -> None:
    assert new_tracing(Parameters().tracing) is not None
    spans = new_tracing(Parameters(tracing="spans").tracing)
    assert spans is not None and spans.spans
    with pytest.raises(InvalidUrl, match="option tracing: 'on' is invalid; expected one of propagate, spans, off"):
        Parameters(tracing="on")


def test_without_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_tracing, "_is_installed", lambda: False)
    assert new_tracing("propagate") is None
    with pytest.raises(InvalidUrl, match="option tracing: 'spans' requires opentelemetry-api"):
        new_tracing("spans")


def test_publishing_does_not_import_opentelemetry() -> None:
    program = (
        "import sys; from leveret.client.tracing import Tracing\n"
        "print(Tracing(False).add_headers(None, {}), 'opentelemetry.trace' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert found.stdout == "{} False\n"
