"""The state machines, row by row: transitions in the table are accepted, all others are refused."""

from __future__ import annotations

import pytest

from leveret.wire.amqp0 import states
from leveret.wire.amqp0.commands import CONNECTION_SCOPE, Error, Method
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.engine import CLIENT, SERVER, Engine
from leveret.wire.amqp0.methods import encode_arguments
from leveret.wire.amqp0.model import MethodSpec
from leveret.wire.amqp0.specs import V0_9_1
from tests.wire.amqp0.peers import content_header, frame, names, open_server, publish_method

CONNECTION_METHODS = [spec for spec in V0_9_1.methods.values() if spec.class_id == 10]
CHANNEL_METHODS = [spec for spec in V0_9_1.methods.values() if spec.class_id == 20]
ROLES = pytest.mark.parametrize("role", [SERVER, CLIENT], ids=["server", "client"])


def arguments_of(spec: MethodSpec) -> dict[str, int]:
    return {"frame_max": 131072} if spec.name in ("connection.tune", "connection.tune-ok") else {}


def octets_of(spec: MethodSpec, channel: int) -> bytes:
    return frame(1, channel, encode_arguments(spec, arguments_of(spec), RABBITMQ))


def may_receive(spec: MethodSpec, role: int) -> bool:
    return spec.server_receives if role == SERVER else spec.client_receives


def may_send(spec: MethodSpec, role: int) -> bool:
    return spec.client_receives if role == SERVER else spec.server_receives


# The methods that lead to a state, in order. Each method determines its sender.
PATHS: dict[int, list[str]] = {
    states.START: [],
    states.START_OK: ["connection.start"],
    states.SECURE_OR_TUNE: ["connection.start", "connection.start-ok"],
    states.SECURE_OK: ["connection.start", "connection.start-ok", "connection.secure"],
    states.TUNE_OK: ["connection.start", "connection.start-ok", "connection.tune"],
    states.OPEN: ["connection.start", "connection.start-ok", "connection.tune", "connection.tune-ok"],
}
PATHS[states.OPEN_OK] = [*PATHS[states.OPEN], "connection.open"]
PATHS[states.OPENED] = [*PATHS[states.OPEN_OK], "connection.open-ok"]


def step(engine: Engine, role: int, name: str) -> None:
    spec = V0_9_1.by_name[name]
    if may_send(spec, role):
        engine.send(0, name, arguments_of(spec))
        engine.to_send()
    else:
        assert names(engine.receive(octets_of(spec, 0))) == [name]


def engine_in(state: int, role: int) -> Engine:
    engine = Engine(role, V0_9_1)
    for name in PATHS.get(state, PATHS[states.OPENED]):
        step(engine, role, name)
    if state == states.FAILED:
        engine.receive(frame(9, 0, b""))
    if state in (states.CLOSING, states.CLOSED):
        engine.send(0, "connection.close")
    if state == states.CLOSED:
        engine.receive(octets_of(V0_9_1.by_name["connection.close-ok"], 0))
    if state == states.CLOSE_RECEIVED:
        engine.receive(octets_of(V0_9_1.by_name["connection.close"], 0))
    engine.to_send()
    assert engine.state == state
    return engine


@ROLES
@pytest.mark.parametrize("state", range(len(states.STATE_NAMES)), ids=states.STATE_NAMES)
def test_every_connection_method_in_every_state_received(state: int, role: int) -> None:
    for spec in CONNECTION_METHODS:
        engine = engine_in(state, role)
        commands = engine.receive(octets_of(spec, 0))
        following = states.CONNECTION.get((state, states.RECEIVED, spec.name))
        if state in (states.FAILED, states.CLOSE_RECEIVED, states.CLOSED):
            assert commands == []
            assert engine.state == state
        elif state == states.CLOSING and spec.name not in ("connection.close", "connection.close-ok"):
            assert commands == []
        elif following is None or not may_receive(spec, role):
            (error,) = commands
            assert isinstance(error, Error), spec.name
            assert (error.code, error.scope, error.class_id, error.method_id) == (503, CONNECTION_SCOPE, 10, spec.method_id)
            assert engine.state == states.FAILED
        else:
            assert names(commands) == [spec.name]
            assert engine.state == following


@ROLES
@pytest.mark.parametrize("state", range(len(states.STATE_NAMES)), ids=states.STATE_NAMES)
def test_every_connection_method_in_every_state_sent(state: int, role: int) -> None:
    for spec in CONNECTION_METHODS:
        engine = engine_in(state, role)
        following = states.CONNECTION.get((state, states.SENT, spec.name))
        if not may_send(spec, role) or (following is None and state < states.FAILED):
            with pytest.raises(ValueError, match=spec.name):
                engine.send(0, spec.name)
            assert engine.to_send() == b""
        elif following is None:
            engine.send(0, spec.name)
            assert engine.to_send() == b""
            assert engine.state == state
        else:
            engine.send(0, spec.name, arguments_of(spec))
            assert engine.to_send() == octets_of(spec, 0)
            assert engine.state == following


@ROLES
@pytest.mark.parametrize("state", range(len(states.STATE_NAMES)), ids=states.STATE_NAMES)
def test_can_close_says_whether_close_can_be_sent(state: int, role: int) -> None:
    engine = engine_in(state, role)
    expected = engine.can_close
    try:
        engine.send(0, "connection.close")
    except ValueError:
        assert not expected
    assert bool(engine.to_send()) == expected


@ROLES
@pytest.mark.parametrize("state", range(len(states.STATE_NAMES)), ids=states.STATE_NAMES)
def test_other_classes_need_an_open_connection(state: int, role: int) -> None:
    engine = engine_in(state, role)
    name = "channel.open" if role == SERVER else "channel.flow"
    commands = engine.receive(octets_of(V0_9_1.by_name[name], 1))
    if state >= states.FAILED:
        assert commands == []
    elif state in states.USABLE:
        # To a client, a channel that it has not opened.
        codes = [command.code for command in commands if isinstance(command, Error)]
        assert (names(commands), codes) == ((["channel.open"], []) if role == SERVER else (["Error"], [504]))
    else:
        assert [command.code for command in commands if isinstance(command, Error)] == [503]


def channel_in(state: int) -> Engine:
    """A server whose channel 1 is in the state."""
    engine = open_server(max_body_size=10)
    if state != states.CHANNEL_CLOSED:
        engine.receive(octets_of(V0_9_1.by_name["channel.open"], 1))
    if state == states.CHANNEL_FAILED:
        assert len(engine.receive(publish_method(1) + content_header(1, 11))) == 1
    if state == states.CHANNEL_CLOSING:
        engine.send(1, "channel.close")
    engine.to_send()
    return engine


CHANNEL_STATES = pytest.mark.parametrize(
    "state",
    [states.CHANNEL_CLOSED, states.CHANNEL_OPEN, states.CHANNEL_FAILED, states.CHANNEL_CLOSING],
    ids=["closed", "open", "failed", "closing"],
)


@CHANNEL_STATES
def test_every_channel_method_in_every_state_received(state: int) -> None:
    for spec in CHANNEL_METHODS:
        engine = channel_in(state)
        commands = engine.receive(octets_of(spec, 1))
        following = states.CHANNEL.get((state, states.RECEIVED, spec.name))
        discards = state in (states.CHANNEL_FAILED, states.CHANNEL_CLOSING)
        if spec.name == "channel.close-ok" and state == states.CHANNEL_FAILED:
            # Our close was not sent, so it cannot have been answered.
            assert [command.code for command in commands if isinstance(command, Error)] == [503]
        elif discards and spec.name not in ("channel.close", "channel.close-ok"):
            assert commands == []
        elif following is None or not spec.server_receives:
            (error,) = commands
            assert isinstance(error, Error)
            known = {"channel.open": 504} if state == states.CHANNEL_OPEN else {}
            expected = 504 if state == states.CHANNEL_CLOSED and spec.server_receives else known.get(spec.name, 503)
            assert error.code == expected, spec.name
            assert error.scope == CONNECTION_SCOPE
        else:
            assert names(commands) == [spec.name]
            (command,) = commands
            assert isinstance(command, Method)
            assert engine.is_open(1) == (following == states.CHANNEL_OPEN)


@CHANNEL_STATES
def test_every_channel_method_in_every_state_sent(state: int) -> None:
    for spec in CHANNEL_METHODS:
        if not spec.client_receives:
            continue
        engine = channel_in(state)
        following = states.CHANNEL.get((state, states.SENT, spec.name))
        if following is None and state == states.CHANNEL_OPEN:
            with pytest.raises(ValueError, match=spec.name):
                engine.send(1, spec.name)
        else:
            engine.send(1, spec.name)
        # There was no close for close-ok to answer.
        assert bool(engine.to_send()) == (following is not None and spec.name != "channel.close-ok"), spec.name


def test_every_method_of_the_two_classes_has_a_row() -> None:
    in_rows = {name for _, _, name in (*states.CONNECTION, *states.CHANNEL)}
    assert in_rows >= {spec.name for spec in (*CONNECTION_METHODS, *CHANNEL_METHODS)}


def test_final_states() -> None:
    leaving = {state for state, _, _ in states.CONNECTION}
    assert set(range(len(states.STATE_NAMES))) - leaving == {states.CLOSED}
    reached = set(states.CONNECTION.values()) | {states.START, states.FAILED}
    assert reached == set(range(len(states.STATE_NAMES)))
