"""A socket that is lost after the last reply, before the waiting procedure resumes."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.client.engine.amqp091 import connection as states
from leveret.client.engine.amqp091.connection import ConnectionCore
from leveret.client.engine.amqp091.recovery import recover
from leveret.client.engine.common.connection import RECOVERING
from leveret.client.engine.common.frontend import FrontEnd
from leveret.client.errors import ConnectionLost
from leveret.client.events import Event
from leveret.client.parameters import Parameters


class Waiter:
    def __init__(self) -> None:
        self.result: Any = None

    def done(self) -> bool:
        return self.result is not None

    def set_result(self, result: Any, /) -> None:
        self.result = result

    def set_exception(self, exception: BaseException, /) -> None:
        self.result = exception


class Idle(FrontEnd):
    """A front end without a socket."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def new_waiter(self) -> Waiter:
        return Waiter()

    def flush_soon(self) -> None: ...

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close_socket(self) -> None: ...

    def reconnect(self) -> None: ...


def test_recovery_fails_on_a_lost_socket() -> None:
    host = Idle()
    core = ConnectionCore(host, Parameters())
    core.state = RECOVERING
    core.lost(ConnectionLost("cut"))
    with pytest.raises(ConnectionLost, match="cut"):
        for _ in recover(core):
            pass
    assert core.is_lost
    assert not core.opened
    assert host.events == []


def test_recovery_opens_no_channel_on_a_lost_socket() -> None:
    core = ConnectionCore(Idle(), Parameters())
    core.state = RECOVERING
    channel = core.new_channel(confirms=True, transactional=False)
    core.lost(ConnectionLost("cut"))
    with pytest.raises(ConnectionLost, match="cut"):
        next(recover(core))
    assert not channel.opened


def test_handshake_fails_on_a_lost_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ConnectionCore(Idle(), Parameters())

    def lost_at_the_end(connection: ConnectionCore) -> Any:
        connection.lost(ConnectionLost("cut"))
        yield from ()

    monkeypatch.setattr(states, "handshake", lost_at_the_end)
    with pytest.raises(ConnectionLost, match="cut"):
        for _ in core.handshake(Parameters()):
            pass
    assert core.is_lost
