"""Garbage causes a protocol error and nothing else, and the commands do not depend on how the bytes are split."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from leveret.wire.amqp0 import states
from leveret.wire.amqp0.commands import (
    CHANNEL_SCOPE,
    CONNECTION_SCOPE,
    SOCKET_SCOPE,
    Command,
    ContentPart,
    ContentStart,
    Error,
    Publish,
)
from leveret.wire.amqp0.dialects import QPID, RABBITMQ
from leveret.wire.amqp0.engine import CLIENT, SERVER, Engine
from leveret.wire.amqp0.methods import encode_arguments
from leveret.wire.amqp0.model import MethodSpec, Version
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.support.examples import examples
from tests.wire.amqp0.peers import content_header, frame, method, open_pair, publish_frames, publish_method, shape
from tests.wire.amqp0.strategies import arguments_of

CODES = {311, 501, 502, 503, 504, 505, 530, 540}
properties = arguments_of(V0_9_1.classes[60].properties)


def engine_for(role: int, version: Version, opened: bool) -> Engine:
    if opened:
        pair = open_pair(1, 2, version=version, max_body_size=2000, spool_threshold=300)
        return pair.server if role == SERVER else pair.client
    engine = Engine(role, version)
    if role == SERVER:
        engine.send(0, "connection.start")
        engine.to_send()
    return engine


def check(commands: list[Command], engine: Engine) -> None:
    """Check the invariants of a list of commands for any input."""
    for position, command in enumerate(commands):
        if isinstance(command, Error):
            assert command.code in CODES
            assert command.text
            if command.scope in (CONNECTION_SCOPE, SOCKET_SCOPE):
                assert position == len(commands) - 1
                assert engine.state in (states.FAILED, states.CLOSED)
            else:
                assert command.scope == CHANNEL_SCOPE
                assert not engine.is_open(command.channel)
        if isinstance(command, Publish):
            size = sum(map(len, command.body)) if isinstance(command.body, list) else len(command.body)
            assert size == (0 if command.spooled else command.size)
            assert decode_header(command.header, engine.dialect, engine.version)[1] == command.size


def session(draw: Any, version: Version) -> list[bytes]:
    """Frames that a client may send on two open channels."""
    methods: list[MethodSpec] = [
        spec
        for spec in version.methods.values()
        if spec.server_receives and not spec.content and spec.class_id not in (10, 20)
    ]
    dialect = QPID if version is V0_9 else RABBITMQ
    frames = []
    for _ in range(draw(st.integers(1, 8))):
        channel = draw(st.integers(1, 2))
        match draw(st.sampled_from(["publish", "repeat", "split", "method", "settle", "heartbeat"])):
            case "publish":
                frames.append(
                    publish_frames(
                        channel, draw(st.binary(max_size=400)), flags=draw(st.integers(0, 3)), **draw(properties)
                    )
                )
            case "repeat":
                frames.extend([publish_frames(channel, b"same", delivery_mode=2)] * draw(st.integers(1, 4)))
            case "split":
                body = draw(st.binary(min_size=1, max_size=400))
                at = draw(st.integers(0, len(body)))
                frames.append(
                    publish_method(channel)
                    + content_header(channel, len(body))
                    + frame(3, channel, body[:at])
                    + (frame(3, channel, body[at:]) if at < len(body) else b"")
                )
            case "method":
                spec = draw(st.sampled_from(methods))
                frames.append(frame(1, channel, encode_arguments(spec, draw(arguments_of(spec.fields)), dialect)))
            case "settle":
                frames.append(method(channel, 60, draw(st.sampled_from([80, 90])), draw(st.binary(min_size=9, max_size=9))))
            case _:
                frames.append(frame(8, 0, b""))
    return frames


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([SERVER, CLIENT]), st.sampled_from([V0_9_1, V0_9]), st.booleans(), st.lists(st.binary(max_size=80)))
@example(SERVER, V0_9_1, True, [b"\x01\0\x01\0\0\0\x09\0\x3c\0\x28\0\0\0\0\0\xce" * 3])
def test_random_bytes(role: int, version: Version, opened: bool, pieces: list[bytes]) -> None:
    engine = engine_for(role, version, opened)
    for piece in pieces:
        check(engine.receive(piece), engine)


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([SERVER, CLIENT]),
    st.sampled_from([V0_9_1, V0_9]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2, 3, 8, 4]),
            st.sampled_from([0, 1, 2, 3, 65535]),
            st.sampled_from([10, 20, 40, 50, 60, 70, 80, 90, 120, 7]),
            st.integers(0, 125),
            st.binary(max_size=40),
        )
    ),
)
def test_random_frames(role: int, version: Version, opened: bool, frames: list[tuple[int, int, int, int, bytes]]) -> None:
    engine = engine_for(role, version, opened)
    for type, channel, class_id, method_id, rest in frames:
        payload = (class_id << 16 | method_id).to_bytes(4, "big") + rest if type < 3 else rest
        check(engine.receive(frame(type, channel, payload)), engine)


@pytest.mark.parametrize("version", [V0_9_1, V0_9], ids=lambda version: version.name)
@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_however_a_session_is_cut_the_commands_are_the_same(version: Version, data: st.DataObject) -> None:
    octets = b"".join(session(data.draw, version))
    engine = engine_for(SERVER, version, True)
    whole = engine.receive(octets)
    check(whole, engine)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=12)))
    edges = [0, *cuts, len(octets)]
    engine = engine_for(SERVER, version, True)
    pieces = [command for start, end in pairwise(edges) for command in engine.receive(octets[start:end])]
    assert [shape(command) for command in pieces] == [shape(command) for command in whole]
    engine = engine_for(SERVER, version, True)
    singles = [command for at in range(len(octets)) for command in engine.receive(octets[at : at + 1])]
    assert [shape(command) for command in singles] == [shape(command) for command in whole]


@pytest.mark.parametrize("version", [V0_9_1, V0_9], ids=lambda version: version.name)
@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_sessions(version: Version, data: st.DataObject) -> None:
    octets = bytearray(b"".join(session(data.draw, version)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(octets)))
        match data.draw(st.sampled_from(["set", "delete", "insert", "repeat", "swap"])):
            case "set" if at < len(octets):
                octets[at] = data.draw(st.integers(0, 255))
            case "delete":
                del octets[at : at + data.draw(st.integers(1, 30))]
            case "insert":
                octets[at:at] = data.draw(st.binary(max_size=20))
            case "repeat":
                octets[at:at] = octets[at : at + data.draw(st.integers(1, 60))]
            case _:
                middle = data.draw(st.integers(0, len(octets)))
                octets = octets[middle:] + octets[:middle]
    whole = engine_for(SERVER, version, True)
    commands = whole.receive(bytes(octets))
    check(commands, whole)
    # The same commands and the same error, however the bytes are split.
    single = engine_for(SERVER, version, True)
    pieces = [command for at in range(len(octets)) for command in single.receive(bytes(octets[at : at + 1]))]
    assert [shape(command) for command in pieces] == [shape(command) for command in commands]
    assert single.state == whole.state
    # Later input is ignored.
    if commands and isinstance(commands[-1], Error) and commands[-1].scope != CHANNEL_SCOPE:
        assert whole.receive(publish_frames(1, b"x")) == []


@examples(50, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_data_after_the_start_of_a_spooled_body_belongs_to_its_publish(data: st.DataObject) -> None:
    engine = engine_for(SERVER, V0_9_1, True)
    body = bytes(number % 251 for number in range(data.draw(st.integers(301, 2000))))
    octets = publish_method(1) + content_header(1, len(body), **data.draw(properties))
    at = 0
    while at < len(body):
        length = data.draw(st.integers(1, 500))
        octets += frame(3, 1, body[at : at + length])
        at += length
    commands = engine.receive(octets)
    start, *parts, publish = commands
    assert isinstance(start, ContentStart)
    assert isinstance(publish, Publish)
    assert start.publish is publish
    assert b"".join(part.data for part in parts if isinstance(part, ContentPart)) == body
    assert len(parts) == len([part for part in parts if isinstance(part, ContentPart)])


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(1, 2), st.binary(max_size=6000), properties, st.integers(0, 3)), max_size=8),
    st.integers(4096, 9000),
    st.integers(1, 5000),
)
def test_a_client_and_a_server_understand_each_other(
    contents: list[tuple[int, bytes, dict[str, Any], int]], frame_max: int, cut: int
) -> None:
    pair = open_pair(1, 2, frame_max=frame_max)
    expected = []
    for number, (channel, body, chosen, flags) in enumerate(contents):
        header = encode_header(60, len(body), chosen)
        if len(header) > frame_max - 8:
            continue
        address = bytes((1, 101, flags)) + b"k" * flags
        pair.client.send_publish(channel, address, flags, header, body, len(body))
        pair.server.send_deliver(channel, b"t%d" % flags, number, number % 2 == 1, address, header, [body], len(body))
        expected.append((channel, address, header, len(body), body))
    for sender, receiver in ((pair.client, pair.server), (pair.server, pair.client)):
        octets = sender.to_send()
        commands = [command for at in range(0, len(octets), cut) for command in receiver.receive(octets[at : at + cut])]
        got = []
        for command in commands:
            fields = shape(command)[1]
            got.append((fields["channel"], fields["address"], fields["header"], fields["size"], fields["body"]))
        assert got == expected
