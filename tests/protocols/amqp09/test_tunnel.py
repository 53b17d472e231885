"""Class tunnel of AMQP 0-9: handlers from entry points, and the one that performs methods."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.broker.message import make_address
from leveret.protocols.amqp09 import tunnels
from leveret.protocols.amqp09.methods import tunnel as tunnel_methods
from leveret.security.permissions import Permission
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.protocols.amqp09.support import Channel, Client, connect
from tests.protocols.amqp09.tunnelling import content, install, send
from tests.protocols.support import Site
from tests.support.polling import wait_until
from tests.wire.amqp0.peers import frame, method

HANDLERS = """
import threading

requests = []
gate = threading.Event()


def take(request):
    requests.append(request)


def refuse(request):
    from leveret.protocols.amqp09.tunnels import Refused
    raise Refused("not " + request.data_name)


def fail(request):
    raise ZeroDivisionError("secret")


def leave(request):
    raise SystemExit(3)


def wait(request):
    requests.append(request)
    gate.wait(60)
"""


class Plugin:
    """A module with handlers."""

    def __init__(self, directory: Path, name: str) -> None:
        install(
            directory,
            name,
            HANDLERS,
            taken="take",
            refused="refuse",
            failing="fail",
            leaving="leave",
            slow="wait",
            missing="no_such_function",
        )
        self.name = name

    @property
    def requests(self) -> list[tunnels.Request]:
        """Return the received requests."""
        found: list[tunnels.Request] = __import__(self.name).requests
        return found

    def open_gate(self) -> None:
        __import__(self.name).gate.set()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Plugin:
    name = "plugin_" + re.sub(r"\W", "_", request.node.name)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Plugin(tmp_path, name)


def wait_for(channel: Channel, condition: Callable[[], bool]) -> None:
    """Run until a condition holds, because handlers run in threads."""

    def reached() -> bool:
        channel.run()
        return condition()

    wait_until(reached)


def close_of(channel: Channel) -> tuple[int, str]:
    """Wait for the close of the channel, and return its reply code and text."""

    def closed() -> bool:
        return any(isinstance(item, Method) and item.name.endswith(".close") for item in channel.client.received)

    wait_for(channel, closed)
    return channel.client.refusal()


# Handlers


@pytest.mark.rule("0-9", "tunnel.grammar.client-request")
@pytest.mark.rule("0-9", "tunnel.chassis.server")
@pytest.mark.rule("0-9", "tunnel.request.chassis.server")
@pytest.mark.rule("0-9", "tunnel.request.content")
def test_a_request_is_passed_to_the_handler_of_its_name(channel: Channel, plugin: Plugin) -> None:
    send(channel, b"body", {"a": 1, "b": "c"}, data_name="taken", proxy_name="proxy", headers={"h": 2}, durable=1)
    wait_for(channel, lambda: len(plugin.requests) == 1)
    assert plugin.requests == [
        tunnels.Request(
            user="user",
            vhost="/",
            meta_data={"a": 1, "b": "c"},
            headers={"h": 2},
            proxy_name="proxy",
            data_name="taken",
            durable=1,
            broadcast=0,
            body=b"body",
        )
    ]
    assert channel.client.received == []


def test_a_request_with_only_a_name(channel: Channel, plugin: Plugin) -> None:
    send(channel, data_name="taken")
    wait_for(channel, lambda: len(plugin.requests) == 1)
    (request,) = plugin.requests
    assert (request.headers, request.proxy_name, request.durable, request.broadcast, request.body) == ({}, "", 0, 0, b"")


def test_requests_are_handled_in_order(channel: Channel, plugin: Plugin) -> None:
    for number in range(20):
        send(channel, b"%d" % number, data_name="taken")
    wait_for(channel, lambda: len(plugin.requests) == 20)
    assert [request.body for request in plugin.requests] == [b"%d" % number for number in range(20)]


def test_a_body_in_many_frames(channel: Channel, plugin: Plugin) -> None:
    body = bytes(range(256)) * 4000
    send(channel, body, data_name="taken")
    wait_for(channel, lambda: len(plugin.requests) == 1)
    assert plugin.requests[0].body == body


def test_later_frames_wait_for_the_handler(site: Site, channel: Channel, plugin: Plugin) -> None:
    other = connect(site).channel()
    send(channel, data_name="slow")
    channel.send("queue.declare", queue="behind")
    wait_for(channel, lambda: len(plugin.requests) == 1)
    assert channel.client.take("queue.declare-ok", 1) is None
    other.declare("meanwhile")
    same = channel.client.channel()
    same.declare("too")
    plugin.open_gate()
    wait_for(channel, lambda: "behind" in site.vhost.queues)
    assert channel.client.take("queue.declare-ok", 1) is not None


@pytest.mark.parametrize("name", ["unknown", ""])
def test_a_request_without_a_handler(site: Site, channel: Channel, name: str) -> None:
    send(channel, b"body", data_name=name)
    channel.run()
    code, text = channel.client.refusal()
    assert code == 404 and (name or "no data-name") in text
    assert channel.client.is_open and channel.client.session.channels == {}
    assert len(site.broker.holders) == 0


def test_no_property_at_all(channel: Channel) -> None:
    send(channel, b"body")
    assert channel.refused() == 404


def test_a_handler_may_refuse(channel: Channel, plugin: Plugin) -> None:
    send(channel, data_name="refused")
    assert close_of(channel) == (406, "PRECONDITION_FAILED - tunnel handler 'refused': not refused")
    assert channel.client.is_open


@pytest.mark.parametrize("name", ["failing", "leaving", "missing"])
def test_a_handler_that_fails_does_not_affect_others(
    channel: Channel, plugin: Plugin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    same = channel.client.channel()
    send(channel, data_name=name)
    code, text = close_of(channel)
    assert code == 406 and "secret" not in text
    assert plugin.name in caplog.text
    same.declare("goes-on")
    again = channel.client.channel(3)
    send(again, data_name=name)
    assert close_of(again)[0] == 406
    send(same, data_name="taken")
    wait_for(same, lambda: len(plugin.requests) == 1)


def test_a_distribution_that_cannot_be_imported(tmp_path: Path, channel: Channel, plugin: Plugin) -> None:
    install(tmp_path, plugin.name + "_broken", "import no_such_module_anywhere", broken="take")
    send(channel, data_name="broken")
    assert close_of(channel)[0] == 406
    other = channel.client.channel(2)
    send(other, data_name="taken")
    wait_for(other, lambda: len(plugin.requests) == 1)


def test_broadcast_is_passed_to_all_handlers_of_a_name(tmp_path: Path, channel: Channel, plugin: Plugin) -> None:
    first = Plugin(tmp_path, "a" + plugin.name)
    send(channel, b"one", data_name="taken")
    send(channel, b"all", data_name="taken", broadcast=1)
    wait_for(channel, lambda: len(plugin.requests) == 1 and len(first.requests) == 2)
    assert [request.body for request in first.requests] == [b"one", b"all"]
    assert [(request.body, request.broadcast) for request in plugin.requests] == [(b"all", 1)]


def test_a_broadcast_that_one_handler_refuses(tmp_path: Path, channel: Channel, plugin: Plugin) -> None:
    install(tmp_path, "z" + plugin.name, HANDLERS, taken="refuse")
    send(channel, data_name="taken", broadcast=1)
    assert close_of(channel)[0] == 406
    wait_for(channel, lambda: len(plugin.requests) == 1)


def test_pending_requests_per_handler_are_limited(
    site: Site, channel: Channel, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "MAX_WAITING", 2)
    waiting = [connect(site).channel() for _ in range(2)]
    for caller in waiting:
        send(caller, data_name="slow")
        caller.run()
    send(channel, data_name="slow")
    channel.run()
    assert channel.refused() == 405
    plugin.open_gate()
    wait_for(waiting[0], lambda: len(plugin.requests) == 2)
    for caller in waiting:
        caller.declare()
    again = channel.client.channel(2)
    send(again, data_name="slow")
    wait_for(again, lambda: len(plugin.requests) == 3)


def test_a_caller_that_has_disconnected(site: Site, channel: Channel, plugin: Plugin) -> None:
    send(channel, data_name="slow")
    wait_for(channel, lambda: len(plugin.requests) == 1)
    channel.client.drop()
    plugin.open_gate()
    other = connect(site).channel()
    send(other, data_name="slow")
    wait_for(other, lambda: len(plugin.requests) == 2)
    assert len(site.broker.holders) == 1


def test_the_example_of_the_documentation(
    tmp_path: Path, channel: Channel, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "amqp-0-9-classes.md").read_text("utf-8")
    found = re.search(r"```python\n([^`]*?amqp09\.tunnels.*?)```", page, re.DOTALL)
    assert found is not None and 'greeting = "greetings:take"' in page
    install(tmp_path, "greetings_" + plugin.name, found.group(1), greeting="take")
    out = tmp_path / "out"
    monkeypatch.setenv("GREETINGS", str(out))
    send(channel, b"hello", {"name": "you"}, data_name="greeting")
    wait_for(channel, lambda: out.exists() and out.read_text() == "user greets you: hello\n")
    send(channel, data_name="greeting")
    assert close_of(channel) == (406, "PRECONDITION_FAILED - tunnel handler 'greeting': greet whom?")


# Methods


def encoded(number: int, build: Callable[[Engine], object]) -> bytes:
    """Return frames as a client sends them on a channel."""
    engine = Engine(CLIENT, V0_9)
    engine.begin_open(number)
    build(engine)
    return engine.to_send()


def declare(queue: str) -> Callable[[Engine], object]:
    return lambda engine: engine.send(1, "queue.declare", {"queue": queue})


def tunnel(channel: Channel, body: bytes) -> None:
    send(channel, body, data_name="amqp")
    channel.run()


def test_tunnelled_methods_are_carried_out_and_answered(site: Site, channel: Channel) -> None:
    def build(engine: Engine) -> None:
        engine.send(1, "queue.declare", {"queue": "q"})
        header = encode_header(60, 5, {"content_type": "a/b"})
        engine.send_publish(1, make_address("", "q"), 0, header, b"hello", 5)
        engine.send(1, "basic.consume", {"queue": "q", "consumer_tag": "t", "no_ack": True})

    tunnel(channel, encoded(1, build))
    assert channel.client.take("queue.declare-ok", 1) is not None
    assert channel.client.take("basic.consume-ok", 1) is not None
    assert channel.delivered() == [b"hello"]
    assert [consumer.tag for consumer in site.vhost.queues["q"].consumers] == ["t"]


def test_one_method_without_a_frame(site: Site, channel: Channel) -> None:
    body = struct.pack(">HHH", 50, 10, 0) + b"\x05named" + b"\0" + bytes(4)
    tunnel(channel, body)
    answer = channel.client.take("queue.declare-ok", 1)
    assert answer is not None and answer.arguments["queue"] == "named"


def test_tunnelled_methods_precede_later_frames(site: Site) -> None:
    channel = connect(site).channel()
    channel.send("tx.select")
    send(
        channel,
        encoded(1, lambda engine: engine.send_publish(1, make_address("", "q"), 0, encode_header(60, 1, {}), b"1", 1)),
        data_name="amqp",
    )
    channel.publish(body=b"2")
    send(channel, encoded(1, lambda engine: engine.send(1, "tx.commit")), data_name="amqp")
    connect(site).channel().declare()
    channel.run()
    assert channel.client.take("tx.commit-ok", 1) is not None
    assert channel.bodies() == [b"1", b"2"]


def test_a_tunnelled_method_that_waits_for_the_disk(site: Site, channel: Channel) -> None:
    def build(engine: Engine) -> None:
        for name in ("one", "two"):
            engine.send(1, "queue.declare", {"queue": name, "durable": True})
        engine.send(1, "queue.delete", {"queue": "one"})

    send(channel, encoded(1, build), data_name="amqp")
    channel.send("queue.declare", queue="one", passive=True)
    channel.run()
    names = [item.name for item in channel.client.received if isinstance(item, Method)]
    assert names == ["queue.declare-ok", "queue.declare-ok", "queue.delete-ok", "channel.close"]


def test_a_large_body_within_a_tunnel(site: Site, channel: Channel) -> None:
    channel.declare()
    body = bytes(3_000_000)
    header = encode_header(60, len(body), {})
    tunnel(channel, encoded(1, lambda engine: engine.send_publish(1, make_address("", "q"), 0, header, body, len(body))))
    assert channel.bodies() == [body]


@pytest.mark.parametrize("count", [tunnel_methods.MAX_FRAMES, tunnel_methods.MAX_FRAMES + 1], ids=["most", "more"])
def test_the_methods_of_one_tunnel_are_limited(channel: Channel, count: int) -> None:
    """They are performed in one turn: more would delay other clients."""
    channel.declare()
    one = encoded(1, lambda engine: engine.send(1, "queue.purge", {"queue": "q", "nowait": True}))
    channel.publish()
    channel.run()
    tunnel(channel, one * count)
    if count > tunnel_methods.MAX_FRAMES:
        assert close_of(channel)[0] == 311
        channel = channel.client.channel(2)
        assert channel.bodies() == [b"m"], "none of them was carried out"
    else:
        assert channel.bodies() == []


def test_a_tunnelled_upload(site: Site, channel: Channel) -> None:
    def build(engine: Engine) -> None:
        engine.send(1, "file.open", {"identifier": "f", "content_size": 3})
        header = encode_header(70, 3, {}, version=V0_9)
        engine.send_content(1, "file.stage", {}, header, b"abc")
        engine.send(1, "file.publish", {"routing_key": "q", "identifier": "f"})

    channel.declare()
    tunnel(channel, encoded(1, build))
    assert site.vhost.queues["q"].ready_count == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (method(1, 50, 30, b"\0\0\x04none\0"), 404),
        (method(1, 60, 77), 540),
        (method(1, 50, 30, b"\0\0\x09none\0"), 502),
        (method(2, 50, 30, b"\0\0\x04none\0"), 504),
        (frame(3, 1, b"body"), 501),
        (frame(99, 1, b""), 501),
        (frame(4, 1, b""), 504),
        (frame(1, 1, b"\0\x3c\0\x1e", end=3), 501),
        (method(1, 20, 40, struct.pack(">H", 200) + b"\0" + bytes(4)), 503),
        (method(1, 20, 20, b"\0"), 503),
        (method(1, 20, 10, b"\0"), 504),
        (method(2, 20, 10, b"\0"), 503),
        (method(0, 10, 50, struct.pack(">H", 200) + b"\0" + bytes(4)), 503),
        (method(1, 60, 40, b"\0\0\0\x01q\0"), 501),
        (method(1, 50, 30, b"\0\0\x04none\0")[:-3], 501),
        (b"\0\x32", 501),
        (b"\0\x32\0\x1e\0\0\x04none\0", 404),
        (b"\x01", 501),
    ],
    ids=lambda value: None if isinstance(value, int) else value.hex()[:60],
)
def test_errors_within_a_tunnel(site: Site, body: bytes, code: int) -> None:
    channel = connect(site).channel()
    tunnel(channel, body)
    assert channel.client.refusal()[0] == code
    assert channel.client.is_open == (code == 404)


def test_an_empty_tunnel_does_nothing(channel: Channel) -> None:
    tunnel(channel, b"")
    tunnel(channel, frame(7, 0, b"trace") + frame(8, 0, b""))
    channel.declare()


def test_a_tunnel_in_a_tunnel(site: Site, channel: Channel) -> None:
    def build(engine: Engine) -> None:
        engine.send(1, "queue.declare", {"queue": "before"})
        engine.send_content(1, "tunnel.request", {"meta_data": {}}, content(b"", data_name="amqp"), b"")

    tunnel(channel, encoded(1, build))
    assert channel.client.refusal()[0] == 503
    assert "before" not in site.vhost.queues


def test_methods_after_a_refused_one_are_not_performed(site: Site, channel: Channel) -> None:
    def build(engine: Engine) -> None:
        engine.send(1, "queue.declare", {"queue": "none", "passive": True})
        engine.send(1, "queue.declare", {"queue": "behind"})

    tunnel(channel, encoded(1, build))
    assert channel.client.refusal()[0] == 404
    assert "behind" not in site.vhost.queues and channel.client.is_open


def test_permissions_apply_in_a_tunnel(site: Site) -> None:
    site.allow("poor", "/", Permission("none", "none", "none"))
    channel = connect(site, user="poor").channel()
    tunnel(channel, encoded(1, declare("q")))
    assert channel.client.refusal()[0] == 403


def test_methods_in_requests_are_not_tunnelled(site: Site) -> None:
    client = Client(site)
    plain = client.open_vhost

    def open_vhost() -> None:
        client.engine.use_requests()
        plain()

    client.open_vhost = open_vhost  # type: ignore[method-assign, assignment]
    client.open()
    channel = client.channel()
    tunnel(channel, encoded(1, declare("q")))
    assert channel.client.refusal()[0] == 540
