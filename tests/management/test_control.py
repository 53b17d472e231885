"""The control socket: requests and replies as lines of JSON, and who may connect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.parameters import OPERATOR, UNKNOWN, Setter
from leveret.management import control_client, control_socket
from leveret.management.control_client import CallFailed, NoBroker
from leveret.management.control_socket import MAX_PART_ITEMS, MAX_PART_SIZE, Call, ControlServer, SlicedList
from leveret.management.operations.operation import Operator
from leveret.management.socket_path import CONTROL_SOCKET, MAX_REQUEST_SIZE, short_path
from leveret.management.structs import Reply
from tests.management.harness import Harness


class Served:
    """A control server on the harness's loop, which runs in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / CONTROL_SOCKET
        self.harness = Harness()
        self.server = ControlServer(self.harness.admin, self.path)
        self.harness.loop.run_until_complete(self.server.start())
        self._thread = threading.Thread(target=self.harness.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.harness.loop).result(10)

    def exchange(self, octets: bytes, answers: int) -> list[dict[str, Any]]:
        """Send bytes, and return a number of replies."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            with short_path(self.path) as name:
                client.connect(name)
            # A broker that refuses a request does not read the rest of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(octets)
            with client.makefile("rb") as lines:
                return [json.loads(lines.readline()) for _ in range(answers)]

    def close(self) -> None:
        self.run(self.server.stop())
        self.harness.loop.call_soon_threadsafe(self.harness.loop.stop)
        self._thread.join()
        self.harness.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.close()


def test_a_call_and_its_result(served: Served) -> None:
    [answer] = served.exchange(b'{"v": 1, "call": "queues.add", "arguments": {"name": "q"}}\n', 1)
    assert answer["v"] == 1
    assert answer["result"]["name"] == "q"
    assert [item["name"] for item in control_client.call(served.directory, "queues.list", {"vhost": "/"})] == ["q"]


def test_replies_have_the_order_of_the_requests(served: Served) -> None:
    request = b'{"v": 1, "call": "queues.add", "arguments": {"name": "%d"}}\n'
    answers = served.exchange(b"".join(request % number for number in range(20)), 20)
    assert [answer["result"]["name"] for answer in answers] == [str(number) for number in range(20)]


@pytest.mark.parametrize(
    ("request_line", "condition"),
    [
        (b"garbage", "bad-request"),
        (b"[]", "bad-request"),
        (b"{}", "bad-request"),
        (b'{"v": 2, "call": "status"}', "bad-request"),
        (b'{"v": 1, "call": 1}', "bad-request"),
        (b'{"v": 1, "call": "nothing"}', "bad-call"),
        (b"\xff\xfe", "bad-request"),
        (b'{"v": 1, "call": "queues.list", "arguments": [1]}', "bad-call"),
        (b'{"v": 1, "call": "queues.show", "arguments": {"name": "no"}}', "not-found"),
    ],
)
def test_a_bad_request_only_gets_an_error(served: Served, request_line: bytes, condition: str) -> None:
    error, status = served.exchange(request_line + b'\n{"v": 1, "call": "status"}\n', 2)
    assert error["error"]["condition"] == condition
    assert error["error"]["text"]
    assert status["result"]["vhosts"] == 1


def test_a_request_without_end_is_refused(served: Served) -> None:
    [answer] = served.exchange(b"x" * (MAX_REQUEST_SIZE + 70000), 1)
    assert answer["error"]["condition"] == "bad-request"


def test_an_internal_error_is_answered_and_logged(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(served.harness.managed, "facts", lambda: 1 / 0)
    with pytest.raises(CallFailed, match="internal error; see the broker's log"):
        control_client.call(served.directory, "status")
    assert "ZeroDivisionError" in caplog.text


def test_a_long_list_is_sent_in_parts(served: Served) -> None:
    total = 2 * MAX_PART_ITEMS + 1
    vhost = served.harness.broker.vhosts["/"]

    async def fill() -> None:
        for number in range(total - len(vhost.exchanges)):
            vhost.declare_exchange(f"e{number}", "fanout")

    served.run(fill())
    assert len(control_client.call(served.directory, "exchanges.list")) == total
    answers = served.exchange(b'{"v": 1, "call": "exchanges.list"}\n', 3)
    assert [len(answer.get("part") or answer["result"]) for answer in answers] == [MAX_PART_ITEMS, MAX_PART_ITEMS, 1]


def test_items_that_take_long_are_produced_in_several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(step=control_socket.MAX_SLICE_TIME / 2)
    monkeypatch.setattr("leveret.management.control_socket.time.perf_counter", lambda: next(clock))
    items = SlicedList(Reply() for _ in range(5))
    slices = []
    while not items.take():
        assert not items.is_full()
        slices.append(len(items.part()))
    assert slices == [2, 2]
    assert len(items.part()) == 1


def test_only_the_owner_may_connect(served: Served) -> None:
    mode = served.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_stopping_removes_the_socket_and_drops_clients(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        with short_path(served.path) as name:
            client.connect(name)
        client.sendall(b'{"v": 1, "call": "status"}\n')
        assert client.recv(1)
        served.close()
        while client.recv(65536):
            pass
    assert not served.path.exists()
    with pytest.raises(NoBroker, match="no broker is running on"):
        control_client.call(tmp_path, "status")


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, short_path(tmp_path / CONTROL_SOCKET) as name:
        dead.bind(name)
    with pytest.raises(NoBroker, match="no broker is running on"):
        control_client.call(tmp_path, "status")
    served = Served(tmp_path)
    assert control_client.call(tmp_path, "status")["vhosts"] == 1
    served.close()


def test_the_socket_of_another_broker_is_left_alone(served: Served) -> None:
    harness = Harness()
    with pytest.raises(OSError, match="another broker uses this directory"):
        harness.loop.run_until_complete(ControlServer(harness.admin, served.path).start())
    harness.close()
    assert control_client.call(served.directory, "status")["vhosts"] == 1


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / CONTROL_SOCKET).write_text("mine")
    harness = Harness()
    with pytest.raises(OSError, match="in use"):
        harness.loop.run_until_complete(ControlServer(harness.admin, tmp_path / CONTROL_SOCKET).start())
    harness.close()
    assert (tmp_path / CONTROL_SOCKET).read_text() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="long socket paths need /proc/self/fd")
def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    served = Served(directory)
    assert control_client.call(directory, "status")["vhosts"] == 1
    served.close()
    assert not served.path.exists()


def test_no_directory_at_all(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / ("x" * 200)):
        with pytest.raises(NoBroker, match="leveret serve --data-dir"):
            control_client.call(path, "status")


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        with short_path(tmp_path / CONTROL_SOCKET) as name:
            silent.bind(name)
        silent.listen()
        with pytest.raises(NoBroker, match="did not answer within"):
            control_client.call(tmp_path, "status", timeout=0.05)


def test_a_broker_that_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        with short_path(tmp_path / CONTROL_SOCKET) as name:
            listener.bind(name)
        listener.listen()

        def hang_up() -> None:
            client, _ = listener.accept()
            client.recv(65536)
            client.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(NoBroker, match="closed the control connection"):
            control_client.call(tmp_path, "status")
        thread.join()


@pytest.mark.parametrize("sent", [b"x" * 2000, b'{"v":1,"part":[1,2,3]}\n' * 100], ids=["line", "parts"])
def test_an_answer_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(control_client, "MAX_ANSWER", 10_000)
    with socket.socket(socket.AF_UNIX) as listener:
        with short_path(tmp_path / CONTROL_SOCKET) as name:
            listener.bind(name)
        listener.listen()

        def send() -> None:
            client, _ = listener.accept()
            with client, pytest.raises(ConnectionError):
                while True:
                    client.sendall(sent)

        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(CallFailed, match=r"the answer of the broker on .* has more than"):
            control_client.call(tmp_path, "status")
        thread.join()


def test_a_part_of_a_list_of_wide_items_has_fewer_of_them(served: Served) -> None:
    wide = {f"argument{number}": "x" * 50 for number in range(500)}
    for number in range(20):
        served.run(served.harness.admin.call("queues.add", {"name": f"wide{number}", "arguments": wide}, Operator()))
    request = json.dumps({"v": 1, "call": "queues.list", "arguments": {}}).encode() + b"\n"
    parts = served.exchange(request, 3)
    assert all(0 < len(json.dumps(answer["part"])) < 2 * MAX_PART_SIZE for answer in parts[:2])
    assert len(control_client.call(served.directory, "queues.list")) == 20


@pytest.mark.parametrize(
    ("origin", "setter"),
    [
        ({}, OPERATOR),
        ({"origin": {"user": "os-user", "source": "control socket"}}, OPERATOR),
        ({"origin": {"user": "u", "source": "HTTP", "login": "password"}}, Setter("u")),
        # The name of a token's user says nothing about a user of the store with the same name.
        ({"origin": {"user": "u", "source": "HTTP", "login": "token"}}, UNKNOWN),
        ({"origin": {"user": "u", "login": "other"}}, UNKNOWN),
    ],
)
def test_the_setter_of_parameters(origin: dict[str, Any], setter: Setter) -> None:
    assert Call(b"", {"v": 1, "call": "parameters.set", **origin}, ("", "")).setter == setter
